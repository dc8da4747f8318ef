"""`python -m bench.product_fit [--fit | --choice]`

The predicted time of every measured plan of a product by warpgroups beside what an H200 or an H100
took (`bench/measured_products.py`), and the root mean square of the logarithm of predicted over
measured, by file and of all. No GPU is needed.

With `--choice`, of the plans of a product that ran beside each other and that are in the menu of
today, the one that ranks first against the fastest.

With `--fit` the constants of `Calibration` that are fitted to them are searched for again:
coordinate by coordinate, from those in use, the least sum of squared logarithms of predicted over
measured, in which ratios beyond a tenth count linearly and those of kernels above 100 us, which
repeat within 1 %, two and a half times; those of the sweep, of which there are three times as many,
and no large ones, count `SWEEP_WEIGHT`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.measured_products import TARGET, Measured, measured_plans
from bench.outcome import geometric_mean
from fusewright.calibration import PRODUCT_FIGURES
from fusewright.host.product_forms import EXCHANGED
from fusewright.schedule.heuristics.product_plans import STAGED_ITEMSIZE, ProductPlan, menu_plans
from fusewright.schedule.heuristics.product_suffix import PARTS, PLAIN, Suffix
from fusewright.schedule.heuristics.product_times import predicted_us, ranked_us
from fusewright.target import MMA_ROWS, Target

LINEAR_FROM = 0.1
LONG_US, LONG_WEIGHT = 100.0, 2.5
FITTED_FILES = ("few_rows", "large", "sweep")
"""Those that the constants were fitted to; the others came later."""


def predicted(m: Measured, target: Target = TARGET) -> float:
    """Microseconds by the model on the chip that was measured, with those of a second kernel that
    sums slices."""
    return _beside(m, target) + predicted_us(m.sizes, m.plan, _chip(m, target), _suffix(m))


def ranked(m: Measured) -> float:
    """The same with the margins by which the compiler chooses, for clusters and for exchanged
    operands, but for what a launch takes on a stream: plans beside each other ran in graphs."""
    us = ranked_us(m.sizes, m.plan, _chip(m, TARGET), _suffix(m))
    if m.exchanged and m.sizes.columns > MMA_ROWS:
        us = max(EXCHANGED * us, us + TARGET.calibration.launch_us)
    return _beside(m, TARGET) + us


def _suffix(m: Measured) -> Suffix:
    return PARTS if m.slices > 1 else PLAIN


def _chip(m: Measured, target: Target) -> Target:
    return replace(target, memory_nbytes_per_us=m.memory)


def _beside(m: Measured, target: Target) -> float:
    """Microseconds of the kernel that sums slices."""
    known, us = target.calibration, 0.0
    if m.slices > 1:
        moved = (8 * m.slices + STAGED_ITEMSIZE) * m.sizes.rows * m.sizes.columns
        us += known.sums_launch_us + moved / m.memory
    return us


def is_listed(m: Measured) -> bool:
    """Whether the menu of today has the tile of a plan with its warpgroups and its cluster, and
    results leave as they did."""

    def tile(p: ProductPlan) -> tuple[object, ...]:
        return p.rows, p.columns, p.warpgroups, p.cluster, p.staged > 0

    outputs = 0 if m.slices > 1 or m.plan.splits > 1 else 1
    return tile(m.plan) in {tile(p) for p in menu_plans(m.sizes, TARGET, outputs=outputs)}


def choices(rows: Sequence[Measured]) -> dict[str, tuple[Measured, Measured]]:
    """Of each group with several plans of today's menu the one that ranks first, and the fastest. A
    plan that ran several times has the mean of its times."""
    groups: dict[str, dict[object, list[Measured]]] = {}
    for m in rows:
        if m.group and is_listed(m):
            runs = groups.setdefault(m.group, {})
            runs.setdefault((m.sizes, m.plan), []).append(m)
    found: dict[str, tuple[Measured, Measured]] = {}
    for group, runs in groups.items():
        own = [replace(r[0], us=geometric_mean([m.us for m in r])) for r in runs.values()]
        if len(own) > 1:
            found[group] = min(own, key=ranked), min(own, key=lambda m: m.us)
    return found


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


def error(rows: Sequence[Measured]) -> float:
    """The root mean square of the logarithm of predicted over measured."""
    return math.hypot(*(math.log(predicted(m) / m.us) for m in rows)) / len(rows) ** 0.5


def main() -> None:
    """Prints the table, or the choices, and with `--fit` the constants."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--choice", action="store_true")
    args = parser.parse_args()
    files = measured_plans()
    if args.choice:
        _show_choices([m for rows in files.values() for m in rows])
        return
    for m in (m for rows in files.values() for m in rows):
        us = predicted(m)
        print(f"{m.name:50s} {m.us:8.1f} us, predicted {us:8.1f}, {us / m.us:5.2f}")
    for name, rows in files.items():
        bias = geometric_mean([predicted(m) / m.us for m in rows])
        print(f"{name}: {len(rows)} plans, error {error(rows):.3f}, predicted {bias:.3f} times")
    every = [m for rows in files.values() for m in rows]
    print(f"root mean square of the logarithm: {error(every):.3f}")
    if args.fit:
        fitted = [m for name in FITTED_FILES for m in files[name]]
        own = [getattr(TARGET.calibration, f) for f in PRODUCT_FIGURES]
        found = search(lambda figures: loss(fitted, figures), own)
        print({f: round(x, 3) for f, x in zip(PRODUCT_FIGURES, found, strict=True)})


def _show_choices(rows: Sequence[Measured]) -> None:
    found = choices(rows)
    for group, (first, best) in found.items():
        print(f"{group:34s} {first.us / best.us:.3f}  {first.name}")
        if first is not best:
            print(f"{'':40s}  {best.name}")
    mean = geometric_mean([first.us / best.us for first, best in found.values()])
    print(f"of {len(found)} products the first takes {mean:.4f} times the fastest")


if __name__ == "__main__":
    main()
