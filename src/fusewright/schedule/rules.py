"""What the arguments of schedule edits must be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from fusewright.arguments import (
    COUNT,
    FLAG,
    INTEGER,
    ArgumentRule,
    Unfit,
    instance_of,
    optional,
    several,
    takes,
)
from fusewright.core.expr import Expr
from fusewright.dtypes import dtype_of
from fusewright.errors import FusewrightError, ScheduleError
from fusewright.memory import Memory
from fusewright.schedule.edits import EditCall, call_of
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.parallel import Parallel
from fusewright.schedule.terms import AxisTerm

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def _tensor(value: Any) -> Any:
    if not isinstance(getattr(value, "stage", None), Stage):
        raise Unfit
    return value


def _order(value: Any) -> Any:
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return {INTEGER.taken(k): INTEGER.taken(v) for k, v in table.items()}
    return AXES.taken(value)


def _warps(value: Any) -> Any:
    pair = several(COUNT, "").taken(value)
    if len(pair) != 2 or 0 in pair:
        raise Unfit
    return pair


def _without_quotes(value: Any) -> str:
    """The way out where a name stands in quotes."""
    known = {m.value.lower(): f"fw.{m.value}" for m in Parallel}
    known |= {m.value.lower(): f"fw.{m.name}" for m in Memory}
    name = known.get(value.lower()) if isinstance(value, str) else None
    return f"write {name}, without quotes" if name else ""


def _dtype(value: Any) -> Any:
    try:
        return dtype_of(value).name
    except FusewrightError as e:
        raise Unfit from e


def _size(value: Any) -> Any:
    return value if isinstance(value, Expr) else INTEGER.taken(value)


TERM = instance_of(AxisTerm, words="an axis of a tensor, which s[..].axis(..) gives")
BINDING = instance_of(
    Parallel,
    words=f"one of {', '.join(f'fw.{p.value}' for p in Parallel)}",
    hint=_without_quotes,
)
MEMORY = instance_of(Memory, words="one of fw.GLOBAL, fw.SHARED, fw.LOCAL", hint=_without_quotes)
TENSOR = ArgumentRule(
    "a tensor of the schedule",
    _tensor,
    lambda value: f"write s[{value!r}]" if isinstance(value, str) else "",
)


def _loop(value: Any) -> Any:
    pair = cast("tuple[Any, ...]", value)
    if not isinstance(value, tuple) or len(pair) != 2:
        raise Unfit
    return TERM.taken(pair[0]), BINDING.taken(pair[1])


TENSORS = several(TENSOR, "a list of tensors of the schedule")
AXES = several(INTEGER, "a sequence of axes, which are integers")
AXIS_OR_AXES = several(INTEGER, "an axis or a sequence of axes, which are integers", or_one=True)
ORDER = ArgumentRule("a mapping from axes to axes, or a sequence of axes", _order)
DTYPE = ArgumentRule("a dtype, such as 'float16'", _dtype)
MODE = instance_of(str, words="the name of a mode")
SIZE = ArgumentRule("an integer or an expression in the sizes", _size)
TERMS = several(TERM, "a list of axes, which s[..].axis(..) gives")
LOOPS = several(
    ArgumentRule("a pair of an axis and what it is bound to", _loop), "a list of such pairs"
)
WARPS = ArgumentRule(
    "two positive integers: the warps along the rows and along the columns", _warps
)
COPY = optional(instance_of(str, words="one of 'cp_async', 'bulk', 'ldmatrix', 'stmatrix'"))

GRID_MODES = ("vector", "tma", "slices", "all", "arrival")
"""How blocks may combine their parts of a reduction."""
STREAM_MODES = ("vector", "tma", "slices")
"""Those in which blocks may share the last wave of a product's tiles."""
READ_BACK = ("vector", "bulk")
"""How the last block may get what the copy engine added: by its threads, or by the copy engine."""

Edits: TypeAlias = Mapping[str, Mapping[str, ArgumentRule]]
"""The rules of the arguments of a class's methods, by name."""

