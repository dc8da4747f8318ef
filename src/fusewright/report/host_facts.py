"""What runs between kernels, gathered for a report: launches with bindings and edges, the arena
over time, layouts, and what was not made where it ends up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.core.expr import Expr, constant_value
from fusewright.host.assemble import HostProgram
from fusewright.host.ir import Binding, HostLaunch, RootKind
from fusewright.report.predicted import Measured, TimedLaunch, timed
from fusewright.report.subject import LayoutLike, ProgramLike
from fusewright.report.table import nbytes_text, table
from fusewright.report.timeline import LifetimeBox, Timeline
from fusewright.report.traffic import size_text

LAUNCH_HEADER = ("", "launch", "branch", "begins us", "takes us", "binds", "waits for")
LAYOUT_HEADER = ("value", "required", "preferred", "actual", "why")
FIGURES = (
    "launches", "copies", "fills", "bytes_moved", "peak_bytes", "lower_bound_bytes",
    "critical_path", "branches",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class HostFacts:
    """`launches`: predicted times; `bindings`, `waits` and `branches`: for each launch texts of
    what it binds, of the edges into it, and of why it stands on its branch; `arena`: intermediates
    over launches, None where sizes are symbols; `measured`: times of the launches, if any were."""

    launches: tuple[TimedLaunch, ...]
    bindings: tuple[tuple[str, ...], ...]
    waits: tuple[tuple[str, ...], ...]
    branches: tuple[str, ...]
    edges: tuple[tuple[int, int, str], ...]
    arena: Timeline | None
    layouts: tuple[tuple[str, ...], ...]
    not_placed: tuple[tuple[str, str], ...]
    placed: tuple[tuple[str, str], ...]
    figures: tuple[tuple[str, str], ...]
    measured: Measured | None = None

    @property
    def launch_header(self) -> tuple[str, ...]:
        """What stands over the columns of `launch_rows`."""
        if self.measured is None:
            return LAUNCH_HEADER
        return (*LAUNCH_HEADER[:5], "measured us", *LAUNCH_HEADER[5:])


def host_facts(program: ProgramLike, measured: Measured | None = None) -> HostFacts:
    """The facts of a program's host half, and what was measured of it."""
    host = program.host
    waits: list[list[str]] = [[] for _ in host.launches]
    for e in host.edges:
        is_early = program.launches[e.consumer].kernel.ir.begins_early
        is_early = is_early and sum(x.consumer == e.consumer for x in host.edges) == 1
        early = "; may begin before it has ended" if is_early else ""
        waits[e.consumer].append(f"#{e.producer} {e.kind.value}: {e.why}{early}")
    return HostFacts(
        launches=tuple(timed(program)),
        bindings=tuple(tuple(map(_binding_text, x.bindings)) for x in host.launches),
        waits=tuple(map(tuple, waits)),
        branches=host.branches.why,
        edges=tuple((e.producer, e.consumer, f"{e.kind.value}: {e.why}") for e in host.edges),
        arena=_arena(host),
        layouts=tuple(layout_rows(program.layouts)),
        not_placed=tuple(host.not_placed.items()),
        placed=tuple(host.placed.items()),
        figures=tuple((k.replace("_", " "), _figure(k, host.stats[k])) for k in FIGURES),
        measured=measured,
    )


def _figure(name: str, value: Any) -> str:
    return size_text(value) if "bytes" in name else str(value)


def _binding_text(b: Binding) -> str:
    """What a launch does to which bytes: `R x: x[0, 8.00 MiB)`, and the box in there."""
    inside = "" if b.box is None else f", box of {_sizes(b.box.extent)} at {_sizes(b.box.start)}"
    total = ", all of it" if b.total else ""
    where = f"{b.root}[{size_text(b.offset)}, {size_text(b.offset + b.nbytes)})"
    return f"{b.access.value} {b.tensor}: {where}{inside}{total}"


