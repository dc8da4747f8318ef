"""What expressions and conditions share: text that is a normal form, and no truth value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NoReturn


class Symbolic:
    """Something immutable, equal to what has its text and its variables, which have identity."""

    __slots__ = ("_hash", "_key")
    _key: str
    _hash: int
    is_variable: ClassVar[bool] = False
    is_compound: ClassVar[bool] = False

    def _seal(self, key: str) -> None:
        self._key = key
        self._hash = hash(key)

    @property
    def children(self) -> tuple[Symbolic, ...]:
        """The direct operands, in the order in which the text names them."""
        return ()

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
        if not isinstance(other, Symbolic) or self._hash != other._hash:
            return False
        is_alike = type(self) is type(other) and self._key == other._key
        return is_alike and _identities(self) == _identities(other)


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


def _identities(e: Symbolic) -> list[int]:
    return [id(v) for v in walk(e) if v.is_variable]
