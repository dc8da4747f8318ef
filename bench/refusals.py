"""`python -m bench.refusals [--corpus] [--wide 40000:40300] [--plain .. --lot .. --products ..]`

How many groups lowering refused after dispatch formation had accepted them. Each is a defect of the
rules of formation: the kernel is cut in halves, which costs a launch and a trip to memory. Printed
are the rule, a file that shows it, and the program it came of. Needs no GPU.

Method: programs of the corpus at full and at small sizes, and random ones by seed: `wide` and
`plain` of `tests/fuzz`, `lot` of `bench/lot` at small sizes, `products` and `operands` of products,
`calls` that move and insert, and `layouts` with symbols and strides, of `tests/fuzz`. All are
compiled for `TARGET`, none is run. What the front end refuses is no program.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import fusewright as fw
from fusewright.corpus import CORPUS
from fusewright.host.refused import LOGGER

TARGET = "sm_90a"
LOT_SIZES = (2e4, 4e6)
"""Bytes that a draw of the lot moves: from sizes at which rows fit a warp to a few megabytes."""
FUZZ = Path(__file__).parent.parent / "tests" / "fuzz"


class Collected(logging.Handler):
    """What the driver says of groups that were cut after formation."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def refusals(trace: Callable[[], fw.Fusion | fw.Program]) -> list[str]:
    """What was cut after formation while a program was compiled, a message each. `trace` compiles
    it itself where it needs more than the fusion."""
    heard = Collected()
    logger = logging.getLogger(LOGGER)
    logger.addHandler(heard)
    try:
        made = trace()
        if isinstance(made, fw.Fusion):
            fw.compile(made, TARGET)
    finally:
        logger.removeHandler(heard)
    return heard.messages


def of_corpus() -> Iterator[tuple[str, Callable[[], fw.Fusion]]]:
    """Every case of the corpus at both of its sizes."""
    for case in CORPUS:
        yield case.name, lambda c=case: fw.trace(c.fn, *c.specs)
        yield f"{case.name}, small", lambda c=case: fw.trace(c.fn, *c.small)


def of_wide(seeds: range) -> Iterator[tuple[str, Callable[[], fw.Fusion]]]:
    """The wide random programs of the campaign."""
    from fuzz_motifs import draw_wide

    for seed in seeds:
        recipe, _ = draw_wide(seed)
        yield recipe.reproducer(), recipe.trace


def of_plain(seeds: range) -> Iterator[tuple[str, Callable[[], fw.Fusion]]]:
    """The plain random programs."""
    from fuzz_programs import draw

    for seed in seeds:
        recipe = draw(seed)
        yield recipe.reproducer(), recipe.trace


def of_lot(seeds: range) -> Iterator[tuple[str, Callable[[], fw.Fusion]]]:
    """Draws of the lot, at small sizes."""
    from bench.lot.families import draw

    for seed in seeds:
        d = draw(seed, *LOT_SIZES)
        yield d.name, d.trace


def of_products(seeds: range) -> Iterator[tuple[str, Callable[[], fw.Fusion]]]:
    """Products and what follows them."""
    from fuzz_products import Drawn

    for seed in seeds:
        d = Drawn(seed)
        yield f"product {seed}: {d.shapes}, {d.suffix}", lambda d=d: fw.trace(d, *d.specs())


def of_operands(seeds: range) -> Iterator[tuple[str, Callable[[], fw.Fusion]]]:
    """Products of operands that lie and are computed in many ways."""
    from fuzz_operands import OperandDrawn

    for seed in seeds:
        d = OperandDrawn(seed)
        yield str(d), lambda d=d: fw.trace(d, *d.specs())


def of_calls(seeds: range) -> Iterator[tuple[str, Callable[[], fw.Program]]]:
    """Calls that move values and insert blocks into arguments."""
    from fuzz_orders import DrawnCall

    for seed in seeds:
        d = DrawnCall(seed)
        yield f"call {seed}: {d.shapes}", d.program


def of_layouts(seeds: range) -> Iterator[tuple[str, Callable[[], fw.Program]]]:
    """Such calls with symbols, and with arguments that lie column by column."""
    from fuzz_orders import DrawnLayouts

    for seed in seeds:
        d = DrawnLayouts(seed)
        yield f"layouts {seed}: {d.shapes}", d.program


SOURCES = {
    "wide": of_wide,
    "plain": of_plain,
    "lot": of_lot,
    "products": of_products,
    "operands": of_operands,
    "calls": of_calls,
    "layouts": of_layouts,
}


def main() -> int:
    """Compiles what was asked for; 1 where something was cut after formation."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--corpus", action="store_true")
    for name in SOURCES:
        parser.add_argument(f"--{name}", default="", help="seeds, from:to")
    options = parser.parse_args()
    sys.path.append(str(FUZZ))
    logging.getLogger(LOGGER).propagate = False
    sources = [("corpus", of_corpus())] if options.corpus else []
    for name, programs in SOURCES.items():
        if text := getattr(options, name):
            first, _, last = text.partition(":")
            sources.append((name, programs(range(int(first), int(last or int(first) + 1)))))
    return sum(_count(name, programs) for name, programs in sources) > 0


def _count(name: str, programs: Iterator[tuple[str, Callable[[], fw.Fusion | fw.Program]]]) -> int:
    begun, count, cut, failed = time.monotonic(), 0, 0, 0
    for text, trace in programs:
        count += 1
        try:
            found = refusals(trace)
        except Exception as e:  # a crash is told, and the count goes on
            failed += 1
            where = traceback.extract_tb(e.__traceback__)[-1]
            at = f"{Path(where.filename).name}:{where.lineno}"
            print(
                f"--- {name}: no program: {type(e).__name__}: {e} ({at})\nof {text}\n", flush=True
            )
            continue
        cut += len(found)
        for message in found:
            print(f"--- {name}: {message}\nof {text}\n", flush=True)
    seconds = time.monotonic() - begun
    print(
        f"{name}: {count} programs, {cut} groups cut after formation, {failed} no program, ", end=""
    )
    print(f"{seconds:.0f} s", flush=True)
    return cut


if __name__ == "__main__":
    sys.exit(main())
