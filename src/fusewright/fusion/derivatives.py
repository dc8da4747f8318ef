"""Derivatives that a program gives its values, in place of those of their operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusewright.fusion import ir
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Tensor
from fusewright.fusion.known import Known


@dataclass(frozen=True, slots=True, eq=False)
class GivenRule:
    """How the cotangent of a value goes back to `operands` instead of those of its op."""

    operands: tuple[Tensor, ...]
    backward: Callable[[Array], Sequence[Array | None]]

    def among(self, new: Mapping[Tensor, Tensor]) -> GivenRule:
        """The rule of a value that was recorded again: with the values of `new`, which may grow
        until the rule is used, in place of its keys."""
        if self is CONSTANT:
            return self

        def backward(g: Array) -> list[Array | None]:
            strides = ir.contiguous_strides(g.tensor.shape)
            part = Tensor("", g.tensor.shape, g.dtype, ir.Input((), -1, strides, 16))
            found = self.backward(Array(part))
            now = {**new, part: g.tensor}
            for t in in_order([c.tensor for c in found if c is not None], tuple(now)):
                if any(o in now for o in needed_by(t)):  # what is not, lies around
                    now[t] = _again(t, now)
            return [None if c is None else Array(now.get(c.tensor, c.tensor)) for c in found]

        return GivenRule(tuple(new.get(o, o) for o in self.operands), backward)


CONSTANT = GivenRule((), lambda g: ())
"""Of what counts as a constant."""


def without_gradient(x: Array) -> Array:
    """The array, just made, through which no gradient flows: such as the shift of a softmax, on
    which the result does not depend."""
    x.tensor.rule = CONSTANT
    return x


def with_slope(y: Array, x: Array, slope: Callable[[], Array]) -> Array:
    """The array, just made, as a function of the elements of x whose derivative is `slope()`: where
    its spelling has corners, such as that of an absolute value, which the function has not."""
    y.tensor.rule = GivenRule((x.tensor,), lambda g: (g * slope(),))
    return y


def needed_by(t: Tensor) -> tuple[Tensor, ...]:
    """What a value is computed from, and what its derivative goes back to."""
    return t.op.operands if t.rule is None else (*t.op.operands, *t.rule.operands)


def recorded_again(
    values: Sequence[Tensor], known: Mapping[Tensor, Tensor], *, rules: bool = False
) -> list[Tensor]:
    """The values, computed from `known` ones in the place of their keys: new values of the trace
    that the known ones belong to. With `rules` the derivatives that the program gave go along."""
    new = dict(known)
    order = in_order(values, known) if rules else ir.topological(tuple(values), tuple(known))
    for t in order:
        if t not in new and not isinstance(t, Known):
            new[t] = _again(t, new, rules=rules)
    return [new.get(t, t) for t in values]


def _again(t: Tensor, new: Mapping[Tensor, Tensor], *, rules: bool = True) -> Tensor:
    op = ir.with_operands(t.op, tuple(new.get(o, o) for o in t.op.operands))
    made = Tensor(t.name, t.shape, t.dtype, op, t.source)
    if rules and t.rule is not None:
        made.rule = t.rule.among(new)
    return made


def in_order(values: Iterable[Tensor], known: Iterable[Tensor]) -> list[Tensor]:
    """All values that these and their derivatives need, not looking behind known ones, operands
    before users."""
    out: dict[Tensor, None] = {}
    seen = set(known)
    for root in values:
        stack = [(root, False)]
        while stack:
            t, is_done = stack.pop()
            if is_done:
                out[t] = None
            elif t not in seen:
                seen.add(t)
                stack.append((t, True))
                stack.extend((o, False) for o in reversed(needed_by(t)) if o not in seen)
    return list(out)
