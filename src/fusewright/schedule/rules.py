"""What the arguments of schedule edits must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from fusewright.arguments import INTEGER, Rule, Unfit, instance_of, optional, several
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.parallel import Parallel


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
