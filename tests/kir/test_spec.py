# ruff: noqa: E501  (kernel texts, one case a line)
"""Every check of the kernel spec refuses what it is there to refuse, and says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from fusewright.errors import SpecError
from fusewright.kir.checks import KernelFacts, places_of
from fusewright.kir.cluster_spec import CLUSTER_CHECKS
from fusewright.kir.ir import Kernel, Statement
from fusewright.kir.launch_spec import LAUNCH_CHECKS
from fusewright.kir.order_spec import ORDER_CHECKS
from fusewright.kir.semaphore_spec import SEMAPHORE_CHECKS
from fusewright.kir.spec import CHECKS, STAGES, Stage, check_kernel
from fusewright.kir.sync_spec import SYNC_CHECKS
from fusewright.kir.tensor_spec import TENSOR_CHECKS
from fusewright.kir.text import parse_kernel
from fusewright.target import target_of

HEADER = """kernel k {
  symbol n in [2, 64] multiple_of 2
  param x: float32[4096] align 16
  param h: float16[64] align 4
  argument a: float32
  grid (bx < n)
  block (tx < 64, ty < 2)
  local r: float32[8]
  local i: int32[1]
  local b: bool[1]
  shared s: float32[64] align 16
"""
GOOD = """
  r[0..4] = load x[256*bx + 4*tx] if (tx < n) else 0.0:float32
  i[0] = copy(index(tx):int32)
  b[0] = lt(r[0], a)
  r[1] = where(b[0], r[1], a)
  i[0] = cast(r[0])
  given i[0] in [0, 63]: r[2] = load x[i[0]]
  for (j < n) {
    if (j < 3) {
      block_sync #0
    }
    if (tx//32 == j) {
      r[0] = shuffle.xor(r[1], 4)
    }
  }
  store s[tx] = r[0]
  r[0] = thread_reduce.add(r[0]) over (tx, ty) identity 0.0:float32
"""


def _kernel(body: str) -> Kernel:
    return parse_kernel(f"{HEADER}{body}\n}}")


def test_a_good_kernel_passes() -> None:
    check_kernel(_kernel(GOOD), "lowered")


REFUSED: list[tuple[str, Stage, str, str]] = [
    ("header", "lowered", "kernel k { grid (bx < 1) block (tx < 2048) }", "2048 threads in a block"),
    ("header", "lowered", "kernel k { grid (bx < 1) block (ty < 32) }", "block dimension ty stands where tx belongs"),
    ("header", "lowered", "kernel k { symbol n in [2, 9] grid (bx < 1) block (tx < n) }", "the block extent n of tx is not a constant"),
    ("header", "lowered", "kernel k { grid (bx < 1, by < bx + 1) block (tx < 32) }", "mentions bx, no symbol"),
    ("operands", "lowered", "r[0..3] = load x[0]", "3 elements of float32 at once are not a power"),
    ("operands", "lowered", "r[0..8] = load x[8*tx]", "8 elements of float32 at once"),
    ("operands", "lowered", "store x[0] = r[0] .last_use", "cache policy last_use does not apply to stores"),
    ("operands", "lowered", "store s[0] = r[0] .streaming", "cache policy streaming does not apply to shared memory"),
    ("operands", "lowered", "r[0] = load s[0] .keep", "cache policy keep does not apply to shared memory"),
    ("operands", "lowered", "r[0..4] = load x[4*tx + 2]", "the index 4*tx + 2 is not a multiple of the"),
    ("operands", "lowered", "local q: float16[4]\nq[0..4] = load h[4*tx]", "h is aligned to 4 bytes, the access to 8"),
    ("operands", "lowered", "r[0..4] = load x[4*tx + 1] .streaming begins anywhere", "16 bytes from global memory, cache streaming are not cut out of two words"),
    ("operands", "lowered", "local q: float16[1]\nq[0] = load h[tx] begins anywhere", "loads that begin inside of one are of 4, 8 or 16 bytes"),
    ("operands", "lowered", "r[0..4] = load s[1] begins anywhere", "from shared memory"),
    ("stored once", "lowered", 'kernel k { param x: float32[64] grid (bx < 1) block (tx < 64) stored_once (x)\nlocal r: float32[1]\nr[0] = load x[tx] }', "x is to be stored once, and is read"),
    ("dtypes", "lowered", "r[0] = load h[tx]", "float32 meets float16; a load keeps the dtype"),
    ("dtypes", "lowered", "store h[tx] = r[0]", "a store keeps the dtype"),
    ("dtypes", "lowered", "r[0] = add(r[0], i[0])", "the operands of 'add' have one dtype"),
    ("dtypes", "lowered", "r[0] = lt(r[0], r[1])", "the result of 'lt' is bool"),
    ("dtypes", "lowered", "r[0] = where(r[0], r[1], r[2])", "the condition of 'where' is float32"),
    ("dtypes", "lowered", "r[0] = add(r[0])", "'add' takes 2 operands, not 1"),
    ("dtypes", "lowered", "r[0] = frob(r[0])", "there is no function 'frob'"),
    ("dtypes", "lowered", "r[0] = copy(i[0])", "float32 meets int32"),
    ("dtypes", "lowered", "r[0] = load x[0] if (tx < 3) else 0:int32", "so does the fill"),
    ("memories", "lowered", "r[0] = add(r[0], s[0])", "s[0] is used as a register but lives in shared"),
    ("memories", "lowered", "r[0] = load r[1]", "r is in registers; only global and shared"),
    ("register bounds", "lowered", "r[8] = load x[0]", "register r[8] is outside of its 8 elements"),
    ("register bounds", "lowered", "r[6..10] = load x[0]", "register r[6] is outside of its 8"),
    ("buffers in scope", "lowered", "if (bx < 1) { local q: float32[1] }\nq[0] = load x[0]", "buffer q is not allocated here"),
    ("shuffles", "lowered", "r[0] = shuffle.rot(r[0], 1)", "mode 'rot' is not one of xor, down"),
    ("shuffles", "lowered", "r[0] = shuffle.xor(r[0], 1) width 12", "width 12 is not a power of two"),
    ("reductions", "lowered", "r[0] = thread_reduce.add(r[0]) over (tz) identity 0.0:float32", "tz is not a dimension of the block or cluster (tx, ty)"),
    ("reductions", "lowered", "r[0] = thread_reduce.sub(r[0]) over (tx) identity 0.0:float32", "'sub' is not one of add"),
    ("reductions", "lowered", "r[0] = thread_reduce.add(r[0]) over (tx, tx) identity 0.0:float32", "are not a set of at least one"),
    ("uniform extents", "lowered", "for (j < tx + 1) { r[0] = load x[j] }", "the extent depends on tx; all threads"),
    ("uniform extents", "lowered", "for (j < i[0]) { r[0] = load x[j] }", "the extent depends on i[0]"),
    ("uniform extents", "lowered", "i[0] = copy(index(tx):int32)\nfor (j < i[0]) { r[0] = load x[j] }", "the extent depends on i[0]"),
    ("convergence", "lowered", "if (tx < 32) { block_sync #1 }", "may disagree on 'tx < 32' around it"),
    ("convergence", "lowered", "if (ty == 0) { r[0] = thread_reduce.add(r[0]) over (tx) identity 0.0:float32 }", "the threads of a block meet here"),
    ("convergence", "lowered", "if (tx < 16) { r[0] = shuffle.xor(r[0], 1) }", "the threads of a warp meet here"),
    ("unique sync ids", "lowered", "block_sync #1\nwarp_sync #1", "id 1 is taken by an earlier sync"),
    ("scans over threads", "lowered", "r[0] = thread_scan.add(r[1]) along tx carry r[0] identity 0.0:float32", "r[0] is its carry and its r"),
    ("no exchange of threads", "expanded", "r[0] = thread_reduce.add(r[0]) over (tx) identity 0.0:float32", "is expanded by now"),
    ("packed", "packed", "", "the offset is missing"),
    ("literal registers", "final", "for (j < n) { r[j] = load x[j] }", "the register r[j] has no literal index"),
    ("no trivial loops", "final", "for (j < 1) { r[0] = load x[j] }", "a loop of 1 trips is no loop"),
    ("no decided conditions", "final", "store x[tx] = r[0] if (tx < 0)", "the predicate is always false"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "stage", "body", "message"), REFUSED)
def test_what_breaks_a_rule_is_refused(name: str, stage: Stage, body: str, message: str) -> None:
    packed = HEADER.replace(
        "shared s: float32[64] align 16", "shared s: float32[64] align 16 offset 0"
    )
    header = packed if stage == "final" else HEADER
    kernel = parse_kernel(body if body.startswith("kernel") else f"{header}{body}\n}}")
    earlier = STAGES[STAGES.index(stage) - 1]
    if earlier != "final":
        check_kernel(kernel, earlier)
    with pytest.raises(SpecError) as error:
        check_kernel(kernel, stage)
    assert f"check '{name}'" in str(error.value)
    assert message in str(error.value)


def test_the_message_shows_the_statement() -> None:
    with pytest.raises(SpecError) as error:
        check_kernel(_kernel("for (j < tx + 1) { r[0] = load x[j] }"), "lowered")
    assert str(error.value).startswith(
        "kernel k, stage lowered, check 'uniform extents' at 'for (j < tx + 1)': the extent depends"
    )


def test_shared_memory_must_fit_the_target() -> None:
    body = "shared big: float32[60000] align 16 offset 256"
    kernel = parse_kernel(
        HEADER.replace("align 16\n}", "").replace(
            "shared s: float32[64] align 16", "shared s: float32[64] align 16 offset 0"
        )
        + body
        + "\n}"
    )
    check_kernel(kernel, "packed")
    with pytest.raises(
        SpecError, match="it ends at byte 240256; a block of sm_90a has 232448 bytes"
    ):
        check_kernel(kernel, "packed", target=target_of("sm_90a"))
    odd = parse_kernel(
        HEADER.replace("shared s: float32[64] align 16", "shared s: float32[64] align 16 offset 8")
        + "}"
    )
    with pytest.raises(SpecError, match="offset 8 is not a multiple of the alignment 16"):
        check_kernel(odd, "packed")


def test_a_second_alloc_and_a_strange_variable_are_refused() -> None:
    kernel = _kernel("for (j < 4) { store x[j] = r[0] }")
    (*_, loop) = kernel.body
    twice = dataclasses.replace(kernel, body=(*kernel.body, kernel.body[0]))
    with pytest.raises(SpecError, match="buffer r is allocated a second time"):
        check_kernel(twice, "lowered")
    loose = dataclasses.replace(kernel, body=(*kernel.body[:-1], *loop.body))  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="variable j is not in scope"):
        check_kernel(loose, "lowered")
    nested = dataclasses.replace(loop, body=(loop,))  # type: ignore[type-var]
    with pytest.raises(SpecError, match="variable j is already in use around this loop"):
        check_kernel(dataclasses.replace(kernel, body=(*kernel.body[:-1], nested)), "lowered")


def test_every_check_has_a_rejection() -> None:
    named = {case[0] for case in REFUSED} | {"allocated once", "variables in scope"}
    elsewhere = (
        *SYNC_CHECKS, *CLUSTER_CHECKS, *TENSOR_CHECKS, *ORDER_CHECKS, *SEMAPHORE_CHECKS,
        *LAUNCH_CHECKS,
    )  # fmt: skip
    own = {"arguments declared"}
    own |= {"proved facts"}  # in test_proved_facts.py
    assert {c.name for c in CHECKS} == named | own | {c.name for c in elsewhere}


def statement_classes(cls: type[Statement] = Statement) -> Iterator[type[Statement]]:
    for c in cls.__subclasses__():
        yield c
        yield from statement_classes(c)


def test_private_statements_say_nothing_of_other_threads() -> None:
    """Checks of what threads do to each other leave them out."""
    traits = [
        "memory_uses", "group", "mbarrier_use", "arrives_at", "waits_at", "issuing_thread",
        "executed_by", "feature",
    ]  # fmt: skip
    private = [c for c in statement_classes() if c.is_private]
    assert {c.__name__ for c in private} == {"Alloc", "CheckIndex", "Compute"}
    for c in private:
        assert all(getattr(c, name) is getattr(Statement, name) for name in traits)


def test_checks_ask_only_statements_that_act() -> None:
    kernel = _kernel(GOOD)
    facts = KernelFacts(kernel, None, places_of(kernel))
    asked = {type(p.statement).__name__ for p in facts.acting}
    assert {"Load", "Store", "For"} <= asked and not asked & {"Alloc", "Compute"}


def test_what_is_stored_once_is_a_parameter() -> None:
    k = parse_kernel("kernel k { param q: float32[64] grid (bx < 1) block (tx < 64) }")
    with pytest.raises(SpecError, match="q, which is to be stored once, is no parameter"):
        check_kernel(dataclasses.replace(k, params=(), stored_once=k.params), "lowered")


def test_an_undeclared_argument_is_refused() -> None:
    kernel = _kernel("r[0] = copy(a)")
    with pytest.raises(SpecError, match="a is not an argument of the kernel"):
        check_kernel(dataclasses.replace(kernel, arguments=()), "lowered")
