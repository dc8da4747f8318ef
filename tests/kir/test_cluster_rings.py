"""Rings that the blocks of a cluster fill for each other, as analyses and passes see them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from product_texts import Lowered

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from multicast_suite import RING

from fusewright.kir.analysis.accesses import accesses
from fusewright.kir.ir import BoxLoad, Kernel, Memory
from fusewright.kir.passes.complete_async import complete_async
from fusewright.kir.passes.materialise_rings import materialise_rings
from fusewright.kir.text import parse_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def ring_of_products() -> Kernel:
    """A product of two blocks, as `materialise_rings` leaves it."""
    text = Lowered(m=128, groups=1, k=256, blocks=1, ring="stages 2 warp_specialized").text()
    text = text.replace("  min_blocks 1", "  cluster (cx < 2)\n  min_blocks 1")
    text = text.replace("wm at (64*k, 64*((t*1 + bx) % 1))", "wm at (64*k, 0) to 2 blocks")
    return materialise_rings(parse_kernel(text), TARGET)


def test_roles_of_all_blocks_access_what_blocks_copy_for_each_other() -> None:
    k = parse_kernel(RING)
    (read,) = (a for a in accesses(k) if a.buffer.name == "sw" and not a.writes)
    assert (read.nthreads, read.ncopies) == (192, 2)
    assert read.ranges is not None
    threads = np.broadcast_to(read.ranges.mask.may, (1, 1, 192))[0, 0]
    assert np.flatnonzero(threads).tolist() == [*range(32, 96), *range(128, 192)]


def test_a_box_for_all_blocks_is_an_access_in_each() -> None:
    boxes = [s for s in walk_statements(parse_kernel(RING)) if isinstance(s, BoxLoad)]
    own, shared = (
        [str(u.rank) for u in s.memory_uses() if u.buffer.memory is Memory.SHARED] for s in boxes
    )
    assert own == ["None", "None"]
    assert shared == ["0", "1", "0", "1"]
    use = boxes[1].mbarrier_use()
    assert use is not None and (use.blocks, use.nbytes) == (2, 512)


def test_a_wait_that_may_be_late_is_seen_before_the_first_arrival() -> None:
    """Of arrivals at the same mbarrier of two blocks each block has one: what is read has to be
    done before the first of them."""
    done = complete_async(ring_of_products(), TARGET)
    kinds = [type(s).__name__ for s in walk_statements(done)]
    waits = [i for i, kind in enumerate(kinds) if kind == "AsyncWait"]
    arrivals = [i for i, kind in enumerate(kinds) if kind == "MbarArrive"]
    assert len(arrivals) == 4
    assert max(w for w in waits if w < arrivals[1]) < arrivals[0]
    assert arrivals[1] < max(w for w in waits if w < arrivals[3]) < arrivals[2]
