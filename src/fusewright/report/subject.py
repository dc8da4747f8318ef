"""What a report needs of a compiled program. Anything of this form can be reported on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fusewright.core.expr import Expr
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.host.assemble import HostProgram
from fusewright.kir.ir import Kernel
from fusewright.schedule.edits import EditCall
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost
from fusewright.schedule.heuristics.rating import Rating
from fusewright.target import Target


class SmemLike(Protocol):
    """One buffer in shared memory: where it lies in bytes, and whose bytes it takes over."""

    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def alias_of(self) -> str | None: ...


class SyncLike(Protocol):
    """One sync of a kernel: its id in the kernel's text, its kind, the reason for it, and the
    hazards that it orders."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def orders(self) -> Sequence[object]: ...


class GeometryLike(Protocol):
    """Grid and block as x, y, z, constants or expressions in the shape symbols; blocks in a
    cluster."""

    @property
    def grid(self) -> Sequence[object]: ...
    @property
    def block(self) -> Sequence[object]: ...
    @property
    def cluster(self) -> int: ...
    @property
    def shared_nbytes(self) -> int: ...


class ResourcesLike(Protocol):
    """What the compiler reports: registers a thread, spills and stack in bytes, warnings."""

    @property
    def registers(self) -> int: ...
    @property
    def spill_stores(self) -> int: ...
    @property
    def spill_loads(self) -> int: ...
    @property
    def stack_nbytes(self) -> int: ...
    @property
    def warnings(self) -> Sequence[str]: ...


class SpilledLike(Protocol):
    """A way to make a kernel of which the compiler spills so many bytes a thread; `is_kept`: it is
    that of the kernel all the same."""

    @property
    def what(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_kept(self) -> bool: ...


class KernelLike(Protocol):
    """One kernel of a program. `resources` raises UserError where no compiler is installed;
    `heuristic` are the parameters that were chosen, `edits` the calls of a schedule by hand that
    make the same kernel, `predicted` the time of a launch, `measured` what tuning timed, in
    microseconds; `spilled` are the ways in which the compiler spills registers, `lowered` is what
    the passes were given.
    """

    @property
    def name(self) -> str: ...
    @property
    def ir(self) -> Kernel: ...
    @property
    def lowered(self) -> Kernel | None: ...
    @property
    def target(self) -> Target: ...
    @property
    def launch(self) -> GeometryLike: ...
    @property
    def cuda(self) -> str: ...
    @property
    def smem(self) -> Sequence[SmemLike]: ...
    @property
    def syncs(self) -> Sequence[SyncLike]: ...
    @property
    def schedule(self) -> str: ...
    @property
    def heuristic(self) -> Params | None: ...
    @property
    def candidates(self) -> Sequence[Rating]: ...
    @property
    def edits(self) -> Sequence[EditCall]: ...
    @property
    def predicted(self) -> Cost | None: ...
    @property
    def measured(self) -> Sequence[tuple[Params, float]]: ...
    @property
    def spilled(self) -> Sequence[SpilledLike]: ...
    def resources(self) -> ResourcesLike: ...


class LaunchLike(Protocol):
    """One run of a kernel, or of a region, whose `bodies` are programs: the values of the fusion
    that it reads and those that it writes."""

    @property
    def kernel(self) -> KernelLike: ...
    @property
    def inputs(self) -> Sequence[Tensor]: ...
    @property
    def outputs(self) -> Sequence[Tensor]: ...
    @property
    def bodies(self) -> Sequence[ProgramLike]: ...


class ReasonLike(Protocol):
    """What was cut, or fell back to a slower form, and why: a value of the fusion, and the rule."""

    @property
    def tensor(self) -> str: ...
    @property
    def rule(self) -> str: ...


class LayoutLike(Protocol):
    """The element strides of a value: asked for, wished for, made; and who decided."""

    @property
    def required(self) -> Sequence[Expr] | None: ...
    @property
    def preferred(self) -> Sequence[Expr] | None: ...
    @property
    def actual(self) -> Sequence[Expr]: ...
    @property
    def why(self) -> str: ...


class ProgramLike(Protocol):
    """A compiled program. `kernels` are the different ones, `launches` what runs in order."""

    @property
    def fusion(self) -> Fusion: ...
    @property
    def kernels(self) -> Sequence[KernelLike]: ...
    @property
    def launches(self) -> Sequence[LaunchLike]: ...
    @property
    def reasons(self) -> Sequence[ReasonLike]: ...
    @property
    def host(self) -> HostProgram: ...
    @property
    def layouts(self) -> Mapping[str, LayoutLike]: ...
    @property
    def target(self) -> Target: ...
