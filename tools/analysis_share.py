"""What part of a cold compile the analyses of memory and synchronisation take, over the corpus.

    python tools/analysis_share.py [text]      entries whose name contains the text, at full size

A cold compile is tracing, scheduling, lowering and the compiler's work on the CUDA text, without
caches. Counted are seconds of processor time of the whole process, so that neighbours on the
machine do not count; the compiler's threads do. The analyses are the passes that find hazards,
place, buy and prune syncs and fences, and pack shared memory, and the checks of syncs and memory.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import fusewright as fw
from fusewright import knobs
from fusewright.corpus import CORPUS
from fusewright.errors import UserError
from fusewright.kir import pipeline, spec
from fusewright.kir.checks import Check
from fusewright.kir.cluster_spec import CLUSTER_CHECKS
from fusewright.kir.ir import Kernel
from fusewright.kir.order_spec import ORDER_CHECKS
from fusewright.kir.sync_spec import SYNC_CHECKS
from fusewright.report.table import table
from fusewright.target import Target

T = TypeVar("T")

ANALYSES = (
    "complete_async",
    "place_syncs",
    "promote",
    "pack_shared",
    "place_fences",
    "prune_syncs",
)
CHECK = "checks"
CHECKED = frozenset(c.name for c in (*SYNC_CHECKS, *CLUSTER_CHECKS, *ORDER_CHECKS)) | {"packed"}
LIMIT = 0.10


@dataclass(slots=True)
class Share:
    """Seconds of one compile: of each analysis, of Python altogether, of the compiler."""

    name: str
    analyses: dict[str, float] = field(default_factory=dict[str, float])
    python: float = 0.0
    compiler: float = 0.0

    @property
    def analysis(self) -> float:
        """Seconds of all analyses."""
        return sum(self.analyses.values())

    @property
    def share(self) -> float:
        """The analyses' part of the whole."""
        return self.analysis / (self.python + self.compiler)


@contextmanager
def timed_passes(seconds: dict[str, float]) -> Iterator[None]:
    """Adds up what the passes and the checks of syncs and memory take while this is open."""
    run, checks = pipeline.run_pass, spec.CHECKS

    def timed_run(p: pipeline.Pass, kernel: Kernel, target: Target, **checks: Any) -> Kernel:
        own = replace(p, run=lambda k, t: timed(p.name, lambda: p.run(k, t)))
        return run(own, kernel, target, **checks)

    def timed(name: str, work: Callable[[], T]) -> T:
        start = time.process_time()
        try:
            return work()
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - start

    def timed_check(c: Check) -> Check:
        return replace(c, find=lambda facts: iter(timed(CHECK, lambda: list(c.find(facts)))))

    pipeline.run_pass = timed_run
    spec.CHECKS = tuple(timed_check(c) if c.name in CHECKED else c for c in checks)
    try:
        yield
    finally:
        pipeline.run_pass, spec.CHECKS = run, checks


def measure(name: str, fn: Callable[..., Any], specs: Sequence[fw.TensorSpec]) -> Share:
    """One cold compile of a fusion. Raises as `fw.compile`."""
    found = Share(name)
    seconds: dict[str, float] = {}
    gc.collect()
    gc.disable()  # a collection would count for whatever it happens to interrupt
    with timed_passes(seconds):
        start = time.process_time()
        program = fw.compile(fw.trace(fn, *specs))
        found.python = time.process_time() - start
    found.analyses = {n: seconds.get(n, 0.0) for n in (*ANALYSES, CHECK)}
    start = time.process_time()
    for kernel in program.kernels:
        kernel.compiled()
    found.compiler = time.process_time() - start
    gc.enable()
    return found


def report(shares: Sequence[Share]) -> str:
    """The table of all compiles, the largest share first, and their sum."""
    ordered = sorted(shares, key=lambda s: -s.share)
    total = Share(
        "all",
        {n: sum(s.analyses[n] for s in shares) for n in (*ANALYSES, CHECK)},
        sum(s.python for s in shares),
        sum(s.compiler for s in shares),
    )
    rows = [
        (
            s.name,
            *(f"{1000 * s.analyses[n]:.0f}" for n in (*ANALYSES, CHECK)),
            f"{1000 * s.python:.0f}",
            f"{1000 * s.compiler:.0f}",
            f"{100 * s.share:.1f} %",
        )
        for s in (total, *ordered)
    ]
    above = sum(s.share > LIMIT for s in shares)
    head = ("fusion, ms", *ANALYSES, CHECK, "python", "compiler", "share")
    return f"{table(head, rows)}\n\n{above} of {len(shares)} above {100 * LIMIT:.0f} %"


def main(arguments: Sequence[str]) -> None:
    os.environ[knobs.CACHE.name] = "0"
    only = arguments[0] if arguments else ""
    cases = [c for c in CORPUS if only in c.name]
    if not cases:
        raise UserError(f"no fusion of the corpus has {only!r} in its name")
    measure("first", fw.exp, [fw.TensorSpec((3,), "float32")])  # loads modules and the compiler
    print(report([measure(c.name, c.fn, c.specs) for c in cases]))


if __name__ == "__main__":
    main(sys.argv[1:])
