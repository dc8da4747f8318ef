"""Matrix products and boxes in the simulator: values, and the order that their rules ask for."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from async_suite import Case, without
from product_cases import PRODUCTS, RINGS, assert_close, inputs_of, kernel_of
from product_kernels import Product, Ring

import fusewright as fw
from fusewright.kir import ir
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.sim import order, verify
from fusewright.sim.machine import analyse, simulate
from fusewright.sim.model import MODEL, Model
from fusewright.sim.order import Change
from fusewright.sim.verify import first_race, syncs_of
from product_suite import PRODUCT_RULES, SUITE, arrays_of, case_of, run, text_of, verdict
from work import calls

RIGHT = [c for c in SUITE if not c.wrong]


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*PRODUCTS, *RINGS], ids=str)
def test_products_agree_with_float64(case: Product | Ring) -> None:
    kernel = kernel_of(case)
    check_kernel(kernel, "packed")
    x, w, expected = inputs_of(case)
    y = np.zeros(expected.size, kernel.params[2].dtype.numpy)
    arrays = dict(zip(kernel.params, (x, w, y), strict=True))
    result = simulate(kernel, arrays, outputs=[kernel.params[2]])
    assert not result.races, result.races[0]
    assert_close(case, y, expected)


def _outcome(kernel: ir.Kernel, case: Product) -> bool:
    x, w, expected = inputs_of(case)
    y = np.zeros(expected.size, kernel.params[2].dtype.numpy)
    simulate(kernel, dict(zip(kernel.params, (x, w, y), strict=True)), check_races=False)
    return bool(np.abs(y.reshape(expected.shape) - expected).max() < 1e-3)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_map_with_another_swizzle_computes_wrong_numbers(swizzle: int) -> None:
    """What the copy puts apart in one way, the product looks for in another."""
    case = Product(k=swizzle // 2, swizzle=swizzle)
    kernel = parse_kernel(case.text())
    assert _outcome(kernel, case)
    other = parse_kernel(case.text().replace(f"64) swizzle {swizzle}", "64)"))
    assert not _outcome(other, case)


def test_what_lies_beyond_an_edge_is_zero_and_is_dropped() -> None:
    body = """
  shared s: float32[64] align 128
  shared f: uint64[1]
  mbar_init #0 f[0] count 1 by thread 0
  proxy_fence #1 space(shared)
  block_sync #2
  mbar_expect #3 f[0] nbytes 256 by thread 0
  box_load s[0] = xm at (-2, 5) on f[0] by thread 0
  mbar_wait #4 f[0] parity 0
  box_store ym at (4, -1) = s[0] by thread 0
  async_commit #5 kind(bulk)
  async_wait #6 kind(bulk) reads_only(true)
