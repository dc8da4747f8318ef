"""`python -m bench.moves_page`: every program of moves, layouts and branches, before and after.

Launches, bytes over the least, fills and copies, the most bytes between launches and the longest
way of launches that wait for each other, beside what the same programs took before any of it was
built (2026-11-23). Needs no GPU; `--out` writes the table as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fusewright as fw
from bench import moves
from bench.layouts import norm

S, F, H = fw.TensorSpec, "float32", "bfloat16"
LAST = (0, 2, 3, 1)

BEFORE: dict[str, tuple[int | None, float | None]] = {
    "rotary by pairs": (3, 2.5),
    "mean of four neighbours": (10, 10.5),
    "nearest upsampling, repeat": (3, 3.4),
    "roll of flip": (3, 3.0),
    "upsampling beside a skip": (4, 1.7),
    "crop of exp": (2, 2.0),
    "negative pad of exp": (2, 2.0),
    "shift by one of exp": (2, 2.0),
    "roll of exp": (2, 2.0),
    "diff of exp": (2, 2.0),
    "stencil of exp": (2, 2.0),
    **{f"{mode} pad of relu": (2, 2.0) for mode in ("reflect", "edge", "symmetric", "wrap")},
    "norm of the last token": (None, 17.0),
    "corner of a product": (None, 5.6),
    "halves of a norm": (3, 2.0),
    "join, then split": (4, 2.0),
    "norm mixed with the token before": (3, 3.9),
    "sin beside cos": (2, 2.0),
    "exp beside exp": (2, 1.7),
    "four powers": (3, 2.4),
    "pads and joins joined": (5, 2.8),
    "tile of exp": (2, 1.3),
    "25 pieces": (25, None),
    "log_softmax of 129 columns": (3, 2.0),
    "two blocks in zeros": (2, 2.2),
    "two softmaxes in zeros": (4, None),
    "two blocks in an argument": (2, 1.6),
    "batch norm, relu, batch norm, channels last": (7, 3.5),
    "group norm and silu, channels last": (None, 1.7),
    "softmax of rows, norm of columns, column-major": (None, 1.5),
    "four attention heads": (12, None),
}
"""Launches and bytes (of layouts: sectors) over the least, where they were counted."""


def twice_normed(x: Any) -> Any:
    return norm(fw, fw.nn.relu(norm(fw, x, (0, 2, 3))), (0, 2, 3))


def attention(*xs: Any) -> Any:
    """Heads whose sizes differ, so that no launch has several of them."""
    heads = [xs[k : k + 3] for k in range(0, len(xs), 3)]
    return tuple(fw.nn.softmax(q @ k.T * 0.125, axis=-1) @ v for q, k, v in heads)


def channels_last(fn: Callable[..., Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
    _, c, h, w = shape
    return fn, [S(shape, F, strides=(c * h * w, 1, w * c, c))], [LAST]


FURTHER: dict[str, tuple[Any, ...]] = {
    "batch norm, relu, batch norm, channels last": channels_last(twice_normed, (32, 64, 28, 28)),
    "group norm and silu, channels last": channels_last(
        lambda x: fw.nn.silu(fw.nn.group_norm(x, 32)), (8, 256, 56, 56)
    ),
    "softmax of rows, norm of columns, column-major": (
        lambda x: norm(fw, fw.nn.softmax(x, axis=1), (0,)),
        [S((4096, 4096), F, strides=(1, 4096))],
        [(1, 0)],
    ),
    "four attention heads": (
        attention, [S((128 + 32 * (k // 3), 64), H) for k in range(12)], None
    ),
}  # fmt: skip
"""Programs of layouts and branches: a function, its arguments, orders of the results."""


@dataclass(frozen=True, slots=True)
class Line:
    """A program before and after."""

    program: str
    launches_before: int | None
    bytes_before: float | None
    launches: int
    bytes: float
    fills: int
    copies: int
    peak: int
    path: int


def line(name: str, program: fw.Program, least: int) -> Line:
    """What a program takes."""
    s = program.host.stats
    over = round(float(s["bytes_moved"]) / least, 3)
    counts = (int(s[k]) for k in ("fills", "copies", "peak_bytes", "critical_path"))
    return Line(name, *BEFORE.get(name, (None, None)), int(s["launches"]), over, *counts)


def lines_of(name: str) -> Line:
    """The line of a program of a name."""
    if name in FURTHER:
        fn, specs, orders = FURTHER[name]
        program = fw.compile(fw.trace(fn, *specs), out_layouts=orders)
        return line(name, program, moves.nbytes((*program.fusion.inputs, *program.fusion.outputs)))
    program = moves.PROGRAMS[name].compiled()
    return line(name, program, moves.PROGRAMS[name].least(program))


def main() -> None:
    """Prints a table, those first of which it is known what they took before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs, default all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print(
        "| program | before: launches, bytes | launches | bytes | fills, copies | peak MB | path |"
    )
    print("|---|---|---|---|---|---|---|")
    found: list[Line] = []
    for name in args.names or dict.fromkeys((*BEFORE, *moves.PROGRAMS)):
        x = lines_of(name)
        found.append(x)
        before = ", ".join(
            "-" if n is None else str(n) for n in (x.launches_before, x.bytes_before)
        )
        moved = f"{x.launches} | {x.bytes:.3f} | {x.fills}, {x.copies}"
        print(f"| {name} | {before} | {moved} | {x.peak / 1e6:.2f} | {x.path} |", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps([asdict(y) for y in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
