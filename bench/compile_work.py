"""`python -m bench.compile_work --seeds 90000:90105`: what compiling takes, without NVRTC.

Seconds of the thread's own clock, which what else the machine does disturbs less than that of the
wall, or with `--calls` function calls, which nothing disturbs; of draws of the lot, the fusions of
the corpus, and products.
"""

from __future__ import annotations

import argparse
import cProfile
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import fusewright as fw
from bench.lot.draws import seeds_of
from bench.lot.families import draw
from bench.lot.gate import HIGH, LOW
from fusewright.corpus import CORPUS
from fusewright.fusion.ir import Fusion

PRODUCTS = ((4096, 4096, 4096), (4096, 4096, 512), (4097, 4104, 4104), (16, 4096, 4096))
"""Rows, columns and depth."""


def _products() -> Iterator[tuple[str, Fusion]]:
    for m, n, k in PRODUCTS:
        specs = fw.TensorSpec((m, k), "bfloat16"), fw.TensorSpec((n, k), "bfloat16")
        yield f"product {m}x{n}x{k}", fw.trace(lambda x, w: fw.matmul(x, w.T), *specs)
    bias = fw.TensorSpec((4096,), "bfloat16")
    square = fw.TensorSpec((4096, 4096), "bfloat16")
    gelu = fw.trace(lambda x, w, b: fw.nn.gelu(fw.matmul(x, w.T) + b), square, square, bias)
    yield "product, bias and gelu", gelu


def _seconds(f: Callable[[], object]) -> float:
    began = time.thread_time()
    f()
    return time.thread_time() - began


def _calls(f: Callable[[], object]) -> float:
    profile = cProfile.Profile()
    profile.runcall(f)
    return sum(entry.callcount for entry in profile.getstats()) / 1e6


def _table(what: str, cases: Sequence[tuple[str, Fusion]], cost: Callable[..., float]) -> None:
    found: list[tuple[float, str, int]] = []
    for name, fusion in cases:
        programs: list[fw.Program] = []
        taken = cost(lambda fusion=fusion, made=programs: made.append(fw.compile(fusion)))
        found.append((taken, name, len(programs[0].kernels)))
    found.sort()
    costs = [c for c, *_ in found]
    highest = costs[min(len(costs) - 1, round(0.95 * len(costs)))]
    print(
        f"{what}: {len(found)}, sum {sum(costs):.2f}, median {statistics.median(costs):.3f}, "
        f"of 95 in 100 at most {highest:.3f}"
    )
    for taken, name, nkernels in found[:-6:-1]:
        print(f"  {taken:.3f} {name}, kernels: {nkernels}")


def main() -> None:
    """Prints a table of each kind, the dearest five by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="90000:90105", help="draws, as in bench.lot")
    parser.add_argument("--calls", action="store_true", help="millions of calls for seconds")
    given = parser.parse_args()
    cost = _calls if given.calls else _seconds
    draws = [draw(s, LOW, HIGH) for s in seeds_of(given.seeds)]
    _table("draws", [(d.name, d.trace()) for d in draws], cost)
    _table("corpus", [(c.name, fw.trace(c.fn, *c.specs)) for c in CORPUS], cost)
    _table("products", list(_products()), cost)


if __name__ == "__main__":
    main()
