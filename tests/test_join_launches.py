"""Steps over lists of tensors: few launches, the results of the oracle, and what stays apart."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.traverse import walk_statements
from fusewright.programs.join_launches import MAX_STATEMENTS, PARAMETER_NBYTES

S = fw.TensorSpec
SHAPES = [(40, 64), (33,), (17, 3), (1000,), (8, 8), (2,), (40, 64), (5, 129)]


def sgd(*ts: Any) -> list[Any]:
    return [p - 0.1 * g for p, g in zip(ts[::2], ts[1::2], strict=True)]


def adamw(*ts: Any) -> list[Any]:
    out: list[Any] = []
    for p, g, m, v in zip(*(ts[k::4] for k in range(4)), strict=True):
        m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
        out += [p * 0.999 - m / (fw.sqrt(v) + 1e-3) * 0.01, m, v]
    return out


def specs_of(shapes: Sequence[tuple[int, ...]], times: int) -> list[fw.TensorSpec]:
    return [S(s, "float32") for s in shapes for _ in range(times)]


def agrees(program: fw.Program, specs: Sequence[fw.TensorSpec]) -> None:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(str(n)) for n in s.shape) for s in specs]
    arrays = [np.abs(rng.standard_normal(s)).astype(np.float32) for s in shapes]
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(program.fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("fn", "times"), [(sgd, 2), (adamw, 4)])
def test_a_step_over_small_tensors_is_one_launch(fn: Any, times: int) -> None:
    specs = specs_of(SHAPES, times)
    program = fw.compile(fw.trace(fn, *specs))
    assert len(program.launches) == 1
    assert len(program.kernels[0].parts) == len(SHAPES)
    agrees(program, specs)


def test_a_step_in_place() -> None:
    """Every part writes over its own arguments."""
    specs = specs_of(SHAPES, 2)
    fusion = fw.trace(sgd, *specs)
    names = [t.name for t in fusion.inputs[::2]]
    program = fw.compile(fusion, donate=names)
    assert len(program.launches) == 1
    assert not program.host.stats["not_placed"] and len(program.held) == len(SHAPES)
    agrees(program, specs)


def test_a_scalar_of_another_kernel_comes_first() -> None:
    """The norm of everything is known before the step begins, which is one launch."""

    def clipped(x: Any, *ts: Any) -> list[Any]:
        scale = fw.rsqrt(fw.sum(x * x) + 1.0)
        return [p - g * scale for p, g in zip(ts[::2], ts[1::2], strict=True)]

    specs = [S((3000,), "float32"), *specs_of(SHAPES, 2)]
    program = fw.compile(fw.trace(clipped, *specs))
    assert [len(x.kernel.parts) for x in program.launches] == [0, len(SHAPES)]
    agrees(program, specs)


def test_what_reads_a_part_stays_behind() -> None:
    """`b` is made of `a` by an equal kernel: neither may move beside the other."""

    def chain(x: Any, y: Any) -> list[Any]:
        a = fw.exp(x) * 2.0
        b = fw.exp(fw.sum(a, axis=0) + y) * 2.0
        return [a, b]

    specs = [S((300, 700), "float32"), S((700,), "float32")]
    program = fw.compile(fw.trace(chain, *specs))
    assert all(not x.kernel.parts for x in program.launches)
    agrees(program, specs)


def test_other_functions_stand_together_where_the_chip_has_room() -> None:
    def two(a: Any, b: Any) -> list[Any]:
        return [fw.exp(a), fw.sin(b)]

    specs = specs_of([(33,), (17, 3)], 1)
    program = fw.compile(fw.trace(two, *specs))
    assert [len(x.kernel.parts) for x in program.launches] == [2]
    agrees(program, specs)
    large = fw.compile(fw.trace(two, *specs_of([(33,), (1024, 1024)], 1)))
    assert [len(x.kernel.parts) for x in large.launches] == [0, 0]


def test_short_launches_stand_together_though_blocks_are_many_and_others() -> None:
    """More blocks than multiprocessors, of other dimensions, each of which takes no longer than its
    launch; not beside one that takes longer."""

    def two(a: Any, b: Any) -> list[Any]:
        return [fw.sum(a, axis=0), fw.exp(fw.max(b, axis=1))]

    specs = specs_of([(64, 12000), (400, 600)], 1)
    program = fw.compile(fw.trace(two, *specs))
    (launch,) = program.launches
    parts = launch.kernel.parts
    assert len({k.launch.block for k in parts}) == 2
    assert int(str(launch.kernel.launch.grid[0])) > launch.kernel.target.multiprocessors
    agrees(program, specs)
    large = fw.compile(fw.trace(two, *specs_of([(64, 12000), (40000, 600)], 1)))
    assert [len(x.kernel.parts) for x in large.launches] == [0, 0]


def test_small_launches_around_a_large_one_keep_their_order() -> None:
    """One reads what the large one leaves and the other does not: they stand together behind it."""

    def three(a: Any, b: Any, c: Any) -> list[Any]:
        return [fw.exp(a), fw.sin(c) * fw.max(fw.exp(b))]

    specs = specs_of([(33,), (6000, 1100), (129,)], 1)
    program = fw.compile(fw.trace(three, *specs))
    (joined,) = (k for k, x in enumerate(program.launches) if x.kernel.parts)
    assert joined > 0 and len(program.launches[joined].kernel.parts) == 2
    agrees(program, specs)


LENGTHS = [40000 + 1111 * k for k in range(12)]


def test_rows_of_many_tensors_are_summed_in_one_launch_without_clusters() -> None:
    def squares(*ts: Any) -> list[Any]:
        return [fw.sum(t * t) for t in ts]

    specs = specs_of([(n,) for n in LENGTHS], 1)
    program = fw.compile(fw.trace(squares, *specs))
    assert [len(x.kernel.parts) for x in program.launches] == [len(LENGTHS)]
    agrees(program, specs)
    (alone,) = fw.compile(fw.trace(squares, specs[0])).kernels
    assert alone.ir.cluster


def test_rows_that_need_each_other_keep_their_clusters() -> None:
    def chain(x: Any) -> Any:
        total = fw.sum(x * x)
        for _ in range(2):
            x = x / total
            total = fw.sum(x * x)
        return total

    program = fw.compile(fw.trace(chain, S((LENGTHS[-1],), "float32")))
    clustered = [k for k in program.kernels if k.ir.cluster]
    assert len(clustered) == len(program.kernels)


def test_a_launch_has_limits() -> None:
    """Tensors beyond what the parameters of a kernel hold, or its text, are another launch."""
    specs = specs_of([(100 + k,) for k in range(180)], 2)
    program = fw.compile(fw.trace(sgd, *specs))
    assert 1 < len(program.launches) <= 4
    for k in program.kernels:
        assert 8 * len(k.ir.params) <= PARAMETER_NBYTES
        assert sum(1 for _ in walk_statements(k.ir)) <= 2 * MAX_STATEMENTS
    assert sum(len(k.parts) for k in program.kernels) == 180


def test_the_time_of_a_joined_launch_is_that_of_its_bytes() -> None:
    one = fw.compile(fw.trace(sgd, *specs_of([(4096, 1024)], 2))).kernels[0].predicted
    (kernel,) = fw.compile(
        fw.trace(sgd, *specs_of([(1024, 1024 + 64 * k) for k in (-1, 0, 0, 1)], 2))
    ).kernels
    assert one is not None and kernel.predicted is not None
    assert kernel.predicted.us == pytest.approx(one.us, rel=0.1)


def _everyday() -> list[fw.Fusion]:
    rows = [S((64, 1000), "bfloat16")]
    return [
        fw.trace(adamw, *specs_of([(4096, 7 + k) for k in range(6)], 4)),
        fw.trace(lambda x: fw.nn.softmax(x, axis=-1), *rows),
        fw.trace(lambda x: (fw.cumulative_sum(x, axis=0), fw.sum(x, axis=1)), *rows),
    ]


def test_no_group_is_scheduled_again_to_predict_its_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which launches are short enough to stand together is asked of all pairs of them."""

    def again(*_: object) -> None:
        raise AssertionError("what was predicted is predicted again")

    with monkeypatch.context() as inside:
        inside.setattr(import_module("fusewright.kernel"), "cost_of", again)
        programs = [fw.compile(f) for f in _everyday()]
        parts = [k for p in programs for x in p.kernels for k in x.parts or (x,)]
        known = [k.predicted for k in parts]
    assert len(known) >= 9
    for k, cost in zip(parts, known, strict=True):
        k.cost = None
        assert k.predicted == cost


