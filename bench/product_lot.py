"""`python -m bench.product_lot --seeds 0:60 [--peers torch] [--save DIR | --load DIR] [--out FILE]
[--budget-seconds N]`

Products drawn by lot: rows are any number from 1 to 8192, columns and depths what models have or
any multiple of 8, operands lie in each of the four layouts, and something follows half of them.
Method and output are those of `bench.run --suite products`; a seed stands for one product.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.outcome import Outcome, geometric_mean
from bench.product_suite import Entry, best_ratio, layout, run, save
from bench.products import Product, batched, gated, gelu, relu, residual
from bench.run import write_report

SIDES = (512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 14336, 28672)
"""Widths of layers of models."""
FLOP = (2e8, 2e12)
"""Of a product: the least is what a launch takes, the most a few milliseconds."""
NBYTES = 1 << 32
"""Of all operands and the result together, at most."""
BATCHES = (4, 16, 32, 64, 128)


def draw(seed: int) -> Entry:
    """The product of a seed."""
    rng = random.Random(seed)
    while True:
        made = _drawn(rng)
        product = made.product
        elements = sum(_count(s) for s in product.shapes)
        if FLOP[0] <= product.flop <= FLOP[1] and 2 * elements <= NBYTES:
            return made


def _drawn(rng: random.Random) -> Entry:
    m = int(2 ** rng.uniform(0, 13)) if rng.random() < 0.6 else 64 * rng.randint(1, 128)
    n, k = (_side(rng) for _ in range(2))
    which = rng.random()
    if which < 0.1:
        count, depth = rng.choice(BATCHES), rng.choice((64, 80, 96, 128, 256))
        rows = int(2 ** rng.uniform(5, 11))
        return Entry(_batch(count), rows, rng.choice((rows, 64 * rng.randint(1, 32))), depth)
    if which < 0.5:
        name = rng.choice(("TN", "TN", "TN", "NN", "NT", "TT"))
        return Entry(layout(name, rng.choice(("bfloat16", "bfloat16", "float16"))), m, n, k)
    return Entry(rng.choice((relu, gelu, residual, gated)), m, n, k)


def _side(rng: random.Random) -> int:
    return rng.choice(SIDES) if rng.random() < 0.8 else 8 * rng.randint(8, 2048)


def _batch(count: int) -> Callable[[int, int, int], Product]:
    return lambda m, n, k: batched(count, m, n, k)


def _count(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out


def said(outcomes: Sequence[Outcome]) -> str:
    """The geometric mean over the best peer, how many are slower, and the ten worst."""
    ratios = sorted((r, o.name) for o in outcomes if (r := best_ratio(o)))
    if not ratios:
        return "nothing was measured"
    values = [r for r, _ in ratios]
    slower = [sum(v < x for v in values) for x in (0.97, 0.9, 0.85)]
    lines = [
        f"{len(values)} products: {geometric_mean(values):.3f} of the best peer; below 0.97, 0.9, "
        f"0.85: {slower[0]}, {slower[1]}, {slower[2]}"
    ]
    return "\n".join([*lines, *(f"{r:.3f} {name}" for r, name in ratios[:10])])


def main() -> None:
    """Compiles or measures the products of seeds, prints a line of each, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:60", help="a range of seeds, or numbers with commas")
    parser.add_argument("--peers", default="torch", help="of torch,compile,nvfuser,quack")
    parser.add_argument("--save", type=Path, help="a folder for programs to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: nothing is compiled")
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    first, _, last = args.seeds.partition(":")
    seeds = range(int(first), int(last)) if last else map(int, first.split(","))
    chosen = [draw(s) for s in seeds]
    if args.save is not None:
        save(chosen, args.save)
        return

    def keep(outcomes: list[Outcome]) -> None:
        if args.out is not None:
            write_report(args.out, outcomes, __doc__, "Products by lot")

    print(said(run(chosen, args.peers.split(","), args.load, args.budget_seconds, keep)))


if __name__ == "__main__":
    main()
