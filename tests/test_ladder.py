"""The rungs of `bench.ladder` are right, and each has in its text what it adds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from bench.ladder import CHOSEN, RUNGS, SCALARS, Rung, by_scalars, program_of, scheduled, table
from bench.ping_pong import Case, plain

import fusewright as fw
from fusewright.kir.ir import BoxLoad, BoxStore, Mma, Role, WarpMma
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.product_plans import ProductPlan

CASE = Case(plain, 400, 520, 392)
"""Ragged on all sides, of more steps than any rung has stages, and more tiles than blocks."""
BLOCKS = 2


def _small(rung: Rung) -> Rung:
    """The rung on two blocks, as so few tiles would each have one of their own."""
    if not rung.is_ordered:
        return rung
    assert isinstance(rung.plan, ProductPlan)
    return replace(rung, plan=replace(rung.plan, blocks=BLOCKS, group=2, serpentine=True))


def _kernel(rung: Rung) -> fw.Kernel:
    return scheduled(CASE, _small(rung)).lower("sm_90a")


def _assert_right(fusion: fw.Fusion, kernel: fw.Kernel) -> None:
    rng = np.random.default_rng(3)
    shapes = CASE.shapes
    arrays = [rng.normal(size=s).astype(fw.bfloat16.numpy) for s in shapes]
    result = kernel.simulate(*arrays)
    assert result.races == []
    (wanted,) = (y.astype(np.float64) for y in fw.evaluate(fusion, *arrays))
    error = np.abs(result.outputs[0].astype(np.float64) - wanted).max()
    assert error <= 2**-7 * np.abs(wanted).max()


@pytest.mark.parametrize("rung", RUNGS, ids=lambda r: r.name)
def test_every_rung_is_right(rung: Rung) -> None:
    _assert_right(CASE.fusion(), _kernel(rung))


def test_products_by_scalars_are_right() -> None:
    specs = [fw.TensorSpec(s, "bfloat16") for s in CASE.shapes]
    fusion = fw.trace(by_scalars, *specs)
    (kernel,) = fw.compile(fusion).kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "tiled_sums"
    _assert_right(fusion, kernel)


def _roles(kernel: fw.Kernel) -> list[Role]:
    return [s for s in walk_statements(kernel.ir) if isinstance(s, Role)]


def _found(rung: Rung) -> dict[str, Any]:
    """What of the machine a rung uses."""
    kernel = _kernel(rung)
    kinds = {type(s) for s in walk_statements(kernel.ir)}
    return {
        "warps": WarpMma in kinds,
        "groups": Mma in kinds,
        "copies": BoxLoad in kinds,
        "stages": max(s.nbytes for s in kernel.smem),
        "roles": [any(isinstance(t, Mma) for t in walk_statements(r)) for r in _roles(kernel)],
        "boxes": BoxStore in kinds,
        "blocks": str(kernel.launch.grid[0]),
        "cluster": kernel.launch.cluster,
        "threads": str(kernel.launch.block[0]),
    }


def test_each_rung_adds_what_it_says() -> None:
    """Neighbours differ in what the name of the upper one says, and in nothing else."""
    found = {r.name: _found(r) for r in RUNGS}
    names = [r.name for r in RUNGS]
    differs = {
        upper: {k for k in found[upper] if found[upper][k] != found[lower][k]}
        for lower, upper in pairwise(names)
    }
    assert differs["copy engine"] >= {"warps", "groups", "copies"}
    assert differs["ring"] == {"stages"}
    assert differs["roles"] == {"roles", "threads"}
    assert differs["large tiles"] == {"stages", "blocks", "threads"}
    assert differs["in order"] == {"blocks"} and found["in order"]["blocks"] == str(BLOCKS)
    assert differs["boxes"] == {"boxes"}
    assert differs["clusters"] == {"cluster"}
    multiplying = {name: sum(f["roles"]) for name, f in found.items()}
    assert (multiplying["boxes"], multiplying["in turn"]) == (1, 2)
    assert found["in turn"]["cluster"] == 1


def test_the_first_and_the_last_rung_are_programs() -> None:
    for name in (SCALARS, CHOSEN):
        program, plan, us = program_of(CASE, name)
        assert len(program.kernels) == 1 and us > 0 and plan == str(program.kernels[0].heuristic)
    by_hand = program_of(CASE, "boxes")
    assert by_hand[1].startswith("matmul(tile=128x256x64") and by_hand[2] > 0


def test_a_table_has_rates_and_shares() -> None:
    case = Case(plain, 1000, 1000, 1000)
    rows = [{"form": "torch", "us": 10.0}, {"form": "ring", "us": 20.0}, {"form": "x", "us": None}]
    torch, ring, wrong = table(case, rows)
    assert (torch["tflops"], torch["of_torch"]) == (200.0, 1.0)
    assert (ring["tflops"], ring["of_torch"], ring["adds"]) == (100.0, 0.5, "a ring of five stages")
    assert "tflops" not in wrong
