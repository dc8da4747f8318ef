"""Everything a report says, gathered once and frozen: renderers only arrange it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.errors import UserError
from fusewright.fusion.ir import Fusion
from fusewright.kir.text import print_kernel
from fusewright.report.cut import Cut, cut
from fusewright.report.subject import (
    KernelLike,
    ProgramLike,
    ResourcesLike,
    SmemLike,
    SyncLike,
)
from fusewright.report.table import nbytes_text
from fusewright.report.timeline import Timeline, timeline


@dataclass(frozen=True, slots=True, eq=False)
class KernelFacts:
    """One kernel, launched `launches` times. `resources` is None where no compiler is installed,
    `no_resources` then says so; `cuda` is the kernel's own text, without the prelude."""

    name: str
    launches: int
    launch: str
    shared_nbytes: str
    resources: ResourcesLike | None
    no_resources: str
    smem: tuple[SmemLike, ...]
    syncs: tuple[SyncLike, ...]
    timeline: Timeline
    schedule: str
    ir: str
    cuda: str


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """One program: its numbers as (label, value) lines, the reasons, the kernels."""

    title: str
    numbers: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    fusion: Fusion
    cut: Cut
    kernels: tuple[KernelFacts, ...]


def gather(program: ProgramLike, title: str) -> Facts:
    """The facts of a program. Compiles its kernels where a compiler is installed."""
    times = Counter(id(x.kernel) for x in program.launches)
    return Facts(
        title=title,
        numbers=tuple(_numbers(program.host.stats)),
        reasons=tuple(map(str, program.reasons)),
        fusion=program.fusion,
        cut=cut(program.fusion, program.launches),
        kernels=tuple(_kernel_facts(k, times[id(k)]) for k in program.kernels),
    )


def _kernel_facts(kernel: KernelLike, launches: int) -> KernelFacts:
    resources, no_resources = _resources(kernel)
    grid, block = _dims(kernel.launch.grid), _dims(kernel.launch.block)
    return KernelFacts(
        name=kernel.name,
        launches=launches,
        launch=f"grid ({grid}), block ({block})",
        shared_nbytes=_nbytes(kernel.launch.shared_nbytes),
        resources=resources,
        no_resources=no_resources,
        smem=tuple(sorted(kernel.smem, key=lambda b: b.offset)),
        syncs=tuple(kernel.syncs),
        timeline=timeline(kernel.ir, kernel.smem, kernel.syncs),
        schedule=kernel.schedule.rstrip(),
        ir=print_kernel(kernel.ir).rstrip(),
        cuda=_without_prelude(kernel.cuda).rstrip(),
    )


def _resources(kernel: KernelLike) -> tuple[ResourcesLike | None, str]:
    try:
        return kernel.resources(), ""
    except UserError as e:
        return None, str(e)


def _dims(extents: Sequence[object]) -> str:
    return ", ".join(map(str, extents))


def _nbytes(value: object) -> str:
    """Bytes with a unit; an expression in the shape symbols as it stands."""
    text = str(value)
    return nbytes_text(int(text)) if text.isdigit() else f"{text} B"


def _without_prelude(cuda: str) -> str:
    """The text from the kernel's signature on."""
    start = cuda.find('extern "C" __global__')
    return cuda[max(start, 0) :]


_COUNTS = ("launches", "fills", "copies", "critical_path")
_SIZES = (
    ("bytes_moved", "bytes moved"),
    ("lower_bound_bytes", "least possible"),
    ("bytes_copied", "bytes copied"),
    ("bytes_filled", "bytes filled"),
    ("peak_bytes", "memory for intermediates"),
)


def _numbers(stats: Mapping[str, object]) -> list[tuple[str, str]]:
    """The host program's statistics that are there, with units and in a fixed order."""
    lines = [(name.replace("_", " "), str(stats[name])) for name in _COUNTS if name in stats]
    lines += [(label, _nbytes(stats[name])) for name, label in _SIZES if name in stats]
    ratio = traffic_ratio(stats)
    if ratio is not None:
        lines.append(("moved / least possible", f"{ratio:.2f}"))
    for name in ("edges", "placed", "not_placed"):
        if stats.get(name):
            lines.append((name.replace("_", " "), str(stats[name])))
    return lines


def traffic_ratio(stats: Mapping[str, object]) -> float | None:
    """Bytes moved over the least possible; None where either is symbolic or missing."""
    moved, least = stats.get("bytes_moved"), stats.get("lower_bound_bytes")
    if isinstance(moved, int) and isinstance(least, int) and least > 0:
        return moved / least
    return None