def _sizes(sizes: Sequence[Expr]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _arena(host: HostProgram) -> Timeline | None:
    """Which bytes of the arena hold what from which launch to which."""
    peak = constant_value(host.arena.nbytes)
    if peak is None:
        return None
    found: dict[str, list[tuple[int, int, int]]] = {}
    for i, x in enumerate(host.launches):
        for b in _in_arena(x):
            begin, size = constant_value(b.offset), constant_value(b.nbytes)
            if begin is None or size is None:
                return None
            found.setdefault(b.memory.name, []).append((i, begin, begin + size))
    boxes = [
        LifetimeBox(name, begin := min(b for _, b, _ in uses), max(e for *_, e in uses) - begin,
            uses[0][0], uses[-1][0])
        for name, uses in found.items()
    ]  # fmt: skip
    return Timeline(len(host.launches), peak, tuple(boxes), ())


def _in_arena(x: HostLaunch) -> list[Binding]:
    return [b for b in x.bindings if b.root.kind is RootKind.ARENA]


def layout_rows(layouts: Mapping[str, LayoutLike]) -> list[tuple[str, ...]]:
    """A row under LAYOUT_HEADER for each value that has memory: element strides, or `-`."""
    return [
        (
            name,
            "-" if x.required is None else _sizes(x.required),
            "-" if x.preferred is None else _sizes(x.preferred),
            _sizes(x.actual),
            x.why,
        )
        for name, x in layouts.items()
    ]


def _basis(basis: str) -> str:
    """What a time follows from, where that is not the model."""
    return {"model": "", "bytes": " (its bytes)"}.get(basis, f" ({basis})")


def _measured_cell(h: HostFacts, i: int) -> tuple[str, ...]:
    """What was measured of a launch, as a cell of a row, where anything was."""
    if h.measured is None:
        return ()
    us = _measured_us(h, i)
    return ("-" if us is None else f"{us:.1f}",)


def launch_rows(h: HostFacts) -> list[tuple[str, ...]]:
    """A row under `launch_header` for each launch."""
    return [
        (
            f"#{i}",
            t.name,
            str(t.branch),
            f"{t.begin:.1f}",
            f"{t.us:.1f}" + _basis(t.basis),
            *_measured_cell(h, i),
            "\n".join(h.bindings[i]),
            "\n".join(h.waits[i]) or "-",
        )
        for i, t in enumerate(h.launches)
    ]


def host_text(h: HostFacts) -> str:
    """Launches, the arena over time, layouts, places."""
    wide = max(len(k) for k, _ in h.figures)
    blocks = ["\n".join(f"{k.ljust(wide)}  {v}" for k, v in h.figures)]
    blocks.append("\n".join(line for i, t in enumerate(h.launches) for line in _launch(h, i, t)))
    blocks.append("arena over launches\n" + arena_text(h.arena))
    blocks.append("layouts, as element strides\n" + table(LAYOUT_HEADER, h.layouts))
    if h.placed:
        blocks.append("made where it ends up\n" + _listed(h.placed))
    blocks.append("not made where it ends up\n" + (_listed(h.not_placed) or "  nothing"))
    return "\n\n".join(b for b in blocks if b)


def _launch(h: HostFacts, i: int, t: TimedLaunch) -> list[str]:
    basis = "by its bytes alone" if t.basis == "bytes" else "predicted"
    lines = [f"#{i} {t.name}: branch {t.branch}, {t.begin:.1f} to {t.end:.1f} us, {basis}"]
    if h.measured is not None and i in h.measured.launches:
        lines.append(f"   measured {h.measured.launches[i].us:.1f} us on {h.measured.device}")
    lines.append(f"   {h.branches[i]}")
    lines += [f"   {b}" for b in h.bindings[i]]
    return [*lines, *(f"   after {w}" for w in h.waits[i])]


def _listed(pairs: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"  {name}: {why}" for name, why in pairs)


def arena_text(arena: Timeline | None) -> str:
    """A line an intermediate: its bytes, and `#` under the launches that need them."""
    if arena is None:
        return "  sizes are symbols: offsets are expressions, which the launches above show"
    if not arena.boxes:
        return "  no value lies between kernels"
    lines = [f"  {nbytes_text(arena.nbytes)} at most"]
    for b in sorted(arena.boxes, key=lambda b: (-b.offset, b.first)):
        row = "." * b.first + "#" * (b.last - b.first + 1) + "." * (arena.nsteps - b.last - 1)
        lines.append(f"  {row}  {b.name}: {b.offset}..{b.offset + b.nbytes - 1}")
    return "\n".join(lines)


def _measured_us(h: HostFacts, i: int) -> float | None:
    found = None if h.measured is None else h.measured.launches.get(i)
    return None if found is None else found.us


def host_record(h: HostFacts) -> dict[str, Any]:
    """The host program as plain data."""
    names = LAYOUT_HEADER[1:]
    return {
        "launches": [
            {
                "kernel": t.name,
                "branch": t.branch,
                "why": why,
                "begin_us": t.begin,
                "us": t.us,
                "time_from": t.basis,
                "measured_us": _measured_us(h, i),
                "binds": list(b),
            }
            for i, (t, b, why) in enumerate(zip(h.launches, h.bindings, h.branches, strict=True))
        ],
        "edges": [{"from": a, "to": b, "why": why} for a, b, why in h.edges],
        "layouts": {row[0]: dict(zip(names, row[1:], strict=True)) for row in h.layouts},
        "placed": dict(h.placed),
        "not_placed": dict(h.not_placed),
    }
