"""`python -m bench.host_steps`: what each step of the host program buys. Needs no GPU.

Each program is compiled with all steps, and as if steps were missing, in the order of the baselines
that the design names:

- b1 joins, pads and insertions of what kernels make are launches that copy the pieces;
- b2 pieces are written in place, launches that touch one root of memory wait for each other;
- b3 launches wait for whose values they read, and run in waves;
- b4 exact hulls: from the first byte of a root that a launch touches to the last one, in waves;
- b5 boxes: the bytes themselves, in waves;
- b6 a graph instead of waves: a launch begins when those that it waits for have ended;
- b7 the arena gives bytes away only where the graph has an order already (what is shipped).

`path`: launches one after the other at least; `us`: until the last one ends, predicted by the cost
model for launches that do not disturb each other. b3 leaves out what only memory asks for, so that
its edges are too few where values share bytes.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import fusewright as fw
from fusewright import driver, form_times
from fusewright.core.expr import constant_value
from fusewright.host import assemble, place as placing
from fusewright.host.ir import Binding, HostLaunch
from fusewright.report.predicted import timed
from fusewright.target import target_of

S, F = fw.TensorSpec, "float32"
Clash = Callable[[Binding, Binding], bool]
"""Whether the later of two launches waits for the earlier one because of a binding of each."""


def softmaxes(axis: int) -> Callable[..., Any]:
    """A join of softmaxes, which are kernels of their own."""
    return lambda *t: fw.concat([fw.nn.softmax(x, axis=-1) for x in t], axis=axis)


def read_in_parts(a: Any, b: Any) -> Any:
    """A join of two results, of which the halves are read by two others."""
    y = fw.concat([fw.sort(a, axis=1), fw.sort(b, axis=1)], axis=0)
    return y, fw.cumulative_sum(y[:1024], axis=1), fw.cumulative_sum(y[1024:], axis=1)


def branches(*xs: Any) -> Any:
    """Of three launches each, whose intermediates fit into each other's memory."""
    turned = (fw.cumulative_sum(fw.nn.softmax(x, axis=1), axis=0) for x in xs)
    return tuple(fw.nn.softmax(x, axis=1) for x in turned)