ON_TENSORS: Edits = {
    "split": {"axis": INTEGER, "factor": INTEGER, "inner": FLAG},
    "merge": {"axis": INTEGER, "axis2": optional(INTEGER)},
    "reorder": {"order": ORDER},
    "swizzle": {"axis": INTEGER, "axis2": INTEGER},
    "serpentine": {"axis": INTEGER, "by": INTEGER},
    "parallelize": {"axis": INTEGER, "parallel": BINDING},
    "inline_at": {"consumer": TENSOR, "axis": INTEGER},
    "set_memory": {"memory": MEMORY},
    "promote_reuse": {"on": FLAG},
    "set_allocation_order": {"order": AXES},
    "cache_after": {"by": COPY, "readers": optional(TENSORS), "memory": MEMORY},
    "cache_before": {"by": COPY},
    "rfactor": {"axes": AXIS_OR_AXES},
    "circular_buffer": {
        "stages": INTEGER,
        "prefetch": optional(INTEGER),
        "warp_specialized": FLAG,
        "registers": optional(several(INTEGER, "a tuple of two integers")),
        "ping_pong": FLAG,
    },
    "mma": {"warpgroups": optional(COUNT), "warps": optional(WARPS)},
    "request_serial_grid_reduction": {
        "mode": MODE,
        "work_dtype": optional(DTYPE),
        "read_back": MODE,
        "stream": FLAG,
    },
    "recompute": {},
    "loop_over": {"loops": LOOPS},
    "skew": {"axis": INTEGER, "rows": INTEGER, "stride": SIZE, "width": INTEGER},
    "resize": {"axis": INTEGER, "low": SIZE, "high": SIZE},
    "allocate_by": {"axes": TERMS},
    "block_scan": {"width": INTEGER},
    "tile_after": {"readers": TENSORS},
    "tile_before": {},
}
"""Edits of a tensor."""
ON_SCHEDULES: Edits = {
    "transform_like": {"t": TENSOR, "others": optional(TENSORS), "align": FLAG},
    "inline_most": {"selected": optional(TENSORS)},
    "launch": {
        "min_blocks": optional(COUNT),
        "cluster": optional(INTEGER),
        "max_sms": optional(COUNT),
    },
}
"""Edits of a schedule."""
ON_PASSES: Edits = {
    "clone_untied_uses": {},
    "cache_inputs": {"through": TENSORS},
    "separate_phases": {"t": TENSOR, "held": TENSORS},
    "relate": {"t": TENSOR},
    "separate_operands": {"t": TENSOR},
    "vectorize": {"t": TENSOR, "in_shared": TENSORS},
    "put_first": {"tensors": TENSORS},
}
"""What heuristics do to a schedule, and a schedule by hand may do too."""


LOG = several(instance_of(EditCall, words="a call of a log"), "the log of a schedule")


def check_call(call: EditCall) -> None:
    """Raises ScheduleError for a call in a log that is no edit."""
    known = ON_TENSORS if call.tensor is not None else {**ON_SCHEDULES, **ON_PASSES}
    if call.method not in known:
        raise ScheduleError(
            f"replay: {call} is no edit; {'tensors' if call.tensor else 'schedules'} have "
            f"{', '.join(known)}"
        )


def checked(edits: Edits) -> Callable[[type[T]], type[T]]:
    """Decorates a class whose methods edit a schedule and take arguments by rules; ScheduleError
    for others. An edit that raises leaves the schedule as it was; one that does not is logged."""

    def decorate(cls: type[T]) -> type[T]:
        for name, rules in edits.items():
            setattr(cls, name, takes(ScheduleError, **rules)(_recorded(getattr(cls, name))))
        return cls

    return decorate


def _recorded(method: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(method)
    def edited(*args: P.args, **kwargs: P.kwargs) -> R:
        handle = cast("Any", args[0])
        stage: Stage | None = getattr(handle, "stage", None)
        flow: Dataflow = handle.flow
        owner = None if stage is None else stage.name
        with flow.trial() as trial:
            count = len(flow.log)
            call = call_of(owner, method.__name__, args[1:], kwargs)
            result = method(*args, **kwargs)
            del flow.log[count:]
            flow.log.append(call)
            trial.keep()
        return result

    return edited


def check_by(stage: Stage, by: str | None, available: tuple[str, ...]) -> None:
    """Raises ScheduleError for a kind of copy that there is none of here."""
    if by not in (None, "cp_async", "bulk", "ldmatrix", "stmatrix"):
        raise ScheduleError(f"by={by!r}: use None, 'cp_async', 'bulk', 'ldmatrix' or 'stmatrix'")
    if by is not None and by not in available:
        known = ", ".join(repr(a) for a in (None, *available))
        raise ScheduleError(f"{stage.name}: by={by!r} is not available here; use one of {known}")
