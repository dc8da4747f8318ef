"""Functions of a steady call, written out for a number of arrays: no loop, no list on the way.

A loop over two arrays costs the interpreter as much as what it does with them. Texts depend on
counts alone, never on a caller's names or sizes, and each is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

MAX_TEXTS = 1024
"""Texts of each sort that are kept; one is a kilobyte or two."""

Allocator: TypeAlias = Callable[[Any, Any, Any], Any]
"""Shape, strides and dtype to a new tensor."""
Steady: TypeAlias = Callable[[Sequence[Any], Allocator], "list[Any] | None"]
"""Tensors and an allocator to new tensors, made by a program that has been enqueued; None, and
nothing enqueued, where the addresses of the tensors are checked and one is not aligned."""


@lru_cache(MAX_TEXTS)
def steady_call(
    tensors: int, news: int, results: int, is_graph: bool, mask: int = 0, behind: int = 0
) -> Callable[..., Steady]:
    """The `bind` of a call that takes so many `tensors` and allocates `news`. For two and one:

        def bind(enqueue, index, stream, capturing, shape0, strides0, dtype0):
          def call(tensors, empty):
            [x0, x1] = tensors
            r0 = empty(shape0, strides0, dtype0)
            enqueue((x0.data_ptr(), .., r0.data_ptr()), stream(index), index, graph=False)
            return [r0]
          return call

    The call returns the first `results` of the new tensors; the others are scratch and go back to
    the allocator, which reuses memory in stream order. With a `mask` it returns None, and enqueues
    nothing, where a given tensor's address has one of these bits. The last `behind` of the given
    tensors are a workspace, whose addresses stand behind those of the new ones. `is_graph`: the
    plan is enqueued as a CUDA graph, unless the stream is being captured."""
    given = [f"x{k}" for k in range(tensors)]
    made = [f"r{k}" for k in range(news)]
    types = [f"shape{k}, strides{k}, dtype{k}" for k in range(news)]
    known = [f"a{k}" for k in range(tensors)]
    check = [f"    {a} = {x}.data_ptr()" for a, x in zip(known, given, strict=True)]
    check.append(f"    if ({' | '.join(known)}) & {mask}: return None")
    first = [f"{a}, " for a in known] if mask else [f"{x}.data_ptr(), " for x in given]
    first[tensors - behind : tensors - behind] = [f"{r}.data_ptr(), " for r in made]
    addresses = "".join(first)
    graph = "not capturing()" if is_graph else "False"
    return _defined(
        [
            f"def bind({', '.join(['enqueue', 'index', 'stream', 'capturing', *types])}):",
            "  def call(tensors, empty):",
            f"    [{', '.join(given)}] = tensors",
            *(check if mask else ()),
            *(f"    {r} = empty({t})" for r, t in zip(made, types, strict=True)),
            f"    enqueue(({addresses}), stream(index), index, graph={graph})",
            f"    return [{', '.join(made[:results])}]",
            "  return call",
        ]
    )


@lru_cache(MAX_TEXTS)
def address_writer(roots: tuple[int, ...]) -> Callable[..., Callable[[Sequence[int]], None]]:
    """The `bind` of a function that writes a launch's addresses, given those of all roots. Slot k
    holds the address of the root at position `roots[k]` and an offset behind it. For (0, 0, 2):

        def bind(pack, buffer, o0, o1, o2):
          def write(roots):
            pack(buffer, 0, roots[0] + o0, roots[0] + o1, roots[2] + o2)
          return write

    `pack` is the `pack_into` of a `struct.Struct`."""
    offsets = [f"o{k}" for k in range(len(roots))]
    slots = [f"roots[{r}] + {o}" for r, o in zip(roots, offsets, strict=True)]
    return _defined(
        [
            f"def bind({', '.join(['pack', 'buffer', *offsets])}):",
            "  def write(roots):",
            f"    pack({', '.join(['buffer', '0', *slots])})",
            "  return write",
        ]
    )


def launch_lines(
    launches: int, slots: Sequence[str], name: Callable[[str], str], stream: str
) -> list[str]:
    """The lines that write the addresses `slots` and launch so many kernels one after the other,
    for a function whose name for what they read is `name` of it. For two slots and one launch:

        pack(buffer, 0, x_at, x_at + 64)
        if stream != plan.stream: plan.move_to(stream)
        status = launch(config0, kernel0, table0, 0)
        if status[0]: plan.check_launch(0, status)

    `pack` is the `pack_into` of a `struct.Struct`. Nobody else may write the buffer meanwhile. The
    lines stand in the caller's text because a call of a function with so many addresses takes
    longer than to write them."""
    plan, status = name("plan"), name("status")
    lines = [
        f"{name('pack')}({', '.join([name('buffer'), '0', *slots])})",
        f"if {stream} != {plan}.stream: {plan}.move_to({stream})",
    ]
    for k in range(launches):
        known = ", ".join(name(f"{what}{k}") for what in ("config", "kernel", "table"))
        lines.append(f"{status} = {name('launch')}({known}, 0)")
        lines.append(f"if {status}[0]: {plan}.check_launch({k}, {status})")
    return lines


def _defined(lines: Sequence[str]) -> Callable[..., Any]:
    """The function `bind` of a text."""
    names: dict[str, Any] = {"__builtins__": {}}
    exec("\n".join(lines), names)  # the text is made of numbered names and positions
    return names["bind"]
