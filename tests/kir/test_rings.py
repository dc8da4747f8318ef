"""Rings of boxes through the pipeline: right values, no sync missing and none redundant."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest
from product_texts import Lowered
from tests.work import calls

from fusewright.core.node import Node, rewrite
from fusewright.errors import ScheduleError
from fusewright.kir import ir
from fusewright.kir.passes.materialise_rings import materialise_rings
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.kir.text import parse_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.sim.verify import Case, verify_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")
ROLES = "warp_specialized registers (40, 232)"

PRODUCTS = {
    "plain": Lowered(),
    "stored by boxes": Lowered(n=128, tile_n=128, suffix="boxes"),
    "pipelined": Lowered(k=512, ring="stages 3 ahead 2"),
    "one ahead": Lowered(k=512, ring="stages 3 ahead 1"),
    "roles": Lowered(k=512, ring="stages 3 warp_specialized"),
    "fewer tiles than stages": Lowered(k=64, ring="stages 4 warp_specialized"),
    "fewer tiles than stages, pipelined": Lowered(k=64, ring="stages 4 ahead 3"),
    "persistent": Lowered(m=256, n=192, k=320, blocks=2, ring=f"stages 3 {ROLES}"),
    "persistent, by boxes": Lowered(
        m=256, n=192, k=320, blocks=2, suffix="boxes", ring=f"stages 3 {ROLES}"
    ),
    "persistent, pipelined": Lowered(
        m=256, n=192, k=320, blocks=2, suffix="boxes", ring="stages 3 ahead 2"
    ),
    "tiles that some blocks lack": Lowered(
        m=256, n=192, k=192, blocks=4, suffix="boxes", ring=f"stages 2 {ROLES}"
    ),
    "rows of k": Lowered(n=128, tile_n=128, k=320, w_mn=True, ring=f"stages 3 {ROLES}"),
    "ragged": Lowered(m=200, n=88, k=264, ring=f"stages 3 {ROLES}"),
}


def case_of(p: Lowered, k: ir.Kernel) -> tuple[Case, np.ndarray]:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((n, p.k)).astype(ml_dtypes.bfloat16) for n in (p.m, p.n))
    y = np.zeros(p.m * p.n, k.params[2].dtype.numpy)
    expected = x.astype(np.float64) @ w.astype(np.float64).T
    arrays = (x, np.ascontiguousarray(w.T) if p.w_mn else w, y)
    found = {b: a.reshape(-1) for b, a in zip(k.params, arrays, strict=True)}
    return Case(found, outputs=(k.params[2],)), expected


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_right_and_every_sync_is_needed(name: str) -> None:
    p = PRODUCTS[name]
    k = run_pipeline(parse_kernel(p.text()), TARGET, PipelineOptions(spec=3))
    case, expected = case_of(p, k)
    arrays = {b: a.copy() for b, a in case.arrays.items()}
    simulate(k, arrays)
    y = arrays[k.params[2]].astype(np.float64).reshape(p.m, p.n)
    unit = 2.0**-8 if p.suffix == "boxes" else 2.0**-20
    assert (np.abs(y - expected) <= unit * np.abs(expected) + 2.0**-20 * p.k).all()
    report = verify_kernel(k, case, blocks=None)
    assert not report.missing
    assert not report.redundant


def test_kernels_are_judged_as_a_whole_where_waits_may_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which takes as long as pruning; other syncs are judged by what they order."""
    module = import_module("fusewright.kir.passes.prune_syncs")
    judged: list[ir.Kernel] = []
    original = module.faults
    monkeypatch.setattr(module, "faults", lambda k: judged.append(k) or original(k))
    run_pipeline(parse_kernel(PRODUCTS["roles"].text()), TARGET)
    assert not judged


@pytest.mark.parametrize("ring", ["stages 3 ahead 2", f"stages 3 {ROLES}"])
def test_analyses_do_not_grow_with_trips(ring: str) -> None:
    """Sixty-four times as many tiles along k cost the same."""
    counted: list[int] = []
    for k in (1024, 65536):
        kernel = parse_kernel(Lowered(m=128, n=64, k=k, ring=ring).text())
        counted.append(
            calls(lambda kernel=kernel: run_pipeline(kernel, TARGET, PipelineOptions(spec=1)))
        )
    assert counted[1] < 1.25 * counted[0]


