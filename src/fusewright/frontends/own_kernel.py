"""`fw.kernel`: a part of a program is one kernel, scheduled by hand, or written as text."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fusewright.arguments import FUNCTION, ArgumentRule, Unfit, optional, several, takes
from fusewright.core.expr import as_expr, constant_value
from fusewright.cuda.names import identifier
from fusewright.driver import Schedule, by_hand
from fusewright.dtypes import DType
from fusewright.errors import ScheduleError, UserError
from fusewright.frontends.fuse import Fused
from fusewright.fusion import build, trees
from fusewright.fusion.array import Array
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import (
    Fusion,
    OwnKernel,
    Shape,
    Sym,
    Tensor,
    TensorSpec,
    contiguous_strides,
)
from fusewright.fusion.passes.own_outputs import own_outputs
from fusewright.fusion.spec_text import is_spec_text, parse_spec
from fusewright.fusion.trace import trace_call
from fusewright.fusion.trees import Tree
from fusewright.kernel import Kernel, TensorInfo
from fusewright.kir import ir
from fusewright.kir.analysis.uses import global_writes
from fusewright.kir.spec import check_kernel
from fusewright.runtime.config import active
from fusewright.target import Target, target_of

Data = npt.NDArray[Any]
Made: TypeAlias = tuple[Kernel, tuple[int, ...]]
"""A kernel, and the positions of the operands that it reads, in the order of its arrays."""
ScheduleBy: TypeAlias = Callable[[Schedule], object]


@dataclass(eq=False)
class Scheduled:
    """A traced function and what schedules it; a kernel for each target, and for whether results
    are to repeat."""

    fn: str
    fusion: Fusion
    schedule: ScheduleBy
    _made: dict[tuple[Target, bool], Made] = field(default_factory=dict[tuple[Target, bool], Made])

    @property
    def results(self) -> tuple[tuple[Shape, DType], ...]:
        """Shape and dtype of each result."""
        return tuple((t.shape, t.dtype) for t in self.fusion.outputs)

    def evaluate(self, arrays: Sequence[Data]) -> list[Data]:
        """The results by the oracle."""
        return evaluate(self.fusion, *arrays)

    def kernel(self, target: Target) -> Made:
        """The kernel. Raises ScheduleError where the schedule is not legal, or stores a result in
        another order than C order."""
        key = target, active().deterministic
        if key not in self._made:
            s = Schedule(self.fusion)
            self.schedule(s)
            name = _kernel_name(self.fn, str(self.fusion))
            kernel = by_hand(s, name, target)
            for info in kernel.outputs:
                if info.strides != contiguous_strides(info.shape):
                    raise ScheduleError(
                        f"{self.fn}: {info.name} is stored with strides {info.strides}; a kernel "
                        "inside of a program stores C order: leave set_allocation_order out"
                    )
            whole = own_outputs(s.original, each=True)
            pairs = zip(range(len(whole.inputs)), s.flow.inputs, strict=True)
            self._made[key] = kernel, tuple(k for k, i in pairs if s.flow.consumers(i))
        return self._made[key]


@dataclass(eq=False)
class WrittenKernel:
    """A kernel from a text, with the types of what it reads and of what it writes."""

    fn: str
    ir: ir.Kernel
    operands: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    _made: dict[Target, Kernel] = field(default_factory=dict[Target, Kernel])

    @property
    def results(self) -> tuple[tuple[Shape, DType], ...]:
        """Shape and dtype of each result."""
        return tuple((t.shape, t.dtype) for t in self.outputs)

    def evaluate(self, arrays: Sequence[Data]) -> list[Data]:
        """The results by the simulator. Raises UserError where it finds a race."""
        found = self._kernel(target_of(None)).simulate(*map(np.ascontiguousarray, arrays))
        if found.races:
            raise UserError(
                f"{self.fn}: the simulator found {len(found.races)} races, the first: "
                f"{found.races[0]}; what it computes depends on the order of its threads"
            )
        return found.outputs

    def kernel(self, target: Target) -> Made:
        """The kernel for a target."""
        return self._kernel(target), tuple(range(len(self.operands)))

    def _kernel(self, target: Target) -> Kernel:
        if target not in self._made:
            check_kernel(self.ir, "final", target=target)
            self._made[target] = Kernel(self.ir, target, self.operands, self.outputs, (), "")
        return self._made[target]


Body: TypeAlias = Scheduled | WrittenKernel


class OwnFunction:
    """A function of arrays that is one kernel: a part of the program that calls it, or a program
    by itself where it is called with data."""

    def __init__(self, name: str, made: Callable[[Sequence[Any], Tree], tuple[Body, Tree]]) -> None:
        self.__name__ = name
        self._make = made
        self._bodies: dict[object, tuple[Body, Tree]] = {}
        self._fused = Fused(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results, in the function's own structure. Raises UserError for sizes that are
        neither numbers nor symbols."""
        leaves, tree = trees.flatten((args, kwargs))
        if not leaves or not all(isinstance(x, Array) for x in leaves):
            return self._fused(*args, **kwargs)
        operands = tuple(cast("Array", x).tensor for x in leaves)
        key = tree, tuple((t.shape, t.dtype) for t in operands)
        if key not in self._bodies:
            self._bodies[key] = self._make([_spec(self.__name__, t) for t in operands], tree)
        body, out_tree = self._bodies[key]
        made = [
            Array(build.value(shape, dtype, OwnKernel(operands, self.__name__, k, body)))
            for k, (shape, dtype) in enumerate(body.results)
        ]
        return trees.unflatten(out_tree, made)

    def __repr__(self) -> str:
        return f"<{self.__name__}, a kernel of its own>"


