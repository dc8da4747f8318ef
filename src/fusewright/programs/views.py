"""Results that show memory which the caller has already: views of arguments and of other results.

    lambda x: (x.T, exp(x), x[1:, ::2])     one kernel; the first and the last result are views of x

Which elements of an array a view shows is an affine map: `x[1:, ::2]` at i, j is x at i + 1, 2 * j.
With the strides that the array has at a call, the map is the offset and the strides of the view.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from fusewright.core.conditions import less, prove
from fusewright.core.expr import ONE, ZERO, Expr, Var, add, as_expr, mul, variables
from fusewright.core.substitution import evaluate, substitute
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Input, Shape, Tensor, topological
from fusewright.fusion.known import Known
from fusewright.fusion.passes.index_maps import Map, map_of
from fusewright.runtime.arrays import ArrayInfo, describe
from fusewright.runtime.libraries import library_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResultView:
    """A result of `shape` that is a view of an argument, or else of another result, by position: at
    0 it shows the element at `start`; neighbours along axis j are `steps[a][j]` places apart along
    axis a of what it is a view of."""

    position: int
    is_of_argument: bool
    shape: Shape
    start: tuple[Expr, ...]
    steps: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, eq=False)
class SharedResults:
    """The results of `whole` that are views, and what a program computes beside them. `written`:
    the names of arguments whose memory a call may write to, which are seen through no view."""

    whole: Fusion
    written: tuple[str, ...]

    @cached_property
    def _sources(self) -> dict[Tensor, tuple[Tensor, Map]]:
        """Of what each result is a view that is one."""
        fusion = self.whole
        arguments = {t for t in fusion.inputs if t.name not in self.written}
        arguments -= {t for t in arguments if isinstance(t, Known)}
        found: dict[Tensor, tuple[Tensor, Map]] = {}
        for t in fusion.values:
            if t in fusion.outputs:
                chain = _views_behind(t)
                of_argument = (x for x in chain if x[0] in arguments)
                of_result = (x for x in chain[1:] if x[0] in fusion.outputs and x[0] not in found)
                source = next(of_argument, None) or next(of_result, None)
                if source is not None:
                    found[t] = source
        return found

    @cached_property
    def rest(self) -> Fusion:
        """The fusion of the results that are no views."""
        outputs = tuple(t for t in self.whole.outputs if t not in self._sources)
        return replace(self.whole, outputs=outputs, values=topological(outputs, self.whole.inputs))

    @cached_property
    def views(self) -> tuple[ResultView | None, ...]:
        """For each result of the whole the view that it is."""
        inputs, made = self.whole.inputs, self.rest.outputs
        out: list[ResultView | None] = []
        for t in self.whole.outputs:
            source = self._sources.get(t)
            if source is None:
                out.append(None)
                continue
            seen, by = source
            of_argument = isinstance(seen.op, Input)
            position = inputs.index(seen) if of_argument else made.index(seen)
            start, steps = _affine(by) or ((), ())
            out.append(ResultView(position, of_argument, t.shape, start, steps))
        return tuple(out)

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Of each view its name, and what it shows."""
        return [
            (t.name, f"a view of {seen.name}, which the caller has; nothing is launched for it")
            for t, (seen, _) in self._sources.items()
        ]

    def computed(self, listed: Sequence[T] | None) -> list[T] | None:
        """Of what is listed for all results that of those that are computed."""
        if listed is None:
            return None
        return [x for x, view in zip(listed, self.views, strict=True) if view is None]

    def place_of(self, position: int | None) -> int | None:
        """The position of a result among those that are computed; None for a view."""
        if position is None or self.views[position] is not None:
            return None
        return self.rest.outputs.index(self.whole.outputs[position])

    def given(self, out: Sequence[Any]) -> Sequence[Any]:
        """The arrays of `out=` for what is computed. Raises UserError for one in the place of a
        view."""
        if len(out) != len(self.views):
            if out:
                raise UserError(
                    f"out= has {len(out)} arrays, the program has {len(self.views)} outputs"
                )
            return out
        for k, (o, view) in enumerate(zip(out, self.views, strict=True)):
            if o is not None and view is not None:
                seen, _ = self._sources[self.whole.outputs[k]]
                raise UserError(
                    f"out= {k} is an array for a result that is a view of {seen.name} "
                    "(alias_results=True); give None there, or compile without alias_results"
                )
        return self.computed(out) or []

    def results(
        self, arrays: Sequence[Any], made: Sequence[Any], sizes: Mapping[Var, int]
    ) -> list[Any]:
        """All results: those that were made, and the views. Raises UserError for arrays of a
        library that has no views."""
        values = {v.name: n for v, n in sizes.items()}
        known = {v: values[v.name] for v in self._variables}
        rest = iter(made)
        return [
            next(rest) if v is None else _shown(v, arrays if v.is_of_argument else made, known)
            for v in self.views
        ]

    @cached_property
    def _variables(self) -> tuple[Var, ...]:
        listed = [v for v in self.views if v is not None]
        places = [e for v in listed for e in (*v.shape, *v.start, *(s for x in v.steps for s in x))]
        return tuple(dict.fromkeys(v for e in places for v in variables(e)))


def _shown(view: ResultView, arrays: Sequence[Any], sizes: Mapping[Var, int]) -> Any:
    """The view of one of some arrays."""
    array = arrays[view.position]
    seen = array if isinstance(array, ArrayInfo) else describe(array)
    start = tuple(evaluate(e, sizes) for e in view.start)
    shape = tuple(evaluate(e, sizes) for e in view.shape)
    strides = [0] * len(shape)
    for along, stride in zip(view.steps, seen.strides, strict=True):
        for j, step in enumerate(along):
            strides[j] += evaluate(step, sizes) * stride
    return library_of(seen.kind, seen.device).view(seen.owner, start, shape, strides)


def shared_results(fusion: Fusion, written: Collection[str] = ()) -> SharedResults | None:
    """Which results of a fusion are views of what the caller has; None where none is."""
    found = SharedResults(fusion, tuple(sorted(written)))
    return found if any(v is not None for v in found.views) else None


def _views_behind(t: Tensor) -> list[tuple[Tensor, Map]]:
    """A value, and those that it is an affine view of, each with the places that it shows."""
    at = build.coordinates(t.shape)
    by = Map(t.shape, at, tuple(ZERO if n == ONE else c for c, n in zip(at, t.shape, strict=True)))
    found: list[tuple[Tensor, Map]] = []
    while True:
        if _affine(by) is not None:
            found.append((t, by))
        inner = map_of(t)
        behind = None if inner is None else by.through(inner)
        if behind is None:
            return found
        t, by = t.op.operands[0], behind


def _affine(by: Map) -> tuple[tuple[Expr, ...], tuple[tuple[Expr, ...], ...]] | None:
    """Where a map begins, and its steps, which lead forwards; None for one that is not affine."""
    first = dict.fromkeys(by.at, ZERO)
    start: list[Expr] = []
    steps: list[tuple[Expr, ...]] = []
    for e in by.index:
        origin = substitute(e, first)
        along = [add(substitute(e, {**first, c: ONE}), mul(origin, -1)) for c in by.at]
        again = add(origin, *(mul(c, s) for c, s in zip(by.at, along, strict=True)))
        if again != e or any(prove(less(s, 0)) is not False for s in along):
            return None
        start.append(origin)
        steps.append(tuple(map(as_expr, along)))
    return tuple(start), tuple(steps)
