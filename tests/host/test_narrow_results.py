"""What a product's kernel stores for another one: the narrow value, which that one widens again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fuzz import fuzz_compare

import fusewright as fw


def wide(x: Any) -> Any:
    return fw.astype(x, "float32")


def scores(x: Any, w: Any) -> Any:
    return fw.matmul(x, fw.permute_dims(w, (1, 0)))


def program_of(f: Callable[[Any, Any], Any], m: int = 72, n: int = 136) -> fw.Program:
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((m, 72), (n, 72))]
    return fw.compile(fw.trace(f, *specs))


def stored(program: fw.Program) -> list[str]:
    """The types that the kernel of the product stores."""
    (kernel,) = (k for k in program.kernels if "matmul" in str(k.heuristic))
    return [p.dtype.name for p in kernel.outputs]


def agree(program: fw.Program) -> None:
    rng = np.random.default_rng(11)
    shapes = [tuple(int(str(e)) for e in t.shape) for t in program.fusion.inputs]
    types = [t.dtype.numpy for t in program.fusion.inputs]
    arrays = [rng.standard_normal(s).astype(d) for s, d in zip(shapes, types, strict=True)]
    result = program.simulate(*arrays)
    assert result.races == []
    names = {t.name for x in program.launches for t in x.outputs}
    assert fuzz_compare.compare(program.fusion, arrays, result.outputs, names).problem is None


@pytest.mark.parametrize(
    "behind",
    [
        lambda y: fw.nn.softmax(y, axis=-1),
        lambda y: fw.nn.softmax(wide(y) * 0.125, axis=-1),
        lambda y: fw.nn.layer_norm(fw.nn.relu(y), (136,)),
        lambda y: (y, fw.nn.softmax(wide(y), axis=-1)),
    ],
)
def test_a_row_is_read_in_16_bits(behind: Callable[[Any], Any]) -> None:
    program = program_of(lambda x, w: behind(scores(x, w)))
    assert stored(program) == ["bfloat16"]
    assert len(program.kernels) == 2
    agree(program)


def test_a_wide_result_of_the_program_is_read_as_it_is() -> None:
    """It is stored anyway: the narrow value would be bytes more."""

    def f(x: Any, w: Any) -> Any:
        y = wide(scores(x, w)) * 0.125
        return y, fw.nn.softmax(y, axis=-1)

    program = program_of(f)
    assert stored(program) == ["float32"]
    agree(program)


def test_what_two_functions_widen_is_stored_once_and_narrow() -> None:
    """A row and all rows are widened where they are read."""

    def f(x: Any, w: Any) -> Any:
        y = scores(x, w)
        return fw.nn.softmax(wide(y) * fw.exp(wide(y[:1])), axis=-1)

    program = program_of(f)
    assert stored(program) == ["bfloat16"]
    agree(program)