def _spec(fn: str, t: Tensor) -> TensorSpec:
    shape: list[int | Sym] = []
    for e in t.shape:
        n = constant_value(e)
        if n is None and not isinstance(e, Sym):
            raise UserError(
                f"{fn}: {t.name or 'an argument'} has the size {e}, which is an expression in "
                "symbols; a kernel of one's own takes sizes that are numbers or symbols"
            )
        shape.append(cast("Sym", e) if n is None else n)
    return TensorSpec(tuple(shape), t.dtype)


def _kernel_name(fn: str, text: str) -> str:
    """A name for the kernel of a function, with a digest of what it computes."""
    return f"{identifier(f'fw_{fn}')}_{hashlib.sha256(text.encode()).hexdigest()[:4]}"


def _scheduled(fn: Callable[..., Any], schedule: ScheduleBy) -> OwnFunction:
    name = str(getattr(fn, "__name__", "kernel"))

    def made(specs: Sequence[TensorSpec], tree: Tree) -> tuple[Body, Tree]:
        args, kwargs = trees.unflatten(tree, list(specs))
        traced = trace_call(fn, *args, **kwargs)
        if len(traced.fusion.inputs) != len(specs):
            raise UserError(
                f"{name}: it uses arrays of known data, which a kernel of one's own does not hold; "
                "pass them as arguments"
            )
        return Scheduled(name, traced.fusion, schedule), traced.out_tree

    own = OwnFunction(name, made)
    functools.update_wrapper(own, fn)
    return own


