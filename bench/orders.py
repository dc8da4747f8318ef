"""`python -m bench.orders`: chains of kernels that like different orders of axes in memory.

By the forms for the whole program, and with each value between kernels in the order for which the
chain takes the least.

Times are those that the cost model predicts; no GPU is needed. A chain is written as its steps and
their axes: `sort1-scan3 L` sorts along axis 1, then scans along axis 3, of an image whose channels
are the fast axis (`L`) or the slow one (`F`); `LL`, `LF`: as the results have to be.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import fusewright as fw
from fusewright import forms
from fusewright.form_times import predicted_us
from fusewright.fusion.passes.store_in_orders import store_in_orders
from fusewright.target import target_of

LAST = (0, 2, 3, 1)
STEPS: dict[str, Callable[[Any, int], Any]] = {
    "sort": lambda x, axis: fw.sort(x, axis=axis),
    "scan": lambda x, axis: fw.cumulative_sum(x, axis=axis) * 0.01,
    "soft": lambda x, axis: fw.nn.softmax(x, axis=axis) * x,
    "norm": lambda x, axis: (
        x * fw.rsqrt(fw.mean(x * x, axis=tuple(a for a in range(4) if a != axis), keepdims=True))
    ),
}
MIDDLE = ("sort2", "scan2", "soft2", "scan2-sort2", "sort2-scan2", "soft2-scan2")
FURTHER = ("sort2-soft2", "scan2-soft2", "soft2-sort2")
PROGRAMS: tuple[str, ...] = (
    *(f"soft3-sort3-{m}-sort1-soft1 16x4096x14x14 FL" for m in (*MIDDLE, *FURTHER)),
    *(f"soft3-sort3-{m}-sort1-soft1 8x4096x14x14 FL" for m in MIDDLE),
    *(f"soft3-sort3-{m}-sort1-soft1 16x2048x14x14 FL" for m in MIDDLE),
)
"""Chains of which the forms for the whole program are not the best."""


def traced(name: str) -> fw.Fusion:
    """The program of a name, with its results in the order that it says."""
    chain, shape, ends = name.split()

    def fn(x: Any) -> Any:
        for step in chain.split("-"):
            x = STEPS[step[:4]](x, int(step[4]))
        return x

    n, c, h, w = map(int, shape.split("x"))
    strides = (c * h * w, 1, w * c, c) if ends[0] == "L" else None
    fusion = fw.trace(fn, fw.TensorSpec((n, c, h, w), "float32", strides=strides))
    return store_in_orders(fusion, [LAST if ends[1] == "L" else None])


def predicted(fusion: fw.Fusion, *, by_groups: bool) -> float:
    """Microseconds of the form that is chosen, with or without an order for each value."""
    most, target = forms.MAX_ASKED, target_of("sm_90a")
    forms.MAX_ASKED = most if by_groups else 0
    try:
        form = forms.chosen_form(fusion, target)
        return predicted_us(form, target)
    finally:
        forms.MAX_ASKED = most


def main() -> None:
    """Prints a line for each chain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="chains, default all")
    print("| chain | forms for the whole, us | an order each, us |")
    print("|---|---|---|")
    for name in parser.parse_args().names or PROGRAMS:
        one, each = (predicted(traced(name), by_groups=b) for b in (False, True))
        print(f"| {name} | {one:.1f} | {each:.1f} |", flush=True)


if __name__ == "__main__":
    main()
