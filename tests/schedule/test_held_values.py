"""Values that several passes over a row need are kept where that spares instructions, and computed
again where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Pointwise
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.rating import Rated

Fn = Callable[[Any], Any]


def centred(x: fw.Array) -> fw.Array:
    m = fw.mean(x, axis=1, keepdims=True)
    return fw.mean((x - m) * (x - m), axis=1)


def softmax(x: fw.Array) -> fw.Array:
    return fw.nn.softmax(fw.tanh(x), axis=1)


def times(kernel: fw.Kernel, fn: str, params: Params | None = None) -> int:
    """How many passes compute a function, as the kernel is scheduled or by other parameters."""
    assert kernel.segment is not None
    flow = kernel.segment.dataflow()
    schedule_group(flow, kernel.target, params or kernel.heuristic)
    return sum(isinstance(s.op, Pointwise) and s.op.fn == fn for s in flow.stages)


def check(fn: Fn, shape: tuple[int, ...], dtype: str) -> fw.Kernel:
    """The one kernel of a function, which computes what the oracle does, with no race."""
    program = fw.compile(fw.trace(fn, fw.TensorSpec(shape, dtype)))
    (kernel,) = program.kernels
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(getattr(fw, dtype).numpy)
    result = program.simulate(x)
    assert not result.races
    got, want = (
        np.asarray(a[0], np.float64) for a in (result.outputs, fw.evaluate(program.fusion, x))
    )
    np.testing.assert_allclose(got, want, rtol=2e-2 if dtype != "float32" else 1e-4, atol=1e-3)
    return kernel


def test_registers_keep_what_is_dear_to_compute_again() -> None:
    """Of 24 elements a thread the input takes 12 registers, tanh and the exponential 24 each: too
    many. The last two are kept, and then no pass needs the input."""
    kernel = check(softmax, (2, 79, 2048), "bfloat16")
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "outer_persistent"
    assert (times(kernel, "tanh"), times(kernel, "exp")) == (1, 1)


def test_shared_memory_holds_the_one_value_that_all_passes_read() -> None:
    kernel = check(lambda x: centred(fw.tanh(x)), (2, 20000), "float32")
    assert kernel.heuristic is not None and "shared" in kernel.heuristic.scheduler
    assert times(kernel, "tanh") == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * centred(fw.tanh(x))[:, None],  # the input is needed as well
        lambda x: centred(fw.tanh(fw.astype(x, "float32"))),  # twice the bytes of the input
    ],
)
def test_shared_memory_holds_inputs_where_others_are_no_better(fn: Fn) -> None:
    (kernel,) = fw.compile(fw.trace(fn, fw.TensorSpec((2, 20000), "bfloat16"))).kernels
    rated = [c for c in kernel.candidates if isinstance(c, Rated)]
    shared = [c.params for c in rated if c.params.scheduler == "inner_shared"]
    assert shared and all(times(kernel, "tanh", p) > 1 for p in shared)
