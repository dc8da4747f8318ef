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
    """Makes, of a plan's `enqueue`, the device's index, `stream` and `capturing` of that device,
    and the types of `news` tensors, a function that allocates these, enqueues the plan on the
    addresses of all tensors, and returns the first `results` of the new ones (the others go back
    to the allocator, which reuses memory in stream order). With a `mask` it returns None where a
    given tensor's address has one of these bits. The addresses of the last `behind` tensors, a
    workspace, stand behind those of the new ones."""
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
    """Makes, of a `pack_into`, a buffer and an offset per slot, a function of the addresses of all
    roots that writes each slot: the address of its root (`roots` gives the position) plus its
    offset."""
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


@lru_cache(MAX_TEXTS)
def launcher(
    count: int, roots: tuple[int, ...], is_moved: tuple[bool, ...], launches: int
) -> Callable[..., Any]:
    """Makes, of a plan, its lock and buffer, a `pack_into`, the driver's launch, the offsets of the
    slots that lie behind their roots (`is_moved`), and of each launch its configuration, kernel and
    table, a function of the addresses of `count` roots and a stream. It writes the slots as
    `address_writer` does, and launches one after the other."""
    given = [f"a{k}" for k in range(count)]
    offsets = [f"o{k}" for k, moved in enumerate(is_moved) if moved]
    slots = [
        f"a{r} + o{k}" if moved else f"a{r}"
        for k, (r, moved) in enumerate(zip(roots, is_moved, strict=True))
    ]
    known = [f"config{k}, kernel{k}, table{k}" for k in range(launches)]
    first = ["plan", "lock", "buffer", "pack", "launch", *offsets, *known]
    lines = [
        f"def bind({', '.join(first)}):",
        f"  def enqueue({', '.join([*given, 'stream'])}):",
        "    with lock:",
        f"      pack({', '.join(['buffer', '0', *slots])})",
        "      if stream != plan.stream: plan.move_to(stream)",
    ]
    for k in range(launches):
        lines.append(f"      status = launch(config{k}, kernel{k}, table{k}, 0)")
        lines.append(f"      if status[0]: plan.check_launch({k}, status)")
    return _defined([*lines, "  return enqueue"])


def _defined(lines: Sequence[str]) -> Callable[..., Any]:
    """The function `bind` of a text."""
    names: dict[str, Any] = {"__builtins__": {}}
    exec("\n".join(lines), names)  # the text is made of numbered names and positions
    return names["bind"]
