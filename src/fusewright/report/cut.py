"""The fusion as the kernels cut it: which kernel computes which value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    Constant,
    Fusion,
    IndexMap,
    Input,
    Insert,
    Iota,
    MatMul,
    OwnKernel,
    Parts,
    Permute,
    Pointwise,
    Reduce,
    Region,
    Reshape,
    Resize,
    Scan,
    Size,
    Sort,
    Take,
    TakeAlong,
    Tensor,
)
from fusewright.report.subject import LaunchLike, ProgramLike


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """One kernel (or the inputs, or what no kernel computes) and its values, operands first."""

    label: str
    values: tuple[Tensor, ...]
    is_kernel: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The bands from top to bottom. Literals, and what is made of them alone, are left out."""

    bands: tuple[Band, ...]


def cut(fusion: Fusion, launches: Sequence[LaunchLike]) -> Cut:
    """Give every value to the first launch that computes it: the values between those that the
    kernel reads and those that it writes."""
    known = set(fusion.values)
    literal = _literals(fusion)
    taken: dict[Tensor, None] = dict.fromkeys(fusion.inputs)
    bands = [Band("inputs", fusion.inputs, is_kernel=False)]
    for launch in launches:
        found = _between(launch.outputs, set(launch.inputs)) & known
        own = [t for t in fusion.values if t in found and t not in taken and t not in literal]
        taken.update(dict.fromkeys(own))
        bands.append(Band(launch.kernel.name, tuple(own)))
    rest = tuple(t for t in fusion.values if t not in taken and t not in literal)
    bands.append(Band("no kernel", rest, is_kernel=False))
    return Cut(tuple(b for b in bands if b.values))


def every_program(program: ProgramLike) -> list[ProgramLike]:
    """The program, and the bodies of its regions, in the order of launches."""
    inside = [b for x in program.launches for body in x.bodies for b in every_program(body)]
    return [program, *inside]


def every_launch(program: ProgramLike) -> list[LaunchLike]:
    """The launches of kernels, those of bodies of regions too, each once."""
    return [x for p in every_program(program) for x in p.launches if not x.bodies]


def every_band(program: ProgramLike) -> dict[str, tuple[Tensor, ...]]:
    """What each kernel computes, by its name."""
    return {
        b.label: b.values for p in every_program(program) for b in cut(p.fusion, p.launches).bands
    }


def _literals(fusion: Fusion) -> set[Tensor]:
    """Constants and sizes, and the values computed from nothing else."""
    out: set[Tensor] = set()
    for t in fusion.values:
        match t.op:
            case Constant() | Size():
                out.add(t)
            case _ if t.op.operands and all(o in out for o in t.op.operands):
                out.add(t)
            case _:
                pass
    return out


def _between(roots: Sequence[Tensor], stops: set[Tensor]) -> set[Tensor]:
    """What the roots are computed from, up to the stops."""
    found: set[Tensor] = set()
    pending = [t for t in roots if t not in stops]
    while pending:
        t = pending.pop()
        if t not in found:
            found.add(t)
            pending.extend(o for o in t.op.operands if o not in stops)
    return found


_COMPUTING = (Pointwise, Reduce, Scan, Sort, MatMul, Region)
_SHOWN = 4
"""Operations of the bodies of a loop or branch that a line names."""


def op_text(t: Tensor) -> str:
    """What computes a value, in a word or two."""
    match t.op:
        case Pointwise(fn=fn):
            return fn
        case Reduce(fn=fn, axes=axes):
            return f"{fn} over {', '.join(map(str, axes))}"
        case Scan(fn=fn, axis=axis, reverse=reverse):
            return f"{fn} along {axis}{' in reverse' if reverse else ''}"
        case Sort(axis=axis):
            return f"sort along {axis}"
        case Concat(axis=axis) | Take(axis=axis) | TakeAlong(axis=axis) | Iota(axis=axis):
            return f"{_word(t)} {axis}"
        case Permute(axes=axes):
            return f"permute {', '.join(map(str, axes))}"
        case Input() | Constant() | Size() | Broadcast() | Reshape() | Resize() | IndexMap():
            return _word(t)
        case Parts(axes=axes, partition=p):
            packs = f" by packs of {p.pack}" if p.pack > 1 else ""
            order = f"interleaved{packs}" if p.is_interleaved else "runs"
            return f"{p.count} parts of {p.each} along {', '.join(map(str, axes))}, {order}"
        case MatMul():
            return "matmul"
        case Insert(start=start):
            return f"insert at {', '.join(map(str, start))}"
        case OwnKernel(fn=fn):
            return f"{fn}, a kernel of its own"
        case Region(fn=fn, bodies=bodies):
            inside = (x for b in bodies for x in b.values if isinstance(x.op, _COMPUTING))
            words = list(dict.fromkeys(map(op_text, inside)))
            shown = ", ".join([*words[:_SHOWN], *(["..."] if len(words) > _SHOWN else [])])
            return f"{fn} of {shown}" if shown else fn
        case _:
            assert_never(t.op)


def _word(t: Tensor) -> str:
    return type(t.op).__name__.lower()


def type_text(t: Tensor) -> str:
    """dtype and shape: `float32[128, n]`."""
    return f"{t.dtype}[{', '.join(map(str, t.shape))}]"
