"""What the arguments of schedule edits must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

from fusewright.arguments import (
    COUNT,
    FLAG,
    INTEGER,
    Rule,
    Unfit,
    instance_of,
    optional,
    several,
    takes,
)
from fusewright.core.expr import Int
from fusewright.errors import ScheduleError
from fusewright.fusion.rules import FUSION
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.parallel import Parallel
from fusewright.target import MAX_SET_REGISTERS, MIN_SET_REGISTERS, REGISTER_UNIT

T = TypeVar("T")


def _tensor(value: Any) -> Any:
    if not isinstance(getattr(value, "stage", None), Stage):
        raise Unfit
    return value


def _order(value: Any) -> Any:
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return {INTEGER.taken(k): INTEGER.taken(v) for k, v in table.items()}
    return AXES.taken(value)


def _without_quotes(value: Any) -> str:
    """The way out where a name stands in quotes."""
    known = {m.value.lower(): f"fw.{m.value}" for m in Parallel}
    known |= {m.value.lower(): f"fw.{m.name}" for m in Memory}
    name = known.get(value.lower()) if isinstance(value, str) else None
    return f"write {name}, without quotes" if name else ""


BINDING = instance_of(
    Parallel,
    words=f"one of {', '.join(f'fw.{p.value}' for p in Parallel)}",
    hint=_without_quotes,
)
MEMORY = instance_of(Memory, words="one of fw.GLOBAL, fw.SHARED, fw.LOCAL", hint=_without_quotes)
TENSOR = Rule(
    "a tensor of the schedule",
    _tensor,
    lambda value: f"write s[{value!r}]" if isinstance(value, str) else "",
)
TENSORS = several(TENSOR, "a list of tensors of the schedule")
AXES = several(INTEGER, "a sequence of axes, which are integers")
AXIS_OR_AXES = several(INTEGER, "an axis or a sequence of axes, which are integers", or_one=True)
ORDER = Rule("a mapping from axes to axes, or a sequence of axes", _order)
COPY = optional(instance_of(str, words="one of 'cp_async', 'bulk', 'ldmatrix', 'stmatrix'"))

Edits: TypeAlias = Mapping[str, Mapping[str, Rule]]
"""The rules of the arguments of a class's methods, by name."""

ON_TENSORS: Edits = {
    "split": {"axis": INTEGER, "factor": INTEGER, "inner": FLAG},
    "merge": {"axis": INTEGER, "axis2": optional(INTEGER)},
    "reorder": {"order": ORDER},
    "swizzle": {"axis": INTEGER, "axis2": INTEGER},
    "parallelize": {"axis": INTEGER, "parallel": BINDING},
    "inline_at": {"consumer": TENSOR, "axis": INTEGER},
    "set_memory": {"memory": MEMORY},
    "promote_reuse": {"on": FLAG},
    "set_allocation_order": {"order": AXES},
    "cache_after": {"by": COPY, "readers": optional(TENSORS)},
    "cache_before": {"by": COPY},
    "rfactor": {"axes": AXIS_OR_AXES},
    "circular_buffer": {"stages": INTEGER, "prefetch": optional(INTEGER), "warp_specialized": FLAG},
}
"""Edits of a tensor."""
ON_SCHEDULES: Edits = {
    "__init__": {"fusion": FUSION},
    "transform_like": {"t": TENSOR, "others": optional(TENSORS)},
    "inline_most": {"selected": optional(TENSORS)},
    "launch": {
        "min_blocks": optional(COUNT),
        "cluster": optional(INTEGER),
        "max_sms": optional(COUNT),
    },
}
"""Edits of a schedule, and how it is made."""


def checked(edits: Edits) -> Callable[[type[T]], type[T]]:
    """Decorates a class whose methods take arguments by rules; ScheduleError for others."""

    def decorate(cls: type[T]) -> type[T]:
        for name, rules in edits.items():
            setattr(cls, name, takes(ScheduleError, **rules)(getattr(cls, name)))
        return cls

    return decorate


def check_registers(what: str, specialized: bool, registers: tuple[int, int]) -> None:
    """Raises ScheduleError for registers that warps cannot hand to each other."""
    low, high, unit = MIN_SET_REGISTERS, MAX_SET_REGISTERS, REGISTER_UNIT
    if not specialized:
        raise ScheduleError(
            f"{what}: registers move between warps that copy and warps that compute; give "
            "warp_specialized=True, or leave registers out"
        )
    if len(registers) != 2 or any(r % unit or not low <= r <= high for r in registers):
        raise ScheduleError(
            f"{what}, registers={registers}: give two multiples of {unit} from {low} to {high}, "
            "of the warps that copy and of those that compute"
        )


def check_box(stage: Stage, i: int) -> None:
    """Raises ScheduleError for a loop that is no side of a box for the copy engine."""
    extent = stage.loops[i].axis.extent
    if stage.copied != "bulk":
        raise ScheduleError(
            f"parallelize({stage.name}, axis={i}, Bulk): only the copy engine copies boxes; make "
            "the tensor with cache_after(by='bulk')"
        )
    if not isinstance(extent, Int):
        raise ScheduleError(
            f"parallelize({stage.name}, axis={i}, Bulk): extent {extent} is not constant; split "
            "by the size of the box first"
        )
    others = [k for k in stage.boxed if k != i]
    if len(others) > 1:
        raise ScheduleError(
            f"parallelize({stage.name}, axis={i}, Bulk): loops {others[0]} and {others[1]} are "
            "the rows and columns of its box already"
        )


def check_by(stage: Stage, by: str | None, available: tuple[str, ...]) -> None:
    """Raises ScheduleError for a kind of copy that there is none of here."""
    if by not in (None, "cp_async", "bulk", "ldmatrix", "stmatrix"):
        raise ScheduleError(f"by={by!r}: use None, 'cp_async', 'bulk', 'ldmatrix' or 'stmatrix'")
    if by is not None and by not in available:
        known = ", ".join(repr(a) for a in (None, *available))
        raise ScheduleError(f"{stage.name}: by={by!r} is not available here; use one of {known}")
