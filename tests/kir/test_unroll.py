# ruff: noqa: E501  (kernel texts, one case a line)
"""Loops written out: literal registers, own buffers and loop variables a copy, new sync ids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_kernels import random_kernel, run

from fusewright.errors import SpecError
from fusewright.kir.ir import Alloc, Buffer, For, Kernel, SyncStatement
from fusewright.kir.names import name_symbols
from fusewright.kir.passes.unroll import unroll, unroll_last
from fusewright.kir.spec import check_kernel
from fusewright.kir.substitute import Substitution
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements


def _kernel(body: str) -> Kernel:
    return parse_kernel(
        f"""kernel k {{
        symbol n in [2, 64]
        param x: float32[64]
        grid (bx < 1)
        block (tx < 32)
        local r: float32[4]
        {body}
        }}"""
    )


def _lines(kernel: Kernel) -> list[str]:
    text = print_kernel(kernel)
    return [line.strip() for line in text.split("local r: float32[4]\n")[1].splitlines()[:-1]]


def test_a_marked_loop_is_written_out() -> None:
    kernel = unroll(_kernel("for (i < 3) unroll { r[0] = load x[4*i + tx//16] }"))
    assert _lines(kernel) == [
        f"r[0] = load x[{at}]" for at in ("tx//16", "(tx//16) + 4", "(tx//16) + 8")
    ]


def test_a_loop_through_registers_is_written_out_unasked() -> None:
    kernel = unroll(_kernel("for (i < 2) { for (j < 2) { r[2*i + j] = load x[j] } }"))
    assert _lines(kernel) == [f"r[{i}] = load x[{i % 2}]" for i in range(4)]


def test_inner_extents_become_constant_first() -> None:
    kernel = unroll(_kernel("for (i < 3) unroll { for (j < i) { r[j] = load x[i] } }"))
    assert _lines(kernel) == ["r[0] = load x[1]", "r[0] = load x[2]", "r[1] = load x[2]"]


def test_inner_loops_keep_sharp_limits() -> None:
    kernel = unroll(_kernel("for (i < 2) unroll { for (j < i + 5) { r[0] = load x[j] } }"))
    loops = [s for s in walk_statements(kernel) if isinstance(s, For)]
    assert [(s.var.interval, str(s.extent)) for s in loops] == [((0, 4), "5"), ((0, 5), "6")]
    assert loops[0].var is not loops[1].var


def test_loops_of_roles_and_around_roles_are_written_out() -> None:
    text = "roles { role warps 0..1 { for (j < 2) { r[j] = load x[j] } block_sync #7 } }"
    inside = unroll(_kernel(text.replace(" block_sync #7", "")))
    assert "r[1] = load x[1]" in _lines(inside)
    around = unroll(_kernel(f"for (i < 2) unroll {{ {text.replace('block', 'warp')} }}"))
    ids = [s.id for s in walk_statements(around) if isinstance(s, SyncStatement)]
    assert len(set(ids)) == 2
    assert print_kernel(around).count("= load") == 4


def test_copies_have_their_own_buffers_and_sync_ids() -> None:
    kernel = unroll(
        _kernel(
            "block_sync #7\nfor (i < 3) unroll { local t: float32[1]\n block_sync #2 // a\n r[i] = copy(t[0]) }"
        )
    )
    allocs = [s.buffer for s in walk_statements(kernel) if isinstance(s, Alloc)]
    assert len(set(allocs)) == 4
    assert [b.name for b in allocs[1:]] == ["t", "t_1", "t_2"]
    assert [s.id for s in walk_statements(kernel) if isinstance(s, SyncStatement)] == [7, 2, 8, 9]
    check_kernel(kernel, "lowered")


def test_copies_of_nested_loops_have_names_that_nothing_else_has() -> None:
    """So that nothing has to be renamed, and built again, behind it."""
    kernel = unroll(
        _kernel(
            """local u_1: float32[1]
            u_1[0] = copy(r[0])
            for (i < 2) unroll {
            local t: float32[1]
            t[0] = load x[i]
            for (j < 3) unroll { local u: float32[1]\n u[0] = copy(t[0])\n r[j] = add(u[0], u_1[0]) }
            }"""
        )
    )
    allocs = [s.buffer.name for s in walk_statements(kernel) if isinstance(s, Alloc)]
    assert allocs == ["r", "u_1", "t", "u", "u_2", "u_3", "t_1", "u_4", "u_5", "u_6"]
    assert "u_6[0] = copy(t_1[0])" in print_kernel(kernel)
    assert name_symbols(kernel) is kernel


def test_loops_in_copies_that_stay_have_variables_of_their_own() -> None:
    kernel = unroll(
        _kernel(
            """for (i < 2) unroll {
            for (k < 5) { for (j < 2) unroll { r[j] = load x[8*i + k + j] } }
            }"""
        )
    )
    loops = [s for s in walk_statements(kernel) if isinstance(s, For)]
    assert len({s.var for s in loops}) == len(loops) == 2
    assert "r[1] = load x[k + 9]" in print_kernel(kernel)
    check_kernel(kernel, "lowered")


def test_statements_whose_symbols_keep_their_names_stay_the_same_objects() -> None:
    kernel = _kernel(
        """if (tx < 3) { local t: float32[1]\n t[0] = copy(r[0])\n r[1] = copy(t[0]) }
        local t_1: float32[1]
        t_1[0] = copy(r[2])
        r[3] = copy(r[0])"""
    )
    _, _, second = (s.buffer for s in walk_statements(kernel) if isinstance(s, Alloc))
    alike = Buffer("t", second.dtype, second.size, second.memory, second.alignment)
    clash = replace(kernel, body=Substitution(buffers={second: alike}).body(kernel.body))
    named = name_symbols(clash)
    assert print_kernel(named) == print_kernel(kernel)
    kept = [a is b for a, b in zip(named.body, clash.body, strict=True)]
    assert kept == [True, True, False, False, True]


def test_gathered_positions_follow() -> None:
    kernel = unroll(
        _kernel("local p: int32[2]\nfor (i < 2) { given p[i] in [0, 9]: r[i] = load x[p[i]] }")
    )
    assert "given p[1] in [0, 9]: r[1] = load x[p[1]]" in print_kernel(kernel)


def test_shared_memory_is_allocated_once_before_the_copies() -> None:
    kernel = unroll(
        _kernel(
            """for (i < 2) {
            shared s: float32[32]
            store s[tx] = r[i]
            r[i] = load s[tx]
            }"""
        )
    )
    assert _lines(kernel) == [
        "shared s: float32[32]",
        *(
            f"{line}"
            for k in range(2)
            for line in (f"store s[tx] = r[{k}]", f"r[{k}] = load s[tx]")
        ),
    ]


def test_nothing_to_unroll_is_the_same_kernel() -> None:
    kernel = _kernel("for (i < 3) { r[0] = load x[i] }\nfor (j < n) unroll { r[1] = load x[j] }")
    assert unroll(kernel) is kernel


def test_registers_under_a_symbolic_loop_are_refused_by_the_spec() -> None:
    kernel = unroll(_kernel("for (i < n) { r[i] = load x[i] }"))
    with pytest.raises(
        SpecError, match=r"the register r\[i\] has no literal index; unroll the loop"
    ):
        check_kernel(kernel, "final")


@pytest.mark.parametrize("seed", range(60))
def test_unrolled_computes_the_same(seed: int) -> None:
    kernel = random_kernel(seed)
    unrolled = unroll(kernel)
    check_kernel(unrolled, "lowered")
    text = print_kernel(unrolled)
    assert print_kernel(parse_kernel(text)) == text
    assert np.array_equal(run(kernel), run(unrolled), equal_nan=True)


# --- behind products ------------------------------------------------------------------------------

_MMA = "mma acc[0] = k_major sx[0] * k_major sw[0] n 8"
_PRODUCT = f"""{_MMA}
for (i < 2) {{ r[i] = copy(acc[2*i]) }}
for (j < 2) unroll {{
shared z: float32[32]
store z[tx % 32] = acc[j]
}}"""


def _product_kernel(body: str) -> Kernel:
    return parse_kernel(
        f"""kernel k {{
        param x: float32[64] align 16
        grid (bx < 2)
        block (tx < 128)
        shared sx: bfloat16[4096] tile 64 x 64 swizzle 128
        shared sw: bfloat16[512] tile 8 x 64 swizzle 128
        local acc: float32[4]
        local r: float32[4]
        {body}
        }}"""
    )


def test_what_a_thread_does_with_its_sums_is_left_to_the_compiler() -> None:
    kernel = unroll(_product_kernel(_PRODUCT))
    assert _loops(kernel) == ["i"]
    text = print_kernel(unroll_last(kernel))
    assert "for (i < 2) unroll {\n    r[i] = copy(acc[2*i])\n  }" in text


LITERAL = {
    "a condition": ("", "r[i] = copy(acc[2*i]) if (4*bx + i < 5)"),
    "a branch": ("", "if (4*bx + i < 5) { r[i] = copy(acc[2*i]) }"),
    "a part of a word": ("local h: bfloat16[2]", "h[i] = cast(acc[2*i])"),
    "which lanes exist": ("", "r[0..4] = load x[4*i] lanes 0..6 - 4*i"),
    "where a word begins": ("", "r[0..4] = load x[4*i + 2] begins anywhere"),
}


@pytest.mark.parametrize(("before", "body"), LITERAL.values(), ids=LITERAL)
def test_loops_that_more_than_registers_follow_from_are_written_out(before: str, body: str) -> None:
    """What bounds of blocks and of loops around decide of an iteration the compiler does not see."""
    kernel = _product_kernel(f"{_MMA}\n{before}\nfor (i < 2) unroll {{ {body} }}")
    assert _loops(kernel) == _loops(unroll(kernel)) == ["i"]
    assert _loops(unroll_last(kernel)) == []


def test_loops_around_those_that_are_written_out_stay() -> None:
    kernel = _product_kernel(
        f"{_MMA}\nlocal h: bfloat16[4]\nfor (i < 2) {{ for (j < 2) {{ local t: float32[1]\n"
        "t[0] = copy(acc[2*i + j])\nr[i] = copy(t[0])\nh[j] = cast(t[0]) } }"
    )
    text = print_kernel(unroll_last(unroll(kernel)))
    assert "for (i < 2) unroll {\n    local t: float32[1]\n    t[0] = copy(acc[2*i])" in text
    assert "    t_1[0] = copy(acc[2*i + 1])" in text
    assert "for (j" not in text


def test_registers_that_the_compiler_counts_are_literal_for_the_spec() -> None:
    inside = "for (i < 2) unroll {{ for (j < {n}) {how} {{ r[2*i + j] = load x[j] }} }}"
    check_kernel(_kernel(inside.format(n=2, how="unroll")), "final")
    for n, how in ((2, ""), ("n", "unroll")):
        with pytest.raises(SpecError, match=r"the register r\[2\*i \+ j\] has no literal index"):
            check_kernel(_kernel(inside.format(n=n, how=how)), "final")


@pytest.mark.parametrize(("trips", "waits"), [(511, False), (512, True)])
def test_loops_of_many_statements_wait(trips: int, waits: bool) -> None:
    """4,096 statements, written out, are no reason to wait."""
    statements = "\n".join(["r[0] = load x[tx]"] * 8)
    kernel = _kernel(f"for (i < {trips}) unroll {{ {statements} }}")
    assert _loops(unroll(kernel)) == (["i"] if waits else [])
    assert _loops(unroll_last(unroll(kernel))) == []


def test_without_products_nothing_is_left_for_last() -> None:
    kernel = unroll(_product_kernel("for (i < 2) { r[i] = copy(acc[2*i]) }"))
    assert _loops(kernel) == []
    assert unroll_last(kernel) is kernel


def _loops(kernel: Kernel) -> list[str]:
    return [str(s.var) for s in walk_statements(kernel) if isinstance(s, For)]
