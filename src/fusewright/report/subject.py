"""What a report needs of a compiled program. Anything of this form can be reported on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fusewright.fusion.ir import Fusion
from fusewright.kir.ir import Kernel


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
    """One sync of a kernel: its id in the kernel's text, its kind, and the reason for it."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def why(self) -> str: ...


class ParamLike(Protocol):
    """One array that a kernel takes; `access` says "R", "W" or "RW"."""

    @property
    def name(self) -> str: ...
    @property
    def access(self) -> str: ...


class LaunchLike(Protocol):
    """Grid and block as x, y, z; constants, or expressions in the shape symbols."""

    @property
    def grid(self) -> Sequence[object]: ...
    @property
    def block(self) -> Sequence[object]: ...
    @property
    def shared_nbytes(self) -> object: ...


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


class KernelLike(Protocol):
    """One kernel of a program. `resources` raises UserError where no compiler is installed."""

    @property
    def name(self) -> str: ...
    @property
    def ir(self) -> Kernel: ...
    @property
    def params(self) -> Sequence[ParamLike]: ...
    @property
    def launch(self) -> LaunchLike: ...
    @property
    def cuda(self) -> str: ...
    @property
    def smem(self) -> Sequence[SmemLike]: ...
    @property
    def syncs(self) -> Sequence[SyncLike]: ...
    @property
    def schedule(self) -> str: ...
    def resources(self) -> ResourcesLike: ...


class HostLike(Protocol):
    """The host program, of which a report shows the statistics."""

    @property
    def stats(self) -> Mapping[str, object]: ...


class ProgramLike(Protocol):
    """A compiled program. `reasons` says what was cut, or fell back to a slower form, and why."""

    @property
    def fusion(self) -> Fusion: ...
    @property
    def kernels(self) -> Sequence[KernelLike]: ...
    @property
    def host(self) -> HostLike: ...
    @property
    def reasons(self) -> Sequence[str]: ...
