"""The log of a schedule: what was done to a dataflow, in words that a hand schedule can say.

Functions that edit a dataflow are decorated with `edit`; assignments are spelled `set_loops`,
`inline_to` and `set_allocation`. Each appends one entry to `flow.log`, and `calls_of` spells the
entries as calls of public methods, which `replay` makes again on a fresh dataflow of the fusion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from fusewright.axes.classes import AxisClass
from fusewright.errors import InternalError
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.loop_edits import loop_edits
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.terms import Terms

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of a schedule, by its name."""

    name: str

    def __str__(self) -> str:
        return f's["{self.name}"]'


@dataclass(frozen=True, slots=True)
class EditCall:
    """One call of a public method: of the tensor called `tensor`, or of the schedule."""

    tensor: str | None
    method: str
    arguments: tuple[object, ...] = ()
    keywords: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        owner = "s" if self.tensor is None else str(Named(self.tensor))
        given = [_text(a) for a in self.arguments]
        given += [f"{k}={_text(v)}" for k, v in self.keywords]
        return f"{owner}.{self.method}({', '.join(given)})"

    def calls(self, _: Dataflow) -> tuple[EditCall, ...]:
        """Itself."""
        return (self,)


def _text(value: object) -> str:
    match value:
        case Parallel():
            return f"fw.{value.value}"
        case Memory():
            return f"fw.{value.name}"
        case str():
            return repr(value)
        case tuple():
            parts = [_text(v) for v in cast("tuple[object, ...]", value)]
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        case _:
            return str(value)


def named(value: object) -> object:
    """An argument as the log keeps it: tensors by their names, lists as tuples."""
    stage = getattr(value, "stage", value)
    if isinstance(stage, Stage):
        return Named(stage.name)
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping | EditCall):
        return tuple(named(v) for v in cast("Iterable[object]", value))
    return cast("object", value)


def call_of(
    tensor: str | None, method: str, arguments: Sequence[object], keywords: Mapping[str, object]
) -> EditCall:
    """A call with its arguments as the log keeps them."""
    given = tuple((k, named(v)) for k, v in keywords.items())
    return EditCall(tensor, method, tuple(named(a) for a in arguments), given)


def edit(
    method: str, *, of_tensor: bool = False
) -> Callable[[Callable[Concatenate[Dataflow, P], R]], Callable[Concatenate[Dataflow, P], R]]:
    """Decorates a function that edits a dataflow as the public `method` does: with the same
    arguments, that of a tensor (`of_tensor`) first. What it calls is not recorded apart."""

    def decorate(
        fn: Callable[Concatenate[Dataflow, P], R],
    ) -> Callable[Concatenate[Dataflow, P], R]:
        @functools.wraps(fn)
        def recorded(flow: Dataflow, *args: P.args, **kwargs: P.kwargs) -> R:
            given = tuple(args)
            owner = cast("Stage", given[0]).name if of_tensor else None
            call = call_of(owner, method, given[1:] if of_tensor else given, kwargs)
            count = len(flow.log)
            result = fn(flow, *args, **kwargs)
            del flow.log[count:]
            flow.log.append(call)
            return result

        return recorded

    return decorate


# --- assignments --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoopsSet:
    """A tensor got other loops. `stages`: those there were then."""

    stage: Stage
    before: tuple[Loop, ...]
    after: tuple[Loop, ...]
    stages: tuple[Stage, ...]

    def calls(self, flow: Dataflow) -> tuple[EditCall, ...]:
        """Splits, merges and orders of its loops; where others are in them, their terms."""
        steps = loop_edits(flow.graph, self.before, self.after)
        if steps is None:
            terms = _terms(flow, self.stages, [x.axis for x in self.after], self.stage)
            pairs = zip(terms, (x.parallel for x in self.after), strict=True)
            return (EditCall(self.stage.name, "loop_over", (tuple(pairs),)),)
        return tuple(EditCall(self.stage.name, method, given) for method, given in steps)


@dataclass(frozen=True, slots=True)
class AllocationSet:
    """A tensor in shared memory is indexed by other classes."""

    stage: Stage
    classes: tuple[AxisClass, ...]
    stages: tuple[Stage, ...]

    def calls(self, flow: Dataflow) -> tuple[EditCall, ...]:
        """One call, with the terms of the classes."""
        terms = _terms(flow, self.stages, self.classes, self.stage)
        return (EditCall(self.stage.name, "allocate_by", (tuple(terms),)),)


def _terms(
    flow: Dataflow, stages: Sequence[Stage], classes: Sequence[AxisClass], stage: Stage
) -> list[object]:
    known = Terms(flow.graph, stages)
    found = [known.of(c) for c in classes]
    for c, term in zip(classes, found, strict=True):
        if term is None:
            raise InternalError(f"{stage.name}: nothing in this schedule has made the axis {c}")
    return list(found)


def set_loops(flow: Dataflow, s: Stage, loops: Sequence[Loop]) -> None:
    """Gives a stage other loops, made by edges of the graph."""
    flow.log.append(LoopsSet(s, s.loops, tuple(loops), tuple(flow.stages)))
    s.loops = tuple(loops)


def set_allocation(flow: Dataflow, s: Stage, classes: Sequence[AxisClass]) -> None:
    """Indexes the buffer of a stage in shared memory by these classes, outer first."""
    flow.log.append(AllocationSet(s, tuple(classes), tuple(flow.stages)))
    s.allocation = tuple(classes)


def inline_to(flow: Dataflow, depths: Mapping[Stage, int]) -> None:
    """Inlines stages in so many loops of their readers, of which they have copies already."""
    for s, depth in depths.items():
        if depth != s.inline_depth:
            reader = Named(flow.consumers(s)[0].name)
            flow.log.append(EditCall(s.name, "inline_at", (reader, depth)))
            s.inline_depth = depth


CHAINED = frozenset(
    (
        "split",
        "merge",
        "reorder",
        "swizzle",
        "serpentine",
        "skew",
        "resize",
        "parallelize",
        "loop_over",
    )
)
"""Methods of a tensor that return it."""


def log_text(calls: Sequence[EditCall]) -> str:
    """Calls as Python, a line each; calls that edit the loops of one tensor are chained."""
    lines: list[str] = []
    last: str | None = None
    for c in calls:
        text = str(c)
        if last is not None and c.tensor == last and c.method in CHAINED:
            lines[-1] += text.removeprefix(str(Named(last)))
        else:
            lines.append(text)
        last = c.tensor if c.method in CHAINED else None
    return "\n".join(lines)


# --- replay -------------------------------------------------------------------------------------


def calls_of(flow: Dataflow) -> tuple[EditCall, ...]:
    """The public calls that make this schedule of its fusion."""
    return tuple(cast("EditCall", c) for e in flow.log for c in e.calls(flow))


def replay(schedule: Any, calls: Iterable[EditCall]) -> None:
    """Makes calls on a schedule. Raises ScheduleError as they do."""

    def value(v: object) -> object:
        if isinstance(v, Named):
            return schedule[v.name]
        if isinstance(v, tuple):
            return tuple(value(x) for x in cast("tuple[object, ...]", v))
        return v

    for c in calls:
        owner = schedule if c.tensor is None else schedule[c.tensor]
        given = [value(a) for a in c.arguments]
        getattr(owner, c.method)(*given, **{k: value(v) for k, v in c.keywords})
