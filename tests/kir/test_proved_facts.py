"""What the emitter relies on is noted in the kernel by a pass, and looked at by the spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusewright.core.node import Node, rewrite
from fusewright.cuda.emit import emit
from fusewright.errors import SpecError
from fusewright.kir.ir import Alloc, Kernel, Lanes, Load
from fusewright.kir.passes.keep_words import keep_words
from fusewright.kir.passes.locate_loads import locate_loads
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.target import target_of

TEXT = """kernel k {{
  param x: bfloat16[4096] align 16
  param y: float32[4096] align 16
  grid (bx < 4)
  block (tx < 64)
  local r: bfloat16[8]
  local f: float32[1]
  {load}
  f[0] = cast(r[{use}])
  store y[tx] = f[0]
}}"""
WHOLE = "r[0..8] = load x[8*tx]"
EARLY = "r[0..8] = load x[8*tx + 2] begins anywhere"
RAGGED = "shared s: bfloat16[512] align 16 offset 0\nr[0..8] = load s[8*tx] if (tx < 9) lanes 0..5"


def of(load: str, use: int = 3) -> Kernel:
    return parse_kernel(TEXT.format(load=load, use=use))


def test_registers_that_loads_fill_are_kept_in_words() -> None:
    k = keep_words(of(WHOLE))
    assert "local r: bfloat16[8] in_words" in print_kernel(k)
    assert "local f: float32[1]\n" in print_kernel(k)
    assert print_kernel(parse_kernel(print_kernel(k))) == print_kernel(k)
    assert "unsigned r[4];" in emit(k, target_of("sm_90a"))
    assert "unsigned r[4];" not in emit(of(WHOLE), target_of("sm_90a"))


def test_loads_say_where_in_a_word_they_begin() -> None:
    k = locate_loads(of(EARLY))
    assert "begins 2" in print_kernel(k)
    assert "fw_load_unaligned<8, 2>" in emit(k, target_of("sm_90a"))
    assert "fw_load_unaligned<8, -1>" in emit(of(EARLY), target_of("sm_90a"))
    unknown = of(EARLY.replace("8*tx + 2", "3*tx"))
    assert locate_loads(unknown) is unknown


def test_loads_that_stay_in_their_buffer_have_no_choice_of_address() -> None:
    k = locate_loads(of(RAGGED))
    assert "lanes 0..5 inside" in print_kernel(k)
    assert " : 0)" not in emit(k, target_of("sm_90a"))
    assert " : 0)" in emit(of(RAGGED), target_of("sm_90a"))
    beyond = of(RAGGED.replace("8*tx]", "8*tx + 8]"))
    assert locate_loads(beyond) is beyond


def claims_words(n: Node) -> Node:
    return replace(n, in_words=True) if isinstance(n, Alloc) else n


def claims_start(n: Node) -> Node:
    return replace(n, lanes=Lanes(begins=3)) if isinstance(n, Load) else n


def claims_place(n: Node) -> Node:
    return replace(n, lanes=replace(n.lanes, inside=True)) if isinstance(n, Load) else n


@pytest.mark.parametrize(
    ("load", "claim", "message"),
    [
        (WHOLE, claims_words, "f is kept in words, but not only loads of whole words fill it"),
        (EARLY, claims_start, "not known to begin 3 elements into a word of 8"),
        (RAGGED.replace("8*tx]", "8*tx + 8]"), claims_place, "not known to be inside of s"),
    ],
)
def test_what_does_not_hold_is_refused(load: str, claim: object, message: str) -> None:
    k = rewrite(of(load), claim)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=f"check 'proved facts'.*{message}"):
        check_kernel(k, "final")
