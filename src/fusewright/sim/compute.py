"""Expressions and conditions as closures over a list of variable values, in minimal shapes.

Every value is a Python int (the same for all threads) or an array of shape (1 or B, 1 or T) for B
blocks and T threads, so that an index is computed once per thread and once per block, not once per
thread of each block.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fusewright.core import atoms, conditions, expr as ex
from fusewright.core.conditions import Cond
from fusewright.core.expr import Expr, Var
from fusewright.errors import InternalError, SpecError
from fusewright.kir import ir

Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = "int | Array"
Truth: TypeAlias = "bool | Array"
Mask: TypeAlias = "Array | None"
"""Which (block, thread) pairs are active: bool of shape (1 or B, 1 or T); None for all of them."""
Values: TypeAlias = "list[Value]"
ExprFn: TypeAlias = Callable[[Values], Value]
CondFn: TypeAlias = Callable[[Values], Truth]

UNIFORM, PER_BLOCK, PER_THREAD, MIXED = 0, 1, 2, 3
"""What a value depends on: bit 0 is set for the block, bit 1 for the thread."""


@dataclass(frozen=True, slots=True)
class IndexFn:
    """An index as the sum of a part per block and a part per thread (or a mixed one)."""

    block: ExprFn
    thread: ExprFn

    def __call__(self, values: Values) -> tuple[Value, Value]:
        return self.block(values), self.thread(values)


class Scope:
    """Gives every variable a slot in the list of values, and compiles what mentions them."""

    def __init__(self) -> None:
        self.slots: dict[Var, int] = {}
        self.levels: list[int] = []
        self._memo: dict[Expr, ExprFn] = {}

    def bind(self, var: Var, level: int) -> int:
        """The slot of a variable whose value depends on what `level` says."""
        slot = self.slots.get(var)
        if slot is None:
            slot = self.slots[var] = len(self.levels)
            self.levels.append(level)
        return slot

    def level(self, e: Expr | Cond) -> int:
        """What the value depends on."""
        found = 0
        for v in ex.variables(e):
            found |= self.levels[self._slot(v)]
        return found

    def _slot(self, var: Var) -> int:
        if isinstance(var, ir.RegVar):
            return self.bind(var, MIXED)
        slot = self.slots.get(var)
        if slot is None:
            raise SpecError(
                f"variable {var} is used but is no dimension, symbol or loop variable around its "
                "use; bind it or pass its value in symbols"
            )
        return slot

    def expression(self, e: Expr) -> ExprFn:
        """A closure that computes the expression."""
        found = self._memo.get(e)
        if found is None:
            found = self._memo[e] = self._compile(e)
        return found

    def _compile(self, e: Expr) -> ExprFn:
        match e:
            case ex.Int():
                return _constant(e.value)
            case Var():
                return operator.itemgetter(self._slot(e))
            case ex.Sum():
                return self._sum(e.constant, e.terms)
            case ex.FloorDiv():
                return self._division(e.numerator, e.denominator, _quotient_by, _floor_divide)
            case ex.Mod():
                return self._division(e.numerator, e.denominator, _remainder_by, _modulo)
            case atoms.Min():
                return _binary(self.expression(e.left), self.expression(e.right), _minimum)
            case atoms.Max():
                return _binary(self.expression(e.left), self.expression(e.right), _maximum)
            case atoms.Xor():
                return _binary(self.expression(e.left), self.expression(e.right), _xor)
            case _:
                raise InternalError(f"no meaning for the expression {type(e).__name__}")

    def _division(
        self,
        numerator: Expr,
        denominator: Expr,
        by_power: Callable[[ExprFn, int], ExprFn],
        general: Callable[[Any, Any], Any],
    ) -> ExprFn:
        constant = ex.constant_value(denominator)
        if constant is not None and constant > 0 and constant & (constant - 1) == 0:
            return by_power(self.expression(numerator), constant)
        return _binary(self.expression(numerator), self.expression(denominator), general)

    def _sum(self, constant: int, terms: Iterable[ex.Term]) -> ExprFn:
        """Terms of one level are added before levels meet: that keeps shapes minimal longest."""
        by_level: dict[int, list[tuple[int, tuple[ExprFn, ...]]]] = {}
        for t in terms:
            level = 0
            for a in t.atoms:
                level |= self.level(a)
            product = tuple(self.expression(a) for a in t.atoms)
            by_level.setdefault(level, []).append((t.coefficient, product))
        groups = [tuple(by_level[k]) for k in sorted(by_level)]
        if not groups:
            return _constant(constant)

        def run(values: Values) -> Value:
            total: Value | None = constant or None
            for group in groups:
                part: Value | None = None
                for coefficient, product in group:
                    term = product[0](values)
                    for factor in product[1:]:
                        term = term * factor(values)
                    term = term if coefficient == 1 else term * coefficient
                    part = term if part is None else part + term
                assert part is not None
                total = part if total is None else total + part
            assert total is not None
            return total

        return run

    def index(self, e: Expr, scale: int = 1) -> IndexFn:
        """The expression times `scale`, separated into block and thread parts where it is a sum."""
        constant, terms = ex.parts_of(e)
        block: list[ex.Term] = []
        thread: list[ex.Term] = []
        for t in terms:
            level = 0
            for a in t.atoms:
                level |= self.level(a)
            scaled = ex.Term(t.atoms, t.coefficient * scale)
            (thread if level & PER_THREAD else block).append(scaled)
        return IndexFn(self._sum(constant * scale, block), self._sum(0, thread))

    def condition(self, c: Cond) -> CondFn:
        """A closure that decides the condition."""
        match c:
            case conditions.Truth():
                return _constant_truth(c.value)
            case conditions.Less():
                return _compare(self.expression(c.left), self.expression(c.right), operator.lt)
            case conditions.Equal():
                return _compare(self.expression(c.left), self.expression(c.right), operator.eq)
            case conditions.And():
                return _every([self.condition(p) for p in c.parts])
            case conditions.Or():
                return _some([self.condition(p) for p in c.parts])
            case conditions.Not():
                return _negated(self.condition(c.part))
            case _:
                raise InternalError(f"no meaning for the condition {type(c).__name__}")


def _constant(value: int) -> ExprFn:
    return lambda values: value


def _constant_truth(value: bool) -> CondFn:
    return lambda values: value


def _binary(a: ExprFn, b: ExprFn, op: Callable[[Any, Any], Any]) -> ExprFn:
    return lambda values: op(a(values), b(values))


def _quotient_by(a: ExprFn, power: int) -> ExprFn:
    shift = power.bit_length() - 1
    return lambda values: a(values) >> shift


def _remainder_by(a: ExprFn, power: int) -> ExprFn:
    return lambda values: a(values) & (power - 1)


def _floor_divide(a: Any, b: Any) -> Value:
    return a // b


def _modulo(a: Any, b: Any) -> Value:
    return a % b


def _xor(a: Any, b: Any) -> Value:
    return a ^ b


def _minimum(a: Value, b: Value) -> Value:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def _maximum(a: Value, b: Value) -> Value:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)


def _compare(a: ExprFn, b: ExprFn, op: Callable[[Any, Any], Any]) -> CondFn:
    return lambda values: op(a(values), b(values))


def _every(parts: list[CondFn]) -> CondFn:
    def run(values: Values) -> Truth:
        result: Truth = True
        for p in parts:
            one = p(values)
            if one is False:
                return False
            result = one if result is True else (result if one is True else result & one)
        return result

    return run


def _some(parts: list[CondFn]) -> CondFn:
    def run(values: Values) -> Truth:
        result: Truth = False
        for p in parts:
            one = p(values)
            if one is True:
                return True
            result = one if result is False else (result if one is False else result | one)
        return result

    return run


def _negated(part: CondFn) -> CondFn:
    def run(values: Values) -> Truth:
        one = part(values)
        return not one if isinstance(one, bool) else ~one

    return run


def narrow(mask: Mask, condition: Truth) -> tuple[Mask, bool]:
    """The active threads where the condition holds too, and whether there are any."""
    if isinstance(condition, bool | np.bool_):
        return mask, bool(condition)
    both = condition if mask is None else mask & condition
    if both.all():
        return None, True
    return both, bool(both.any())
