"""Plans of products by warpgroups that were measured, from the JSON files of `bench/`.

`Measured` rows of one `group` ran beside each other on one chip: the fastest of them is what a
choice among them is held against. Both chips have the same multiprocessors, and memory of their
own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusewright.schedule.heuristics.product_plans import (
    DEPTH_NBYTES,
    ProductPlan,
    ProductSizes,
    in_order,
)
from fusewright.schedule.products import is_promoted
from fusewright.target import LINE_NBYTES, target_of

TARGET = target_of("sm_90a")
COPIES_US = 37.0
"""Of both operands of 4097 x 4104 x 4104 into rows of whole lines: 35.2 predicted; 252.5 us with
them for 215 alone, four rounds of tiles at the pace of 4096 cubed being five."""
SWEEP_WEIGHT = 0.4
H100_NBYTES_PER_US = 3_350_000
"""Of memory, by the data sheet of the SXM5 module."""
STRADDLED = 1.875
"""Lines that rows of 8,208 bytes touch in a box."""
PROMOTION = "128"
"""Bytes that a tensor map asks the second-level cache for at once, as all maps do now."""
SUITES = (
    "products-2026-11-26-h100.json",  # maps asked for two lines at once: whole lines only
    "products-changed-2026-11-26-h100.json",
    "products-2026-11-26-evening-h100.json",
)
PLAIN = re.compile(r"(?:(float16) )?([TN])([TN]) (\d+)x(\d+)x(\d+)")
BATCH = re.compile(r"batch (\d+)x(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True, slots=True)
class Measured:
    """A plan that ran: so many slices were summed by a second kernel. `memory` is that of the chip,
    bytes a microsecond; plans of one `group` ran in turn, "" for those that are in none; operands
    that are `exchanged` stand in each other's place in `sizes`, too."""

    name: str
    sizes: ProductSizes
    plan: ProductPlan
    us: float
    slices: int = 1
    memory: int = TARGET.memory_nbytes_per_us
    weight: float = 1.0
    group: str = ""
    exchanged: bool = False


