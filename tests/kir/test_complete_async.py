"""Where groups of asynchronous operations are ended and waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from product_texts import Lowered

from fusewright.errors import UnsupportedError
from fusewright.kir import ir
from fusewright.kir.analysis.unfinished import unfinished
from fusewright.kir.passes.complete_async import complete_async
from fusewright.kir.passes.materialise_rings import materialise_rings
from fusewright.kir.text import parse_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")
KINDS = {ir.AsyncKind.MMA: "", ir.AsyncKind.BULK: "b", ir.AsyncKind.CP_ASYNC: "c"}


def kernel(body: str, threads: int = 128) -> ir.Kernel:
    """A kernel of one warpgroup with operands a and b, accumulators d and e, and a tile s."""
    return parse_kernel(f"""kernel k {{
  param x: bfloat16[65536] align 16
  param y: bfloat16[65536] align 16
  param z: float32[65536] align 16
  map xm: x sizes (64, 1024) strides (1, 64) box (64, 64) swizzle 128
  map ym: y sizes (64, 1024) strides (1, 64) box (64, 64) swizzle 128
  grid (bx < 1)
  block (tx < {threads})
  stored_once (y, z)
  shared a: bfloat16[16384] tile 64 x 64 swizzle 128
  shared b: bfloat16[4096] tile 64 x 64 swizzle 128
  shared s: bfloat16[16384] tile 64 x 64 swizzle 128
  shared f: float32[1024] align 16
  local d: float32[32]
  local e: float32[32]
  local r: float32[32]
  local h: bfloat16[8]
  {body}
}}""")


def outline(k: ir.Kernel) -> str:
    """Products as `m`, statements on registers as `x`, copies of a box out as `o`, by a thread as
    `c`, stores to shared memory as `s`; fences as `F`, commits as `C`, waits as `W` and the groups
    they keep, with the kind in front where it is not products (`r`: for reads only)."""
    return _outline(k.body)


def _outline(body: ir.Body) -> str:
    return " ".join(filter(None, map(_one, body)))


def _one(s: ir.Statement) -> str:
    match s:
        case ir.For():
            return f"({_outline(s.body)})"
        case ir.If():
            rest = f" | {_outline(s.otherwise)}" if s.otherwise else ""
            return f"[{_outline(s.then)}{rest}]"
        case ir.Roles() | ir.Role():
            return f"<{_outline(s.body)}>"
        case ir.Mma():
            return "m"
        case ir.BoxStore():
            return "o"
        case ir.CpAsync():
            return "c"
        case ir.StMatrix():
            return "s"
        case ir.Compute() | ir.Store() | ir.Load():
            return "x"
        case ir.MmaFence():
            return "F"
        case ir.AsyncCommit():
            return f"{KINDS[s.kind]}C"
        case ir.AsyncWait():
            return f"{KINDS[s.kind]}W{'r' if s.reads_only else ''}{s.keep}"
        case ir.MbarArrive():
            return "<"
        case ir.MbarWait():
            return ">"
        case _:
            return ""


def completed(body: str) -> str:
    k = complete_async(kernel(body), TARGET)
    assert not unfinished(k) and complete_async(k, TARGET) is k
    return outline(k)


D = "mma d[0] = k_major a[0] * k_major b[0] n 64"
E = "mma e[0] = k_major a[16] * k_major b[16] n 64"
RELU_D, RELU_E = (f"r[0] = max({x}[0], {x}[1])" for x in "de")
STORE = "stmatrix s[64*(tx % 64) + 8*(tx // 64)] = h[0] count 1"
OUT = "box_store ym at (0, 0) = s[0] by thread 0"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{D}\n{RELU_D}", "F m C W0 x"),
        (f"{D}\n{RELU_D}\n{RELU_D}", "F m C W0 x x"),
        (f"{D}\nr[1] = add(d[0], r[0])\nr[2] = max(r[1], r[0])", "F m C W0 x x"),
        (f"{D}\n{RELU_D}\n{D}\n{RELU_D}", "F m C W0 x F m C W0 x"),
        (f"{D}\n{RELU_D}\n{E}\n{RELU_E}", "F m C W0 x F m C W0 x"),
        (f"{D}\n{E}\n{RELU_D}\n{RELU_E}", "F m m C W0 x x"),
        (f"{D}\n{D}\n{D}\n{RELU_D}", "F m m m C W0 x"),
        (f"{D}\nr[0] = neg(r[1])\n{E}\n{RELU_D}\n{RELU_E}", "F m C x F m C W1 x W0 x"),
        (D, "F m C W0"),
    ],
    ids=[
        "one", "two consumers", "bias and relu", "the same again", "two by two", "two in one group",
        "a batch", "work between", "nobody reads it",
    ],
)  # fmt: skip
def test_products_in_straight_code(body: str, expected: str) -> None:
    assert completed(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"for (k < 4) {{ {D}\n{E} }}\n{RELU_D}\n{RELU_E}", "F (m m) C W0 x x"),
        (f"for (k < 4) {{ {D}\n{RELU_D} }}", "(F m C W0 x)"),
        (f"for (k < 4) {{ {RELU_D}\n{D} }}", "(W0 x F m C) W0"),
        (f"for (k < 4) {{ if (k < 3) {{ {D} }}\n{RELU_D} }}", "([F m] C W0 x)"),
        (f"if (bx < 1) {{ {D}\n{RELU_D} }}\n{RELU_E}", "[F m C W0 x] x"),
        (f"if (bx < 1) {{ {D} }}\n{RELU_D}", "[F m] C W0 x"),
        (f"for (k < 4) {{ {D}\n{STORE}\n{OUT}\n{RELU_D} }}", None),
    ],
    ids=["batch in a loop", "in a loop", "consumer first", "in a branch of a loop", "branch",
         "branch before", "beside stores"],
)  # fmt: skip
def test_products_in_loops_and_branches(body: str, expected: str | None) -> None:
    found = completed(body)
    if expected is None:
        expected = "(F m C bWr0 s o bC W0 x) bWr0"
    assert found == expected


def test_kinds_share_nothing() -> None:
    """A copy's consumer between a product and its consumer leaves the product under way."""
    body = f"{D}\ncp_async f[4*tx] = z[4*tx] width 4\nr[0] = load f[4*tx]\n{RELU_D}"
    assert completed(body) == "F m C c cC cW0 x W0 x"


