"""Memory that is there before a call and that the call writes: arguments that results are made in,
and arrays of `out=`. For torch tensors of known types, whose addresses change from call to call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import add
from typing import Any, TypeAlias

from fusewright.runtime.arrays import ArrayInfo
from fusewright.runtime.executor import Executor, ResultType, bytes_of, can_hold, check_outs_apart

Span: TypeAlias = tuple[int, int, bool]
"""The addresses of a tensor's first byte and behind its last one, and whether kernels write it."""


class Overwriting:
    """Where the results of a bound call lie when some have memory already.

    A result that an argument holds is made there, unless another argument shares that memory: then
    in a copy, and so is what kernels store in an argument that is lent. One that `out=` names is
    made there if the kernels can, else in a new tensor that is copied afterwards. Every copy counts
    in the executor's `copies`.
    """

    def __init__(
        self,
        executor: Executor,
        infos: Sequence[ArrayInfo],
        given: Sequence[ArrayInfo | None],
        types: Sequence[ResultType],
        changed: Callable[[Any], None],
    ) -> None:
        """`infos` and `given` (one per result, None where it is new) have the types of every call,
        and begin where one another begins as in every call; `changed` tells torch that tensors were
        written in place."""
        self._executor = executor
        self._changed = changed
        self._held = {k: h for k, h in enumerate(executor.holders) if h is not None}
        self._lent = tuple(sorted(executor.lent))
        written = executor.lent.union(self._held.values())
        self._nbytes = [x.hull_nbytes for x in infos]
        self._is_written = [h in written for h in range(len(infos))]
        self._given = [
            (k, o.hull_nbytes, k not in self._held and can_hold(o, types[k]))
            for k, o in enumerate(given)
            if o is not None
        ]
        self._places = {k: (bytes_of(o), o.pointer) for k, o in enumerate(given) if o is not None}
        self._written = (*self._held, *[k for k, _, direct in self._given if direct])
        self._inside = {k: h for k, h in self._held.items() if _is_alike(given[k], infos[h])}
        self._new: list[Any | None] = [None] * len(executor.holders)
        self._own = [k for k, h in enumerate(executor.holders) if h is None]
        named = {k: o.pointer for k, o in enumerate(given) if o is not None}
        at_holders = all(named.get(k) == infos[h].pointer for k, h in self._inside.items())
        self.is_inside = (
            named.keys() == self._held.keys() == self._inside.keys()
            and at_holders
            and are_apart(self._spans([x.pointer for x in infos]))
        )
        """Whether what `out=` names are the arguments that hold results, apart from all others."""

    def memory(
        self, tensors: Sequence[Any], out: Sequence[Any]
    ) -> tuple[list[int], list[Any | None], Sequence[Any]]:
        """The addresses that the kernels read, per result the tensor that they write, None where it
        has to be a new one, and the tensors of the addresses, which live until the launches."""
        self._tell_lent(tensors)
        starts = [x.data_ptr() for x in tensors]
        spans = self._spans(starts)
        results = self._new.copy()
        for k, h in self._held.items():
            results[k] = tensors[h]
        inside = self._inside
        for k, nbytes, direct in self._given:
            wanted = out[k]
            start = wanted.data_ptr()
            if direct:
                results[k] = wanted
            if k not in inside or start != starts[inside[k]]:
                spans.append((start, start + nbytes, True))
        return (starts, results, tensors) if are_apart(spans) else self._shared(tensors, out)

    def _spans(self, starts: Sequence[int]) -> list[Span]:
        """Where the arguments lie."""
        return list(zip(starts, map(add, starts, self._nbytes), self._is_written, strict=True))

    def inside(self, tensors: Sequence[Any], made: Sequence[Any]) -> list[Any]:
        """The results of a call that wrote inside of arguments and made new ones; tells torch."""
        results = self._new.copy()
        for k, x in zip(self._own, made, strict=True):
            results[k] = x
        for k, h in self._held.items():
            results[k] = tensors[h]
        self._changed([tensors[h] for h in self._held.values()])
        self._tell_lent(tensors)
        return results

    def _tell_lent(self, tensors: Sequence[Any]) -> None:
        """Tells torch of the arguments whose memory kernels use for something else."""
        if self._lent:
            self._changed([tensors[h] for h in self._lent])

    def finish(self, results: list[Any], out: Sequence[Any]) -> None:
        """Tells torch what kernels have written, and puts the arrays of `out=` in the place of
        their results, copied where those were made elsewhere."""
        self._changed([results[k] for k in self._written])
        for k, _, _ in self._given:
            made, wanted = results[k], out[k]
            if made is wanted:
                continue
            results[k] = wanted
            if k in self._inside and made.data_ptr() == wanted.data_ptr():
                self._changed(wanted)
                continue
            wanted.copy_(made)
            self._executor.copies += 1

    def _shared(
        self, tensors: Sequence[Any], out: Sequence[Any]
    ) -> tuple[list[int], list[Any | None], Sequence[Any]]:
        """`memory` where some of it is shared. Raises UserError where two results are to lie in one
        place."""
        moved = {k: (place, out[k].data_ptr() - p) for k, (place, p) in self._places.items()}
        check_outs_apart({k: replace(x, start=x.start + by) for k, (x, by) in moved.items()})
        results = self._new.copy()
        read = list(tensors)
        spans = self._spans([x.data_ptr() for x in tensors])
        for h in (*self._held.values(), *self._lent):
            if any(j != h and _meet(spans[h], x) for j, x in enumerate(spans)):
                read[h] = tensors[h].clone()
                self._executor.copies += 1
        for k, h in self._held.items():
            results[k] = read[h]
        starts = [x.data_ptr() for x in read]
        spans = self._spans(starts)
        wanted = {k: (p := out[k].data_ptr(), p + n, direct) for k, n, direct in self._given}
        for k, place in wanted.items():
            others = [*spans, *(x for j, x in wanted.items() if j != k)]
            if place[2] and not any(_meet(place, x) for x in others):
                results[k] = out[k]
        return starts, results, read


def are_apart(spans: Iterable[Span]) -> bool:
    """Whether no span that is written has a byte of another one."""
    reach = written_reach = 0
    for start, end, written in sorted(spans):
        if start < (reach if written else written_reach) and start < end:
            return False
        if end > reach:
            reach = end
        if written and end > written_reach:
            written_reach = end
    return True


def _meet(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _is_alike(o: ArrayInfo | None, x: ArrayInfo) -> bool:
    """Whether two arrays have the same elements at the same distances."""
    return o is not None and (o.shape, o.strides, o.dtype) == (x.shape, x.strides, x.dtype)
