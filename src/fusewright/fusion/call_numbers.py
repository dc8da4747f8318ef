"""Numbers of a call: integers that a program takes beside its arrays, such as the position at
which a block is written. A traced function sees them as symbols, so that one program serves all
values; what it asks of them, as that a block lies inside of an array, is checked at every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fusewright.arguments import shown
from fusewright.core.atoms import minimum
from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import (
    Expr,
    IntLike,
    Var,
    add,
    ceildiv,
    constant_value,
    floordiv,
    mod,
    mul,
    parts_of,
    sum_of,
    variables,
)
from fusewright.core.substitution import evaluate, substitute
from fusewright.errors import UserError

if TYPE_CHECKING:
    from fusewright.fusion.ir import Fusion

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NumberCheck:
    """What a call's numbers must satisfy: `gap >= 0`, or `rule` is broken."""

    gap: Expr
    rule: str


@dataclass(frozen=True, slots=True, eq=False)
class CallNumber:
    """A number of a call: the symbol that stands for it, and its place among the arguments."""

    symbol: Var
    place: int


class Symbol(Var):
    """What stands for a number of a call."""

    __slots__ = ()
    is_number = True


class Lap(Symbol):
    """The number of an iteration in the body of a loop, from 0 on: the host gives it to every
    launch of the body. What an operation asks of it follows from the trips, or is refused."""

    __slots__ = ()

    def __init__(self, name: str, trips: IntLike) -> None:
        super().__init__(name, 0, add(trips, -1))


class TracedNumber(Symbol):
    """A number while its function is traced: it collects what operations ask of it. `is_open` until
    the function has returned: till then its value is nobody's to ask for."""

    __slots__ = ("asked", "is_open")

    def __init__(self, name: str, lower: int, upper: IntLike | None, multiple_of: int) -> None:
        super().__init__(name, lower, upper, multiple_of)
        self.asked: list[NumberCheck] = []
        self.is_open = True


def is_at_least(low: IntLike, value: IntLike, rule: str) -> bool:
    """Whether `low <= value` always, or is checked at each call because it depends on a number of
    the call; `rule` is what a call that breaks it is told."""
    known = prove(less_equal(low, value))
    if known is not None:
        return known
    gap = add(value, mul(low, -1))
    mentioned = variables(gap)
    asked = next((v.asked for v in mentioned if isinstance(v, TracedNumber)), None)
    if asked is None or any(isinstance(v, Lap) for v in mentioned):
        return False
    asked.append(NumberCheck(gap, rule))
    return True


# --- limits that follow from checks ---------------------------------------------------------------


def narrowed(numbers: Sequence[TracedNumber]) -> dict[Var, TracedNumber]:
    """The numbers with the limits that their checks give them, so that a function which is traced
    with them knows that its blocks fit. A limit that mentions other numbers comes behind theirs."""
    checks = checks_of(numbers)
    new: dict[Var, TracedNumber] = {}
    pending = list(numbers)
    while pending:
        free = (v for v in pending if not _waits(v, checks, pending))
        v = next(free, pending[0])
        pending.remove(v)
        new[v] = _narrowed(v, checks, new)
    return new


def checks_of(numbers: Iterable[TracedNumber]) -> tuple[NumberCheck, ...]:
    """What was asked of numbers, each thing once."""
    return tuple(dict.fromkeys(c for v in numbers for c in v.asked))


def renamed(checks: Iterable[NumberCheck], new: Mapping[Var, Var]) -> tuple[NumberCheck, ...]:
    """The checks over other symbols."""
    return tuple(NumberCheck(substitute(c.gap, new), c.rule) for c in checks)


def _limits(v: Var, gap: Expr) -> tuple[Expr | None, Expr | None]:
    """The least and the greatest value of a number at which `gap`, a multiple of it beside what
    does not mention it, is at least 0; None where there is no such limit.

    v - 3 -> (3, None);   60 - 2*v -> (None, 30)
    """
    constant, terms = parts_of(gap)
    factor = sum(t.coefficient for t in terms if t.atoms == (v,))
    rest = sum_of(constant, (t for t in terms if t.atoms != (v,)))
    if not factor or v in variables(rest):
        return None, None
    if factor > 0:
        return ceildiv(mul(rest, -1), factor), None
    return None, floordiv(rest, -factor)


def _waits(v: TracedNumber, checks: Iterable[NumberCheck], pending: Sequence[Var]) -> bool:
    limits = (_limits(v, c.gap)[1] for c in checks)
    return any(w in pending for u in limits if u is not None for w in variables(u))