def test_sums_of_a_list_do_not_wait_for_each_other() -> None:
    """Nine sums and nine steps: without it, each sum is a launch behind the one before."""

    def clipped(*ts: Any) -> list[Any]:
        half = len(ts) // 2
        squares = [fw.sum(g * g) for g in ts[half:]]
        total = squares[0]
        for s in squares[1:]:
            total = total + s
        scale = fw.rsqrt(total + 1.0)
        return [p - g * scale for p, g in zip(ts[:half], ts[half:], strict=True)]

    shapes = [(40 + k, 64) for k in range(9)]
    specs = [S(s, "float32") for _ in range(2) for s in shapes]
    program = fw.compile(fw.trace(clipped, *specs))
    assert len(program.launches) <= 6
    assert program.host.stats["critical_path"] <= 5
    agrees(program, specs)


def test_sums_of_other_lengths_share_a_launch() -> None:
    """Rows of other lengths take other numbers of threads, and two tensors of one shape share a
    kernel: the first sums of all are one launch, and so are those of their parts."""

    def norm(*ts: Any) -> Any:
        total = fw.sum(ts[0] * ts[0])
        for t in ts[1:]:
            total = total + fw.sum(t * t)
        return fw.sqrt(total)

    shapes = [(91_000,), (77_001,), (300, 301), (300, 301), (86_016,)]
    specs = [S(s, "float32") for s in shapes]
    program = fw.compile(fw.trace(norm, *specs))
    blocks = {k.launch.block for k in program.launches[0].kernel.parts}
    assert len(blocks) > 1 and len(program.launches[0].reads) == len(shapes)
    assert len(program.launches) <= 4
    agrees(program, specs)


