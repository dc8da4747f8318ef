"""Blocks of several kernels in one launch: what they compute, their syncs, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import InternalError
from fusewright.kir.ir import Kernel, NamedSync, Statement, SyncStatement
from fusewright.kir.side_by_side import block_of, share_blocks, side_by_side, stands_apart
from fusewright.kir.spec import check_kernel
from fusewright.kir.traverse import map_body, walk_statements, with_bodies
from fusewright.sim.machine import simulate
from fusewright.target import target_of

S = fw.TensorSpec
COLUMNS = [(512, 40), (96, 64)]
TARGET = target_of("sm_90a")


def kernel_of(fn: Any, *specs: fw.TensorSpec) -> fw.Kernel:
    (kernel,) = fw.compile(fw.trace(fn, *specs)).kernels
    return kernel


def joined(kernels: list[fw.Kernel]) -> Kernel:
    made = side_by_side([k.ir for k in kernels], "both", [len(k.inputs) for k in kernels])
    check_kernel(made, "final", target=TARGET)
    assert str(fw.parse_kernel(str(made))) == str(made)
    return made


def outputs_of(made: Kernel, arrays: list[np.ndarray], sizes: list[int]) -> list[np.ndarray]:
    """The outputs, on memory whose bytes nobody wrote before."""
    empty = [np.full(n, np.nan, np.float32) for n in sizes]
    given = dict(zip(made.params, (*[a.ravel() for a in arrays], *empty), strict=True))
    result = simulate(made, given, outputs=made.params[len(arrays) :])
    assert result.races == []
    return list(result.outputs)


def test_every_part_gets_its_own_blocks() -> None:
    """Five kernels, one of them twice: inputs stand first, in order of the parts."""
    sizes = [(40, 64), (33,), (17, 3), (2,), (40, 64)]
    kernels = [kernel_of(lambda a, b: a * a - b, S(s, "float32"), S(s, "float32")) for s in sizes]
    made = joined(kernels)
    blocks = [k.launch.grid[0] for k in kernels]
    assert str(made.grid[0].extent) == str(sum(int(str(n)) for n in blocks))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in sizes for _ in range(2)]
    results = outputs_of(made, arrays, [int(np.prod(s)) for s in sizes])
    for a, b, got in zip(arrays[::2], arrays[1::2], results, strict=True):
        np.testing.assert_array_equal(got, (a * a - b).ravel())


def test_syncs_get_numbers_of_their_own() -> None:
    kernels = [kernel_of(lambda x: fw.sum(x, axis=-1), S((n, 4096), "float32")) for n in (3, 5, 3)]
    assert all(k.syncs for k in kernels)
    made = joined(kernels)
    ids = [s.id for s in walk_statements(made) if isinstance(s, SyncStatement)]
    assert ids == list(range(len(ids))) and len(ids) == sum(len(k.syncs) for k in kernels)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((n, 4096)).astype(np.float32) for n in (3, 5, 3)]
    for a, got in zip(arrays, outputs_of(made, arrays, [3, 5, 3]), strict=True):
        np.testing.assert_allclose(got, a.sum(-1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("fn", "spec", "why"),
    [
        (fw.exp, S(("n", 64), "float32"), "symbolic sizes"),
        (lambda x: fw.permute_dims(x, (1, 0)), S((4096, 4096), "float32"), "more than one dim"),
        (lambda x: fw.nn.softmax(x, axis=-1), S((4096, 16384), "float32"), "a number of blocks"),
    ],
)
def test_what_cannot_stand_beside_others(fn: Any, spec: fw.TensorSpec, why: str) -> None:
    kernel = kernel_of(fn, spec)
    assert why in str(stands_apart(kernel.ir))
    with pytest.raises(InternalError, match=rf"cannot run beside .*{why}"):
        side_by_side([kernel.ir, kernel.ir], "both", [1, 1])


def races_without(made: Kernel, sync: SyncStatement, arrays: list[np.ndarray]) -> bool:
    """Whether the simulator finds a race where one sync is left out."""
    less = replace(made, body=map_body(made.body, lambda s: _without(s, sync.id)))
    given = dict(zip(made.params, (*arrays, *[np.zeros(1, np.float32)] * 3), strict=True))
    return bool(simulate(less, given, outputs=made.params[len(arrays) :]).races)


def _without(s: Statement, number: int) -> Statement | tuple[()]:
    if isinstance(s, SyncStatement) and s.id == number:
        return ()
    return with_bodies(s, lambda body: map_body(body, lambda inner: _without(inner, number)))


def test_smaller_blocks_meet_at_barriers_of_their_own() -> None:
    """Threads beyond those of a smaller part have nothing to do, and none waits for
    them. Every barrier of the parts is needed there, too."""
    sizes = [8192, 1500, 1600]
    kernels = [kernel_of(fw.sum, S((n,), "float32")) for n in sizes]
    blocks = [block_of(k.ir)[0] or 0 for k in kernels]
    assert max(blocks) > min(blocks) and all(n % 32 == 0 for n in blocks)
    made = joined(kernels)
    assert int(str(made.block[0].extent)) == max(blocks)
    named = [s for s in walk_statements(made) if isinstance(s, NamedSync)]
    assert {s.nthreads for s in named} == set(blocks) - {max(blocks)}
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in sizes]
    for a, got in zip(arrays, outputs_of(made, arrays, [1, 1, 1]), strict=True):
        np.testing.assert_allclose(got, a.sum(), rtol=1e-3, atol=1e-3)
    for s in named:
        assert races_without(made, s, arrays)


def test_blocks_of_other_dimensions_stand_in_a_flat_one() -> None:
    """Rows along the first dimension, columns down the second one: threads find their places from
    their number. Every barrier of the smaller parts is needed."""
    columns = [kernel_of(lambda x: fw.sum(x, axis=0), S(s, "float32")) for s in COLUMNS]
    rows = kernel_of(lambda x: fw.max(x, axis=1), S((64, 600), "float32"))
    kernels = [*columns, rows]
    blocks = [block_of(k.ir) for k in kernels]
    assert len(set(blocks)) == 3 and all((b[1] or 1) > 1 for b in blocks[:2])
    made = joined(kernels)
    assert [int(str(d.extent)) for d in made.block] == [max(map(math.prod, blocks)), 1, 1]
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (*COLUMNS, (64, 600))]
    results = outputs_of(made, arrays, [s[1] for s in COLUMNS] + [64])
    wants = [*(a.sum(0) for a in arrays[:2]), arrays[2].max(1)]
    for got, want in zip(results, wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_blocks_of_no_whole_warps_are_refused() -> None:
    a = kernel_of(lambda x: fw.sum(x, axis=-1), S((64, 4096), "float32"))
    b = kernel_of(lambda x: fw.sum(x, axis=0), S((3, 2280), "float32"))
    assert math.prod(n or 1 for n in block_of(b.ir)) < 32
    with pytest.raises(InternalError, match=r"cannot run beside .*its blocks are others"):
        side_by_side([a.ir, b.ir], "both", [1, 1])
    assert not share_blocks({(128, 1, 1), (24, 1, 1)})
    assert share_blocks({(128, 1, 1), (32, 16, 1), (4, 4, 4)})
    assert share_blocks({(n * 32, 1, 1) for n in range(1, 17)})
    assert not share_blocks({(n * 32, 1, 1) for n in range(1, 18)})
