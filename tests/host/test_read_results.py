"""What kernels read of each other where a result, or a narrower value, is fewer bytes than what
they would compute again or store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tests.fuzz import fuzz_compare

import fusewright as fw
from fusewright.target import target_of

SMALL = replace(target_of("sm_90a"), multiprocessors=4, has_cluster=False)
"""A chip on which the sums of 20011 rows are made in parts, by a kernel of their own."""


def wide(x: Any) -> Any:
    return fw.astype(x, "float32")


def centred(y: Any) -> Any:
    z = wide(y)
    return z - fw.mean(z, axis=0, keepdims=True)


def beside_a_sum(a: Any, b: Any, c: Any) -> Any:
    y = a + b + c
    return y, centred(y)


def beside_a_relu(a: Any, b: Any) -> Any:
    y = fw.nn.relu(a)
    return y, centred(y) + wide(b)


def of_five(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return centred(a + b + c + d + e)


def compiled(f: Callable[..., Any], count: int) -> fw.Program:
    specs = [fw.TensorSpec((20011, 40), "bfloat16")] * count
    return fw.compile(fw.trace(f, *specs), target=SMALL)


def large(tensors: Any) -> list[str]:
    """The types of the tensors that are no rows or parts."""
    return sorted(t.dtype.name for t in tensors if str(t.shape[0]) == "20011")


def agree(program: fw.Program) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((20011, 40)).astype(t.dtype.numpy) for t in program.fusion.inputs]
    result = program.simulate(*arrays)
    assert result.races == []
    names = {t.name for x in program.launches for t in x.outputs}
    assert fuzz_compare.compare(program.fusion, arrays, result.outputs, names).problem is None


def test_a_result_is_read_that_is_fewer_bytes_than_what_it_is_a_function_of() -> None:
    """A sum of three arguments, which is stored in any case, is one read for three."""
    program = compiled(beside_a_sum, 3)
    first, _, last = program.launches
    assert large(first.outputs) == ["bfloat16"]
    assert [t.name for t in last.inputs if t in first.outputs] == [first.outputs[0].name]
    assert large(last.inputs) == ["bfloat16"]
    agree(program)


def test_a_result_that_is_as_large_as_its_argument_is_computed_again() -> None:
    """No launch waits for it then."""
    program = compiled(beside_a_relu, 2)
    (last,) = (x for x in program.launches if "b" in {t.name for t in x.inputs})
    assert {"a", "b"} <= {t.name for t in last.inputs}
    assert large(last.inputs) == ["bfloat16", "bfloat16"]


def test_what_another_kernel_widens_is_stored_narrow() -> None:
    """Five arguments are too many to be read again: their sum is stored, in two bytes for four."""
    program = compiled(of_five, 5)
    first, _, last = program.launches
    assert large(first.outputs) == ["bfloat16"]
    assert large(last.inputs) == ["bfloat16"]
    agree(program)