def _narrowed(
    v: TracedNumber, checks: Iterable[NumberCheck], new: Mapping[Var, Var]
) -> TracedNumber:
    upper = v.upper
    lower = constant_value(v.lower) or 0
    for c in checks:
        least, limit = _limits(v, c.gap)
        if limit is not None and not _mentions_others(limit, new):
            upper = _smaller(upper, substitute(limit, new))
        from_below = None if least is None else constant_value(least)
        lower = max(lower, from_below or 0)
    return TracedNumber(v.name, lower, upper, v.multiple_of)


def _mentions_others(limit: Expr, new: Mapping[Var, Var]) -> bool:
    """Whether a limit mentions a number whose own limits are not known yet."""
    return any(isinstance(w, TracedNumber) and w not in new for w in variables(limit))


def _smaller(a: Expr | None, b: Expr) -> Expr:
    """The smaller one of two limits, the first where that is not known."""
    if a is None:
        return b
    least = minimum(a, b)
    return b if least == b else a


# --- calls ----------------------------------------------------------------------------------------


def without_numbers(fusion: Fusion, arguments: Sequence[T]) -> tuple[list[T], dict[Var, int]]:
    """The arrays among the arguments of a call, and the values of its numbers. Raises UserError
    for a number that is missing, no integer, or outside the limits of its symbol."""
    if not fusion.numbers:
        return list(arguments), {}
    places = {n.place: n.symbol for n in fusion.numbers}
    if max(places) >= len(arguments):
        missing = places[max(places)].name
        raise UserError(
            f"{len(arguments)} arguments: the number {missing} is argument {max(places)}; give "
            "arrays and numbers in the order in which the function was traced"
        )
    values = {v: _integer(arguments[k], k, v) for k, v in sorted(places.items())}
    return [a for k, a in enumerate(arguments) if k not in places], values


def with_numbers(fusion: Fusion, arrays: Sequence[Any], sizes: Mapping[Var, int]) -> list[Any]:
    """The arguments of a call whose arrays and symbols' values are known."""
    out = list(arrays)
    for n in fusion.numbers:
        out.insert(n.place, sizes[n.symbol])
    return out


def _integer(given: object, place: int, v: Var) -> int:
    value: object = given.__index__() if isinstance(given, np.integer) else given
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(
            f"argument {place}: the number {v.name} is {type(value).__name__} {shown(value)}; give "
            "a Python integer"
        )
    return value


def check_numbers(fusion: Fusion, sizes: Mapping[Var, int]) -> None:
    """Raises UserError where the numbers of a call break what the program asks of them. `sizes`:
    the values of all symbols."""
    for c in fusion.checks:
        gap = evaluate(c.gap, sizes)
        if gap < 0:
            raise UserError(f"{c.rule}: {_values(c, sizes)}; {_way_out(c, sizes, gap)}")
    for n in fusion.numbers:
        low, high = n.symbol.interval
        value = sizes[n.symbol]
        if value < (low or 0) or (high is not None and value > high):
            top = "" if high is None else f" and at most {high}"
            raise UserError(
                f"the number {n.symbol.name} is {value}: it must be at least {low}{top}; trace "
                "with an fw.Sym of other limits"
            )
        if value % n.symbol.multiple_of:
            raise UserError(
                f"the number {n.symbol.name} is {value}, no multiple of {n.symbol.multiple_of}; "
                "trace with an fw.Sym that says so"
            )


def gaps_of(fusion: Fusion) -> list[Expr]:
    """What is at least 0 for numbers that `check_numbers` takes."""
    out = [c.gap for c in fusion.checks]
    for n in fusion.numbers:
        v = n.symbol
        low, high = v.interval
        out.append(add(v, -(low or 0)))
        if high is not None:
            out.append(add(high, mul(v, -1)))
        if v.multiple_of != 1:
            out.append(mul(mod(v, v.multiple_of), -1))
    return out


def check_size_number(what: str, v: Var, given: int, size: int) -> None:
    """Raises UserError for a number that is also the size of an axis, and is not that size."""
    if given != size:
        raise UserError(
            f"{what}: the number {v.name} is {given}, but an axis of that size has {size} "
            "elements; give that"
        )


def _values(c: NumberCheck, sizes: Mapping[Var, int]) -> str:
    return ", ".join(f"{v.name} is {sizes[v]}" for v in variables(c.gap))


def _way_out(c: NumberCheck, sizes: Mapping[Var, int], gap: int) -> str:
    """The value that would do, for a number that the check mentions once, by itself."""
    _, terms = parts_of(c.gap)
    for t in terms:
        if len(t.atoms) == 1 and isinstance(t.atoms[0], Var) and abs(t.coefficient) == 1:
            v = t.atoms[0]
            side = "at most" if t.coefficient < 0 else "at least"
            most = sizes[v] - t.coefficient * gap
            if most >= (v.interval[0] or 0):
                return f"{v.name} may be {side} {most}"
    return "give numbers that fit"
