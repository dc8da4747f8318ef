"""Derivatives that a program gives its values, in place of those of their operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusewright.fusion.array import Array
from fusewright.fusion.ir import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class GivenRule:
    """How the cotangent of a value goes back to `operands` instead of those of its op."""

    operands: tuple[Tensor, ...]
    backward: Callable[[Array], Sequence[Array | None]]


CONSTANT = GivenRule((), lambda g: ())
"""Of what counts as a constant."""


def without_gradient(x: Array) -> Array:
    """The array, just made, through which no gradient flows: such as the shift of a softmax, on
    which the result does not depend."""
    x.tensor.rule = CONSTANT
    return x
