"""What each part of the memory pipeline buys on the corpus: bytes of shared memory, and syncs.

    python tools/ablate.py [text]      entries whose name contains the text, at their full sizes

Every row is the sum over all kernels, once with everything on and once without each part. A kernel
that no longer fits a block without a part is counted apart.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import fusewright as fw
from fusewright import knobs
from fusewright.corpus import CORPUS
from fusewright.errors import FusewrightError
from fusewright.kir.pipeline import SWITCHES
from fusewright.report.table import table


@dataclass
class Cost:
    """Sums over kernels: bytes of shared memory, syncs of blocks and of warps; kernels that do not
    fit a block."""

    shared_nbytes: int = 0
    block_syncs: int = 0
    warp_syncs: int = 0
    unfit: int = 0


def cost(without: str, only: str) -> Cost:
    """The cost of all kernels of the corpus without one part of the pipeline."""
    os.environ[knobs.WITHOUT.name] = without
    total = Cost()
    for case in CORPUS:
        if only not in case.name:
            continue
        try:
            program = fw.compile(fw.trace(case.fn, *case.specs))
        except FusewrightError:
            total.unfit += 1
            continue
        for kernel in program.kernels:
            kinds = [s.kind for s in kernel.syncs]
            total.shared_nbytes += kernel.launch.shared_nbytes
            total.block_syncs += kinds.count("BlockSync")
            total.warp_syncs += kinds.count("WarpSync")
            total.unfit += kernel.launch.shared_nbytes > kernel.target.shared_nbytes_per_block
    return total


def main(arguments: Sequence[str]) -> None:
    only = arguments[0] if arguments else ""
    rows: list[tuple[str, ...]] = []
    for without in ("", *SWITCHES):
        c = cost(without, only)
        figures = (c.shared_nbytes, c.block_syncs, c.warp_syncs, c.unfit)
        rows.append((f"without {without}" if without else "all on", *map(str, figures)))
    print(table(("pipeline", "shared bytes", "block syncs", "warp syncs", "do not fit"), rows))


if __name__ == "__main__":
    main(sys.argv[1:])
