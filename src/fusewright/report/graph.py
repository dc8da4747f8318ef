"""The fusion graph as boxes and arrows: a box a kernel, with its values in it, arrows downward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fusewright.fusion.ir import Fusion, Input, Tensor
from fusewright.report.cut import Cut, op_text, type_text
from fusewright.report.flow import Arrow, FlowBox
from fusewright.report.svg import COLOURS, colour

FAR = 40
"""Rows over which an arrow inside of a kernel is still drawn: a longer one is a name at its end. A
kernel may have thousands of rows, and what they all read would have lines through all of them."""
_NAMES = 3
"""Values that the label of an arrow names."""


@dataclass(slots=True, eq=False)
class _Places:
    """Who draws what: each value's kernel, by its number; none for what stands between kernels."""

    cut: Cut
    marks: Mapping[Tensor, str]
    results: Mapping[Tensor, str]
    computed: frozenset[Tensor]
    owner: dict[Tensor, int] = field(default_factory=lambda: dict[Tensor, int]())
    keys: dict[Tensor, str] = field(default_factory=lambda: dict[Tensor, str]())

    def outer_key(self, t: Tensor) -> str:
        """The box of the outermost list that a value stands in."""
        return f"k{self.owner[t]}" if t in self.owner else self.keys[t]


def graph_boxes(
    cut: Cut, fusion: Fusion, marks: Mapping[Tensor, str] | None = None
) -> list[FlowBox]:
    """The boxes of the outermost list. `marks`: what values are called elsewhere on the page.

    A value that no kernel computes, such as an argument, stands in the box of the kernel that reads
    it, where there is only one, and between the kernels otherwise. What a kernel reads of others is
    a name in its box, and an arrow to it.
    """
    computed = frozenset(t for b in cut.bands if b.is_kernel for t in b.values)
    places = _Places(cut, marks or {}, _results(fusion), computed)
    shown = {t for b in cut.bands for t in b.values}
    drawn = [t for t in fusion.values if t in shown]
    places.keys.update({t: f"v{i}" for i, t in enumerate(drawn)})
    for i, band in enumerate(cut.bands):
        if band.is_kernel:
            places.owner.update(dict.fromkeys(band.values, i))
    _adopt(places, drawn)
    inside: dict[int, list[Tensor]] = {i: [] for i, b in enumerate(cut.bands) if b.is_kernel}
    for t in drawn:
        if t in places.owner:
            inside[places.owner[t]].append(t)
    between = [_value(places, t, _from(places, t)) for t in drawn if t not in places.owner]
    return [*between, *(_kernel(places, i, values) for i, values in inside.items())]


def _results(fusion: Fusion) -> dict[Tensor, str]:
    if len(fusion.outputs) == 1:
        return {fusion.outputs[0]: "result"}
    numbers: dict[Tensor, list[str]] = {}
    for i, t in enumerate(fusion.outputs):
        numbers.setdefault(t, []).append(str(i))
    return {t: f"result {', '.join(found)}" for t, found in numbers.items()}


def _adopt(places: _Places, values: Sequence[Tensor]) -> None:
    """Gives the values of no kernel that one kernel alone reads to that kernel, readers first."""
    readers: dict[Tensor, list[Tensor]] = {}
    for t in values:
        for o in dict.fromkeys(t.op.operands):
            readers.setdefault(o, []).append(t)
    for t in reversed(values):
        found = {places.owner.get(r, -1) for r in readers.get(t, ())}
        if t not in places.owner and len(found) == 1 and -1 not in found:
            places.owner[t] = found.pop()


def _kernel(places: _Places, number: int, values: Sequence[Tensor]) -> FlowBox:
    """A kernel's box: its values, and names for what comes from elsewhere or from far above."""
    own = set(values)
    row = _rows(values, own)
    parts: list[FlowBox] = []
    names: dict[Tensor, FlowBox] = {}
    for t in values:
        arrows: list[Arrow] = []
        for o in _read(places, t):
            if o in own and row[t] - row[o] > FAR:
                far = _name(places, o, f"{places.keys[t]}.{places.keys[o]}", "far above")
                parts.append(far)
                arrows.append(_arrow(places, o, t, far.key))
                continue
            if o not in own and o not in names:
                names[o] = _name(places, o, f"k{number}.{places.keys[o]}", "")
            arrows.append(_arrow(places, o, t, names[o].key if o in names else places.keys[o]))
        parts.append(_value(places, t, arrows))
    arrows = _between(places, f"k{number}", names)
    shade = colour(1 + number % (COLOURS - 1))
    return FlowBox(
        f"k{number}",
        (places.cut.bands[number].label,),
        f"band {shade}",
        arrows=arrows,
        parts=[*names.values(), *parts],
    )


def _rows(values: Sequence[Tensor], own: set[Tensor]) -> dict[Tensor, int]:
    """The longest way to each value from a value without operands in the kernel; values come behind
    their operands, but for arguments."""
    row: dict[Tensor, int] = {}
    pending = list(reversed(values))
    while pending:
        t = pending.pop()
        missing = [o for o in t.op.operands if o in own and o not in row]
        if missing:
            pending += [t, *missing]
        else:
            row[t] = 1 + max((row[o] for o in t.op.operands if o in own), default=-1)
    return row


def _read(places: _Places, t: Tensor) -> list[Tensor]:
    return [o for o in dict.fromkeys(t.op.operands) if o in places.keys]


def _from(places: _Places, t: Tensor) -> list[Arrow]:
    """The arrows to a value between the kernels."""
    return _between(places, places.keys[t], _read(places, t))


def _between(places: _Places, target: str, values: Iterable[Tensor]) -> list[Arrow]:
    """Arrows of the outermost list to one of its boxes, one from each box that makes some of the
    values."""
    sources: dict[str, list[Tensor]] = {}
    for o in values:
        sources.setdefault(places.outer_key(o), []).append(o)
    found: list[Arrow] = []
    for key, made in sources.items():
        names = [o.name for o in made]
        shown = ", ".join([*names[:_NAMES], *(["..."] if len(names) > _NAMES else [])])
        label = shown if made[0] in places.owner else ""
        marks = " ".join(dict.fromkeys(m for o in made for m in _marks(places, o).split()))
        found.append(Arrow(key, ", ".join(names), label, ", ".join(names), marks))
    return [a for a in found if a.source != target]


def _arrow(places: _Places, o: Tensor, t: Tensor, source: str) -> Arrow:
    return Arrow(source, o.name, tip=f"{o.name} -> {t.name}", marks=_marks(places, o))


def _marks(places: _Places, t: Tensor) -> str:
    return places.marks.get(t, "")


def _name(places: _Places, t: Tensor, key: str, where: str) -> FlowBox:
    """A small box that stands for a value drawn elsewhere."""
    line = f"{t.name}, {where}" if where else t.name
    return FlowBox(key, (line,), "node name", _tip(t), _marks(places, t))


def _value(places: _Places, t: Tensor, arrows: Sequence[Arrow]) -> FlowBox:
    outside = "node input" if isinstance(t.op, Input) else "node view"
    kind = "node" if t in places.computed else outside
    end = places.results.get(t, "")
    return FlowBox(
        places.keys[t],
        (f"{t.name} = {op_text(t)}", type_text(t)),
        f"{kind} result" if end else kind,
        _tip(t),
        _marks(places, t),
        end,
        arrows,
    )


def _tip(t: Tensor) -> str:
    return repr(t) if t.source is None else f"{t!r}\n{t.source}"
