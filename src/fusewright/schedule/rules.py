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
from fusewright.errors import ScheduleError
from fusewright.fusion.rules import FUSION
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.parallel import Parallel

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
MODE = instance_of(str, words="the name of a mode")
COPY = optional(instance_of(str, words="one of 'cp_async', 'bulk', 'ldmatrix', 'stmatrix'"))

GRID_MODES = ("vector", "tma", "slices")
"""How blocks may combine their parts of a reduction."""

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
    "mma": {"warpgroups": optional(COUNT)},
    "request_serial_grid_reduction": {"mode": MODE},
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


def check_by(stage: Stage, by: str | None, available: tuple[str, ...]) -> None:
    """Raises ScheduleError for a kind of copy that there is none of here."""
    if by not in (None, "cp_async", "bulk", "ldmatrix", "stmatrix"):
        raise ScheduleError(f"by={by!r}: use None, 'cp_async', 'bulk', 'ldmatrix' or 'stmatrix'")
    if by is not None and by not in available:
        known = ", ".join(repr(a) for a in (None, *available))
        raise ScheduleError(f"{stage.name}: by={by!r} is not available here; use one of {known}")
