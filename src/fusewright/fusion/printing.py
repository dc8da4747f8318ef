"""A fusion as text, one value a line; `fusion.text` parses it back.

    size n: min=2, max=None, multiple_of=1
    x: float32[n, 128] = Input(strides=(128, 1), alignment=16)
    m: float32[n] = Reduce(x, fn='max', axes=(1,))
    return m, x

An op's operands come first, then its fields by name, derived from its dataclass. Bodies of a region
stand in front of its first result, between `body b0:` and `end b0`; one that is told the number
of an iteration begins with `body b0 for lap0 < 8:`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

from fusewright.core.expr import Expr, Var, constant_value, variables
from fusewright.dtypes import scalar_text

if TYPE_CHECKING:
    from fusewright.fusion.call_numbers import CallNumber
    from fusewright.fusion.ir import Fusion, Op, Tensor

_IMPLIED = ("operands", "position", "body")  # positions: in the call, of the line; no text
_USUAL = {
    "precision": "ieee",
    "mode": "promise",
    "place": "",
    "merged": (),
    "carried": 0,
    "sliced": 0,
    "trips": None,
    "reverse": False,
    "lap": None,
}  # what a field that is not printed holds


def print_fusion(fusion: Fusion) -> str:
    """The text of a fusion."""
    given = {n.symbol: n for n in fusion.numbers}
    lines = [_print_size(v) for v in fusion.symbols if v not in given]
    lines += [_print_number(given[v]) for v in _declared(given)]
    lines += [f"check {c.gap}: {c.rule!r}" for c in fusion.checks]
    return "\n".join([*lines, *_lines(fusion)])


def _lines(fusion: Fusion) -> list[str]:
    """The values and what is returned."""
    lines: list[str] = []
    bodies: dict[Fusion, str] = {}
    for t in fusion.values:
        for body in getattr(t.op, "bodies", ()):
            if body not in bodies:
                bodies[body] = name = f"b{len(bodies)}"
                inside = (f"  {line}" for line in _lines(body))
                lines += [f"body {name}{_print_lap(t.op)}:", *inside, f"end {name}"]
        lines.append(f"{_print_type(t)} = {_print_op(t.op, bodies)}")
    lines.append(f"return {', '.join(t.name for t in fusion.outputs)}".rstrip())
    return lines


def _print_lap(op: Op) -> str:
    """The number of the iteration that a body is told, and how many there are."""
    lap = getattr(op, "lap", None)
    return "" if lap is None else f" for {lap} < {getattr(op, 'trips', None)}"


def _print_size(v: Var) -> str:
    high = None if v.upper is None else constant_value(v.upper)
    return f"size {v.name}: min={v.lower}, max={high}, multiple_of={v.multiple_of}"


def _print_number(n: CallNumber) -> str:
    v = n.symbol
    return (
        f"number {v.name}: min={v.lower}, max={v.upper}, multiple_of={v.multiple_of}, at={n.place}"
    )


def _declared(numbers: Iterable[Var]) -> list[Var]:
    """Numbers, those first that limits of others mention."""
    order: dict[Var, None] = {}
    pending = list(reversed(list(numbers)))
    known = set(pending)
    while pending:
        v = pending[-1]
        limits = () if v.upper is None else variables(v.upper)
        first = [w for w in limits if w in known and w not in order]
        if first:
            pending += first
        else:
            order[pending.pop()] = None
    return list(order)


def _print_type(t: Tensor) -> str:
    return f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]"


def _print_op(op: Op, bodies: Mapping[Fusion, str]) -> str:
    parts = [t.name for t in op.operands]
    for f in dataclasses.fields(op):
        value = getattr(op, f.name)
        if f.name == "bodies":
            parts.append(f"bodies={_print_names([bodies[b] for b in value])}")
        elif f.name not in _IMPLIED and (f.name not in _USUAL or _USUAL[f.name] != value):
            parts.append(f"{f.name}={_print_field(value)}")
    return f"{type(op).__name__}({', '.join(parts)})"


def _print_names(names: list[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _print_field(x: object) -> str:
    if isinstance(x, tuple):
        items = [_print_field(item) for item in cast("tuple[object, ...]", x)]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(x, Expr):
        return str(x)
    return scalar_text(x)
