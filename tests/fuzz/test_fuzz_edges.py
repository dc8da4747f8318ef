"""Edges that no byte asks for, and peaks above the bound, are found; random programs have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fuzz_edges import high_peak, needless_edge
from fuzz_orders import Drawn, DrawnLayouts

import fusewright as fw
from fusewright.core.expr import Int
from fusewright.host.ir import Edge, EdgeKind

FEW = range(4993000, 4993012)


def halves(x: object) -> object:
    return [fw.nn.softmax(v, axis=-1) for v in fw.split(x, 2, axis=1)]


@pytest.mark.parametrize("kind", [EdgeKind.RAW, EdgeKind.MAYBE])
def test_an_edge_that_no_byte_asks_for_is_found(kind: EdgeKind) -> None:
    program = fw.compile(
        fw.trace(lambda x: fw.concat(halves(x), axis=1), fw.TensorSpec((4, 64), "float32"))
    )
    assert needless_edge(program.host, {}) is None
    more = Edge(0, 1, kind, "t may overlap u")
    found = needless_edge(replace(program.host, edges=(more,)), {})
    assert found is not None and ("unknown" if kind is EdgeKind.MAYBE else "no byte") in found


def test_a_peak_above_the_bound_is_found() -> None:
    drawn = DrawnLayouts(4993607)
    program, arrays = drawn.program(), drawn.arrays()
    sizes = program.symbol_values(arrays)
    assert high_peak(program.host, sizes) is None
    arena = replace(program.host.arena, nbytes=program.host.arena.nbytes + Int(256))
    assert "live at one time" in str(high_peak(replace(program.host, arena=arena), sizes))


@pytest.mark.parametrize("seed", FEW)
def test_few_programs_have_the_edges_and_the_memory_that_they_need(seed: int) -> None:
    drawn = (Drawn, DrawnLayouts)[seed % 2](seed)
    program = drawn.program()
    sizes = program.symbol_values([np.asarray(a) for a in drawn.arrays()])
    assert needless_edge(program.host, sizes) is None
    assert high_peak(program.host, sizes) is None
