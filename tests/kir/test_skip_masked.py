"""What dropped lanes have in common: computed once, where a warp drops all lanes of a vector."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.array import Array
from fusewright.kir.ir import Compute, If, Kernel
from fusewright.kir.passes.skip_masked import skip_masked
from fusewright.kir.text import parse_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate

ROW = """
    a[0..4] = load x[4*tx]
    s[0] = copy(0.0:float32)
"""
LANE = """
    i{k}[0] = copy(index(4*tx + {k}):int64)
    c{k}[0] = {compare}
    v[{k}] = where(c{k}[0], a[{k}], {other})
"""


def kernel(
    compare: str, rest: str, other: str = "-3.0:float32", *, lanes: int = 4, threads: int = 512
) -> Kernel:
    masks = "".join(
        LANE.format(k=k, compare=compare.format(k=k), other=other.format(k=k)) for k in range(4)
    )
    sums = "".join(rest.format(k=k) for k in range(lanes))
    allocs = "".join(f"local i{k}: int64[1]\nlocal c{k}: bool[1]\n" for k in range(4))
    return parse_kernel(
        f"""kernel k {{
        param x: float32[{4 * threads}] align 16
        param y: float32[{threads}] align 16
        param z: float32[{4 * threads}] align 16
        grid (bx < 1)
        block (tx < {threads})
        local a: float32[4] align 16
        local v: float32[4] align 16
        local e: float32[4] align 16
        local s: float32[1]
        {allocs}{ROW}{masks}{sums}
        store y[tx] = s[0]
        }}"""
    )


EARLY = "lt(i{k}[0], 256:int64)"
SUM = "e[{k}] = exp(v[{k}])\ns[0] = add(s[0], e[{k}])\n"


def branches(k: Kernel) -> list[If]:
    return [s for s in walk_statements(k) if isinstance(s, If)]


def functions(body: tuple[object, ...]) -> list[str]:
    return [s.fn for s in body if isinstance(s, Compute)]


def test_dropped_lanes_are_one_term_of_a_sum() -> None:
    (branch,) = branches(skip_masked(kernel(EARLY, SUM)))
    assert str(branch.condition) == "tx < 64"
    assert functions(branch.otherwise) == ["copy", "exp", "mul", "add"]
    assert functions(branch.then).count("exp") == 4


def test_dropped_lanes_are_one_value_of_a_maximum() -> None:
    (branch,) = branches(skip_masked(kernel(EARLY, SUM.replace("add(", "max("))))
    assert functions(branch.otherwise) == ["copy", "exp", "max"]


def test_a_product_takes_every_lane() -> None:
    (branch,) = branches(skip_masked(kernel(EARLY, SUM.replace("add(", "mul("))))
    assert functions(branch.otherwise) == ["copy", "exp", *["mul"] * 4]


def test_what_is_always_dropped_needs_no_branch() -> None:
    k = skip_masked(kernel("lt(i{k}[0], 0:int64)", SUM))
    assert branches(k) == []
    assert functions(k.body) == ["copy", "copy", "exp", "mul", "add"]


def test_others_see_all_lanes() -> None:
    new = skip_masked(kernel(EARLY, SUM + "store z[4*tx + {k}] = e[{k}]\n"))
    assert branches(new)
    x, y, z = (np.full(n, np.nan, np.float32) for n in (2048, 512, 2048))
    x[:256] = np.random.default_rng(0).standard_normal(256)
    simulate(new, dict(zip(new.params, (x, y, z), strict=True)), outputs=new.params[1:])
    terms = np.exp(np.where(np.arange(2048) < 256, x, np.float32(-3)))
    np.testing.assert_allclose(z, terms, rtol=1e-6)
    np.testing.assert_allclose(y, terms.reshape(-1, 4).sum(1), rtol=1e-6)


KEPT: dict[str, Kernel] = {
    "few warps drop all lanes": kernel("lt(i{k}[0], 1900:int64)", SUM),
    "lanes of a warp part": kernel("lt(i{k}[0], 8:int64)", SUM, threads=32),
    "little work": kernel(EARLY, "s[0] = add(s[0], v[{k}])\n", lanes=1),
    "a mask of data": kernel("lt(a[{k}], 0.0:float32)", SUM),
    "values of the trip before": kernel(EARLY, "s[0] = add(s[0], e[{k}])\ne[{k}] = exp(v[{k}])\n"),
    "dropped lanes differ": kernel(EARLY, SUM, other="e[{k}]"),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_bodies_stay_as_they_are(name: str) -> None:
    assert skip_masked(KEPT[name]) is KEPT[name]


def _masked(fill: float, fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def program(x: Array) -> Array:
        i, j = fw.arange(x.shape[-2])[:, None], fw.arange(x.shape[-1])[None]
        return fn(fw.where(j <= i, x, fill))

    return program


@pytest.mark.parametrize("fill", [-1e4, 0.0, -np.inf])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 3, 1024), "float32"),  # all but 3 columns are dropped
        ((5, 7, 747), "float16"),  # rows begin anywhere
        ((1, 64, 512), "float32"),
    ],
)
def test_softmaxes_of_masked_rows(shape: tuple[int, ...], dtype: str, fill: float) -> None:
    spec = fw.TensorSpec(shape, dtype)
    program = fw.compile(fw.trace(_masked(fill, fw.nn.softmax), spec), "sm_90a")
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    x[..., 1, :] = np.nan
    x[..., 0, 0] = np.inf
    x[..., 2, :3] = -np.inf  # with a fill of -inf the whole row
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(program.fusion, x)
    tolerance = 1e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(found.outputs[0], want, rtol=tolerance, atol=tolerance)


def test_rows_that_are_dropped_nearly_whole_take_few_exponentials() -> None:
    spec = fw.TensorSpec((64, 3, 8192), "float32")
    (k,) = fw.compile(fw.trace(_masked(-1e4, fw.nn.softmax), spec), "sm_90a").kernels
    exps = [s for s in walk_statements(k.ir) if isinstance(s, Compute) and s.fn.startswith("exp")]
    assert k.heuristic is not None and k.heuristic.scheduler == "inner_persistent"
    assert len(exps) <= 12  # of 16 elements of a thread, in two passes, 4 may be kept
