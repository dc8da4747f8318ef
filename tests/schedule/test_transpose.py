"""The transposing schedule: values, hazards, bank conflicts, vectors, and what it declines."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.axes.classes import AxisClass
from fusewright.core.conditions import TRUE
from fusewright.errors import ScheduleError
from fusewright.finish import finish
from fusewright.fusion.ir import Fusion
from fusewright.fusion.passes.decompose import decompose
from fusewright.kernel import Kernel
from fusewright.kir.ir import Load
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.candidates import Listing, schedule_with
from fusewright.schedule.heuristics.traffic import traffic
from fusewright.schedule.heuristics.transpose import TransposeScheduler
from fusewright.target import target_of

TARGET = target_of("sm_90a")
SMALL = replace(
    TARGET,
    multiprocessors=2,
    memory_nbytes_per_us=2 * TARGET.memory_nbytes_per_us // TARGET.multiprocessors,
)
"""A chip that a small problem fills, so that tiles have the size that they have for large ones."""

Spec = tuple[tuple[int, ...], str]


def fusion_of(f: Callable[..., Any], *specs: Spec) -> Fusion:
    return decompose(fw.trace(f, *[fw.TensorSpec(shape, dtype) for shape, dtype in specs]))


def kernel_of(
    fusion: Fusion, order: Sequence[int] | None = None, target: Any = SMALL
) -> tuple[Kernel, Dataflow]:
    flow = Dataflow(fusion)
    if order is not None:
        flow.outputs[0].allocation_order = tuple(order)
    params = schedule_group(flow, target)
    return finish(flow, "k", TARGET, params), flow


def arrays_of(fusion: Fusion, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-8, 8, [int(str(e)) for e in t.shape]).astype(np.float32).astype(t.dtype.numpy)
        for t in fusion.inputs
    ]


def assert_agrees(kernel: Kernel, fusion: Fusion, arrays: Sequence[Any]) -> dict[str, Any]:
    result = kernel.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    return dict(result.stats)


def turned(x: Any) -> Any:
    return fw.permute_dims(x, (1, 0))


def permuted(*axes: int) -> Callable[[Any], Any]:
    return lambda x: fw.permute_dims(x, axes)


COPY_CASES = [
    ((256, 128), "bfloat16", (1, 0)),
    ((128, 192), "float32", (1, 0)),
    ((256, 256), "int8", (1, 0)),
    ((64, 32), "float64", (1, 0)),
    ((127, 61), "float16", (1, 0)),
    ((126, 64), "bfloat16", (1, 0)),
    ((128, 66), "bfloat16", (1, 0)),
    ((136, 133), "bfloat16", (1, 0)),
    ((133, 136), "bfloat16", (1, 0)),
    ((3, 70, 90), "float32", (0, 2, 1)),
    ((2, 48, 14, 14), "bfloat16", (0, 2, 3, 1)),
    ((2, 14, 14, 48), "bfloat16", (0, 3, 1, 2)),
    ((16, 3, 2, 3, 40), "float32", (4, 1, 2, 3, 0)),
    ((50, 16, 8), "float32", (0, 2, 1)),
    ((256, 66), "bfloat16", (1, 0)),  # four vectors of a row of the tile, over all banks
]


@pytest.mark.parametrize(("shape", "dtype", "axes"), COPY_CASES)
def test_copies_without_bank_conflicts(
    shape: tuple[int, ...], dtype: str, axes: tuple[int, ...]
) -> None:
    fusion = fusion_of(permuted(*axes), (shape, dtype))
    kernel, _ = kernel_of(fusion)
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "transpose"
    stats = assert_agrees(kernel, fusion, arrays_of(fusion))
    assert stats["shared_wavefronts"] <= 1.5 * stats["shared_wavefronts_least"]
    assert len(kernel.syncs) == 1


GROUPS: dict[str, tuple[Callable[..., Any], list[Spec]]] = {
    "add": (lambda x, y: turned(x) + y, [((96, 160), "bfloat16"), ((160, 96), "bfloat16")]),
    "x + x.T": (lambda x: x + turned(x), [((128, 128), "float32")]),
    "two far": (
        lambda x, y, z: turned(x) * turned(y) + z,
        [((96, 160), "float32"), ((96, 160), "float32"), ((160, 96), "float32")],
    ),
    "far output": (
        lambda x, y, z: turned(x + y + z),
        [((128, 64), "bfloat16"), ((128, 64), "bfloat16"), ((128, 64), "bfloat16")],
    ),
    "mixed": (
        lambda x, y: fw.astype(turned(x), fw.float32) + y,
        [((128, 64), "bfloat16"), ((64, 128), "float32")],
    ),
    "bias": (
        lambda x, b, c: turned(x) + b + fw.reshape(c, (160, 1)),
        [((128, 160), "float32"), ((128,), "float32"), ((160,), "float32")],
    ),
    "repeated": (
        lambda x, y: fw.permute_dims(x + y, (2, 0, 1)),
        [((1, 96, 8), "float32"), ((40, 96, 8), "float32")],
    ),
    "heads": (
        lambda x: fw.reshape(fw.permute_dims(fw.reshape(x, (64, 4, 32)), (1, 2, 0)), (128, 64)),
        [((64, 128), "bfloat16")],
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name: str) -> None:
    f, specs = GROUPS[name]
    fusion = fusion_of(f, *specs)
    kernel, _ = kernel_of(fusion)
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "transpose"
    stats = assert_agrees(kernel, fusion, arrays_of(fusion))
    assert stats["shared_wavefronts"] <= 1.5 * stats["shared_wavefronts_least"]
    assert fw.verify(kernel, *arrays_of(fusion)).redundant == []


ODD_SHAPES = [
    ((1025, 256), "bfloat16", "1x64x64", "1, 8"),
    ((256, 1025), "bfloat16", "1x64x64", "8, 1"),
    ((515, 513), "bfloat16", "1x64x64", "1, 1"),
    ((515, 513), "float32", "1x64x64", "4, 1"),  # whole registers are cut out of two words
]


@pytest.mark.parametrize(("shape", "dtype", "tile", "vectors"), ODD_SHAPES)
def test_rows_of_odd_lengths_share_index_arithmetic(
    shape: tuple[int, int], dtype: str, tile: str, vectors: str
) -> None:
    fusion = fusion_of(lambda x, y: turned(x) + y, (shape[::-1], dtype), (shape, dtype))
    kernel, _ = kernel_of(fusion)
    named = dict(kernel.heuristic.values) if kernel.heuristic is not None else {}
    assert (named["tile"], named["vectors"]) == (tile, vectors)
    arrays = arrays_of(fusion)
    stats = assert_agrees(kernel, fusion, arrays)
    assert stats["shared_wavefronts"] == stats["shared_wavefronts_least"]
    report = fw.verify(kernel, *arrays)
    assert not report.redundant and not report.missing
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    tiles = [s for s in loads if s.src.memory is Memory.SHARED]
    assert all(s.fill is None and not s.lanes.all_exist for s in tiles if s.predicate != TRUE)
    assert any(s.predicate != TRUE for s in tiles)


def test_output_order() -> None:
    fusion = fusion_of(lambda x, y: x + y, ((96, 160), "float32"), ((96, 160), "float32"))
    kernel, flow = kernel_of(fusion, (1, 0))
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "transpose"
    assert [s.memory for s in flow.stages].count(Memory.SHARED) == 1
    assert_agrees(kernel, fusion, arrays_of(fusion))


def test_random_groups() -> None:
    rng = random.Random(5)
    sizes = (1, 3, 4, 7, 8, 16, 31, 32, 48, 66, 100)
    transposed = 0
    for seed in range(25):
        rank = rng.choice((2, 3, 4))
        shape = [rng.choice(sizes) for _ in range(rank)]
        if not 1024 <= np.prod(shape) <= 40000:
            continue
        orders = [rng.sample(range(rank), rank) for _ in range(2)]
        dtypes = [rng.choice(("float32", "bfloat16")) for _ in range(2)]
        specs: list[Spec] = []
        for order, dtype in zip(orders, dtypes, strict=True):
            own = [0] * rank
            for j, a in enumerate(order):
                own[a] = shape[j]
            specs.append((tuple(own), dtype))
        fusion = fusion_of(
            lambda x, y, a=orders[0], b=orders[1]: (
                fw.permute_dims(x, tuple(a)) + fw.permute_dims(y, tuple(b))
            ),
            *specs,
        )
        kernel, _ = kernel_of(fusion, rng.sample(range(rank), rank))
        assert_agrees(kernel, fusion, arrays_of(fusion, seed))
        transposed += kernel.heuristic is not None and kernel.heuristic.scheduler == "transpose"
    assert transposed >= 5


def test_wide_accesses_and_no_spills() -> None:
    fusion = fusion_of(
        lambda x, y: turned(x) + y, ((8192, 16384), "bfloat16"), ((16384, 8192), "bfloat16")
    )
    kernel, _ = kernel_of(fusion, target=TARGET)
    text = kernel.sass()
    counts = {
        op: text.count(op) for op in ("LDG.E.128", "STS.64", "LDS.128", "STG.E.128", "BAR.SYNC")
    }
    assert counts == {"LDG.E.128": 8, "STS.64": 8, "LDS.128": 4, "STG.E.128": 4, "BAR.SYNC": 1}
    assert kernel.resources().spill_stores == 0
    assert kernel.resources().registers <= 64


def test_symbolic_sizes() -> None:
    n, m = fw.Sym("n", min=2), fw.Sym("m", min=2)
    fusion = decompose(fw.trace(turned, fw.TensorSpec((n, m), "float32")))
    kernel, _ = kernel_of(fusion)
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "transpose"
    x = np.arange(70 * 45, dtype=np.float32).reshape(70, 45)
    result = kernel.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], x.T)


# --- what it declines ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "specs"),
    [
        (lambda x, y: x + y, [((64, 64), "float32"), ((64, 64), "float32")]),
        (lambda x: turned(x), [((16, 16), "float32")]),
        (lambda x: fw.permute_dims(x, (0, 2, 1)), [((500, 3, 3), "float32")]),
        (lambda x: fw.permute_dims(x, (0, 2, 3, 1)), [((2, 3, 32, 32), "float32")]),
        (lambda x, b: x + b, [((64, 64), "float32"), ((64, 1), "float32")]),
    ],
)
def test_declines_and_leaves_the_flow(f: Callable[..., Any], specs: list[Spec]) -> None:
    flow = Dataflow(fusion_of(f, *specs))
    before = [(s.name, s.op, s.operands) for s in flow.stages]
    assert schedule_with(Listing(TransposeScheduler(flow, SMALL))) is None
    assert [(s.name, s.op, s.operands) for s in flow.stages] == before


def test_a_refused_plan_is_undone() -> None:
    """An output that nothing ties to the other one cannot take its loops."""
    fusion = fusion_of(
        lambda x, z: (turned(x), z * 2), ((64, 64), "float32"), ((64, 64), "float32")
    )
    flow = Dataflow(fusion)
    before = [(s.name, s.op, s.operands, s.memory) for s in flow.stages]
    assert schedule_with(Listing(TransposeScheduler(flow, SMALL))) is None
    assert [(s.name, s.op, s.operands, s.memory) for s in flow.stages] == before


def test_an_allocation_must_hold_every_element() -> None:
    flow = Dataflow(fusion_of(turned, ((128, 64), "float32")))
    assert schedule_with(Listing(TransposeScheduler(flow, SMALL))) is not None
    tile = next(s for s in flow.stages if s.memory is Memory.SHARED)
    assert tile.allocation is not None
    tile.allocation = tile.allocation[:-1]
    with pytest.raises(ScheduleError, match=r"x_tile cannot be stored by .* every element once"):
        finish(flow, "k", TARGET, None)


def test_an_allocation_with_an_axis_twice_is_refused() -> None:
    flow = Dataflow(fusion_of(turned, ((128, 64), "float32")))
    assert schedule_with(Listing(TransposeScheduler(flow, SMALL))) is not None
    tile = next(s for s in flow.stages if s.memory is Memory.SHARED)
    assert tile.allocation is not None
    tile.allocation = (*tile.allocation, tile.allocation[-1])
    with pytest.raises(ScheduleError, match="visited twice"):
        finish(flow, "k", TARGET, None)


MOVES_ACROSS: list[tuple[Callable[..., Any], Spec, tuple[int, ...]]] = [
    (lambda x: fw.flip(x, axis=(0, 3)) * 2, ((128, 40, 5, 4), "float16"), (1, 512, 20480, 128)),
    (lambda x: fw.roll(x, (13, 2), axis=(0, 2)) * 2, ((80, 5, 61), "int8"), (1, 4880, 80)),
]


@pytest.mark.parametrize("case", range(len(MOVES_ACROSS)))
def test_what_moves_along_joined_dimensions_goes_through_a_tile(case: int) -> None:
    """Flips and rolls of what lies across, along both sides of a tile, one of them two axes."""
    f, (shape, dtype), strides = MOVES_ACROSS[case]
    fusion = decompose(fw.trace(f, fw.TensorSpec(shape, dtype, strides=strides)))
    kernel, _ = kernel_of(fusion)
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "transpose"
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert max(s.width for s in loads if s.src.memory is Memory.GLOBAL) > 1
    (plain,) = arrays_of(fusion)
    order = sorted(range(len(shape)), key=lambda a: -strides[a])
    across = np.ascontiguousarray(plain.transpose(order)).transpose(np.argsort(order))
    assert_agrees(kernel, fusion, [across])


# --- the dimensions of a group ------------------------------------------------------------------


def test_dimensions_merge_where_all_accesses_run_on() -> None:
    flow = Dataflow(fusion_of(permuted(0, 2, 3, 1), ((2, 48, 14, 14), "bfloat16")))
    found = traffic(flow, flow.outputs[0])
    assert [str(d.extent) for d in found.dims] == ["2", "196", "48"]
    fast: list[AxisClass | None] = [w.fast for w in found.walks]
    assert fast == [found.dims[1], found.dims[2]]
    assert [w.width() for w in found.walks] == [4, 8]


def test_dimensions_are_cut_where_a_reshape_cuts() -> None:
    f, specs = GROUPS["heads"]
    flow = Dataflow(fusion_of(f, *specs))
    found = traffic(flow, flow.outputs[0])
    assert [str(d.extent) for d in found.dims] == ["128", "64"]


def test_where_memory_moves_more_fewer_lanes_lie_beyond_a_dimension() -> None:
    """5001 rows of 37: bytes cost little beside instructions, so that runs become shorter."""
    fusion = fusion_of(lambda x: fw.permute_dims(x, (1, 0)), ((5001, 37), "bfloat16"))
    fast = replace(TARGET, memory_nbytes_per_us=16 * TARGET.memory_nbytes_per_us)
    tiles = [str(schedule_group(Dataflow(fusion), t)) for t in (TARGET, fast)]
    assert "tile=1x16x128" in tiles[0] and "tile=1x8x256" in tiles[1]


# --- results that are read far, too -------------------------------------------------------------


def test_a_result_written_through_a_tile_reads_its_operands_before_that() -> None:
    def f(a: fw.Array, b: fw.Array) -> Any:
        j = fw.concat([a, a], axis=1)
        moved = fw.roll(fw.expand_dims(j, axis=1), -1, axis=2)
        return fw.expand_dims(j, axis=1), fw.where(j.T <= 0.0, 0.0, b), moved

    specs = [fw.TensorSpec((33, 64), "float32"), fw.TensorSpec((128, 33), "float32")]
    fusion = fw.trace(f, *specs)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s.shape).astype(np.float32) for s in specs]  # type: ignore[arg-type]
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("shape", "is_far_first"),
    [((1024, 1024), False), ((1024, 1000), True), ((1000, 1024), False), ((1000, 1000), False)],
)
def test_tiles_that_share_pairs_of_sectors_run_together(
    shape: tuple[int, int], is_far_first: bool
) -> None:
    """Rows of 2000 bytes end inside of a pair: neighbours along them come first in the grid, where
    rows of the result do not ask for the same."""
    x = fw.TensorSpec(shape, "float16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.permute_dims(x, (1, 0)) * 2, x)).kernels
    assert kernel.heuristic is not None and dict(kernel.heuristic.values)["tile"] == "1x32x64"
    near, far = -(-shape[0] // 64), -(-shape[1] // 32)
    grid = (far, near, 1) if is_far_first else (near, far, 1)
    assert tuple(map(str, kernel.launch.grid)) == tuple(map(str, grid))
