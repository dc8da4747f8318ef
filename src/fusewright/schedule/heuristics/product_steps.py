"""How long a multiprocessor takes for a tile of a product's depth: its matrix instructions, the
boxes of both operands on their way to shared memory, and the ring that lies between them.

One formula for the ranking of tiles and for the predicted time of a kernel. Its constants were
fitted to 80 plans that an H200 ran (`python -m bench.product_fit`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.target import MAX_MMA_COLUMNS, MMA_ROWS, SHARED_NBYTES_PER_CLOCK, Target


@dataclass(frozen=True, slots=True)
class DepthStep:
    """What a block does for a tile of the depth.

    `clocks` of matrix instructions at their nominal rate, and `added` clocks in which its threads
    add promoted sums, while nobody multiplies. Of boxes the lines of 128 bytes that arrive in its
    shared memory, those among them that it asks for itself (a cluster's other blocks ask for the
    rest), and the rows beyond an edge, which the copy engine fills with zeros. `stages` tiles of
    each operand have room in the ring, which so many `warpgroups` hand back. `crossing`: the lines
    it asks for in rows that touch two. `shared_nbytes`: what boxes write to its shared memory, and
    instructions read there.
    """

    clocks: float
    added: float
    received: float
    requested: float
    beyond: float
    stages: int
    warpgroups: int
    crossing: float = 0.0
    shared_nbytes: float = 0.0


def passed_nbytes(rows: int, columns: int, products: int, row_nbytes: float) -> float:
    """Bytes that pass shared memory for a step of a tile, of operands with rows of so many bytes:
    boxes write both; for each 64 rows of the first an instruction reads these, and the columns that
    it multiplies them by. In 128 bytes of depth 128 x 128 reads 48 KB and writes 32 in the 512
    clocks of its instructions, more than 128 bytes a clock; 128 x 256 reads 80 and writes 48 in
    1024, which are just as many."""
    each = products * -(-columns // MAX_MMA_COLUMNS)
    read = rows / MMA_ROWS * (each * MMA_ROWS + products * columns)
    return (rows + products * columns + read) * row_nbytes


def outside_us(tiles: float, inside: float, around: float) -> float:
    """Microseconds of a block beside its steps, where two warpgroups take its tiles in turn, each
    of which takes so many `inside` of its steps and `around` them: what stands around a tile stands
    beside the steps of the next, but for the last, and for what is longer than those. Then a
    warpgroup is done with a tile each time that both have passed, and the other one as well."""
    return around + max(0.0, tiles - 1) * max(0.0, around - inside) / 2


@dataclass(frozen=True, slots=True)
class StepClocks:
    """Clocks of a step by what it may be limited by: matrix instructions, boxes, and a ring with
    too few tiles under way for the latency of a box."""

    products: float
    boxes: float
    ring: float

    @property
    def most(self) -> float:
        """Those of the step."""
        return max(self.products, self.boxes, self.ring)


def step_clocks(step: DepthStep, busy: float, target: Target) -> StepClocks:
    """Clocks of a step while this share of all multiprocessors are at theirs. Lines of rows that
    touch two take as long when others rest: 1024 x 1024 x 65544 by 96 blocks takes 2.3 to 2.6
    clocks for each (one H100, 2026-11-26, `bench.run --suite products`).

    A slot of the ring is filled while the tiles in all other slots are multiplied: from the end of
    the batch that read it, of which the slower warpgroup's comes half a tile late. Without a ring
    nothing happens beside anything else. What passes shared memory beyond 128 bytes a clock takes
    power that a full chip does not have, so that it costs the more, the more of it is busy.
    """
    known = target.calibration
    crowded = max(0.0, step.shared_nbytes - SHARED_NBYTES_PER_CLOCK * step.clocks)
    shared = busy * known.crowded_clocks * crowded
    products = step.clocks / known.product_share + shared + step.added
    boxes = known.beyond_clocks * step.beyond + max(
        known.box_line_clocks * step.received,
        known.shared_line_clocks * (busy * step.requested + (1 - busy) * step.crossing),
    )
    waiting = known.box_latency_us * target.clock_mhz + boxes
    if step.stages == 1:
        return StepClocks(products, boxes, waiting + products)
    late = products / 2 if step.warpgroups > 1 else 0.0
    return StepClocks(products, boxes, (waiting + late) / (step.stages - 1))
