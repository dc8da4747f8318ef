"""Clones that nobody can tell from what they copy.

Models clone values so that one may be written while the other is kept, as dropout does that drops
nothing. AOTAutograd has no writes left but those into arguments, so that most such copies are read
only: each is a trip to memory that no kernel needs.

rewrite:  matmul(clone(x), w)   ->   matmul(x, w)
checks:   the clone lies in memory as all of x does; it is no result of the graph, since a caller
          may write that; nothing writes either of the two
order:    before a joint graph is cut in two, which then keeps x for both, and before a graph is cut
          into regions
"""

from __future__ import annotations

from typing import Any

from fusewright.frontends.torch.calls import readers, whole, writes
from fusewright.frontends.torch.library import aten, torch


def plain_clones(graph: Any, *, is_joint: bool = False) -> None:
    """Takes the clones that only repeat a tensor out of an aten graph with example values. Between
    the halves of a joint graph a caller may write arguments and results, of which clones are kept
    then."""
    for n in list(graph.nodes):
        if n.op == "call_function" and n.target is aten.clone.default and _repeats(n, is_joint):
            n.replace_all_uses_with(n.args[0])
            graph.erase_node(n)


def _repeats(clone: Any, is_joint: bool) -> bool:
    source = clone.args[0]
    root = whole(source)
    read = readers(root)
    if is_joint and (root.op != "call_function" or any(r.op == "output" for r in read)):
        return False
    return (
        all(_is_alike(clone.meta.get("val"), x.meta.get("val")) for x in (source, root))
        and not any(r.op == "output" or writes(r) for r in readers(clone))
        and not any(writes(r) for r in read)
    )


def _is_alike(clone: Any, other: Any) -> bool:
    """Whether two example values lie in memory in the same way. Of sizes that are symbols it is not
    asked, as the answer would be a guard."""
    if not isinstance(clone, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    sizes = (*clone.shape, *clone.stride(), *other.shape, *other.stride())
    if not all(isinstance(n, int) for n in sizes) or other.is_conj() or other.is_neg():
        return False
    kinds = [(x.dtype, x.device, tuple(x.shape), x.stride()) for x in (clone, other)]
    return kinds[0] == kinds[1]
