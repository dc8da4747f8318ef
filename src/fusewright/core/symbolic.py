"""What expressions and conditions share: text that is a normal form, and no truth value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from operator import is_
from typing import Any, ClassVar, NoReturn

from fusewright.errors import UserError


class Symbolic:
    """Something immutable, equal to what has its text and its variables, which have identity."""

    __slots__ = ("_distinct", "_hash", "_key", "_leaves")
    _key: str
    _hash: int
    _leaves: tuple[Symbolic, ...]
    _distinct: tuple[Any, ...]
    is_variable: ClassVar[bool] = False
    is_compound: ClassVar[bool] = False
    is_open = False
    """Whether it has a value in calls only, and a program is being traced that knows none."""

    def _seal(self, key: str) -> None:
        """Set the text, once the operands are there. Hashes tell variables of one name apart, so
        that tables keyed by expressions need not compare them."""
        self._key = key
        self._hash = object.__hash__(self) if self.is_variable else hash((key, *self.children))

    @property
    def children(self) -> tuple[Symbolic, ...]:
        """The direct operands, in the order in which the text names them."""
        return ()

    @property
    def leaves(self) -> tuple[Symbolic, ...]:
        """The variables, in the order of the text, each as often as it stands there."""
        try:
            return self._leaves
        except AttributeError:
            own = (self,) if self.is_variable else ()
            self._leaves = own + tuple([v for c in self.children for v in c.leaves])
            return self._leaves

    @property
    def distinct(self) -> tuple[Any, ...]:
        """The variables, each once, in the order of the text."""
        try:
            return self._distinct
        except AttributeError:
            found = self.leaves
            self._distinct = tuple(dict.fromkeys(found)) if len(found) > 1 else found
            return self._distinct

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self} is symbolic and has no truth value; use prove()")

    def __str__(self) -> str:
        return self._key

    __repr__ = __str__

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            if isinstance(other, Symbolic):
                return False
            return self._is_integer(other) if isinstance(other, int) else NotImplemented
        assert isinstance(other, Symbolic)
        if self._hash != other._hash or self._key != other._key:
            return False
        a, b = self.leaves, other.leaves
        return len(a) == len(b) and all(map(is_, a, b))

    def _is_integer(self, other: int) -> bool:
        """False: integers of expressions are nodes. Raises UserError where the answer is another
        one in every call."""
        if any(v.is_open for v in self.leaves):
            raise UserError(
                f"{self} == {other}: a number of a call has no value while its function is traced; "
                "compare an array with it and choose with fw.where, or do not mark the number, so "
                "that each value has a program of its own"
            )
        return False


def is_integer(x: object) -> bool:
    """Whether operators of expressions take a value."""
    return isinstance(x, Symbolic) or _is_number(x)


def _is_number(x: object) -> bool:
    return isinstance(x, int | Integral)


def walk(e: Symbolic) -> Iterator[Symbolic]:
    """The expression or condition and everything below it, parents first."""
    yield e
    for c in e.children:
        yield from walk(c)


def parenthesised(e: Symbolic) -> str:
    """The text of an operand, in parentheses where it needs them."""
    text = str(e)
    return f"({text})" if e.is_compound or text.startswith("-") else text


def sum_text(constant: int, products: Sequence[tuple[int, Sequence[Symbolic]]]) -> str:
    """The text of at least one product, a coefficient and its factors, and a constant."""
    signed = [(k, _product_text(abs(k), factors)) for k, factors in products]
    if constant:
        signed.append((constant, str(abs(constant))))
    text = "".join(f" {'-' if k < 0 else '+'} {magnitude}" for k, magnitude in signed)
    return text.removeprefix(" + ") if signed[0][0] > 0 else f"-{text.removeprefix(' - ')}"


def _product_text(magnitude: int, factors: Sequence[Symbolic]) -> str:
    product = "*".join(map(parenthesised, factors))
    return product if magnitude == 1 else f"{magnitude}*{product}"
