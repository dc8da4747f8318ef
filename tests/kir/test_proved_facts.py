"""What the emitter relies on is noted in the kernel by a pass, and looked at by the spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fusewright as fw
from fusewright.core.node import Node, rewrite
from fusewright.cuda.emit import emit
from fusewright.errors import SpecError
from fusewright.kir.ir import Alloc, Kernel, Lanes, Load, Role
from fusewright.kir.passes.elect_issuers import elect_issuers
from fusewright.kir.passes.keep_words import keep_words
from fusewright.kir.passes.locate_loads import locate_loads
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.target import target_of

TARGET = target_of("sm_90a")
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
NEXT = """r[0..8] = load x[3*tx] begins anywhere
  for (i < 20) {
    f[0] = cast(r[1])
    r[0..8] = load x[3*tx + 32*i + 32] if (tx + i < 70) else 1.0:bfloat16 begins anywhere
  }"""
RAGGED = "shared s: bfloat16[512] align 16 offset 0\nr[0..8] = load s[8*tx] if (tx < 9) lanes 0..5"


ROLES = """kernel k {
  param x: float32[1024] align 16
  grid (bx < 1)
  block (tx < 64)
  shared s: float32[256] align 16 offset 0
  shared full: uint64[2] offset 1024
  roles {
    role warps 0..1 {
      mbar_wait #0 full[0] parity 0
    }
    role warps 1..2 {
      mbar_expect #1 full[0] nbytes 512 by thread 33
      bulk_load s[0] = x[128*bx] size 128 on full[0] by thread 33
    }
  }
}"""


def of(load: str, use: int = 3) -> Kernel:
    return parse_kernel(TEXT.format(load=load, use=use))


def test_registers_that_loads_fill_are_kept_in_words() -> None:
    k = keep_words(of(WHOLE))
    assert "local r: bfloat16[8] in_words" in print_kernel(k)
    assert "local f: float32[1]\n" in print_kernel(k)
    assert print_kernel(parse_kernel(print_kernel(k))) == print_kernel(k)
    assert "unsigned r[4];" in emit(k, TARGET)
    assert "unsigned r[4];" not in emit(of(WHOLE), TARGET)


def test_what_a_loop_loads_from_anywhere_for_its_next_iteration_is_cut_where_it_is_used() -> None:
    """The waits for both words stand behind the loads, in the next iteration."""
    k = keep_words(of(NEXT))
    assert "local r: bfloat16[8] uncut" in print_kernel(k)
    assert print_kernel(parse_kernel(print_kernel(k))) == print_kernel(k)
    text = emit(k, TARGET)
    assert "fw_uncut<8, fw_bf16> r;" in text and "fw_elements(r).at[1]" in text
    loads = [line for line in text.splitlines() if line.startswith("  ") and "fw_load" in line]
    assert loads and not any("fw_elements" in line for line in loads[-2:])
    assert "uncut" not in print_kernel(keep_words(of(EARLY)))


@pytest.mark.parametrize("condition", ["", " if (tx < 60) else 1.0:bfloat16"])
def test_a_first_load_that_begins_with_a_word_fills_registers_that_are_kept_uncut(
    condition: str,
) -> None:
    first = "r[0..8] = load x[3*tx] begins anywhere"
    text = NEXT.replace(first, f"r[0..8] = load x[8*tx]{condition}")
    k = locate_loads(keep_words(of(text)))
    check_kernel(k, "final", target=TARGET)
    assert "local r: bfloat16[8] uncut" in print_kernel(k)
    name = "fw_load_unaligned_where<8, 0>" if condition else "fw_load_unaligned<8, 0>"
    assert f"r = {name}(x" in emit(k, TARGET)


def test_loads_say_where_in_a_word_they_begin() -> None:
    k = locate_loads(of(EARLY))
    assert "begins 2" in print_kernel(k)
    assert "fw_load_unaligned<8, 2>" in emit(k, TARGET)
    assert "fw_load_unaligned<8, -1>" in emit(of(EARLY), TARGET)
    unknown = of(EARLY.replace("8*tx + 2", "3*tx"))
    assert locate_loads(unknown) is unknown


def test_loads_that_stay_in_their_buffer_have_no_choice_of_address() -> None:
    k = locate_loads(of(RAGGED))
    assert "lanes 0..5 inside" in print_kernel(k)
    assert " : 0)" not in emit(k, TARGET)
    assert " : 0)" in emit(of(RAGGED), TARGET)
    beyond = of(RAGGED.replace("8*tx]", "8*tx + 8]"))
    assert locate_loads(beyond) is beyond


def test_a_role_says_which_thread_issues_all_of_it_and_an_elected_lane_stands_for_that() -> None:
    k = elect_issuers(parse_kernel(ROLES))
    assert "role warps 0..1 {" in print_kernel(k)
    assert "role warps 1..2 by thread 33 {" in print_kernel(k)
    assert print_kernel(parse_kernel(print_kernel(k))) == print_kernel(k)
    assert elect_issuers(k) is k and elect_issuers(whole := of(WHOLE)) is whole
    assert "const bool leads = fw_elected() && (tx >> 5) == 1;" in emit(k, TARGET)
    assert "if (tx == 33) {" in emit(parse_kernel(ROLES), TARGET)
    check_kernel(k, "packed", target=TARGET)


def test_the_warp_that_brings_the_tiles_of_a_product_has_one_issuer() -> None:
    specs = [fw.TensorSpec((512, 512), "bfloat16")] * 2
    (kernel,) = fw.compile(fw.trace(lambda a, b: fw.matmul(a, b), *specs), "sm_90a").kernels
    roles = [s for s in walk_statements(kernel.ir) if isinstance(s, Role)]
    assert [r.issuer is None for r in roles] == [True, False]
    assert kernel.cuda.count("= fw_elected() &&") == 1


def test_another_issuer_is_refused() -> None:
    other = rewrite(elect_issuers(parse_kernel(ROLES)), claims_issuer)
    with pytest.raises(SpecError, match=r"check 'proved facts'.*thread 34 is not known to issue"):
        check_kernel(other, "final", target=TARGET)


def claims_issuer(n: Node) -> Node:
    return replace(n, issuer=34) if isinstance(n, Role) and n.issuer is not None else n


def claims_words(n: Node) -> Node:
    return replace(n, in_words=True) if isinstance(n, Alloc) else n


def claims_uncut(n: Node) -> Node:
    return replace(n, uncut=True) if isinstance(n, Alloc) else n


def claims_start(n: Node) -> Node:
    return replace(n, lanes=Lanes(begins=3)) if isinstance(n, Load) else n


def claims_place(n: Node) -> Node:
    return replace(n, lanes=replace(n.lanes, inside=True)) if isinstance(n, Load) else n


@pytest.mark.parametrize(
    ("load", "claim", "message"),
    [
        (WHOLE, claims_words, "f is kept in words, but not only loads of whole words fill it"),
        (EARLY, claims_uncut, "r is kept uncut, but not only vectors fill it, some from anywhere"),
        (EARLY, claims_start, "not known to begin 3 elements into a word of 8"),
        (RAGGED.replace("8*tx]", "8*tx + 8]"), claims_place, "not known to be inside of s"),
    ],
)
def test_what_does_not_hold_is_refused(load: str, claim: object, message: str) -> None:
    k = rewrite(of(load), claim)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=f"check 'proved facts'.*{message}"):
        check_kernel(k, "final")
