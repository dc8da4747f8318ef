"""Products, and sums whose blocks hand over, with warps delayed at random: programs, their machine
code, and what is right. Needs no device but to run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from litmus_kernels import with_spins_at_syncs

sys.path.insert(0, str(Path(__file__).parents[1] / "host"))
sys.path.insert(0, str(Path(__file__).parents[1] / "schedule"))

from product_programs import CASES as PROGRAMS
from test_cluster_products import CASES as CLUSTERS, arrays_of, product_of, scheduled
from test_products_verify import CASES as KERNELS
from turn_cases import CASES as TURNS, TurnCase

import fusewright as fw
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DelayedProgram:
    """`make` gives a fusion or a schedule, anew at each call. `turn` is the case of a sum whose
    blocks hand over: it says whether all runs give the same bits."""

    name: str
    make: Callable[[], fw.Fusion | fw.Schedule]
    arrays: Callable[[], list[Array]]
    turn: TurnCase | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def repeats_itself(self) -> bool:
        return self.turn is None or self.turn.repeats_itself

    def program(self, target: str) -> fw.Program:
        return fw.compile(self.make(), target) if self.turn is None else self.turn.compile(target)

    def delayed(self, target: str) -> fw.Program:
        """The program with late warps in all its kernels."""
        program = self.program(target)
        for k in program.kernels:
            text = with_spins_at_syncs(emit(k.ir, k.target))
            k.adopt(compile_cubin(text, k.target, name=k.name, contract=True))
        return program

    def wanted(self) -> list[tuple[Array, float]]:
        """The oracle's results in float64, and how far off each may be: by two roundings of 16
        bits, or by those of the dtype, where that is all that is asked of later runs."""
        if self.turn is not None and not self.repeats_itself:
            return [self.turn.wanted()]
        results = [a.astype(np.float64) for a in fw.evaluate(self.make(), *self.arrays())]
        return [(a, 2.0**-7 * max(float(np.abs(a).max()), 1.0)) for a in results]

    def assert_right(self, found: list[Array]) -> None:
        """Whether results are those of the oracle."""
        for got, (wanted, limit) in zip(found, self.wanted(), strict=True):
            assert np.abs(got.reshape(wanted.shape) - wanted).max() <= limit, self.name


OF_PROGRAMS = ("halves", "halves of rows", "batched", "rows of 1029", "slices", "prologue")
"""Programs beside the kernels by hand: stacked weights, a batch, two kernels, slices of k."""


DELAYED_PROGRAMS = (
    *(DelayedProgram(c.name, c.schedule, c.arrays) for c in KERNELS),
    *(DelayedProgram(c.name, c.fusion, c.arrays) for c in PROGRAMS if c.name in OF_PROGRAMS),
    *(
        DelayedProgram(
            f"clusters of {plan.cluster[0]} x {plan.cluster[1]}, {fn.__name__} of {sizes}",
            lambda fn=fn, sizes=sizes, plan=plan: scheduled(product_of(fn, *sizes), plan),
            lambda fn=fn, sizes=sizes: arrays_of(product_of(fn, *sizes)),
        )
        for fn, sizes, plan in CLUSTERS
    ),
    *(DelayedProgram(c.name, c.make, c.arrays, c) for c in TURNS if c.is_typical),
)
