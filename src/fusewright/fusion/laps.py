"""Names for the numbers of iterations that bodies of loops ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fusewright.core.expr import Expr, Var
from fusewright.core.substitution import substitute
from fusewright.errors import UserError
from fusewright.fusion import ir
from fusewright.fusion.call_numbers import Lap
from fusewright.fusion.ir import Fusion, Op, Region, Tensor


def name_laps(fusion: Fusion) -> Fusion:
    """Gives each number of an iteration a name of its own in the program: lap0, lap1, ...  Loops
    of equal trips that do not stand in each other share one, so that equal bodies are equal.

    rewrite:  fori_loop(lap < 8), fori_loop(lap < 8), fori_loop(lap < n)
              -> fori_loop(lap0 < 8), fori_loop(lap0 < 8), fori_loop(lap1 < n)
    checks:   no value outside of its loop asks for a number of an iteration, else UserError
    """
    for t in fusion.values:
        for v in ir.tensor_variables(t):
            if isinstance(v, Lap):
                raise UserError(
                    f"the value {t!r} depends on the index of a loop that has ended; return it "
                    "from the loop's function"
                )
    naming = _NumberNaming()
    values = naming.values(fusion.values, {}, 0)
    if all(values[t] is t for t in fusion.values):
        return fusion
    return dataclasses.replace(
        fusion,
        inputs=tuple(values[t] for t in fusion.inputs),
        outputs=tuple(values[t] for t in fusion.outputs),
        values=tuple(values[t] for t in fusion.values),
    )


def laps_of(fusion: Fusion) -> tuple[Lap, ...]:
    """The numbers of iterations of all its loops, those inside of loops too."""
    found: dict[Lap, None] = {}
    for op in fusion.ops:
        if isinstance(op, Region):
            found |= {} if op.lap is None else {op.lap: None}
            found |= dict.fromkeys(v for b in op.bodies for v in laps_of(b))
    return tuple(found)


class _NumberNaming:
    """The numbers that have names so far, by how many loops stand around theirs and its trips."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Expr], Lap] = {}
        self._bodies: dict[object, Fusion] = {}

    def values(
        self, values: Sequence[Tensor], new: Mapping[Var, Expr], depth: int
    ) -> dict[Tensor, Tensor]:
        """The values over the new numbers; those that mention none stay."""
        out: dict[Tensor, Tensor] = {}
        for t in values:
            op = ir.with_operands(t.op, tuple(out[o] for o in t.op.operands))
            shape = tuple(substitute(s, new) for s in t.shape) if new else t.shape
            op = self._op(op, new, depth)
            same = op is t.op and shape == t.shape
            out[t] = t if same else Tensor(t.name, shape, t.dtype, op, t.source)
        return out

    def _op(self, op: Op, new: Mapping[Var, Expr], depth: int) -> Op:
        op = _substituted(op, new)
        if not isinstance(op, Region):
            return op
        if op.lap is None:
            bodies = tuple(self._body(b, new, depth) for b in op.bodies)
            same = all(a is b for a, b in zip(bodies, op.bodies, strict=True))
            return op if same else dataclasses.replace(op, bodies=bodies)
        assert op.trips is not None
        lap = self._known.get((depth, op.trips))
        if lap is None:
            lap = Lap(f"lap{len(self._known)}", op.trips)
            self._known[depth, op.trips] = lap
        inside = {**new, op.lap: lap}
        bodies = tuple(self._body(b, inside, depth + 1) for b in op.bodies)
        return dataclasses.replace(op, bodies=bodies, lap=lap)

    def _body(self, body: Fusion, new: Mapping[Var, Expr], depth: int) -> Fusion:
        """A body over the new numbers: the same one for all results of its region."""
        key = body, depth, tuple(new.items())
        if key not in self._bodies:
            self._bodies[key] = self._fusion(body, new, depth)
        return self._bodies[key]

    def _fusion(self, body: Fusion, new: Mapping[Var, Expr], depth: int) -> Fusion:
        made = self.values(body.values, new, depth)
        if all(made[t] is t for t in body.values):
            return body
        inputs, outputs, values = (
            tuple(made[t] for t in ts) for ts in (body.inputs, body.outputs, body.values)
        )
        return Fusion(inputs, outputs, values)


def _substituted(op: Op, new: Mapping[Var, Expr]) -> Op:
    """The op over new symbols, the same op where it mentions none."""
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(op):
        content: object = getattr(op, f.name)
        if isinstance(content, Expr) and f.name != "lap":
            found: object = substitute(content, new)
        elif isinstance(content, tuple):
            many = cast("tuple[object, ...]", content)
            found = tuple(substitute(e, new) if isinstance(e, Expr) else e for e in many)
        else:
            continue
        if found != content:
            changes[f.name] = found
    return dataclasses.replace(op, **changes) if changes and new else op
