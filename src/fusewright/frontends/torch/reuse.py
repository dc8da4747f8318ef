"""Which results of regions are made in the memory of earlier ones that nobody reads any more.

a = empty(..); launch_0(.., a); y = mm(a, w); b = empty(..); launch_1(y, b)
->
a = empty(..); launch_0(.., a); y = mm(a, w); b = a; launch_1(y, b)

To give a tensor back and take an equal one costs the host about as much as a launch.

checks:   both lie in the same way; every reader of the first one, and of views of it, is done, and
          is a kernel of ours or an operator that writes to nothing and keeps nothing, as the first
          call showed; nothing in between may have changed the stream; the memory that is kept
          meanwhile leaves the peak of the graph where it is
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.calls import is_getitem, shows_memory
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.lying import Lying, is_plain
from fusewright.frontends.torch.partition import nbytes

Result: TypeAlias = tuple[Any, int]
"""The call of a region, and the number of one of its results."""


@dataclass(frozen=True, slots=True)
class _Life:
    """From the node that makes a tensor to the last one that reads its memory, by position."""

    first: int
    last: int
    nbytes: int


def reused(
    graph: Any,
    found: Mapping[Any, Lying],
    lying: Mapping[Any, Mapping[int, Hashable]],
    keeps_stream: Callable[[Any], bool],
) -> dict[Result, Result]:
    """The results that are made in the memory of others, each with the one it takes. `found`: how
    tensors lay in a call; `lying`: of the calls of regions, how each new result lies."""
    nodes = list(graph.nodes)
    position = {n: k for k, n in enumerate(nodes)}
    try:
        lives = {r: life for n in nodes for r, life in _lives(n, position, lying)}
    except UnsupportedError:  # sizes that depend on elements
        return {}
    load = [0] * (len(nodes) + 1)
    for life in lives.values():
        _add(load, life.first, life.last + 1, life.nbytes)
    peak = max(load)
    stretch: list[int] = []
    for n in nodes:
        stretch.append((stretch[-1] if stretch else 0) + (not keeps_stream(n)))
    free: dict[Hashable, list[Result]] = {}
    out: dict[Result, Result] = {}
    for n, results in sorted(lying.items(), key=lambda item: position[item[0]]):
        at = position[n]
        for k, kind in results.items():
            for old in sorted(free.get(kind, ()), key=lambda r: -lives[r].last):
                life = lives[old]
                is_done = life.last < at and stretch[life.first] == stretch[at]
                if is_done and max(load[life.last + 1 : at], default=0) + life.nbytes <= peak:
                    free[kind].remove(old)
                    _add(load, life.last + 1, at, life.nbytes)
                    out[n, k] = old
                    break
        for k, kind in results.items():
            if _is_free_at_last((n, k), found, lying):
                free.setdefault(kind, []).append((n, k))
    return out


def _add(load: list[int], first: int, end: int, size: int) -> None:
    for k in range(first, end):
        load[k] += size


def _lives(
    node: Any, position: Mapping[Any, int], lying: Mapping[Any, Mapping[int, Hashable]]
) -> Iterator[tuple[Any, _Life]]:
    """The lives of what a node makes: of each result of a region, else of all together."""
    if node.op != "call_function" or shows_memory(node) or is_getitem(node):
        return
    at = position[node]
    if node not in lying:
        last = max((position[u] for u in _readers(node)), default=at)
        yield node, _Life(at, last, nbytes(node.meta.get("val")))
        return
    for k in lying[node]:
        own = [u for u in node.users if u.args[1] == k]
        last = max((position[u] for x in own for u in (x, *_readers(x))), default=at)
        yield (node, k), _Life(at, last, nbytes([x.meta.get("val") for x in own[:1]]))


def _readers(node: Any) -> Iterator[Any]:
    """The nodes that read a tensor, or one of several, by itself or through a view."""
    for u in node.users:
        yield u
        if shows_memory(u) or is_getitem(u):
            yield from _readers(u)


def _is_free_at_last(
    result: Result,
    found: Mapping[Any, Lying],
    lying: Mapping[Any, Mapping[int, Hashable]],
) -> bool:
    """Whether a result's memory is nobody's behind its last reader."""
    node, k = result
    return all(_leaves(x, found, lying) for x in node.users if x.args[1] == k)


def _leaves(
    node: Any, found: Mapping[Any, Lying], lying: Mapping[Any, Mapping[int, Hashable]]
) -> bool:
    """Whether all that reads a tensor leaves its memory alone afterwards."""
    return all(_is_left_by(u, node, found, lying) for u in node.users)


def _is_left_by(
    reader: Any,
    node: Any,
    found: Mapping[Any, Lying],
    lying: Mapping[Any, Mapping[int, Hashable]],
) -> bool:
    if reader in lying:
        return True
    if shows_memory(reader):
        return _leaves(reader, found, lying)
    if not is_plain(reader) or node not in found:
        return False
    is_one = isinstance(reader.meta.get("val"), torch.Tensor)
    made: Sequence[Any] = [reader] if is_one else list(reader.users)
    return all(x in found and found[x].memory != found[node].memory for x in made)