def test_a_ring_of_stores_keeps_all_but_one_under_way() -> None:
    """Three stages: two stores are under way while the third place is written."""
    place = "4096*(k % 3)"
    store = STORE.replace("s[", f"s[{place} + ")
    body = f"for (k < 9) {{ {store}\n{OUT.replace('s[0]', f's[{place}]')} }}"
    assert completed(body) == "(bWr2 s o bC) bWr0"


def test_a_destination_that_is_read_waits_for_all_of_it() -> None:
    k = kernel(f"{STORE}\n{OUT}\nh[0] = load y[tx]")
    k = replace(k, stored_once=())
    assert outline(complete_async(k, TARGET)) == "s o bC bW0 x"


def test_fragments_in_registers_are_not_written_before_they_are_read() -> None:
    body = f"mma d[0] = h[0] * k_major b[0] n 64\nh[0] = cast(r[0])\n{RELU_D}"
    assert completed(body) == "F m C W0 x x"


def test_what_is_only_read_may_be_read() -> None:
    body = f"mma d[0] = h[0] * k_major b[0] n 64\nr[0] = cast(h[0])\n{RELU_D}"
    assert completed(body) == "F m C x W0 x"


def test_roles_complete_their_own() -> None:
    one = f"role warps 0..4 {{ {D}\n{RELU_D} }}"
    assert completed(f"roles {{ {one} }}\n{E}\n{RELU_E}") == "<<F m C W0 x>> F m C W0 x"


def ringed(**more: object) -> str:
    k = materialise_rings(parse_kernel(Lowered(**more).text()), TARGET)  # type: ignore[arg-type]
    return outline(complete_async(k, TARGET)).replace("F m m m m C", "M")


def test_a_tile_is_used_before_the_next_takes_its_place() -> None:
    assert ringed() == "() ((W0 > M) W0 ((x)))"


@pytest.mark.parametrize(("ahead", "keep"), [(1, 2), (2, 1)])
def test_a_ring_keeps_the_last_batches_under_way(ahead: int, keep: int) -> None:
    found = ringed(k=512, ring=f"stages 3 ahead {ahead}")
    assert found == f"() (([]) (> M W{keep} []) W0 ((x)))"


def test_a_role_hands_a_stage_back_when_the_batch_before_is_done() -> None:
    found = ringed(k=512, ring="stages 3 warp_specialized")
    math, load = "(> M W1 [<])", "((>))"
    assert found == f"() () <<({math} W0 ((x)))> <{load}>>"


def test_a_persistent_role_hands_back_all_behind_its_loop() -> None:
    found = ringed(m=256, n=192, k=512, blocks=2, ring="stages 3 warp_specialized")
    assert found == "() () <<((> M W1 [<]) W0 < ((x)))> <((>))>>"


def test_batches_end_in_their_loop_even_if_nobody_waits_there() -> None:
    found = ringed(k=512, ring="stages 8 warp_specialized")
    assert found == "() <<((> M) W0 ((x)))> <(())>>"


def test_an_operation_that_another_role_meets_without_order_is_refused() -> None:
    other = "role warps 4..8 { store a[8*(tx - 128)] = h[0..8] }"
    k = kernel(f"roles {{ role warps 0..4 {{ {D} }}\n{other} }}", threads=256)
    with pytest.raises(UnsupportedError, match="no barrier stands between the reads of a"):
        complete_async(k, TARGET)
