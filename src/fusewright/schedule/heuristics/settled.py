"""What is chosen of a product's results where the text of a kernel says which places a thread has.

A thread has the same columns of each tile but for those that its lane moves it by. A choice that
depends on neither tile nor lane, as of halves of heads behind a product, is made once for all when
the words of a tile are spelled: no instruction chooses, and what is not taken is not computed.

    y = where(c % 128 < 64, -p[c + 64], p[c - 64])     in tiles of 256 columns: half of `-p`
"""

from __future__ import annotations

import numpy as np

from fusewright.core.expr import constant_value, variables
from fusewright.core.sampling import Sampler
from fusewright.fusion.held_results import MAX_COLUMNS, TILE_WIDTHS, is_alike_in_tiles
from fusewright.fusion.ir import Iota
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.masks import condition_of


def settled_shares(flow: Dataflow, product: Stage) -> dict[Stage, float]:
    """By stage the share of the places of a product at which it is computed, zero for choices that
    cost nothing; empty where nothing is chosen by the text of the kernel."""
    if not any(isinstance(s.op, Iota) for s in flow.stages):
        return {}
    shares = ((s, _share(flow, s, product)) for s in flow.stages)
    chosen = {s: share for s, share in shares if share is not None}
    needed = dict.fromkeys(flow.outputs, 1.0)
    for s in reversed(flow.stages) if chosen else ():
        own = needed.setdefault(s, 0.0)
        sides = (1.0,) * len(s.operands)
        if s in chosen:
            sides = 0.0, chosen[s], 1 - chosen[s]
        for o, side in zip(s.operands, sides, strict=True):
            needed[o] = min(1.0, needed.get(o, 0.0) + own * side)
    return {s: 0.0 if s in chosen else share for s, share in needed.items()} if chosen else {}


def _share(flow: Dataflow, s: Stage, product: Stage) -> float | None:
    """The share of places at which a choice takes the first side; None for what is no choice along
    the columns of a product, or one that tiles or lanes have a part in."""
    rows = [[flow.graph.normal(c) for c in t.frame.output] for t in (s, product)]
    extent = constant_value(s.shape[-1]) if s.shape else None
    if rows[0] != rows[1] or extent is None or extent > MAX_COLUMNS:
        return None
    at = [flow.graph.variable(f"c{k}", e) for k, e in enumerate(s.shape)]
    condition = condition_of(s, at)
    if condition is None or variables(condition) != (at[-1],):
        return None
    taken = Sampler({at[-1]: np.arange(extent)}).holds(condition)
    is_settled = any(is_alike_in_tiles(taken, n) for n in TILE_WIDTHS)
    return float(taken.mean()) if is_settled else None
