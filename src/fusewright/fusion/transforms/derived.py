"""A function recorded together with its derivative, on arguments that belong to no program: the
parts of it that a forward and a backward program compute are recorded again in each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from fusewright.core.expr import Expr
from fusewright.fusion import ir, trees
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.derivatives import recorded_again as recorded_again
from fusewright.fusion.ir import Tensor, TensorSpec
from fusewright.fusion.transforms.gradients import has_gradient, reached_cotangents, variable
from fusewright.fusion.trees import Tree


class Derived:
    """A function on arguments of these specs, of which `wanted` ones have gradients.

    `arguments` and `results` are values; `out_tree` is the structure of the results; `is_reached`
    says of each result whether a gradient can flow from it. Raises as `fw.vjp`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        specs: Sequence[TensorSpec],
        tree: Tree,
        wanted: Sequence[bool],
    ) -> None:
        self.arguments = tuple(_argument(k, s) for k, s in enumerate(specs))
        arrays = [Array(t) for t in self.arguments]
        variables = {k: variable("fuse", arrays[k]) for k, w in enumerate(wanted) if w}
        args, kwargs = trees.unflatten(tree, [variables.get(k, a) for k, a in enumerate(arrays)])
        found, self.out_tree = trees.flatten(fn(*args, **kwargs))
        self._outputs = [check_array("fuse (result)", y) for y in found]
        self._variables = variables
        self.results = tuple(y.tensor for y in self._outputs)
        seeds, _ = self.gradients([True] * len(self.results))
        self.is_reached = tuple(s is not None for s in seeds)

    def gradients(
        self, given: Sequence[bool]
    ) -> tuple[list[Tensor | None], dict[int, Tensor | None]]:
        """A cotangent for each result that has one and is `given`, and from them the gradient of
        each wanted argument; None where nothing flows."""
        variables = list(self._variables.values())
        seeds: list[Tensor | None] = []
        for k, (y, is_given) in enumerate(zip(self._outputs, given, strict=True)):
            flows = is_given and has_gradient(y, variables)
            seeds.append(_argument_like(k, y.tensor) if flows else None)
        pairs = [(y, Array(s)) for y, s in zip(self._outputs, seeds, strict=True) if s is not None]
        found = reached_cotangents([y for y, _ in pairs], [s for _, s in pairs], variables)
        gradients = [None if g is None else g.tensor for g in found]
        return seeds, dict(zip(self._variables, gradients, strict=True))


def _argument(position: int, spec: TensorSpec) -> Tensor:
    shape = tuple(ir.as_expr(cast("int | Expr", s)) for s in spec.shape)
    op = ir.Input((), position, ir.contiguous_strides(shape), spec.alignment)
    return Tensor("", shape, spec.dtype, op)


def _argument_like(position: int, t: Tensor) -> Tensor:
    return Tensor("", t.shape, t.dtype, ir.Input((), position, ir.contiguous_strides(t.shape), 16))