"""
    kernel = parse_kernel(f"""kernel k {{
  param x: float32[72] align 16
  param y: float32[96] align 16
  map xm: x sizes (10, 6) strides (1, 12) box (8, 8)
  map ym: y sizes (11, 8) strides (1, 12) box (8, 8)
  grid (bx < 1)
  block (tx < 32)
{body}
}}""")
    check_kernel(kernel, "lowered")
    result = run(kernel)
    assert not result.races
    x = (np.arange(72) % 7).astype(np.float32).reshape(6, 12)
    box = np.zeros((8, 8), np.float32)
    box[0, 2:] = x[5, :6]
    y = result.outputs[0].reshape(8, 12)
    np.testing.assert_array_equal(y[:7, 4:11], box[1:, :7])
    assert np.isnan(y[7]).all() and np.isnan(y[:, :4]).all() and np.isnan(y[:, 11]).all()


def test_a_box_of_three_dimensions_lies_row_by_row() -> None:
    kernel = parse_kernel("""kernel k {
  param x: float16[4096] align 16
  param y: float16[4096] align 16
  map xm: x sizes (16, 16, 16) strides (1, 256, 16) box (8, 2, 4)
  map ym: y sizes (64) strides (1) box (64)
  grid (bx < 1)
  block (tx < 32)
  shared s: float16[64] align 128
  shared f: uint64[1]
  mbar_init #0 f[0] count 1 by thread 0
  proxy_fence #1 space(shared)
  block_sync #2
  mbar_expect #3 f[0] nbytes 128 by thread 0
  box_load s[0] = xm at (8, 3, 5) on f[0] by thread 0
  mbar_wait #4 f[0] parity 0
  box_reduce.add ym at (0) = s[0] by thread 0
  async_commit #5 kind(bulk)
  async_wait #6 kind(bulk) reads_only(true)
}""")
    check_kernel(kernel, "lowered")
    x = np.arange(4096).astype(np.float16)
    y = np.ones(4096, np.float16)
    result = simulate(kernel, {kernel.params[0]: x, kernel.params[1]: y})
    assert not result.races
    cube = x.reshape(16, 16, 16)  # dimensions 1, 2, 0 of the map
    box = cube[3:5, 5:9, 8:16].transpose(1, 0, 2)
    np.testing.assert_array_equal(y[:64], box.reshape(-1) + 1)


def test_matrices_of_a_warp() -> None:
    """A product by `mma.sync` of operands that `ldmatrix` brought, stored by `stmatrix`."""
    kernel = parse_kernel("""kernel k {
  param x: bfloat16[256] align 16
  param w: bfloat16[128] align 16
  param y: bfloat16[128] align 16
  grid (bx < 1)
  block (tx < 32)
  shared sx: bfloat16[256] align 16
  shared sw: bfloat16[128] align 16
  shared sy: bfloat16[128] align 16
  local r: bfloat16[8]
  local a: bfloat16[8]
  local b: bfloat16[4]
  local d: float32[4]
  r[0..8] = load x[8*tx]
  store sx[8*tx] = r[0..8]
  r[0..4] = load w[4*tx]
  store sw[4*tx] = r[0..4]
  warp_sync #0
  a[0] = ldmatrix sx[16*(tx % 16) + 8*(tx // 16)] count 4
  b[0] = ldmatrix sw[8*(tx % 16)] count 2 transposed
  d[0] = copy(1.0:float32)
  d[1] = copy(1.0:float32)
  d[2] = copy(1.0:float32)
  d[3] = copy(1.0:float32)
  warp_mma d[0] = a[0] * b[0]
  r[0] = cast(d[0])
  r[1] = cast(d[1])
  r[2] = cast(d[2])
  r[3] = cast(d[3])
  stmatrix sy[8*(tx % 16)] = r[0] count 2
  warp_sync #1
  r[0..4] = load sy[4*tx]
  store y[4*tx] = r[0..4]
}""")
    check_kernel(kernel, "lowered")
    arrays = arrays_of(kernel)
    x, w, y = (arrays[p].astype(np.float32) for p in kernel.params)
    result = simulate(kernel, arrays, outputs=kernel.params[-1:])
    assert not result.races, result.races[0]
    expected = x.reshape(16, 16) @ w.reshape(16, 8) + 1
    found = result.outputs[0].astype(np.float32).reshape(16, 8)
    np.testing.assert_allclose(found, expected, rtol=2**-8)
    report = verify.verify_kernel(kernel, case_of(kernel))
    assert [s.id for s in report.necessary] == [0, 1] and len(y) == 128


def test_an_operand_in_registers() -> None:
    case = next(c for c in SUITE if c.name == "fragment")
    kernel = case.kernel()
    arrays = arrays_of(kernel)
    x = np.random.default_rng(0).standard_normal(4096).astype(arrays[kernel.params[1]].dtype)
    arrays[kernel.params[1]][:] = x
    result = simulate(kernel, arrays, outputs=kernel.params[-1:])
    thread = np.arange(128)
    a = np.zeros((64, 16), np.float32)
    for e in range(8):
        row = 16 * (thread // 32) + 8 * (e // 2 % 2) + thread % 32 // 4
        a[row, 8 * (e // 4) + 2 * (thread % 4) + e % 2] = x[:1024].reshape(128, 8)[:, e]
    d = a @ x[:1024].reshape(16, 64)[:, :16].astype(np.float32).T
    y = result.outputs[0][:1024].reshape(128, 8)
    for e in range(8):
        row = 16 * (thread // 32) + 8 * (e // 2 % 2) + thread % 32 // 4
        column = 8 * (e // 4) + 2 * (thread % 4) + e % 2
        np.testing.assert_allclose(y[:, e], d[row, column], rtol=1e-4, atol=1e-4)


# --- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SUITE, ids=lambda c: c.name)
def test_the_verdict_of_the_suite(case: Case) -> None:
    kernel = case.kernel()
    assert verdict(kernel) == frozenset(case.wrong)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_each_deletion_is_noticed(case: Case) -> None:
    for n in case.needed:
        assert verdict(case.kernel((n,))), f"{case.name} without #{n}"


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_weaker_waits_are_reported(case: Case) -> None:
    kernel = case.kernel()
    for w in verify.weakenings_of(kernel, case_of(kernel), blocks=None):
        assert w.race is not None, f"{case.name}: {w.weaker}"


@pytest.mark.parametrize("rule", PRODUCT_RULES)
def test_a_flipped_rule_changes_some_verdict(rule: str) -> None:
    model = dataclasses.replace(MODEL, **{rule: not getattr(MODEL, rule)})
    assert any(_differs(c, model) for c in SUITE if c.name != "ring")


def _differs(case: Case, model: Model) -> bool:
    kernel = case.kernel()
    found = analyse(kernel, arrays_of(kernel), outputs=kernel.params[-1:], model=model)
    if frozenset(r.kind for r in found.races()) != frozenset(case.wrong):
        return True
    by_id = {s.id: s for s in syncs_of(kernel)}
    changes = [Change(frozenset({by_id[n]})) for n in case.needed]
    return any(first_race([found], c) is None for c in changes)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("read_too_early", "read after write of acc"),
        ("written_under_way", "write after write of acc"),
        ("fragment_overwritten", "write after read of r"),
        ("fence_behind_the_barrier", "read after write of"),
        ("no_fence", "comes before any fence for its registers"),
        ("not_waited_for", "a thread may exit before `mma acc"),
        ("too_many_registers", "wait for ever at `set_max_registers 232 grows`"),
        ("released_by_one_warp", "write after read of a"),
    ],
)
def test_findings_say_what_is_wrong(name: str, message: str) -> None:
    (case,) = [c for c in SUITE if c.name == name]
    assert message in "\n".join(map(str, run(case.kernel()).races))


def test_an_operand_beyond_its_buffer_is_reported() -> None:
    body = "  mma_fence #0\n  mma acc[0] = k_major a[0] * k_major b[64] n 16\n"
    kernel = parse_kernel(text_of(body))
    assert any("reads beyond the elements of b" in r.message for r in run(kernel).races)


def test_waits_for_products_of_a_kernel_without_any_are_redundant() -> None:
    kernel = parse_kernel(text_of("  async_commit #0 kind(mma)\n  async_wait #1 kind(mma)\n"))
    report = verify.verify_kernel(kernel, case_of(kernel))
    assert [s.id for s in report.redundant] == [0, 1] and not report.missing


def test_every_sync_of_a_ring_is_necessary() -> None:
    """On a shape whose stages wrap, with more tiles than one for a block."""
    case = Ring(128, 256, 320, 1, 3, 128)
    kernel = kernel_of(case)
    x, w, expected = inputs_of(case)
    y = np.zeros(expected.size, kernel.params[2].dtype.numpy)
    arrays = dict(zip(kernel.params, (x, w, y), strict=True))
    report = verify.verify_kernel(kernel, verify.Case(arrays, outputs=[kernel.params[2]]))
    assert report.ok, str(report)
    assert without(kernel, (s.id for s in report.necessary)) is not kernel


def test_all_deletions_of_a_product_take_little_work() -> None:
    """Calls of functions, which other jobs on the machine do not change: 0.52 million. It was 0.64
    when every replay began with the first event, 1.15 when each strand arrived and waited by
    itself, and 6.7 when the unchanged kernel was replayed beside each deletion, and strands handed
    on one by one."""
    case = Ring(256, 256, 512, 1)
    kernel = kernel_of(case)
    x, w, expected = inputs_of(case)
    y = np.zeros(expected.size, kernel.params[2].dtype.numpy)
    found = analyse(kernel, dict(zip(kernel.params, (x, w, y), strict=True)))

    def delete_each() -> None:
        for s in syncs_of(kernel):
            first_race([found], Change(frozenset({s})))

    assert calls(delete_each) < 600_000


def test_replays_that_go_on_report_what_whole_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs left out, alone and by twos, and weaker ones: from the first change on, and whole."""
    case = Ring(256, 256, 512, 1)
    kernel = kernel_of(case)
    x, w, expected = inputs_of(case)
    y = np.zeros(expected.size, kernel.params[2].dtype.numpy)
    arrays = dict(zip(kernel.params, (x, w, y), strict=True))
    syncs = syncs_of(kernel)
    changes = [Change(frozenset({s})) for s in syncs]
    changes += [Change(frozenset(pair)) for pair in itertools.pairwise(syncs)]
    waits = [s for s in syncs if isinstance(s, ir.AsyncWait)]
    changes += [Change(weaker=(s, dataclasses.replace(s, keep=s.keep + 1))) for s in waits]

    def reports() -> list[str]:
        run = analyse(kernel, arrays)
        return [str(first_race([run], c)) for c in changes]

    found = reports()
    monkeypatch.setattr(order, "_starts", lambda group: {})
    assert found == reports()
    assert len(set(found)) > 20


def test_operands_beyond_their_buffer_are_reported_and_read_nothing() -> None:
    program = fw.compile(fw.trace(fw.matmul, "bf16[64,64]", "bf16[64,64]"))
    (kernel,) = program.kernels
    text = print_kernel(kernel.ir)
    assert text.count("x2_c[768]") == 1
    wrong = parse_kernel(text.replace("x2_c[768]", "x2_c[7680]"))
    data = np.ones(4096, fw.bfloat16.numpy)
    arrays = {p: data.copy() for p in wrong.params}
    races = simulate(wrong, arrays, outputs=[wrong.params[2]]).races
    assert any("reads beyond the elements of x2_c" in str(r) for r in races)
