"""Names of kernels and the lines of the program that values come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fusewright as fw
from fusewright.fusion.ir import Input
from fusewright.report.facts import gather

S = fw.TensorSpec
ROWS = S((64, 256), "float32")


def _line_of(marker: str) -> int:
    """The number of the line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    return next(k for k, line in enumerate(lines, 1) if line.endswith(f"# {marker}"))


def _program(x: fw.Array, w: fw.Array) -> fw.Array:
    y = fw.nn.softmax(x * 2.0, axis=-1)  # softmax and its scale
    return fw.exp(y) + w  # exponential and sum


def test_every_value_of_a_trace_knows_the_line_that_made_it() -> None:
    fusion = fw.trace(_program, ROWS, ROWS)
    made = [t for t in fusion.values if not isinstance(t.op, Input)]
    found = {(t.source.line, t.source.call) for t in made if t.source is not None}
    first, second = _line_of("softmax and its scale"), _line_of("exponential and sum")
    assert all(t.source is not None and t.source.file == __file__ for t in made)
    assert found == {(first, "softmax"), (first, ""), (second, "")}


def test_what_passes_make_comes_from_the_line_of_what_it_replaces() -> None:
    def long_sum(x: fw.Array) -> fw.Array:
        return fw.sum(x)  # the long sum

    program = fw.compile(fw.trace(long_sum, S((1 << 22,), "float32")))
    assert len(program.kernels) == 2
    made = [t for t in program.fusion.values if not isinstance(t.op, Input)]
    line = _line_of("the long sum")
    assert [t.source.line for t in made if t.source is not None] == [line] * len(made)


def test_a_kernel_is_called_after_the_operations_that_it_fuses() -> None:
    (kernel,) = fw.compile(fw.trace(_program, ROWS, ROWS)).kernels
    assert kernel.name.startswith("fw_mul_softmax_2_more_")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.sum(x, axis=1) * 3.0, ROWS)).kernels
    assert kernel.name.startswith("fw_sum_mul_")


def test_a_kernel_that_computes_nothing_is_a_copy() -> None:
    (kernel,) = fw.compile(fw.trace(lambda x: fw.permute_dims(x, (1, 0)), ROWS)).kernels
    assert kernel.name.startswith("fw_copy_")


def test_equal_kernels_have_equal_names_and_others_do_not() -> None:
    def name(rows: int) -> str:
        (kernel,) = fw.compile(fw.trace(lambda x: fw.exp(x), S((rows, 128), "float32"))).kernels
        return kernel.name

    assert name(64) == name(64)
    assert name(64) != name(65)


def test_names_are_the_same_in_every_process() -> None:
    text = (
        "import fusewright as fw\n"
        "f = fw.trace(lambda x: fw.flip(fw.nn.softmax(x, axis=-1)), fw.TensorSpec((8, 9), 'f4'))\n"
        "print(*[k.name for k in fw.compile(f).kernels])"
    ).replace("'f4'", "'float32'")
    runs = [
        subprocess.run(
            [sys.executable, "-c", text],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] and runs[0].startswith("fw_softmax_")


def test_a_reason_names_the_line_of_the_program() -> None:
    def cut(x: fw.Array) -> fw.Array:
        e = fw.cumulative_sum(fw.exp(x), axis=1)
        return e + fw.flip(e)  # read at other places

    reasons = gather(fw.compile(fw.trace(cut, ROWS)), "cut").reasons
    line = f"({Path(__file__).name}:{_line_of('read at other places')})"
    assert any(line in r for r in reasons), reasons
