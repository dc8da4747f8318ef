"""Everything a report says, gathered once and frozen: renderers only arrange it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusewright.errors import UserError
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.kir.ir import Kernel
from fusewright.kir.text import print_kernel
from fusewright.report.candidates import candidates_text
from fusewright.report.cut import Cut, cut, every_band, every_launch
from fusewright.report.host_facts import HostFacts, host_facts
from fusewright.report.links import Names, marks_of, names_of
from fusewright.report.longest import longest
from fusewright.report.predicted import Measured, bytes_us
from fusewright.report.subject import (
    KernelLike,
    LaunchLike,
    ProgramLike,
    ResourcesLike,
    SmemLike,
    SyncLike,
)
from fusewright.report.timeline import Timeline, timeline
from fusewright.report.traffic import LaunchTraffic, size_text, traffic
from fusewright.schedule.edits import log_text
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost
from fusewright.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class KernelReport:
    """One kernel, launched `launches` times. `resources` is None where no compiler is installed,
    `no_resources` then says so; `cuda` is the kernel's own text, without the prelude; `launch_us`
    is what its launches were measured to take, in the mean. `longest`: by buffers in shared memory
    whose size is a symbol's, the largest one, for which they have room."""

    name: str
    launches: int
    launch: str
    shared_nbytes: str
    resources: ResourcesLike | None
    no_resources: str
    smem: tuple[SmemLike, ...]
    longest: Mapping[str, str]
    syncs: tuple[SyncLike, ...]
    timeline: Timeline
    schedule: str
    candidates: str
    edits: str
    ir: str
    cuda: str
    lowered: Kernel | None
    target: Target
    names: Names
    heuristic: Params | None
    measured: tuple[tuple[Params, float], ...]
    cost: Cost | None
    bytes_us: float
    launch_us: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReportFacts:
    """One program: its launches and traffic, the reasons, the kernels, the host program. `marks`:
    what its values are called on the page, where kernels' texts and pictures speak of them."""

    title: str
    nlaunches: int
    traffic: LaunchTraffic
    reasons: tuple[str, ...]
    fusion: Fusion
    cut: Cut
    kernels: tuple[KernelReport, ...]
    host: HostFacts
    marks: Mapping[Tensor, str]


def gather(program: ProgramLike, title: str, measured: Measured | None = None) -> ReportFacts:
    """The facts of a program, and what was measured of it. Compiles its kernels where a compiler is
    installed."""
    launches = every_launch(program)
    times = Counter(id(x.kernel) for x in launches)
    first = {id(x.kernel): x for x in reversed(launches)}
    found = cut(program.fusion, program.launches)
    bands = every_band(program)
    kernels = [
        replace(
            _kernel_facts(k, times[id(k)], names_of(i, k, bands.get(k.name, ())), first[id(k)]),
            launch_us=None if measured is None else measured.mean_us(k.name),
        )
        for i, k in enumerate(program.kernels)
    ]
    return ReportFacts(
        title=title,
        nlaunches=len(program.launches),
        traffic=traffic(program),
        reasons=reasons_of(program),
        fusion=program.fusion,
        cut=found,
        kernels=tuple(kernels),
        host=host_facts(program, measured),
        marks=marks_of(found, program.kernels, launches),
    )


def reasons_of(program: ProgramLike) -> tuple[str, ...]:
    """Every reason with the line of the program that its value comes from, where that is known."""
    lines = {t.name: t.source for t in program.fusion.values if t.source is not None}
    return tuple(
        f"{r.tensor} ({lines[r.tensor]}): {r.rule}" if r.tensor in lines else str(r)
        for r in program.reasons
    )


def _kernel_facts(
    kernel: KernelLike, launches: int, names: Names, first: LaunchLike
) -> KernelReport:
    resources, no_resources = _resources(kernel)
    return KernelReport(
        name=kernel.name,
        launches=launches,
        launch=geometry_text(kernel),
        shared_nbytes=size_text(kernel.launch.shared_nbytes),
        resources=resources,
        no_resources=no_resources,
        smem=tuple(sorted(kernel.smem, key=lambda b: b.offset)),
        longest=longest(kernel.ir),
        syncs=tuple(kernel.syncs),
        timeline=timeline(kernel.ir, kernel.smem, kernel.syncs),
        schedule=kernel.schedule.rstrip(),
        candidates=candidates_text(kernel),
        edits=log_text(kernel.edits),
        ir=print_kernel(kernel.ir).rstrip(),
        cuda=_without_prelude(kernel.cuda).rstrip(),
        lowered=kernel.lowered,
        target=kernel.target,
        names=names,
        heuristic=kernel.heuristic,
        measured=tuple(kernel.measured),
        cost=kernel.predicted,
        bytes_us=bytes_us(first.inputs, first.outputs, kernel.target),
    )


def _resources(kernel: KernelLike) -> tuple[ResourcesLike | None, str]:
    try:
        return kernel.resources(), ""
    except UserError as e:
        return None, str(e)


def geometry_text(kernel: KernelLike) -> str:
    """Grid, block and clusters of a kernel's launch."""
    grid, block = _dims(kernel.launch.grid), _dims(kernel.launch.block)
    size = kernel.launch.cluster
    cluster = f", clusters of {size} blocks" if size > 1 else ""
    return f"grid ({grid}), block ({block}){cluster}"


def _dims(extents: Sequence[object]) -> str:
    return ", ".join(map(str, extents))


def _without_prelude(cuda: str) -> str:
    """The text from the kernel's signature on."""
    start = cuda.find('extern "C" __global__')
    return cuda[max(start, 0) :]


def numbers(facts: ReportFacts) -> list[tuple[str, str]]:
    """The program's numbers as (label, value) lines."""
    lines = [
        ("launches", str(facts.nlaunches)),
        ("bytes moved", size_text(facts.traffic.moved)),
        ("least possible", size_text(facts.traffic.least)),
    ]
    if facts.traffic.ratio is not None:
        lines.append(("moved / least", f"{facts.traffic.ratio:.2f}"))
    return lines
