"""Calls of fused functions that torch differentiates: a forward and a backward program of one
recorded function, with an autograd node around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.dtypes import dtype_of
from fusewright.errors import UserError
from fusewright.frontends.fuse import MAX_PROGRAMS, Fused, instances
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.residuals import residuals
from fusewright.fusion import trees
from fusewright.fusion.array import Array
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.transforms.derived import Derived, recorded_again
from fusewright.fusion.trees import Tree
from fusewright.runtime.config import Float32Matmul
from fusewright.runtime.torch_calls import has_tangents


class Training:
    """A fused function on tensors of certain shapes and dtypes, of which some require gradients.

    What the backward program needs of the forward one is kept or computed again, whichever moves
    fewer bytes (`residuals`). Arguments and results are kept as they are; the other residuals are
    results of the forward program that the caller does not see.
    """

    def __init__(
        self, fused: Fused, specs: Sequence[TensorSpec], tree: Tree, wanted: Sequence[bool]
    ) -> None:
        def called(*args: Any, **kwargs: Any) -> Any:
            return fused.fn(*instances(args), **kwargs)

        self._fused = fused
        self._precision: Float32Matmul = (
            fused.precision
        )  # of both passes: gradients are asked for elsewhere
        self.name = fused.name
        self._derived = derived = Derived(called, specs, tree, wanted)
        seeds, gradients = derived.gradients(derived.is_reached)
        self.out_tree = derived.out_tree
        needed = [g for g in gradients.values() if g is not None]
        given = [s for s in seeds if s is not None]
        at_hand = (*derived.arguments, *derived.results)
        kept = residuals(derived.arguments, derived.results, needed, given)
        self.own = [t for t in kept if t not in at_hand]
        self._kept = [t for t in kept if t in at_hand] + self.own
        everything = (*at_hand, *self.own)
        self.picked = [everything.index(t) for t in self._kept]
        """Where a residual stands among arguments, results and what else is made."""
        self.forward = self._forward()
        self._backwards: dict[tuple[bool, ...], _Backward] = {}

    def _forward(self) -> Fused:
        """The function that returns the results, and behind them the residuals it makes."""
        d, made = self._derived, self.own

        def forward(*arrays: Array) -> list[Array]:
            known = dict(zip(d.arguments, (x.tensor for x in arrays), strict=True))
            return list(map(Array, recorded_again((*d.results, *made), known)))

        forward.__name__ = f"{self._fused.name}_forward"
        orders = self._fused.out_layouts
        return self._fused.derived(
            forward,
            None if orders is None else [*orders, *[None] * len(made)],
            precision=self._precision,
        )

    @property
    def is_reached(self) -> Sequence[bool]:
        """Of each result, whether a gradient can flow from it."""
        return self._derived.is_reached

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The gradients of all arguments, None where there is none, from the residuals that are
        `picked` and the results' cotangents, None for zeros."""
        given = tuple(c is not None for c in cotangents)
        found = self._backwards.get(given)
        if found is None:
            found = self._backwards[given] = self._backward(given)
        tensors = [
            *kept,
            *(c for c, is_used in zip(cotangents, found.used, strict=True) if is_used),
        ]
        made = iter(found.fused(*tensors) if found.fused else ())
        return [next(made) if is_made else None for is_made in found.made]

    def _backward(self, given: Sequence[bool]) -> _Backward:
        d = self._derived
        seeds, gradients = d.gradients(given)
        at_hand = [*self._kept, *(s for s in seeds if s is not None)]
        wanted = [g for g in gradients.values() if g is not None]

        def backward(*arrays: Array) -> list[Array]:
            known = dict(zip(at_hand, (x.tensor for x in arrays), strict=True))
            return list(map(Array, recorded_again(wanted, known)))

        made = [gradients.get(k) is not None for k in range(len(d.arguments))]
        backward.__name__ = f"{self._fused.name}_backward"
        fused = self._fused.derived(backward, precision=self._precision) if wanted else None
        return _Backward(fused, tuple(s is not None for s in seeds), made)


@dataclass(frozen=True, slots=True)
class _Backward:
    """The program for cotangents of some results: which of them it reads, and which arguments it
    makes the gradients of."""

    fused: Fused | None
    used: Sequence[bool]
    made: Sequence[bool]


class _Node(torch.autograd.Function):
    """One call in torch's record."""

    @staticmethod
    def forward(ctx: Any, training: Training, *tensors: Any) -> Any:
        made = training.forward(*tensors)
        results = made[: len(training.is_reached)]
        everything = (*tensors, *made)
        ctx.training = training
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[everything[k] for k in training.picked])
        pairs = zip(results, training.is_reached, strict=True)
        ctx.mark_non_differentiable(*[x for x, is_reached in pairs if not is_reached])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            raise UserError(
                f"{ctx.training.name}: a gradient of a gradient through a fused call; write "
                "both inside of one fused function (fw.grad of fw.grad), or use torch.compile with "
                "eager operators for it"
            )
        return None, *ctx.training.backward(ctx.saved_tensors, cotangents)


def differentiated(fused: Fused, tensors: Sequence[Any], tree: Tree) -> Any:
    """The result of a call on torch tensors, of which some require gradients, in the function's
    own structure, with torch's record of it.

    Raises UserError for tangents of forward mode, UnsupportedError for a function that has no
    derivative.
    """
    if has_tangents(tensors):
        raise UserError(
            f"{fused.name}: an argument has a tangent of forward mode, of which a fused function "
            "keeps no record; use reverse mode, or call it under torch.no_grad()"
        )
    wanted = tuple(x.requires_grad and x.is_floating_point() for x in tensors)
    types = tuple((tuple(map(int, x.shape)), x.dtype) for x in tensors)
    key = (tree, types, wanted, fused.precision)
    training = fused.trainings.get(key)
    if training is None:
        if len(fused.trainings) >= MAX_PROGRAMS:
            del fused.trainings[next(iter(fused.trainings))]
        specs = [TensorSpec(shape, dtype_of(dtype)) for shape, dtype in types]
        training = fused.trainings[key] = Training(fused, specs, tree, wanted)
    return trees.unflatten(training.out_tree, list(_Node.apply(training, *tensors)))
