"""What heuristics do to a whole schedule, for schedules by hand."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.core.expr import constant_value
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul, Scan
from fusewright.schedule.clone_untied_uses import clone_untied_uses
from fusewright.schedule.copies import put_first
from fusewright.schedule.graph import Stage
from fusewright.schedule.handle import TensorHandle
from fusewright.schedule.heuristics.common import cache_inputs, relate, vectorize_accesses
from fusewright.schedule.heuristics.matmul import separate_operands
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.rules import ON_PASSES, checked
from fusewright.schedule.schedule import Schedule, ScheduledTensor


@checked(ON_PASSES)
class PassedSchedule(Schedule):
    """A schedule with the passes of the heuristics as methods."""

    def clone_untied_uses(self) -> PassedSchedule:
        """Gives readers at other places than their operands clones of the cheap values behind them.
        Before loops are edited: they start again as the tensors' own axes."""
        clone_untied_uses(self.flow)
        return self

    def cache_inputs(self, through: Sequence[TensorHandle] = ()) -> list[ScheduledTensor]:
        """Copies every input that is computed with to registers. Moves of inputs read memory
        themselves, but for those in `through`. Returns the copies and the moves."""
        held = cache_inputs(self.flow, [t.stage for t in through])
        return [ScheduledTensor(self, s) for s in held]

    def separate_phases(self, t: TensorHandle, held: Sequence[TensorHandle] = ()) -> PassedSchedule:
        """Gives the reductions of each depth, and the outputs, clones of their own of the values
        that have the axes which `t` reduces, but for those `held` in registers."""
        if not t.stage.is_reduction:
            raise ScheduleError(f"separate_phases({t.name}): it is no reduction")
        separate_phases(self.flow, t.stage, [h.stage for h in held])
        return self

    def relate(self, t: TensorHandle) -> PassedSchedule:
        """Ties the axes of other reductions and scans of the same sizes to those of `t`, which is
        one, so that they may run along its loops."""
        if not (t.stage.is_reduction or isinstance(t.stage.op, Scan)):
            raise ScheduleError(f"relate({t.name}): it is no reduction and no scan")
        relate(self.flow, t.stage)
        return self

    def separate_operands(self, t: TensorHandle) -> PassedSchedule:
        """Gives a product of a tensor with itself a view of its own for the second operand."""
        if not isinstance(t.stage.op, MatMul):
            raise ScheduleError(f"separate_operands({t.name}): it is no product")
        separate_operands(self.flow, t.stage)
        return self

    def vectorize(self, t: TensorHandle, in_shared: Sequence[TensorHandle] = ()) -> PassedSchedule:
        """Binds the innermost loop of `t`, in every tensor that has it innermost, to Vectorize
        where the tensor accesses global memory, or one of those `in_shared`, and may do so at full
        width; unrolls it in others."""
        loops = t.stage.loops
        if not loops or constant_value(loops[-1].axis.extent) is None:
            raise ScheduleError(
                f"vectorize({t.name}): it has no innermost loop of a constant extent; split one off"
            )
        vectorize_accesses(self.flow, t.stage, [h.stage for h in in_shared])
        return self

    def put_first(self, tensors: Sequence[TensorHandle]) -> PassedSchedule:
        """Moves tensors that are computed from inputs alone to the front of the program."""
        wrong = [t.name for t in tensors if not all(map(_is_ready, t.stage.operands))]
        if wrong:
            raise ScheduleError(f"put_first: {', '.join(wrong)} must wait for other tensors")
        put_first(self.flow, [t.stage for t in tensors])
        return self


def _is_ready(s: Stage) -> bool:
    return s.is_input or s.is_virtual
