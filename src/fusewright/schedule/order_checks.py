"""Whether a schedule stores results in the orders, and adds in the order, that are required."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.errors import ScheduleError
from fusewright.fusion.orders import Order, c_order, strides_in
from fusewright.fusion.passes.store_in_orders import check_orders
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.passes import PassedSchedule as HandSchedule


def check_allocation_orders(schedule: HandSchedule, orders: Sequence[Order | None]) -> None:
    """Raises UserError for what is no order of a result, and ScheduleError where the schedule
    stores one in another order than is required."""
    check_orders(schedule.original, orders)
    for k, (s, required) in enumerate(zip(schedule.flow.outputs, orders, strict=True)):
        wanted, made = (
            required or c_order(len(s.shape)),
            s.allocation_order or c_order(len(s.shape)),
        )
        if strides_in(s.shape, wanted) != strides_in(s.shape, made):
            raise ScheduleError(
                f"out_layouts requires output {k}, {s.name}, in the order {wanted}, and the "
                f"schedule stores it in the order {made}; call "
                f"s[{s.name!r}].set_allocation_order({wanted}), or require {made}"
            )


def check_repeatable(flow: Dataflow, *, promised: bool) -> None:
    """Raises ScheduleError for sums in the order in which blocks come where the same bits in every
    run are promised."""
    for s in flow.stages:
        if s.grid_mode == "arrival" and promised:
            raise ScheduleError(
                f"request_serial_grid_reduction({s.name}, 'arrival'): blocks add their parts in "
                "the order in which they come, so that results differ in their last bits from run "
                "to run, which fw.config(deterministic=True) rules out; use mode 'slices', or "
                "lower and compile under fw.config(deterministic=False)"
            )
