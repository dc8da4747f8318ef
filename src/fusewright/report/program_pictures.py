"""Pictures of a program's launches: who waits for whom, when they run, and what limits each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewright.report.facts import KernelReport
from fusewright.report.flow import Arrow, FlowBox
from fusewright.report.host_facts import HostFacts
from fusewright.report.predicted import TimedLaunch
from fusewright.report.svg import Canvas, colour, text_width

_WIDTH = 720.0
_LANE = 30.0
_BAR = 16.0
_MARGIN = 10.0


def launch_boxes(h: HostFacts) -> list[FlowBox]:
    """Launches as boxes, an arrow for each edge, which says its kind and bytes."""
    arrows: dict[int, list[Arrow]] = {i: [] for i in range(len(h.launches))}
    for (a, b), why in _edges(h).items():
        kinds = ", ".join(dict.fromkeys(w.partition(":")[0] for w in why))
        tip = "\n".join(f"#{b} waits for #{a}: {w}" for w in why)
        arrows[b].append(Arrow(f"#{a}", f"#{a}, {kinds}", kinds, tip))
    return [
        FlowBox(f"#{i}", (f"#{i} {t.name}",), tip="\n".join(h.bindings[i]), arrows=arrows[i])
        for i, t in enumerate(h.launches)
    ]


def _edges(h: HostFacts) -> dict[tuple[int, int], list[str]]:
    """The edges between each two launches."""
    found: dict[tuple[int, int], list[str]] = {}
    for a, b, why in h.edges:
        found.setdefault((a, b), []).append(why)
    return found


def timeline_svg(launches: Mapping[int, TimedLaunch]) -> str:
    """Launches by number over time, a line for each branch."""
    canvas = Canvas()
    end = max((t.end for t in launches.values()), default=0.0)
    scale = _WIDTH / max(end, 1e-9)
    colours = {
        name: colour(i) for i, name in enumerate(dict.fromkeys(t.name for t in launches.values()))
    }
    lanes = max((t.branch for t in launches.values()), default=0) + 1
    for i, t in launches.items():
        x, y = _MARGIN + scale * t.begin, _MARGIN + _LANE * t.branch
        tip = f"#{i} {t.name}: {t.begin:.1f} to {t.end:.1f} us"
        wide = max(scale * t.us, 1.0)
        canvas.rect(x, y, wide, _LANE - 6, kind=colours[t.name], tip=tip)
        label = f"#{i} {t.name}"
        if text_width(label) + 6 > wide:
            label = f"#{i}"
        if text_width(label) + 6 <= wide:
            canvas.text(x + 4, y + 15, label)
    bottom = _MARGIN + _LANE * lanes
    canvas.line(_MARGIN, bottom, _MARGIN + _WIDTH, bottom, kind="axis")
    canvas.text(_MARGIN, bottom + 14, "0 us")
    canvas.text(_MARGIN + _WIDTH, bottom + 14, f"{end:.1f} us", end=True)
    return canvas.svg()


def limits_svg(k: KernelReport) -> str:
    """A roofline of one kernel: what each resource alone would take, the time that moving its bytes
    once takes, and the prediction for all together."""
    assert k.cost is not None
    bars = [*_measured(k), ("predicted", k.cost.us), ("bytes once", k.bytes_us), *k.cost.parts]
    return bars_svg(bars)


def _measured(k: KernelReport) -> list[tuple[str, float]]:
    """What was measured of its launches, or by tuning of the schedule that was taken."""
    tuned = [("measured", us) for params, us in k.measured if params == k.heuristic]
    return tuned if k.launch_us is None else [("measured", k.launch_us)]


def bars_svg(bars: Sequence[tuple[str, float]]) -> str:
    """Named times as bars of one scale."""
    canvas = Canvas()
    left = _MARGIN + max((text_width(name) for name, _ in bars), default=0.0) + 8
    most = max((us for _, us in bars), default=0.0) or 1.0
    scale = (_WIDTH / 2) / most
    for i, (name, us) in enumerate(bars):
        y = _MARGIN + (_BAR + 5) * i
        canvas.text(left - 8, y + 12, name, end=True)
        canvas.rect(left, y, max(scale * us, 0.5), _BAR, kind=colour(i), tip=f"{name}: {us:.2f} us")
        canvas.text(left + scale * us + 6, y + 12, f"{us:.1f} us")
    return canvas.svg()
