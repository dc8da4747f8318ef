"""What the checks of a kernel say of kernels that break a rule: which, where, and the numbers."""

from __future__ import annotations

import pytest

from fusewright.errors import SpecError
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel

HEAD = """kernel k {{
  param x: float32[64] align 16
  param y: float32[64] align 16
  grid (bx < 1)
  block (tx < {threads})
{body}
}}"""


def checked(body: str, threads: int = 32) -> None:
    check_kernel(parse_kernel(HEAD.format(body=body, threads=threads)), "packed")


RIGHT = "  local r: float32[4] align 16\n  r[0] = load x[tx]\n  store y[tx] = r[0]"


def test_the_kernel_that_the_others_are_made_of_breaks_no_rule() -> None:
    checked(RIGHT)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("  store y[tx] = r[0]", r"expected a buffer in scope \(x, y\), found 'r'"),
        (
            "  local r: float32[4]\n  r[0] = load x[n]",
            r"expected a variable in scope \(bx, tx\), found 'n'",
        ),
        (
            "  local r: int32[4]\n  r[0] = load x[tx]",
            "check 'dtypes' .* int32 meets float32; a load keeps the dtype",
        ),
        (
            "  local r: float32[2]\n  r[0..4] = load x[4*tx]",
            r"check 'register bounds' .* register r\[0\] is outside of its 2 elements",
        ),
        ("  local r: float32[4]\n  r[0] = add(r[1])", "'add' takes 2 operands, not 1"),
        ("  local r: float32[4]\n  r[0] = frobnicate(r[1])", "there is no function 'frobnicate'"),
        (
            "  local r: float32[4]\n  local r: float32[4]\n  r[0] = load x[tx]",
            "the name 'r' is taken; give every symbol its own",
        ),
        (
            "  shared s: float32[8] align 16\n  store s[tx] = x[0]",
            r"check 'memories' .* x\[0\] is used as a register but lives in global memory",
        ),
        (
            "  local r: float32[131073]\n  r[0] = load x[tx]",
            "r has 524292 bytes; a thread has at most 524288",
        ),
    ],
)
def test_rejects(body: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        checked(body)


@pytest.mark.parametrize("threads", [1025, 2048])
def test_rejects_more_threads_than_a_block_has(threads: int) -> None:
    with pytest.raises(SpecError, match=r"'header': .* threads in a block; the limit is 1024"):
        checked(RIGHT, threads)


@pytest.mark.parametrize(
    ("extents", "problem"),
    [
        ("bx < 2147483648", "2147483648 of bx is not 0 to 2147483647"),
        ("bx < 1, by < 65536", "65536 of by is not 0 to 65535"),
        ("bx < 1, by < 1, bz < -1", "-1 of bz is not 0 to 65535"),
    ],
)
def test_rejects_more_blocks_than_a_grid_has(extents: str, problem: str) -> None:
    text = HEAD.format(body=RIGHT, threads=32).replace("bx < 1", extents)
    assert extents in text
    with pytest.raises(SpecError, match=f"'header': the grid extent {problem}"):
        check_kernel(parse_kernel(text), "packed")


def test_the_largest_grid_and_the_largest_registers_are_right() -> None:
    body = "  local r: float32[131072] align 16\n  r[0] = load x[tx]\n  store y[tx] = r[0]"
    text = HEAD.format(body=body, threads=32)
    check_kernel(parse_kernel(text.replace("bx < 1", "bx < 2147483647, by < 65535")), "packed")