def _written(kernel: ir.Kernel, results: Sequence[TensorSpec]) -> OwnFunction:
    if kernel.arguments or kernel.symbols or kernel.state or kernel.scratch:
        raise UserError(
            f"kernel({kernel.name}): a kernel that is called as an operation has "
            "arrays of constant size only; write scalars, sizes and scratch out"
        )
    out_tree = trees.flatten(results[0] if len(results) == 1 else tuple(results))[1]

    def made(specs: Sequence[TensorSpec], tree: Tree) -> tuple[Body, Tree]:
        types = [*specs, *results]
        if len(types) != len(kernel.arrays):
            raise UserError(
                f"kernel({kernel.name}): it has {len(kernel.arrays)} parameters, and was given "
                f"{len(specs)} arrays and {len(results)} results; inputs come first, then results"
            )
        written = global_writes(kernel)
        for k, b in enumerate(kernel.arrays):
            if (b in written) is (k < len(specs)):
                rule = "stores to its argument" if b in written else "stores nothing to its result"
                raise UserError(
                    f"kernel({kernel.name}): it {rule} {b.name}; a kernel that is called as an "
                    "operation reads its arguments, and stores all elements of its results"
                )
        infos = [_info(kernel, b, t) for b, t in zip(kernel.arrays, types, strict=True)]
        operands, outputs = infos[: len(specs)], infos[len(specs) :]
        return WrittenKernel(kernel.name, kernel, tuple(operands), tuple(outputs)), out_tree

    return OwnFunction(kernel.name, made)


def _info(kernel: ir.Kernel, b: ir.Buffer, spec: TensorSpec) -> TensorInfo:
    """An array at the border of a written kernel. Raises UserError where it does not fit."""
    shape: Shape = tuple(as_expr(cast("Any", n)) for n in spec.shape)
    count = build.element_count(shape)
    if b.dtype is not spec.dtype or constant_value(b.size) != constant_value(count):
        raise UserError(
            f"kernel({kernel.name}): its parameter {b.name} is {b.dtype}[{b.size}], and was given "
            f"{spec}; it takes an array of as many elements of its dtype"
        )
    return TensorInfo(b.name, shape, spec.dtype, contiguous_strides(shape))


# --- arguments ----------------------------------------------------------------------------------


def _callable_or_kernel(value: Any) -> Any:
    if not callable(value) and not isinstance(value, ir.Kernel):
        raise Unfit
    return value


def _result(value: Any) -> TensorSpec:
    if is_spec_text(value):
        return parse_spec(value)
    if not isinstance(value, TensorSpec):
        raise Unfit
    return value


_FN = ArgumentRule("a function, or a kernel, which fw.parse_kernel returns", _callable_or_kernel)
_RESULTS = several(
    ArgumentRule("", _result),
    "fw.TensorSpecs of the results, or texts such as 'f32[4,8]'",
    or_one=True,
)


@takes(fn=_FN, schedule=optional(FUNCTION), results=optional(_RESULTS))
def kernel(
    fn: Callable[..., Any] | ir.Kernel,
    *,
    schedule: ScheduleBy | None = None,
    results: Sequence[TensorSpec] | TensorSpec | str | None = None,
) -> Callable[..., Any]:
    """A function of arrays that is one kernel in every program that calls it.

    `fn` is a function of arrays, and `schedule` edits the `fw.Schedule` of what it computes; or
    `fn` is a kernel that `fw.parse_kernel` read, whose parameters are the arrays of a call and then
    the `results`, in C order. What other operations make is stored before, and read behind it.
    `explain` says so. Its syncs are checked as those of other kernels: with `fw.verify`, and by the
    simulator.

    Raises UserError for a function without `schedule` and for a kernel without `results`, and
    ScheduleError, when the program is compiled, for a schedule that is not legal.
    """
    if isinstance(fn, ir.Kernel):
        if results is None or schedule is not None:
            raise UserError(
                f"kernel({fn.name}): a kernel from a text is scheduled already, and its results "
                "have no shapes; give results=(fw.TensorSpec(shape, dtype), ...) and no schedule="
            )
        return _written(fn, cast("Sequence[TensorSpec]", results))
    if schedule is None or results is not None:
        raise UserError(
            "kernel: a function needs schedule=, a function that edits its fw.Schedule, and no "
            "results=, which its trace knows; fw.fuse finds a schedule by itself"
        )
    return _scheduled(fn, schedule)