def long_and_short(a: Any, b: Any) -> Any:
    """A branch of three launches beside one of a single long one, and a join of both."""
    long = fw.sort(b, axis=1)
    short = fw.cumulative_sum(fw.sort(fw.cumulative_sum(a, axis=0), axis=1), axis=0)
    return fw.concat([short, long], axis=0)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[fw.TensorSpec]]] = {
    "four softmaxes, rows": (softmaxes(0), [S((1024, 1000 + 8 * k), F) for k in (0, 0, 0, 0)]),
    "four softmaxes, columns": (softmaxes(1), [S((1024, 1000 + 8 * k), F) for k in range(4)]),
    "a padded softmax": (
        lambda x: fw.pad(fw.nn.softmax(x, axis=-1), ((12, 12), (12, 12))), [S((2048, 4072), F)]
    ),
    "two softmaxes in zeros": (
        lambda a, b: fw.insert(
            fw.insert(fw.zeros((4096, 4096), dtype=fw.float32), fw.nn.softmax(a, axis=1), (8, 8)),
            fw.nn.softmax(b, axis=1),
            (2056, 2056),
        ),
        [S((2000, 2000), F)] * 2,
    ),
    "sorts joined, read in halves": (read_in_parts, [S((1024, 2048), F)] * 2),
    "four branches": (branches, [S((32 + k, 4096 + 32 * k), F) for k in range(4)]),
    "three launches beside one": (long_and_short, [S((512, 2048), F), S((2048, 2048), F)]),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A program at a step."""

    program: str
    step: str
    launches: int
    copies: int
    mb: float
    edges: int
    path: int
    us: float
    arena_mb: float


def compiled(name: str, kernels: driver.Kernels) -> fw.Program:
    """A program whose kernels are taken from a table, where they are in it already."""
    fn, specs = PROGRAMS[name]
    return driver.compile_in_place(fw.trace(fn, *specs), target_of("sm_90a"), kernels=kernels)


@contextmanager
def pieces_copied() -> Iterator[None]:
    """Compiles in here place nothing: joins are launches."""

    def unplaced(fusion: Any, cut: Any, held: Any = None) -> Any:
        placer = placing._Placer(fusion, cut, held or {})
        placer.done, placer.waiting = list(reversed(placer.waiting)), []
        return placer.result()

    with ExitStack() as stack:
        for module in (driver, form_times):
            stack.enter_context(mock.patch.object(module, "place", unplaced))
        yield


@contextmanager
def arena_in_a_row() -> Iterator[None]:
    """Compiles in here give bytes away as if launches ran one after the other."""

    def in_a_row(inner: Any, calls: Sequence[Any], views: Any) -> list[int]:
        return [(1 << k) - 1 for k in range(len(calls))]

    with mock.patch.object(assemble, "_ancestors", in_a_row):
        yield


def one_root(a: Binding, b: Binding) -> bool:
    return a.root is b.root and (a.access.writes or b.access.writes)


def one_value(a: Binding, b: Binding) -> bool:
    return a.memory is b.memory and a.access.writes and b.access.reads


def hulls_meet(a: Binding, b: Binding) -> bool:
    ends = [constant_value(x.offset + x.nbytes) or 0 for x in (a, b)]
    starts = [constant_value(x.offset) or 0 for x in (a, b)]
    return one_root(a, b) and starts[0] < ends[1] and starts[1] < ends[0]


def edges_of(launches: Sequence[HostLaunch], clash: Clash) -> set[tuple[int, int]]:
    """The pairs of launches of which the later one waits, without those that follow."""
    pairs = {
        (p, c)
        for p, c in itertools.combinations(range(len(launches)), 2)
        if any(clash(a, b) for a in launches[p].bindings for b in launches[c].bindings)
    }
    before: list[set[int]] = []
    kept: set[tuple[int, int]] = set()
    for c in range(len(launches)):
        direct = [p for p in range(c) if (p, c) in pairs]
        kept |= {(p, c) for p in direct if not any(p in before[q] for q in direct)}
        before.append(set(direct).union(*(before[p] for p in direct)))
    return kept


def row(name: str, step: str, program: fw.Program, clash: Clash | None, *, waves: bool) -> Row:
    """What a program takes whose launches wait by a rule (None: as shipped), in waves or not."""
    host = program.host
    known = {(e.producer, e.consumer) for e in host.edges}
    edges = known if clash is None else edges_of(host.launches, clash)
    us = [x.us for x in timed(program)]
    level, end = [1] * len(us), list(us)
    for c in range(len(us)):
        before = [p for p, q in edges if q == c]
        level[c] = 1 + max((level[p] for p in before), default=0)
        end[c] = us[c] + max((end[p] for p in before), default=0.0)
    widest = (max(u for u, k in zip(us, level, strict=True) if k == wave) for wave in set(level))
    total = sum(widest) if waves else max(end)
    stats = host.stats
    mb, arena = (float(stats[k]) / 1e6 for k in ("bytes_moved", "peak_bytes"))
    counts = len(us), int(stats["copies"]) + int(stats["fills"])
    return Row(name, step, *counts, round(mb, 1), len(edges), max(level), round(total, 1), arena)


def rows_of(name: str) -> list[Row]:
    """A program at each step, which differ in the host program, and in kernels that copy."""
    kernels: driver.Kernels = {}
    with pieces_copied(), arena_in_a_row():
        copied = compiled(name, kernels)
    with arena_in_a_row():
        packed = compiled(name, kernels)
    shipped = compiled(name, kernels)
    return [
        row(name, "b1", copied, one_root, waves=True),
        row(name, "b2", packed, one_root, waves=True),
        row(name, "b3", packed, one_value, waves=True),
        row(name, "b4", packed, hulls_meet, waves=True),
        row(name, "b5", packed, None, waves=True),
        row(name, "b6", packed, None, waves=False),
        row(name, "b7", shipped, None, waves=False),
    ]


def main() -> None:
    """Prints a table, and writes it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs, default all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print("| program | step | launches | copies | MB | edges | path | us | arena MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows: list[Row] = []
    for name in args.names or PROGRAMS:
        for r in rows_of(name):
            rows.append(r)
            cells = (r.program, r.step, r.launches, r.copies, r.mb, r.edges, r.path, r.us)
            print("|", " | ".join(map(str, cells)), f"| {r.arena_mb:.1f} |", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
