"""When launches run, as predicted: the time of each, and the earliest begin that edges allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.core.expr import constant_value
from fusewright.fusion.ir import Tensor
from fusewright.fusion.sizes import nbytes_estimate
from fusewright.host.control import HostRegion
from fusewright.report.subject import LaunchLike, ProgramLike
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class TimedLaunch:
    """A launch: its kernel's name, begin and time in microseconds, the branch that it stands on,
    and what the time follows from: "model", or "bytes" where no heuristic made the kernel, or what
    of a region is counted where the host does not know all of it. Of the time `early_us` pass
    beside the launch before, where this one begins early."""

    name: str
    begin: float
    us: float
    branch: int
    basis: str
    early_us: float = 0.0

    @property
    def end(self) -> float:
        return self.begin + self.us


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a program on a device: its launches by their numbers, one by one from a
    cold cache, each from the end of what was before it to its own; launches of no block are
    none."""

    device: str
    launches: Mapping[int, TimedLaunch]

    @property
    def us(self) -> float:
        """Microseconds from the begin of the first launch to the end of the last one."""
        return max((t.end for t in self.launches.values()), default=0.0)

    def mean_us(self, kernel: str) -> float | None:
        """Microseconds of a launch of a kernel, in the mean of them; None for one inside of a
        region, which is measured as a whole."""
        found = [t.us for t in self.launches.values() if t.name == kernel]
        return sum(found) / len(found) if found else None


def measured(
    program: ProgramLike, device: str, spans: Mapping[int, tuple[float, float]]
) -> Measured:
    """What a clock measured, by number of the launch: when it ended, and how long it took."""
    names = [x.kernel.name for x in program.launches]
    found = {
        i: TimedLaunch(names[i], end - us, us, 0, "measured") for i, (end, us) in spans.items()
    }
    return Measured(device, found)


def bytes_us(inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target) -> float:
    """Microseconds of a launch that reads and writes each of these once; sizes that are symbols
    count as 4096."""
    read, written = (sum(map(nbytes_estimate, dict.fromkeys(x))) for x in (inputs, outputs))
    known = target.calibration
    return known.launch_us + (read + known.write_weight * written) / target.memory_nbytes_per_us


def copy_us(nbytes: int, target: Target) -> float:
    """Microseconds of a copy that moves so many bytes, half of them read, half written."""
    known = target.calibration
    moved = nbytes / 2 * (1 + known.write_weight)
    return known.launch_us + moved / target.memory_nbytes_per_us


def serial_us(launches: Sequence[TimedLaunch]) -> float:
    """Microseconds of all launches, one after the other."""
    return sum(t.us for t in launches) - early_us(launches)


def early_us(launches: Sequence[TimedLaunch]) -> float:
    """Microseconds in which launches run beside the one before them."""
    return sum(t.early_us for t in launches)


def basis_note(launches: Sequence[TimedLaunch]) -> str:
    """Says of how many launches the time follows from their bytes alone; "" for none."""
    n = sum(t.basis == "bytes" for t in launches)
    return f", {n} launch by its bytes alone" if n == 1 else f", {n} by bytes alone" if n else ""


def timed(program: ProgramLike) -> list[TimedLaunch]:
    """The launches in order. Each begins when all that it waits for have ended, and the one before
    it on its branch; one that begins early by what a launch takes beside its blocks before that:
    its beginning is what passes beside the other (Fuser RFC 5495 has 2 to 4 us for it)."""
    waits: dict[int, list[int]] = {}
    for e in program.host.edges:
        waits.setdefault(e.consumer, []).append(e.producer)
    times: dict[int, tuple[float, str]] = {}
    out: list[TimedLaunch] = []
    last: dict[int, float] = {}
    for i, x in enumerate(program.launches):
        if x.bodies:
            times[id(x.kernel)] = _of_region(x, program.host.launches[i].region, program.target)
        elif id(x.kernel) not in times:
            times[id(x.kernel)] = _time(x, program.target)
        us, basis = times[id(x.kernel)]
        before = waits.get(i, [])
        branch = program.host.branches.of[i]
        begin = max((last.get(branch, 0.0), *(out[p].end for p in before)))
        early = 0.0
        if x.kernel.ir.begins_early and out and len(before) <= 1:  # where several meet it is late
            early = min(program.target.calibration.launch_us, us, out[-1].us)
        out.append(TimedLaunch(x.kernel.name, begin - early, us, branch, basis, early))
        last[branch] = out[-1].end
    return out


def _of_region(launch: LaunchLike, region: HostRegion | None, target: Target) -> tuple[float, str]:
    """Of all iterations, where their number is known, else of one; of the longer branch."""
    each = [serial_us(timed(body)) for body in launch.bodies]
    if region is None or region.fn == "cond":
        return max(each), "the longer branch"
    trips = None if region.trips is None else constant_value(region.trips)
    if trips is None:
        return sum(each), "one iteration"
    return trips * sum(each), "model"


def _time(launch: LaunchLike, target: Target) -> tuple[float, str]:
    found = launch.kernel.predicted
    if found is not None:
        return found.us, "model"
    return bytes_us(launch.inputs, launch.outputs, target), "bytes"


def is_symbolic(program: ProgramLike) -> bool:
    """Whether a size of the program is a symbol, which predictions count as 4096."""
    return any(constant_value(n) is None for t in program.fusion.values for n in t.shape)