@pytest.mark.parametrize(
    ("lowered", "written_out"),
    [
        (Lowered(k=512, ring="stages 3 warp_specialized"), 3),
        (Lowered(k=512, ring="stages 2 warp_specialized"), 4),
        (Lowered(k=1024, ring="stages 7 ahead 6"), 7),
        (Lowered(m=256, n=192, k=192, blocks=2, ring=f"stages 3 {ROLES}"), 3),
        (
            Lowered(m=256, n=192, k=320, blocks=2, ring=f"stages 3 {ROLES}"),
            4,
        ),  # laps begin anywhere
    ],
)
def test_a_loop_over_a_ring_is_written_out_by_laps(lowered: Lowered, written_out: int) -> None:
    """Where a lap begins with the loop, slots are then literals; elsewhere, as in the last case of
    5 tiles, it stays as asked for."""

    def overlapped(node: Node) -> Node:
        is_loop = isinstance(node, ir.For) and node.var.name == "k"
        return replace(node, overlap=4) if is_loop else node

    k = materialise_rings(rewrite(parse_kernel(lowered.text()), overlapped), TARGET)
    loops = [s for s in walk_statements(k) if isinstance(s, ir.For) and s.var.name == "k"]
    assert loops and all(s.overlap == written_out for s in loops)


def test_tiles_of_one_ring_agree() -> None:
    text = (
        Lowered(ring="stages 3 ahead 2").text().replace("stages 3 ahead 2", "stages 2 ahead 1", 1)
    )
    with pytest.raises(ScheduleError, match="sx, sw are tiles of one loop in rings of different"):
        materialise_rings(parse_kernel(text), TARGET)


def test_a_ring_copies_fewer_tiles_ahead_than_it_has() -> None:
    text = Lowered(ring="stages 3 ahead 3").text()
    with pytest.raises(ScheduleError, match="3 tiles of a ring of 3 are copied ahead"):
        materialise_rings(parse_kernel(text), TARGET)


def test_boxes_fill_a_tile_under_no_condition_of_threads() -> None:
    text = Lowered().text().replace("for (k < 4) {", "for (k < 4) { if (tx < 128) {")
    text = text.replace("    for (j <", "    }\n    for (j <")
    with pytest.raises(ScheduleError, match="on which the threads of a block may disagree"):
        materialise_rings(parse_kernel(text), TARGET)


def test_blocks_that_copy_for_each_other_agree_on_tiles() -> None:
    """Blocks of a cluster that ran different numbers of tiles would wait for ever."""
    text = Lowered(ring="stages 3 warp_specialized").text()
    text = text.replace("  min_blocks 1", "  cluster (cx < 2)\n  min_blocks 1")
    text = text.replace("wm at (64*k, 64*((t*1 + bx) % 1))", "wm at (64*k, 0) to 2 blocks")
    materialise_rings(parse_kernel(text), TARGET)
    with pytest.raises(ScheduleError, match=r"sx: 2 blocks of a cluster .* disagree on 'cx \+ 3'"):
        materialise_rings(parse_kernel(text.replace("(k < 4)", "(k < 3 + cx)")), TARGET)


def test_a_target_without_a_copy_engine_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"copies boxes, which .* does not do"):
        materialise_rings(parse_kernel(Lowered().text()), target_of("sm_80"))


def test_roles_need_room_for_their_warps() -> None:
    text = Lowered(m=512, groups=8, ring="stages 2 warp_specialized").text()
    with pytest.raises(ScheduleError, match="no room for 32 that copy"):
        materialise_rings(parse_kernel(text), TARGET)


def test_registers_beyond_the_pool_are_refused() -> None:
    text = Lowered(ring="stages 2 warp_specialized registers (56, 240)").text()
    with pytest.raises(ScheduleError, match="want 68608, a block of 384 begins with 64512"):
        materialise_rings(parse_kernel(text), TARGET)


def test_registers_are_those_of_two_roles() -> None:
    text = Lowered(ring="stages 2 warp_specialized registers (40, 232, 232)").text()
    with pytest.raises(ScheduleError, match="are not the registers of two roles"):
        materialise_rings(parse_kernel(text), TARGET)
