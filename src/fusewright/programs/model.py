"""The model of a compiled program: launches over the values of a fusion. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fusewright.core.expr import Expr, Var, constant_value
from fusewright.errors import UserError
from fusewright.fusion.call_numbers import check_numbers
from fusewright.fusion.ir import Fusion, Tensor, contiguous_strides
from fusewright.fusion.orders import Order, Orders, c_order, inverse, strides_in
from fusewright.host.assemble import HostProgram, KernelCall, assemble
from fusewright.host.control import HostRegion, RegionCall as RegionCall
from fusewright.host.groups import Reason
from fusewright.host.invariants import check_host
from fusewright.host.ir import JoinPieces
from fusewright.host.subspans import Subspan
from fusewright.kernel import Binder, Kernel, TensorInfo
from fusewright.programs.views import SharedResults
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel over subspans of the program's values, those it reads and those it writes in the
    kernel's order, and the values of its scalar parameters in this place. Of a `region` the kernel
    has parameters only: the launches are those of its bodies."""

    kernel: Kernel
    reads: tuple[Subspan, ...]
    writes: tuple[Subspan, ...]
    values: tuple[bool | int | float, ...]
    region: RegionBodies | None = None

    def __repr__(self) -> str:
        runs = repr(self.kernel) if self.region is None else self.region.call.fn
        ends = [", ".join(t.name for t in of) for of in (self.inputs, self.outputs)]
        return f"<Dispatch of {runs}: ({ends[0]}) -> ({ends[1]})>"

    @property
    def bodies(self) -> tuple[ProgramModel, ...]:
        """The programs that run in its place, of a region."""
        return () if self.region is None else self.region.bodies

    @property
    def call(self) -> KernelCall:
        """The same to the host program."""
        own = self.kernel.ir, self.values, self.reads, self.writes
        if self.region is not None:
            return KernelCall(*own, region=self.region.host)
        return KernelCall(*own, idle=self.kernel.idle_multiprocessors)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The values that it reads."""
        return tuple(s.tensor for s in self.reads)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The values that it makes, each as often as it is stored."""
        return tuple(s.tensor for s in self.writes)


