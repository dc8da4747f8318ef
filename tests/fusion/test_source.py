"""The lines of the user's program in the text of its kernels, and in what is said of them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import fusewright as fw
from fusewright.cuda.emit import emit
from fusewright.fusion.source import lines_of

S = fw.TensorSpec
FILE = Path(__file__).name


def _normed(x: Any) -> Any:
    y = fw.exp(x)
    return y, fw.nn.softmax(y, axis=1)


def _line(text: str) -> int:
    """The number of the line of `_normed` that has a text."""
    lines, first = inspect.getsourcelines(_normed)
    return first + next(k for k, line in enumerate(lines) if text in line)


def test_a_kernel_names_the_lines_that_it_was_made_of() -> None:
    (kernel,) = fw.compile(fw.trace(_normed, S((40, 128), "float32"))).kernels
    said = [x.strip() for x in kernel.cuda.splitlines() if FILE in x]
    assert said[0].startswith(f"// {FILE}:{_line('exp')}: ")
    assert said[0].endswith(" = exp")
    assert said[1].startswith(f"// {FILE}:{_line('softmax')} softmax: ")
    assert len(said) == 2
    assert kernel.cubin()


def test_what_is_compiled_does_not_depend_on_lines() -> None:
    """Machine code is kept by its text: an edit further up would compile all kernels again."""
    twice = [fw.compile(fw.trace(lambda x: x * 2, S((64,), "float32"))).kernels[0]]
    twice += [fw.compile(fw.trace(lambda x: x * 2, S((64,), "float32"))).kernels[0]]
    assert twice[0].cuda != twice[1].cuda
    assert len({emit(k.ir, k.target) for k in twice}) == 1


def test_a_step_over_a_list_names_the_lines_of_its_parts() -> None:
    specs = [S((n,), "float32") for n in (100, 37)]
    (kernel,) = fw.compile(fw.trace(lambda a, b: (fw.exp(a), fw.tanh(b)), *specs)).kernels
    assert len(kernel.parts) == 2
    assert kernel.cuda.count(f"// {FILE}:") == 2


def test_values_of_one_line_stand_together() -> None:
    fusion = fw.trace(lambda x: fw.exp(x) + fw.sum(x * 3), S((8,), "float32"))
    (said,) = [c for c in lines_of(fusion) if "exp" in c]
    assert said.count(" = ") >= 3
