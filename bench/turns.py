"""`python -m bench.turns [--save DIR | --load DIR] [--out FILE]`

Column sums of float32 by the modes in which blocks combine their parts in one kernel, beside the
program that `fw.compile` makes (two kernels) and torch's own sum.

Method: arguments are random and normal; a call works on the next of several copies of the argument,
so that none stays in the second-level cache. Every way runs in turn with the others, one launch
after the other on one stream, medians of rounds (`bench/harness.py`). A way is right when its error
against float64 is below a hundredth, and when a hundred runs give the same bits. Compiling needs no
GPU: `--save` keeps the programs, `--load` measures them elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fusewright as fw
from fusewright.program import Program

COPIES_NBYTES = 256 << 20
"""Of the copies of the argument that calls take in turn: several times the second-level cache."""
RUNS = 100
"""Runs whose bits are compared."""


@dataclass(frozen=True, slots=True)
class Way:
    """How `splits` blocks along the rows combine their sums; "program": as `fw.compile` does;
    "cluster": in shares, through the shared memory of a cluster."""

    rows: int
    columns: int
    mode: str
    splits: int

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns} {self.mode} {self.splits}"


SPLITS = {
    (262144, 512): {"slices": (33, 66, 132), "vector": (8, 32, 132), "tma": (8, 32, 132)},
    (32768, 8192): {"slices": (4, 8), "vector": (4, 8), "tma": (4, 8), "cluster": (4, 8)},
}
"""Blocks along the rows, by shape and mode: with those along the columns up to one a
multiprocessor."""
WAYS = tuple(
    way
    for (rows, columns), modes in SPLITS.items()
    for way in (
        Way(rows, columns, "program", 0),
        *(Way(rows, columns, m, n) for m, splits in modes.items() for n in splits),
    )
)


def column_sum(x: Any) -> Any:
    """What is measured."""
    return fw.sum(x, axis=0)


def schedule(way: Way, *, tx: int = 128, ty: int = 8, vec: int = 4, deep: int = 4) -> fw.Schedule:
    """Columns over `tx` threads and vectors, rows over blocks, `ty` threads, and loads that are
    `deep` under way: 64 KiB a multiprocessor, where Little's law asks for 40."""
    s = fw.Schedule(fw.trace(column_sum, fw.TensorSpec((way.rows, way.columns), "float32")))
    x, t = s["x"].cache_after(), s.outputs[0]
    step = ty * deep
    t.split(1, -(-way.rows // (way.splits * step)) * step).split(2, ty).split(2, deep).split(0, vec)
    first = int(way.columns > tx * vec)
    if first:
        t.split(0, tx)
    t.reorder([*range(first), *(first + k for k in (2, 3, 5, 0, 4, 1))])
    neighbours, others = fw.BIDx, fw.BIDy
    reduced, kept = (neighbours, others) if way.mode == "slices" else (others, neighbours)
    if way.mode == "cluster":
        reduced = fw.ClusterX
    if first:
        t.parallelize(0, kept)
    t.parallelize(first, reduced).parallelize(first + 2, fw.TIDy).parallelize(first + 3, fw.TIDx)
    part = t.rfactor([first + 1, first + 2, first + 4])
    s.transform_like(part)
    for c in (x, t):
        c.parallelize(-1, fw.Vectorize)
    s.inline_most()
    t.request_serial_grid_reduction("slices" if way.mode == "cluster" else way.mode)
    return s


def program(way: Way) -> Program:
    """The program of a way."""
    if way.mode == "program":
        spec = fw.TensorSpec((way.rows, way.columns), "float32")
        return fw.compile(fw.trace(column_sum, spec))
    return fw.compile(schedule(way))


def main() -> None:
    """Compiles or measures, prints a table, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, help="a folder for programs to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: nothing is compiled")
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args()
    if args.save is not None:
        args.save.mkdir(parents=True, exist_ok=True)
        for way in WAYS:
            program(way).save(args.save / _file(way))
        return
    rows = [row for shape in SPLITS for row in _measured(shape, args.load)]
    if args.out is not None:
        _write(args.out, rows)


def _file(way: Way) -> str:
    return way.name.replace(" ", "_") + ".fw"


def _measured(shape: tuple[int, int], load: Path | None) -> list[dict[str, Any]]:
    import torch

    from bench.harness import interleaved

    ways = [w for w in WAYS if (w.rows, w.columns) == shape]
    count = max(2, -(-COPIES_NBYTES // (4 * shape[0] * shape[1])))
    generator = torch.Generator(device="cuda").manual_seed(0)
    copies = [torch.randn(shape, device="cuda", generator=generator) for _ in range(count)]
    made = {w.name: program(w) if load is None else fw.load(load / _file(w)) for w in ways}
    fns: dict[str, Callable[[Any], Any]] = {n: _ours(p) for n, p in made.items()}
    fns[f"{shape[0]}x{shape[1]} torch"] = lambda x: torch.sum(x, dim=0)
    wanted = copies[0].double().sum(dim=0)
    rows: list[dict[str, Any]] = []
    times = interleaved({n: _in_turn(fn, copies) for n, fn in fns.items()})
    for name, fn in fns.items():
        first = fn(copies[0])
        same = all(torch.equal(fn(copies[0]), first) for _ in range(RUNS))
        error = float((first.double() - wanted).norm() / wanted.norm())
        gbs = 4 * shape[0] * shape[1] / times[name] / 1e3
        rows.append({"name": name, "us": times[name], "GB/s": gbs, "error": error, "same": same})
        print(f"{name}: {times[name]:.1f} us, {gbs:.0f} GB/s, error {error:.1e}, same bits {same}")
    return rows


def _ours(p: Program) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        with fw.config(execution="stream"):
            return p(x)[0]

    return call


def _in_turn(fn: Callable[[Any], Any], copies: list[Any]) -> Callable[[], Any]:
    turn = itertools.cycle(copies)
    return lambda: fn(next(turn))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    from bench.harness import environment

    report = {
        "date": datetime.date.today().isoformat(),
        "method": " ".join((__doc__ or "").split()),
        "environment": environment(),
        "ways": rows,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
