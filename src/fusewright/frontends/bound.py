"""Calls of a fused function that are bound to the types of torch tensors: where the tensors and the
numbers stand in a call, and what its results become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusewright.fusion import trees
from fusewright.fusion.trees import Leaf, Tree
from fusewright.program import Program
from fusewright.runtime.torch_calls import NumberedCall, Steps, TorchCall

Alike: TypeAlias = Callable[[Sequence[Any]], "list[Any] | None"]
"""Runs on tensors of known types, unless a call must look at more than their addresses: None."""


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program and the structure of the function's result over its outputs."""

    program: Program
    out_tree: Tree

    def result(self, made: Sequence[Any]) -> Any:
        """The function's own structure."""
        is_one = isinstance(self.out_tree, Leaf)
        return made[0] if is_one else trees.unflatten(self.out_tree, list(made))

    def given(self, out: Any) -> list[Any] | None:
        """The arrays of `out=` in the order of the outputs; None for another structure."""
        return trees.leaves_like(self.out_tree, out)


@dataclass(frozen=True, slots=True)
class TensorCall:
    """A program bound to the exact types of torch tensors, and where they stand in a call: at all
    positions, at some, or (`nested`) in structures."""

    torch: TorchCall | NumberedCall
    positions: tuple[int, ...] | None
    nested: bool
    places: tuple[int, ...]
    compiled: BoundProgram
    single: bool
    numbers: tuple[int, ...] = ()
    """Where the numbers of the call stand among its values."""

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Any:
        """The result for tensors of these types."""
        values: Sequence[Any] = (*args, *kwargs.values()) if kwargs else args
        numbers = tuple([int(values[p]) for p in self.numbers]) if self.numbers else ()
        if self.nested:
            values = trees.leaves(values)
        elif self.positions is not None:
            values = [values[p] for p in self.positions]
        if out is not None:
            return self._into(values, out, numbers)
        made = self.torch.run(values, (), numbers)
        if self.single:
            return made[0]
        return self.compiled.result([made[p] for p in self.places])

    @property
    def alike(self) -> Alike | None:
        """The call for lists of tensors that are known to have these types, and to share memory as
        these do; None for a call whose arguments are not all tensors side by side, whose results
        are not the program's, or that writes to what is no argument."""
        in_order = self.places == tuple(range(len(self.places)))
        plain = in_order and self.positions is None
        if not plain or self.nested or self.single or isinstance(self.torch, NumberedCall):
            return None
        return self.torch.run_alike if self.torch.is_alike else None

    def steps(self) -> Steps | None:
        """The call taken apart; None where that is not all of it: arguments that are not all
        tensors side by side, results that are not the program's, or arrays that are no arguments
        and are written to."""
        in_order = self.places == tuple(range(len(self.places)))
        if not in_order or self.positions is not None or self.nested or self.single:
            return None
        if isinstance(self.torch, NumberedCall) or not self.torch.is_alike:
            return None
        return self.torch.steps()

    def _into(self, values: Sequence[Any], out: Any, numbers: tuple[int, ...]) -> Any:
        """The call with arrays of `out=`; every output is a result of its own."""
        if self.single:
            return self.torch.run(values, (out,), numbers)[0]
        given = self.compiled.given(out) or []
        return self.compiled.result(self.torch.run(values, given, numbers))


class SharedCall(TensorCall):
    """A call some of whose results are views of what it is given or makes."""

    __slots__ = ()

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Any:
        """The result for tensors of these types."""
        values: Sequence[Any] = (*args, *kwargs.values())
        numbers = tuple([int(values[p]) for p in self.numbers])
        if self.nested:
            values = trees.leaves(values)
        elif self.positions is not None:
            values = [values[p] for p in self.positions]
        calls = self.compiled.program.calls
        given = () if out is None else calls.computed(self.compiled.given(out) or [])
        made = self.torch.run(values, given, numbers)
        shown = calls.with_views(values, [made[p] for p in self.places], numbers)
        return self.compiled.result(shown)

    @property
    def alike(self) -> Alike | None:
        """None: the results are not the program's."""
        return None

    def steps(self) -> Steps | None:
        """None: the results are not the program's."""
        return None


def bound(
    call: TorchCall | NumberedCall,
    compiled: BoundProgram,
    leaves: Sequence[Any],
    values: Sequence[Any],
    numbers: tuple[int, ...],
) -> TensorCall:
    """A call bound to tensors that stand among the values of a call."""
    own = {id(x) for x in leaves}
    found = tuple([p for p, v in enumerate(values) if id(v) in own])
    nested = len(found) != len(leaves)
    positions = None if nested or len(found) == len(values) else found
    single = isinstance(compiled.out_tree, Leaf)
    places = tuple(compiled.program.places)
    kind = TensorCall if compiled.program.shared is None else SharedCall
    return kind(call, positions, nested, places, compiled, single, numbers)
