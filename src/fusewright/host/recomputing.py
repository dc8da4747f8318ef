"""What a kernel computes again from what it reads anyway, instead of reading it from another one.

A value that one kernel makes for another costs its bytes twice. A reader may make it for itself:
from what it is a function of, or from a result on the way, which is stored in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from fusewright.fusion.ir import Concat, IndexMap, Input, Pointwise, Resize, Tensor, is_alone
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.sizes import STORED_TRIPS, nbytes_estimate, numel_estimate
from fusewright.host.groups import MAX_RECOMPUTED, has_more_ops, is_view
from fusewright.schedule.heuristics.common import SMALL


class Recomputing:
    """What a reader can compute again that reads some tensors (`near`) anyway. `maker` tells the
    kernel that makes a value so far, if one does; `outputs` are stored whoever reads them."""

    def __init__(
        self, outputs: Set[Tensor], maker: Callable[[Tensor], object | None], near: Set[Tensor]
    ) -> None:
        self._outputs, self._maker, self._near = outputs, maker, near
        self._cheaper: dict[Tensor, bool] = {}

    def of(self, o: Tensor) -> list[Tensor]:
        """Short chains of functions of inputs, and of results that are stored in any case, where
        they read no more bytes than the value's trips to memory, which then need not be stored.
        Inputs that are much smaller than it are found in a cache."""
        chain, own = self._chain(o, MAX_RECOMPUTED), nbytes_estimate(o)
        large = sum(n for n in self._read_by(chain).values() if n * SMALL > own)
        if chain and o not in self._outputs and large <= STORED_TRIPS * own:
            return chain
        return self._widened(o)

    def _widened(self, o: Tensor) -> list[Tensor]:
        """The functions of single elements from what another kernel makes to a wider value: the
        narrow one is stored, in fewer bytes.

        k1: y = a @ b, s = float32(y);  k2: softmax(s)   ->   k1: y;  k2: softmax(float32(y))
        """
        found: list[Tensor] = []
        made_by = self._maker(o)
        if made_by is None or o in self._outputs:
            return []
        t = o
        while isinstance(t.op, Pointwise) and not has_more_ops(found, MAX_RECOMPUTED):
            found.append(t)
            near = [v for v in t.op.operands if not is_rematerialisable(v)]
            if len(near) != 1:
                return []
            (t,) = near
            if t.dtype.nbytes < o.dtype.nbytes:
                return found if self._maker(t) is made_by else []
        return []

    def _chain(self, o: Tensor, depth: int) -> list[Tensor]:
        """The ops between a value and inputs, or results that are dearer to compute again than to
        read, if they are few and elementwise, views or moves. Results behind `depth` others are
        computed again: no chain reaches as far."""
        found: dict[Tensor, None] = {}
        stack = [o]
        while stack:
            t = stack.pop()
            if isinstance(t.op, Input) or is_rematerialisable(t) or t in found:
                continue
            if t is not o and depth and self._is_read_cheaper(t, depth - 1):
                continue
            is_cheap = isinstance(t.op, Pointwise | Resize | IndexMap | Concat) or is_view(t)
            if is_alone(t) or not is_cheap:
                return []
            found[t] = None
            if has_more_ops(found, MAX_RECOMPUTED):
                return []
            stack.extend(t.op.operands)
        return list(found)

    def _is_read_cheaper(self, t: Tensor, depth: int) -> bool:
        """Whether a result, which is stored in any case, is fewer bytes than what it is a function
        of, without what the reader reads anyway. Each is asked once: chains that share results
        would ask twice as often behind each.

        k1: y = a + b + c, sum(y);  k2: exp(a + b + c)   ->   k1: y, sum(y);  k2: exp(y)
        """
        if t not in self._outputs or self._maker(t) is None:
            return False
        if t not in self._cheaper:
            read = self._read_by(self._chain(t, depth))
            more = sum(n for o, n in read.items() if o not in self._near)
            self._cheaper[t] = nbytes_estimate(t) < more
        return self._cheaper[t]

    def _read_by(self, chain: Sequence[Tensor]) -> dict[Tensor, int]:
        """The bytes that some ops read of each tensor that is stored before them, at most all of
        it."""
        read: dict[Tensor, int] = {}
        for t in chain:
            for o in dict.fromkeys(t.op.operands):
                if isinstance(o.op, Input) or (o not in chain and self._maker(o) is not None):
                    more = numel_estimate(t.shape) * o.dtype.nbytes
                    read[o] = min(nbytes_estimate(o), read.get(o, 0) + more)
        return read
