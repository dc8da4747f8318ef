"""Products of element types other than 16-bit floats on matrix instructions: values, layouts, and
what is said of those that no instruction takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.functions import round_tf32
from fusewright.errors import SpecError, UserError
from fusewright.fusion.passes.narrow_products import narrow_products
from fusewright.fusion.text import parse_fusion, print_fusion
from fusewright.kir.ir import Mma
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.target import mma_per_clock, target_of

Shapes = tuple[tuple[int, ...], ...]


def compiled(fn: Callable[..., Any], shapes: Shapes, precision: str = "tf32") -> fw.Program:
    """The program of float32 arrays of these shapes."""
    fusion = fw.trace(fn, *(fw.TensorSpec(s, "float32") for s in shapes))
    with fw.config(float32_matmul=precision):
        return fw.compile(fusion)


def arrays_of(shapes: Shapes, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


def instructions(program: fw.Program) -> list[Mma]:
    statements = (s for k in program.kernels for s in walk_statements(k.ir))
    return [s for s in statements if isinstance(s, Mma)]


def tn(x: Any, w: Any) -> Any:
    return fw.matmul(x, w.T)


def _rounded(*arrays: Any) -> list[Any]:
    """What tf32 holds of values, in float64: a second way than the one that kernels are told by."""
    out = []
    for x in arrays:
        mantissa, exponent = np.frexp(x.astype(np.float64))
        out.append(np.ldexp(np.rint(mantissa * 2**11), exponent - 11))
    return out


# --- tf32 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "shapes", "launches"),
    [
        (tn, ((128, 256), (128, 256)), 1),
        (tn, ((150, 200), (75, 200)), 1),
        (tn, ((300, 513), (264, 513)), 2),
        (lambda x, w: fw.nn.gelu(tn(x, w)) * 2, ((2, 96, 136), (72, 136)), 1),
        (lambda x, w: x @ w, ((300, 512), (512, 264)), 2),
        (lambda x, w: x.T @ w.T, ((512, 300), (264, 512)), 2),
        (lambda x, w: x.T @ w, ((512, 300), (512, 264)), 3),
        (lambda x, w: x @ x + w, ((512, 512), (512,)), 2),
        (lambda x, w: fw.astype(tn(x, w), "bfloat16"), ((128, 256), (128, 256)), 1),
        (lambda x, g, u: fw.nn.silu(tn(x, g)) * tn(x, u), ((96, 256), (64, 256), (64, 256)), 1),
    ],
)  # fmt: skip
def test_kernels_round_operands_as_the_oracle_does(
    fn: Callable[..., Any], shapes: Shapes, launches: int
) -> None:
    program, arrays = compiled(fn, shapes), arrays_of(shapes)
    assert instructions(program) and program.host.stats["launches"] == launches
    made = program.simulate(*arrays)
    fusion = fw.trace(fn, *(fw.TensorSpec(s, "float32") for s in shapes))
    with fw.config(float32_matmul="tf32"):
        (expected,) = (x.astype(np.float64) for x in fw.evaluate(fusion, *arrays))
    (exact,) = (x.astype(np.float64) for x in fw.evaluate(fusion, *arrays))
    found = made.outputs[0].astype(np.float64)
    scale = np.abs(expected).max()
    assert made.races == []
    if made.outputs[0].dtype == np.float32:
        assert np.abs(found - expected).max() < 2e-6 * scale
        assert np.abs(found - exact).max() > 1e-5 * scale, "nothing was rounded"
    else:
        assert np.abs(found - expected).max() < 2**-8 * scale


def test_rounding_is_to_the_nearest_ties_to_even() -> None:
    (x,) = arrays_of(((4096,),))
    unit = 2.0**-10
    ties = np.array([1 + unit / 2, 1 + 3 * unit / 2, -1 - unit / 2, 2 - unit / 2], np.float32)
    assert round_tf32(ties).tolist() == [1, 1 + 2 * unit, -1, 2]
    assert np.array_equal(round_tf32(x), _rounded(x)[0])
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3.402e38], np.float32)
    found = round_tf32(special)
    assert found[:2].tolist() == [np.inf, -np.inf] and np.isnan(found[2]) and found[5] == np.inf
    assert np.signbit(found[4]) and not np.signbit(found[3])


def test_a_product_is_that_of_rounded_values() -> None:
    shapes = ((150, 200), (72, 200))
    x, w = arrays_of(shapes, seed=1)
    (found,) = compiled(tn, shapes).simulate(x, w).outputs
    a, b = _rounded(x, w)
    assert np.abs(found - a @ b.T).max() < 1e-6 * 200


def test_an_instruction_ignores_the_lower_bits_of_float32() -> None:
    """A map that does not round leaves them in memory; what is multiplied is cut off."""
    shapes = ((128, 256), (128, 256))
    x, w = arrays_of(shapes)
    (kernel,) = compiled(tn, shapes).kernels
    text = str(kernel.ir)
    assert text.count(" rounding tf32") == 2
    cut = replace(kernel, ir=fw.parse_kernel(text.replace(" rounding tf32", "")), companions=[])
    named = {"x": x, "w": w}
    (found,) = cut.simulate(*(named[i.name] for i in kernel.inputs)).outputs
    a, b = ((v.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for v in (x, w))
    assert np.abs(found - a.astype(np.float64) @ b.T).max() < 1e-6 * 256


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [(tn, ((128, 320), (128, 320))), (tn, ((150, 200), (75, 200)))],
)
def test_no_sync_of_a_rounded_product_is_missing_or_redundant(
    fn: Callable[..., Any], shapes: Shapes
) -> None:
    report = fw.verify(compiled(fn, shapes), *arrays_of(shapes))
    assert report.missing == [] and report.redundant == [] and report.necessary


def test_without_the_choice_products_are_sums() -> None:
    shapes = ((256, 512), (256, 512))
    program = compiled(tn, shapes, "ieee")
    assert not instructions(program)
    assert any("fw.config(float32_matmul='tf32') lets them" in str(r) for r in program.reasons)
    old = fw.compile(fw.trace(tn, *(fw.TensorSpec(s, "float32") for s in shapes)), "sm_80")
    assert not any("float32_matmul" in str(r) for r in old.reasons)


def test_operands_of_other_layouts_are_transposed_where_that_pays() -> None:
    program = compiled(lambda x, w: x @ w, ((2048, 1024), (1024, 2048)))
    (said,) = (str(r) for r in program.reasons if "transposed first" in str(r))
    nbytes = 2 * 4 * 1024 * 2048
    assert f"w is transposed first ({nbytes} bytes" in said
    assert "read float32 along the axis that is summed over" in said
    copy, product = program.kernels
    assert str(copy.heuristic).startswith("transpose") and "matmul" in str(product.heuristic)
    small = compiled(lambda x, w: x @ w, ((128, 65), (65, 96)))
    assert not instructions(small)
    assert any("it is done before" in str(r) for r in small.reasons)


def test_a_repeated_operand_is_counted_once() -> None:
    program = compiled(lambda x, w: x @ w, ((8, 256, 512), (512, 256)))
    (said,) = (str(r) for r in program.reasons if "transposed first" in str(r))
    assert f"({2 * 4 * 512 * 256} bytes" in said


def test_calls_follow_the_choice_that_holds() -> None:
    call = fw.fuse(tn, target="sm_90a", device="sim")
    x, w = arrays_of(((128, 256), (64, 256)))
    exact = call(x, w)
    with fw.config(float32_matmul="tf32"):
        rounded = call(x, w)
    again = call(x, w)
    assert np.array_equal(exact, again) and not np.array_equal(exact, rounded)


def test_a_schedule_by_hand_multiplies_float32_where_it_may_be_rounded() -> None:
    fusion = fw.trace(tn, *(fw.TensorSpec(s, "float32") for s in ((64, 32), (8, 32))))

    def product() -> Any:
        s = fw.Schedule(fusion)
        return next(t for t in s.tensors if t.stage.op.__class__.__name__ == "MatMul")

    with fw.config(float32_matmul="tf32"):
        product().cache_before().mma()
    s = fw.Schedule(fusion)
    assert not any(t.stage.op.__class__.__name__ == "MatMul" for t in s.tensors)


def test_the_text_of_a_fusion_says_what_is_rounded() -> None:
    fusion = compiled(tn, ((128, 256), (64, 256))).fusion
    text = print_fusion(fusion)
    assert "precision='tf32'" in text
    assert print_fusion(parse_fusion(text)) == text
    with pytest.raises(SpecError, match="the precision 'tf16' is not one of ieee, tf32"):
        parse_fusion(text.replace("'tf32'", "'tf16'"))
    with pytest.raises(SpecError, match="operands of bfloat16 are not rounded to tf32"):
        parse_fusion(text.replace("float32", "bfloat16"))


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(UserError, match=r"float32_matmul='tf31'\): use one of \('ieee', 'tf32'\)"):
        fw.config(float32_matmul="tf31")


@pytest.mark.parametrize(("itemsize", "teraflops"), [(4, 494.7), (2, 989.4), (1, 1978.9)])
def test_the_speed_of_matrix_units_is_the_data_sheets(itemsize: int, teraflops: float) -> None:
    """2 FLOP a pair, 132 multiprocessors at the 1830 MHz that the target counts with."""
    assert 2 * mma_per_clock(itemsize) * 132 * 1830e6 / 1e12 == pytest.approx(teraflops, rel=1e-3)


def test_the_instruction_is_that_of_tf32() -> None:
    (kernel,) = compiled(tn, ((256, 512), (256, 512))).kernels
    assert "k8.f32.tf32.tf32" in kernel.cuda and kernel.resources().warnings == ()
    assert "HGMMA" in kernel.sass() and ".TF32" in kernel.sass()


# --- 8 bits ---------------------------------------------------------------------------------------

E4M3, E5M2 = "float8_e4m3", "float8_e5m2"
Dtypes = tuple[str, ...]


def wide(*values: Any) -> list[Any]:
    return [fw.astype(v, "float32") for v in values]


def scaled(x: Any, w: Any, *scales: Any) -> Any:
    a, b = wide(x, w)
    y = fw.matmul(a, b.T)
    for scale in scales:
        y = y * scale
    return y


def short(fn: Callable[..., Any], shapes: Shapes, dtypes: Dtypes) -> fw.Fusion:
    """Arrays beyond the dtypes that are named are float32."""
    more = ("float32",) * (len(shapes) - len(dtypes))
    pairs = zip(shapes, (*dtypes, *more), strict=True)
    return fw.trace(fn, *(fw.TensorSpec(s, d) for s, d in pairs))


def short_arrays(fusion: fw.Fusion, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=tuple(int(str(e)) for e in t.shape)).astype(t.dtype.numpy)
        for t in fusion.inputs
    ]


def sums_of_magnitudes(fusion: fw.Fusion, arrays: list[Any]) -> Any:
    """The oracle's results of the operands' magnitudes, by which errors of sums are bounded."""
    return fw.evaluate(fusion, *(np.abs(a) for a in arrays))[0].astype(np.float64)


@pytest.mark.parametrize(
    ("fn", "shapes", "dtypes", "launches"),
    [
        (scaled, ((128, 512), (128, 512)), (E4M3, E4M3), 1),
        (scaled, ((128, 512), (128, 512), ()), (E5M2, E4M3), 1),
        (scaled, ((150, 272), (75, 272), (150, 1), (75,)), (E4M3, E5M2), 1),
        (scaled, ((300, 1100), (264, 1100), (300, 1), ()), (E5M2, E5M2), 2),
        (lambda x, w: fw.matmul(*wide(x, w)), ((1024, 1024), (1024, 1024)), (E4M3, E4M3), 2),
        (
            lambda x, w, s: fw.astype(fw.nn.gelu(scaled(x, w, s)), "bfloat16"),
            ((2, 96, 256), (72, 256), ()),
            (E4M3, E4M3),
            1,
        ),
        (
            lambda x, g, u: fw.nn.silu(scaled(x, g)) * scaled(x, u),
            ((96, 384), (64, 384), (64, 384)),
            (E4M3, E4M3, E4M3),
            1,
        ),
        (scaled, ((64, 65536), (64, 65536)), (E4M3, E4M3), 2),
    ],
)  # fmt: skip
def test_products_of_8_bits_agree_with_the_oracle(
    fn: Callable[..., Any], shapes: Shapes, dtypes: Dtypes, launches: int
) -> None:
    """Within what accumulators of 14 bits lose in a batch of 128 pairs: one bit an instruction."""
    fusion = short(fn, shapes, dtypes)
    program, arrays = fw.compile(fusion), short_arrays(fusion)
    assert instructions(program) and program.host.stats["launches"] == launches
    made = program.simulate(*arrays)
    (expected,) = fw.evaluate(fusion, *arrays)
    assert made.races == []
    bound = 4 * 2**-13 * sums_of_magnitudes(fusion, arrays)
    if made.outputs[0].dtype != np.float32:
        bound = bound + 2**-8 * np.abs(expected.astype(np.float64))
    found = made.outputs[0].astype(np.float64)
    assert (np.abs(found - expected.astype(np.float64)) <= 2 * bound + 1e-6).all()


def test_sums_leave_the_accumulators_every_128_pairs() -> None:
    """Of products of one sign each instruction loses up to a bit, so that a long sum falls short;
    with promotion it is as right as a short one."""
    fusion = short(scaled, ((64, 8192), (64, 8192)), (E4M3, E4M3))
    plan = ProductPlan(64, 32, 128, warpgroups=1, stages=4, promoted=True)
    arrays = [np.abs(a) for a in short_arrays(fusion)]
    (expected,) = fw.evaluate(fusion, *arrays)
    kernel = by_plan(fusion, plan)
    named = dict(zip((t.name for t in fusion.inputs), arrays, strict=True))
    given = [named[i.name] for i in kernel.inputs]

    def worst(k: fw.Kernel) -> float:
        (found,) = k.simulate(*given).outputs
        return float((np.abs(found - expected) / expected).max())

    assert worst(kernel) < 3 * 2**-13
    text = re.sub(r"accumulate \(false\)", "accumulate (0 < i0)", str(kernel.ir))
    total = next(m[1] for m in re.finditer(r"local (\w+)_sums:", text))
    text = re.sub(rf"{total}\[(\d+)\] = add\(.*", rf"{total}[\1] = copy({total}_sums[\1])", text)
    assert worst(replace(kernel, ir=fw.parse_kernel(text), companions=[])) > 2**-8


def by_plan(fusion: fw.Fusion, plan: ProductPlan) -> fw.Kernel:
    s = fw.Schedule(narrow_products(fusion))
    schedule_products(s, MatmulScheduler(s.flow, target_of("sm_90a"))._products, plan)
    return s.lower()


PROMOTED = ProductPlan(64, 32, 128, warpgroups=1, stages=2, promoted=True)


@pytest.mark.parametrize(
    "plan",
    [
        PROMOTED,
        replace(PROMOTED, stages=1),
        replace(PROMOTED, stages=3, blocks=2),
        replace(PROMOTED, rows=128, warpgroups=2, blocks=1),
        replace(PROMOTED, depth=256),
        replace(PROMOTED, splits=2, mode="slices"),
        replace(PROMOTED, splits=2, mode="vector"),
    ],
    ids=str,
)
def test_no_sync_of_a_promoted_product_is_missing_or_redundant(plan: ProductPlan) -> None:
    fusion = short(scaled, ((128, 1280), (64, 1280), ()), (E4M3, E4M3))
    kernel, arrays = by_plan(fusion, plan), short_arrays(fusion)
    named = dict(zip((t.name for t in fusion.inputs), arrays, strict=True))
    given = [named[i.name] for i in kernel.inputs]
    report = fw.verify(kernel, *given)
    assert report.missing == [] and report.redundant == [] and report.necessary
    (expected,) = fw.evaluate(fusion, *arrays)
    (found,) = kernel.simulate(*given).outputs
    bound = 8 * 2**-13 * sums_of_magnitudes(fusion, arrays)
    assert (np.abs(found - expected) <= np.abs(bound) + 1e-6).all()


def test_a_stage_is_handed_back_in_the_trip_that_adds_its_sums() -> None:
    fusion = short(scaled, ((128, 2560), (64, 2560)), (E4M3, E4M3))
    text = str(by_plan(fusion, replace(PROMOTED, stages=3)).ir)
    assert "mbar_arrive" in text and "if (0 < i0)" not in text
    assert "kind(mma) keep" not in text


def test_instructions_of_8_bits_hold_both_dtypes_and_do_not_spill() -> None:
    fusion = short(scaled, ((4096, 4096), (4096, 4096), ()), (E5M2, E4M3))
    (kernel,) = fw.compile(fusion).kernels
    assert "k32.f32.e5m2.e4m3" in kernel.cuda
    used = kernel.resources()
    assert used.warnings == () and used.spill_stores == used.stack_nbytes == 0
    assert re.search(r"QGMMA\.64x(128|192)x32\.F32\.E5M2\.E4M3", kernel.sass())


def test_8_and_16_bits_are_no_product_of_instructions() -> None:
    program = fw.compile(short(scaled, ((256, 512), (256, 512)), (E4M3, "bfloat16")))
    assert not instructions(program)
    alone = fw.compile(short(scaled, ((256, 512), (256, 512)), (E4M3, E4M3)), "sm_80")
    assert not instructions(alone)


@pytest.mark.parametrize("dtype", [E4M3, "bfloat16", "float16"])
def test_casts_of_short_floats_are_not_rounded_to_tf32(dtype: str) -> None:
    fusion = short(scaled, ((128, 512), (128, 512)), (dtype, dtype))
    with fw.config(float32_matmul="tf32"):
        program = fw.compile(fusion)
    (kernel,) = program.kernels
    assert instructions(program) and "tf32" not in str(kernel.ir)
    assert "precision" not in print_fusion(program.fusion)


@pytest.mark.parametrize("multiply", [fw.matmul, fw.vecdot, fw.tensordot])
@pytest.mark.parametrize(("short", "whole"), [("float8_e4m3", "int8"), ("float8_e5m2", "uint16")])
def test_floats_of_8_bits_do_not_multiply_integers(
    multiply: Callable[..., Any], short: str, whole: str
) -> None:
    specs = [fw.TensorSpec((16, 16), short), fw.TensorSpec((16, 16), whole)]
    for pair in (specs, specs[::-1]):
        with pytest.raises(UserError, match=rf"{short} keeps no more than 4 bits of an integer"):
            fw.trace(lambda a, b: multiply(a, b), *pair)


def test_floats_of_8_bits_multiply_integers_that_are_cast() -> None:
    specs = [fw.TensorSpec((16, 16), "float8_e4m3"), fw.TensorSpec((16, 16), "int8")]
    fusion = fw.trace(lambda a, b: fw.astype(a, "float32") @ fw.astype(b, "float32"), *specs)
    assert fusion.outputs[0].dtype.name == "float32"
