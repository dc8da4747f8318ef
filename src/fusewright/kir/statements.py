"""Statements: a definition as KIR inside the loops it stands in."""

from __future__ import annotations

from collections.abc import Callable

from fusewright.core.expr import Expr, Var
from fusewright.core.identities import reduction_identity, scan_identity
from fusewright.fusion.ir import MatMul, Reduce, Scan
from fusewright.kir.ir import Compute, For, Imm, Statement
from fusewright.kir.lower_stage import Definition
from fusewright.kir.lower_storage import Storage
from fusewright.kir.lower_turns import blocks_reduced, check_request, turns_of_stage
from fusewright.kir.products import box_loads, box_stores, instructions, matrix_stores
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage


class Statements:
    """Emits the statements of definitions whose values live in a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def stage(self, s: Stage, *, standalone: bool) -> list[Statement]:
        """The statements of a definition inside all its loops."""
        values = self.storage.loop_values(s)
        if s.boxed:
            copies = box_stores if s.memory is Memory.GLOBAL else box_loads
            return copies(self.storage, s, values)
        if s.is_staged:
            return matrix_stores(self.storage, s, values)
        if isinstance(s.op, MatMul):
            return instructions(self.storage, s, values)
        d = Definition(self.storage, s, values)
        if isinstance(s.op, Reduce):
            body = d.accumulate()
            if not standalone:
                return body
            return [*self.initialise(s), *body, *self.finish(s)]
        if isinstance(s.op, Scan) and standalone:
            return [*self.initialise(s), *d.compute()]
        return d.compute()

    def initialise(self, s: Stage) -> list[Statement]:
        """Sets the accumulators of a reduction or scan to the identity."""
        op = s.op
        if isinstance(op, MatMul):
            return []
        assert isinstance(op, Reduce | Scan)
        first_of = scan_identity if isinstance(op, Scan) else reduction_identity

        def one(d: Definition) -> list[Statement]:
            value = Imm(first_of(op.fn, s.dtype.compute), s.dtype.compute)
            return [Compute("copy", d.accumulator(lane), (value,)) for lane in range(d.width)]

        return self._over_lanes(s, one)

    def finish(self, s: Stage) -> list[Statement]:
        """Combines the accumulators of the threads that share an output, and writes it."""
        if isinstance(s.op, Scan | MatMul):
            return []
        check_request(self.storage.context, s)
        if not blocks_reduced(self.storage.context, s):
            return self._over_lanes(s, Definition.finish)
        turns, first = turns_of_stage(self.storage, s), 2 * len(self.storage.context.turns)
        return [
            turns.acquire(first),
            *self._over_lanes(s, lambda d: d.take_turn(turns)),
            turns.release(first + 1),
            *self._over_lanes(s, Definition.finish),
        ]

    def _over_lanes(
        self, s: Stage, one: Callable[[Definition], list[Statement]]
    ) -> list[Statement]:
        """`one` inside fresh loops over the kept serial loops that stand inside a carrying one."""
        values = list(self.storage.loop_values(s))
        loops: list[tuple[Var, Expr]] = []
        for i in self.storage.carried_lanes(s):
            x = s.loops[i]
            if x.parallel.is_serial:
                v = Var(f"k{i}_{s.name}", 0, x.axis.extent - 1)
                values[i] = v
                loops.append((v, x.axis.extent))
        body = tuple(one(Definition(self.storage, s, tuple(values))))
        for v, extent in reversed(loops):
            body = (For(v, extent, body),) if body else ()
        return list(body)
