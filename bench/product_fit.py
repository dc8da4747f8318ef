"""`python -m bench.product_fit [--fit]`

The predicted time of every measured plan of a product by warpgroups beside what an H200 or an H100
took, from the JSON files of `bench/`. Both chips have the same multiprocessors, and memory of their
own. With `--fit` the constants of `Calibration` that are fitted to them are
searched for again: coordinate by coordinate, from those in use, the least sum of squared logarithms
of predicted over measured, in which ratios beyond a tenth count linearly and those of kernels above
100 us, which repeat within 1 %, two and a half times; those of the sweep, of which there are three
times as many, and no large ones, count `SWEEP_WEIGHT`. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusewright.calibration import PRODUCT_FIGURES
from fusewright.schedule.heuristics.product_plans import DEPTH_NBYTES, ProductPlan, Sizes
from fusewright.schedule.heuristics.product_times import predicted_us
from fusewright.schedule.products import is_promoted
from fusewright.target import Target, target_of

TARGET = target_of("sm_90a")
COPIES_US = 37.0
"""Of both operands of 4097 x 4104 x 4104 into rows of whole lines: 35.2 predicted; 252.5 us with
them for 215 alone, four rounds of tiles at the pace of 4096 cubed being five."""
LINEAR_FROM = 0.1
LONG_US, LONG_WEIGHT = 100.0, 2.5
SWEEP_WEIGHT = 0.4
H100_NBYTES_PER_US = 3_350_000
"""Of memory, by the data sheet of the SXM5 module."""
STRADDLED = 1.875
"""Lines that rows of 8,208 bytes touch in a box."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A plan that ran: so many slices were summed by a second kernel. `memory` is that of the chip,
    bytes a microsecond."""

    name: str
    sizes: Sizes
    plan: ProductPlan
    us: float
    slices: int = 1
    memory: int = TARGET.memory_nbytes_per_us
    weight: float = 1.0


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
        plan = ProductPlan(rows, columns, 64, rows // 64, r["stages"])
        yield Measured(name, Sizes(slices, m, n, k // slices), plan, r["us"], slices)


def large() -> Iterator[Measured]:
    """Products that fill the chip: by the file, the row and, of plans in clusters, the column."""
    wide, tall, narrow = _plan(128, 256, 4), _plan(256, 128, 3), _plan(128, 192, 4)
    below, beside = {"cluster": (2, 1)}, {"cluster": (1, 2)}
    c4, c8, odd = (Sizes(1, m, n, n) for m, n in ((4096, 4096), (8192, 8192), (4097, 4104)))
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
    yield _of(day, "TT 8192x8192x4096", "fusewright", Sizes(1, 8192, 8192, 4096), wide)
    pair = _plan(128, 128, 4, products=2)
    yield _of(day, "gated 8192x14336x4096", "fusewright", Sizes(1, 8192, 14336, 4096), pair)
    few = _plan(128, 64, 8)
    yield _of(day, "TN 256x4096x4096", "fusewright", Sizes(1, 256, 4096, 4096), few)
    evening = "products-2026-11-23-evening-h200.json"
    for n in (4096, 8192):
        kinds = (("tf32 TN", 4, (128, 256)), ("fp8", 1, (128, 192)))
        for kind, itemsize, (rows, columns) in kinds:
            plan = _plan(rows, columns, 4, itemsize=itemsize)
            sizes = Sizes(1, n, n, n, itemsize)
            yield _of(evening, f"{kind} {n}x{n}x{n}", "fusewright", sizes, plan)


def sweep() -> Iterator[Measured]:
    """Products of few tiles on an H100, `product-sweep-2026-11-25-h100.json`, but for plans of
    which two blocks share a multiprocessor: the formula has one."""
    for r in _json("product-sweep-2026-11-25-h100.json")["forms"]:
        if "plan" not in r or r["us"] is None or r["mode"] == "half":
            continue
        m, n, k = map(int, r["case"].split("x"))
        m, n = (n, m) if r["exchanged"] else (m, n)
        slices, plan = (
            r["slices"],
            ProductPlan(**{**r["plan"], "cluster": tuple(r["plan"]["cluster"])}),
        )
        sizes = Sizes(slices, m, n, k // slices)
        name = f"{r['case']} {r['form']}"
        yield Measured(name, sizes, plan, r["us"], slices, H100_NBYTES_PER_US, SWEEP_WEIGHT)


def _plan(
    rows: int, columns: int, stages: int, *, products: int = 1, itemsize: int = 2
) -> ProductPlan:
    depth = DEPTH_NBYTES // itemsize
    promoted = is_promoted(itemsize)
    return ProductPlan(rows, columns, depth, 2, stages, products=products, promoted=promoted)


def _of(
    file: str, name: str, column: str, sizes: Sizes, plan: ProductPlan, beside: float = 0.0
) -> Measured:
    """A row of a file without so many microseconds of kernels beside the product; of plans the
    column whose tile and cluster are given as `tile, .*cluster`."""
    row = next(r for r in _json(file)["products"] if r["name"] == name)
    tile, _, cluster = column.partition(", .*")
    found = (us for c, us in row["us"].items() if tile in c and cluster in c)
    return Measured(f"{name}, {column}", sizes, plan, next(found) - beside)


def _json(file: str) -> Any:
    return json.loads((Path(__file__).parent / file).read_text())


def predicted(m: Measured, target: Target = TARGET) -> float:
    """Microseconds by the model on the chip that was measured, with those of a second kernel that
    sums slices, and of turns behind the second."""
    target = replace(target, memory_nbytes_per_us=m.memory)
    us = predicted_us(m.sizes, m.plan, target)
    if m.plan.mode == "vector":
        us += (m.plan.splits - 2) * target.calibration.hop_us
    if m.slices > 1:
        moved = 8 * m.slices * m.sizes.rows * m.sizes.columns
        us += target.calibration.sums_launch_us + moved / target.memory_nbytes_per_us
    return us


def loss(rows: Sequence[Measured], figures: Sequence[float]) -> float:
    """Of constants in the order of `PRODUCT_FIGURES`."""
    known = replace(TARGET.calibration, **dict(zip(PRODUCT_FIGURES, figures, strict=True)))
    target, total = replace(TARGET, calibration=known), 0.0
    for m in rows:
        error = math.log(predicted(m, target) / m.us) * (LONG_WEIGHT if m.us > LONG_US else 1.0)
        total += m.weight * (math.sqrt(1 + (error / LINEAR_FROM) ** 2) - 1)
    return total


def search(of: Callable[[Sequence[float]], float], start: Sequence[float]) -> list[float]:
    """The least of a function of positive numbers, coordinate by coordinate with growing and
    shrinking steps."""
    best, least = list(start), of(start)
    steps = [0.1 * x for x in start]
    while max(s / x for s, x in zip(steps, best, strict=True)) > 1e-3:
        for i, step in enumerate(steps):
            for sign in (1, -1):
                tried = [*best[:i], max(1e-3, best[i] + sign * step), *best[i + 1 :]]
                if (found := of(tried)) < least:
                    best, least, steps[i] = tried, found, 1.3 * step
                    break
            else:
                steps[i] = 0.6 * step
    return best


def main() -> None:
    """Prints the table, and with `--fit` the constants."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    rows = [*few_rows(), *large(), *sweep()]
    for m in rows:
        us = predicted(m)
        print(f"{m.name:50s} {m.us:8.1f} us, predicted {us:8.1f}, {us / m.us:5.2f}")
    errors = [math.log(predicted(m) / m.us) for m in rows]
    print(f"root mean square of the logarithm: {math.hypot(*errors) / len(errors) ** 0.5:.3f}")
    if args.fit:
        own = [getattr(TARGET.calibration, f) for f in PRODUCT_FIGURES]
        found = search(lambda figures: loss(rows, figures), own)
        print({f: round(x, 3) for f, x in zip(PRODUCT_FIGURES, found, strict=True)})


if __name__ == "__main__":
    main()