def test_two_sums_are_two_kernels_of_which_one_adds() -> None:
    """A scalar joins a kernel that waits for one other only: no launch for it alone."""
    specs = [S((40, 64), "float32"), S((33, 50), "float32")]
    program = fw.compile(fw.trace(lambda a, b: fw.sum(a) + fw.sum(b * b), *specs))
    assert len(program.launches) == 2
    agrees(program, specs)


def test_values_are_computed_again_by_kernels_that_join_others() -> None:
    """Gradients of a norm whose rows are too long for a block: no float32 value of the size of the
    arguments is stored."""

    def backward(dy: Any, x: Any, w: Any, r: Any) -> list[Any]:
        g, hat = fw.astype(dy, fw.float32), fw.astype(x, fw.float32) * r
        d = g * w
        inner = d - hat * fw.mean(d * hat, axis=1, keepdims=True)
        inner = inner - fw.mean(d, axis=1, keepdims=True)
        return [fw.astype(inner * r, x.dtype), fw.sum(g * hat, axis=0), fw.sum(g, axis=0)]

    arguments = S((112, 82432), "bfloat16")
    specs = [arguments, arguments, S((1, 82432), "bfloat16"), S((112, 1), "float32")]
    program = fw.compile(fw.trace(backward, *specs))
    stored = [s.tensor for x in program.launches for s in x.writes]
    large = [t for t in stored if t.dtype is fw.float32 and t.shape == arguments.shape]
    assert large == []