def few_rows() -> Iterator[Measured]:
    """`product-plans-2026-11-23-h200.json`."""
    for r in _json("product-plans-2026-11-23-h200.json")["plans"]:
        if "tile" not in r:
            continue
        m, n, k = r["shape"]
        (rows, columns), slices = r["tile"], r["slices"]
        if r["exchanged"]:
            m, n = n, m
        name = f"{m}x{n}x{k} in {slices}, {rows}x{columns}, {r['stages']} stages"
        staged = columns if slices == 1 else 0
        plan = ProductPlan(rows, columns, 64, rows // 64, r["stages"], staged)
        shape = "x".join(map(str, r["shape"]))
        sizes = ProductSizes(slices, m, n, k // slices)
        yield Measured(
            name, sizes, plan, r["us"], slices, group=f"{shape}, few rows, H200",
            exchanged=r["exchanged"],
        )  # fmt: skip


def large() -> Iterator[Measured]:
    """Products that fill the chip: by the file, the row and, of plans in clusters, the column."""
    wide, tall, narrow = _plan(128, 256, 4), _plan(256, 128, 3), _plan(128, 192, 4)
    below, beside = {"cluster": (2, 1)}, {"cluster": (1, 2)}
    c4, c8, odd = (ProductSizes(1, m, n, n) for m, n in ((4096, 4096), (8192, 8192), (4097, 4104)))
    clusters = "product-clusters-2026-11-24-h200.json"
    for sizes, name in ((c4, "TN 4096x4096x4096"), (c8, "TN 8192x8192x8192")):
        yield _of(clusters, name, "fusewright", sizes, wide)
        yield _of(clusters, name, "128x256x64, .*2x1", sizes, replace(wide, **below))
        yield _of(clusters, name, "256x128x64, .*1x2", sizes, replace(tall, **beside))
    yield _of(clusters, "TN 4096x4096x4096", "128x256x64, .*1x2", c4, replace(wide, **beside))
    yield _of(clusters, "TN 8192x8192x8192", "128x192x64, .*2x1", c8, replace(narrow, **below))
    name = "TN 4097x4104x4104"
    yield _of(clusters, name, "fusewright", odd, wide, COPIES_US)
    yield _of(clusters, name, "128x192x64, .*2x1", odd, replace(narrow, **below), COPIES_US)
    yield _of(clusters, name, "128x192x64, .*1x2", odd, replace(narrow, **beside), COPIES_US)
    yield _of(clusters, name, "128x256x64, .*2x1", odd, replace(wide, **below), COPIES_US)
    in_place = replace(odd, lines=(STRADDLED, STRADDLED))
    yield _of("products-2026-11-22-h200.json", name, "fusewright", in_place, wide)
    day = "products-2026-11-23-h200.json"
    yield _of(day, "TT 8192x8192x4096", "fusewright", ProductSizes(1, 8192, 8192, 4096), wide)
    pair = _plan(128, 128, 4, products=2)
    yield _of(day, "gated 8192x14336x4096", "fusewright", ProductSizes(1, 8192, 14336, 4096), pair)
    few = _plan(128, 64, 8)
    yield _of(day, "TN 256x4096x4096", "fusewright", ProductSizes(1, 256, 4096, 4096), few)
    evening = "products-2026-11-23-evening-h200.json"
    for n in (4096, 8192):
        kinds = (("tf32 TN", 4, (128, 256)), ("fp8", 1, (128, 192)))
        for kind, itemsize, (rows, columns) in kinds:
            plan = _plan(rows, columns, 4, itemsize=itemsize)
            sizes = ProductSizes(1, n, n, n, itemsize)
            yield _of(evening, f"{kind} {n}x{n}x{n}", "fusewright", sizes, plan)


def sweep() -> Iterator[Measured]:
    """Products of few tiles on an H100, `product-sweep-2026-11-25-h100.json`, but for plans of
    which two blocks share a multiprocessor: the formula has one."""
    for r in _json("product-sweep-2026-11-25-h100.json")["forms"]:
        if "plan" not in r or r["us"] is None or r["mode"] == "half":
            continue
        yield replace(_of_form(r), memory=H100_NBYTES_PER_US, weight=SWEEP_WEIGHT)


def _of_form(r: dict[str, Any]) -> Measured:
    """A row of `bench.product_sweep`."""
    m, n, k = map(int, r["case"].split("x"))
    m, n = (n, m) if r["exchanged"] else (m, n)
    plan = ProductPlan(**{**r["plan"], "cluster": tuple(r["plan"]["cluster"])})
    slices = r["slices"]
    sizes = ProductSizes(slices, m, n, k // slices)
    return Measured(
        f"{r['case']} {r['form']}", sizes, plan, r["us"], slices, group=r["case"],
        exchanged=r["exchanged"],
    )  # fmt: skip


def beside() -> Iterator[Measured]:
    """Plans of products that fill the chip beside each other: widths between those of the menu on
    an H200, and rows that begin inside of lines on an H100."""
    for r in _json("product-widths-2026-11-25-h200.json")["forms"]:
        if "plan" in r:
            found = _of_form(r)
            yield replace(found, group=f"{found.group}, widths")
    for r in _json("product-lines-2026-11-26-h100.json")["plans"]:
        if r["promotion"] == PROMOTION and r["form"].startswith("matmul("):
            m, n, k = map(int, r["case"].split("x"))
            lines = _lines(2 * k)
            sizes = ProductSizes(1, m, n, k, lines=(lines, lines))
            name = f"{r['case']} {r['form']}"
            yield Measured(
                name, sizes, plan_of_text(r["form"], 2), r["us"], memory=H100_NBYTES_PER_US,
                group=f"{r['case']}, lines",
            )  # fmt: skip


def batches() -> Iterator[Measured]:
    """Products of 1024 x 1024 of few steps, on an H100, by plans with several tiles for a block."""
    for r in _json("product-batches-2026-11-27-h100.json")["forms"]:
        if "plan" in r:
            b, m, n, k = map(int, r["case"].split("x"))
            sizes, kind = ProductSizes(b, m, n, k), "batch " + r["case"]
            plan = replace(in_order(ProductPlan(depth=64, **r["plan"]), sizes, TARGET), blocks=132)
            yield Measured(
                f"{kind} {r['form']}", sizes, plan, r["us"], memory=H100_NBYTES_PER_US, group=kind
            )


def suites() -> Iterator[Measured]:
    """The plans of `bench.run --suite products` on an H100 of products with nothing behind them
    that read their operands where they lie. Files do not say which of them are in slices, or have
    their operands exchanged: those whose order of tiles says so."""
    for file in SUITES:
        for r in _json(file)["cases"]:
            kernels = [k for k in r["kernels"] if k.startswith("matmul(")]
            if len(kernels) != 1 or "None" in r["kernels"]:
                continue
            found = _sizes_of_name(r["case"])
            for whole in found:
                plan = plan_of_text(kernels[0], whole.itemsize)
                if file == SUITES[0] and max(whole.lines) > 1:
                    continue
                options = list(_placed(whole, plan, is_sliced=len(r["kernels"]) > 1))
                if len(set(options)) == 1:
                    slices, sizes = options[0]
                    other = sizes.rows != whole.rows
                    us = r["times_us"]["fusewright"]
                    yield Measured(
                        f"{r['case']} {kernels[0]}", sizes, plan, us, slices, H100_NBYTES_PER_US,
                        group=f"{r['case']}, suite", exchanged=other,
                    )  # fmt: skip


def _sizes_of_name(name: str) -> Iterator[ProductSizes]:
    """Of a case of the suite, the product of its name; none with a function behind it."""
    if (found := PLAIN.fullmatch(name)) is not None:
        _, a, b, *sizes = found.groups()
        m, n, k = map(int, sizes)
        pitches = [k if a == "T" else m, k if b == "N" else n]
        if all(p % 8 == 0 for p in pitches):
            first, second = (_lines(2 * p) for p in pitches)
            yield ProductSizes(1, m, n, k, lines=(first, second), across=(a == "N", b == "T"))
    elif (found := BATCH.fullmatch(name)) is not None:
        b, m, n, k = map(int, found.groups())
        yield ProductSizes(b, m, n, k, lines=(_lines(2 * k),) * 2)


def _placed(
    sizes: ProductSizes, plan: ProductPlan, *, is_sliced: bool
) -> Iterator[tuple[int, ProductSizes]]:
    """The slices, and the sizes of one of them, with whose order a plan agrees: with operands in
    either place."""
    counts = range(2, TARGET.multiprocessors + 1) if is_sliced else (1,)
    for slices in (n for n in counts if sizes.depth % (8 * n) == 0):
        part = replace(sizes, batch=sizes.batch * slices, depth=sizes.depth // slices)
        other = replace(
            part, rows=part.columns, columns=part.rows, lines=part.lines[::-1],
            across=part.across[::-1],
        )  # fmt: skip
        for own in dict.fromkeys((part, other)):
            if in_order(plan, own, TARGET) == plan:
                yield slices, own


def plan_of_text(text: str, itemsize: int) -> ProductPlan:
    """The plan whose parameters a kernel was listed with."""
    known = dict(x.split("=") for x in text[text.index("(") + 1 : -1].split(", "))
    rows, columns, depth = map(int, known["tile"].split("x"))
    below, across = map(int, known.get("cluster", "1x1").split("x"))
    return ProductPlan(
        rows, columns, depth, int(known["warpgroups"]), int(known["stages"]), int(known["staged"]),
        int(known["group"]), int(known["blocks"]), serpentine=known["serpentine"] == "1",
        splits=int(known.get("splits", 1)), mode=known.get("mode", "slices"),
        promoted=is_promoted(itemsize), cluster=(below, across), ahead=int(known.get("ahead", 0)),
    )  # fmt: skip


def _lines(pitch_nbytes: int) -> float:
    """Lines that rows of a box touch, which follow each other by so many bytes."""
    return 2 - math.gcd(pitch_nbytes, LINE_NBYTES) / LINE_NBYTES


def _plan(
    rows: int, columns: int, stages: int, *, products: int = 1, itemsize: int = 2
) -> ProductPlan:
    depth = DEPTH_NBYTES // itemsize
    promoted = is_promoted(itemsize)
    return ProductPlan(rows, columns, depth, 2, stages, products=products, promoted=promoted)


def _of(
    file: str, name: str, column: str, sizes: ProductSizes, plan: ProductPlan, beside: float = 0.0
) -> Measured:
    """A row of a file without so many microseconds of kernels beside the product; of plans the
    column whose tile and cluster are given as `tile, .*cluster`."""
    row = next(r for r in _json(file)["products"] if r["name"] == name)
    tile, _, cluster = column.partition(", .*")
    found = (us for c, us in row["us"].items() if tile in c and cluster in c)
    return Measured(f"{name}, {column}", sizes, plan, next(found) - beside)


def _json(file: str) -> Any:
    return json.loads((Path(__file__).parent / file).read_text())


def measured_plans() -> dict[str, Sequence[Measured]]:
    """All of them, by where they come from."""
    return {f.__name__: list(f()) for f in (few_rows, large, sweep, beside, suites, batches)}