@dataclass(frozen=True, slots=True, eq=False)
class RegionBodies:
    """What runs in the place of a launch that is a region: the bodies, compiled, and the steps over
    them; `call` is what both were made of."""

    call: RegionCall
    host: HostRegion
    bodies: tuple[ProgramModel, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The element strides of a tensor: what the user required, what a pass or a schedule prefers,
    and what the program makes; None where nobody asked. `why` names who decided."""

    required: tuple[Expr, ...] | None
    preferred: tuple[Expr, ...] | None
    actual: tuple[Expr, ...]
    why: str


@dataclass(eq=False)
class ProgramModel:
    """Kernels in order, and the tensors between them. `held`: results that are made in the memory
    of an argument, which the caller gives away; `orders`: of axes, of results whose caller requires
    one, and of what lies in no C order; `lenders`: arguments that the caller gives away, that hold
    no result, and whose memory kernels may use; `shared`: results of calls that are views, which
    `fusion` does not compute."""

    fusion: Fusion
    launches: tuple[Dispatch, ...]
    reasons: tuple[Reason, ...]
    target: Target
    pieces: JoinPieces = field(default_factory=JoinPieces)
    held: Mapping[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    orders: Orders = field(default_factory=Orders)
    lenders: tuple[Tensor, ...] = ()
    shared: SharedResults | None = None

    @property
    def kernels(self) -> list[Kernel]:
        """The different kernels, in order of first launch, those of bodies of regions too."""
        return list(dict.fromkeys(x.kernel for x in self.every_launch))

    @property
    def every_program(self) -> Iterator[ProgramModel]:
        """The program, and the bodies of its regions."""
        yield self
        for x in self.launches:
            for body in x.bodies:
                yield from body.every_program

    @property
    def every_launch(self) -> Iterator[Dispatch]:
        """The launches of kernels, in the place of regions those of their bodies, each once."""
        for x in self.launches:
            if not x.bodies:
                yield x
            for body in x.bodies:
                yield from body.every_launch

    @cached_property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The arrays of a call."""
        return tuple(TensorInfo.of(t) for t in self.fusion.inputs)

    @cached_property
    def results(self) -> tuple[TensorInfo, ...]:
        """The different arrays that a call makes, as the caller sees them, in order of first
        output."""
        made = {
            s.tensor: info
            for x in self.launches
            for s, info in zip(x.writes, x.kernel.outputs, strict=True)
            if s.is_whole and s.root is s.tensor
        }
        found: list[TensorInfo] = []
        for t in dict.fromkeys(self.fusion.outputs):
            # by its own name: a kernel that equal ones share has the names of the first
            order = self.orders.in_memory(t.name, t.ndim)
            found.append(_permuted(made.get(t) or TensorInfo.of(t), inverse(order)))
        return tuple(found)

    @cached_property
    def places(self) -> list[int]:
        """For each output the position of its array among the different results."""
        position = {t: k for k, t in enumerate(dict.fromkeys(self.fusion.outputs))}
        return [position[t] for t in self.fusion.outputs]

    @cached_property
    def holders(self) -> tuple[int | None, ...]:
        """For each different result the position of the argument in whose memory it is made."""
        inputs = self.fusion.inputs
        outputs = dict.fromkeys(self.fusion.outputs)
        return tuple(inputs.index(self.held[t]) if t in self.held else None for t in outputs)

    @property
    def host(self) -> HostProgram:
        """Launches with exact bindings, the packed arena, edges, and `stats`. Raises InternalError
        where an order that the edges allow could give other bytes, or read what nobody wrote."""
        return self._checked

    @cached_property
    def _checked(self) -> HostProgram:
        check_host(self.assembled)
        for x in self.launches:
            for body in x.bodies:
                _ = body.host
        return self.assembled

    @cached_property
    def assembled(self) -> HostProgram:
        """The host program, whose invariants nobody has checked."""
        calls = [x.call for x in self.launches]
        return assemble(self.fusion, calls, self.pieces, self.held, self.lenders)

    @property
    def workspace_nbytes(self) -> int | Expr:
        """The bytes that kernels of one call store for each other, and that `workspace=` may bring:
        an expression in the symbolic sizes where there are any."""
        known = constant_value(self.host.arena.nbytes)
        return self.host.arena.nbytes if known is None else known

    @cached_property
    def numbers(self) -> tuple[Var, ...]:
        """The symbols that calls give values for, in the order of the arguments."""
        return tuple(n.symbol for n in self.fusion.numbers)

    def symbol_values(
        self, arrays: Sequence[Any], numbers: Mapping[Var, int] | None = None
    ) -> dict[Var, int]:
        """What these arrays and the numbers of a call give the symbols. Raises UserError where they
        do not fit."""
        values = self._bind([tuple(a.shape) for a in arrays], numbers)
        if numbers:
            check_numbers(self.fusion, values)
        return values

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The symbols, in the order in which `symbol_values` gives their values."""
        return self._bind.symbols

    @cached_property
    def _bind(self) -> Binder:
        return Binder(self.inputs, "the program", [n.symbol for n in self.fusion.numbers])

    def check_arguments(
        self, arrays: Sequence[Any], numbers: Mapping[Var, int] | None = None
    ) -> dict[Var, int]:
        """The values of the symbols. Raises UserError for wrong counts, shapes and dtypes, and for
        numbers that do not fit them."""
        sizes = self.symbol_values(arrays, numbers)
        for x, i in zip(arrays, self.inputs, strict=True):
            if x.dtype is not i.dtype:
                raise UserError(f"{i.name} must be {i.dtype}, got {x.dtype}; cast it first")
        return sizes

    @property
    def layouts(self) -> dict[str, Layout]:
        """The element strides of every tensor that has memory, by name."""
        return self._layouts

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        out: dict[str, Layout] = {}
        for t, info in zip(self.fusion.inputs, self.inputs, strict=True):
            out[t.name] = Layout(info.strides, None, info.strides, "given by the caller's spec")
        for x in self.launches:
            for s in x.writes:
                for t in (s.root, s.tensor):
                    out.setdefault(t.name, self._layout(t, x.kernel.name, s))
        return out

    def _layout(self, t: Tensor, kernel: str, s: Subspan) -> Layout:
        own = self.orders.in_memory(t.name, t.ndim)
        shape = tuple(t.shape[a] for a in inverse(own))
        dense, wanted = strides_in(shape, own), self.orders.required.get(t.name)
        required = None if wanted is None else strides_in(shape, wanted)
        if s.root is not s.tensor or not s.is_whole:
            inside = t is s.tensor and t is not s.root
            why = f"stored by {kernel} inside of {s.root.name}" if inside else "joined from parts"
            return Layout(required, None, s.strides if inside else dense, why)
        if s.strides != contiguous_strides(t.shape):
            why = f"stored by {kernel}, in the order that its schedule sets"
            return Layout(required, s.strides, s.strides, why)
        if required is not None:
            how = "C order" if own == c_order(t.ndim) else f"the order {own} of its axes"
            return Layout(required, None, dense, f"stored by {kernel}, in {how}, as required")
        order = self.orders.actual.get(t.name)
        if order is not None:
            strides = tuple(dense[order.index(a)] for a in range(t.ndim))
            why = f"stored by {kernel}, in the order of what it is made of or read for"
            return Layout(None, strides, strides, why)
        preferred = self.orders.preferred.get(t.name)
        if preferred is None or t in self.fusion.outputs or len(preferred) != t.ndim:
            return Layout(None, None, dense, f"stored by {kernel}, in C order")
        why = f"stored by {kernel}, in C order, which is predicted to take less time"
        return Layout(None, strides_in(t.shape, preferred), dense, why)


HOST = ("assembled", "_checked")
"""What a model keeps of its host program, once that is assembled and checked."""


def as_shown(program: ProgramModel, outputs: Sequence[Any]) -> list[Any]:
    """Host arrays of the outputs of a program's fusion as its caller sees them: views."""
    pairs = zip(program.fusion.outputs, outputs, strict=True)
    return [a.transpose(inverse(program.orders.in_memory(t.name, t.ndim))) for t, a in pairs]


def _permuted(i: TensorInfo, axes: Order) -> TensorInfo:
    """Axis `axes[j]` becomes axis j."""
    shape, strides = (tuple(x[a] for a in axes) for x in (i.shape, i.strides))
    return TensorInfo(i.name, shape, i.dtype, strides)
