"""KIR to CUDA text: the lines that matter, and what is refused."""

from __future__ import annotations

import dataclasses
import re

import pytest
from cuda_kernels import (
    NTHREADS,
    copy_kernel,
    dims,
    elementwise,
    glob,
    kernel,
    local,
    reversed_kernel,
    warp_sum_kernel,
)

from fusewright.core.conditions import TRUE, Cond, all_of, less
from fusewright.core.expr import Expr, Int, Var, mod
from fusewright.core.node import rewrite
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import (
    emit,
    emit_module,
    parameters,
    shared_nbytes,
)
from fusewright.cuda.sass import sass
from fusewright.dtypes import bfloat16, bool_, float16, float32, int8, int32, int64, uint8
from fusewright.errors import SpecError, UnsupportedError, UserError
from fusewright.kir.analysis.uses import written_buffers
from fusewright.kir.ir import (
    Alloc,
    Arg,
    Argument,
    BlockSync,
    Buffer,
    Cache,
    Compute,
    For,
    If,
    Imm,
    Index,
    Kernel,
    Lanes,
    Load,
    Memory,
    Reg,
    RegVar,
    Roles,
    Shuffle,
    Store,
    ThreadReduce,
)
from fusewright.kir.passes.locate_loads import locate_loads
from fusewright.kir.traits import SyncStatement
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def lines(k: Kernel) -> list[str]:
    """The kernel's own lines, without the prelude and without indentation."""
    text = emit(k, TARGET)
    return [line.strip() for line in text[text.index('extern "C"') :].splitlines()]


def one(statement, *locals_: Buffer, params=(), **more) -> list[str]:
    """The lines of a body of one statement, after the allocations."""
    k = kernel("k", params, (*(Alloc(b) for b in locals_), statement), **more)
    found = lines(k)
    start = next(i for i, line in enumerate(found) if line.endswith("{")) + 1
    body = found[start : found.index("}", len(found) - 1)]
    return [b for b in body if not b.startswith("const int") and not re.match(r"\w+ r\d?;", b)]


def test_golden_barrier_kernel() -> None:
    assert lines(reversed_kernel()) == [
        'extern "C" __global__ void __launch_bounds__(128)',
        "reverse(const float* x, float* y) {",
        "const int tx = threadIdx.x;",
        "float* const tile = reinterpret_cast<float*>(fw_shared + 1024);",
        "float r;",
        "r = x[tx];",
        "tile[tx] = r;",
        'asm volatile("bar.sync 0; // fw-sync 7" ::: "memory");  // RAW tile: store -> load',
        "r = tile[127 - tx];",
        'asm volatile("bar.warp.sync 0xffffffff; // fw-sync 9" ::: "memory");  // for show',
        "y[tx] = r;",
        "}",
    ]


def test_golden_vector_copy() -> None:
    assert lines(copy_kernel(bfloat16, bfloat16, 4, 1024, load=Cache.STREAMING))[2:] == [
        "const int tx = threadIdx.x;",
        "fw_bf16 r[4];",
        "for (int t = 0; t < 2; ++t) {",
        "const fw_vec<fw_bf16, 4> x_word = fw_load_cs<4>(x + (t * 512 + tx * 4));",
        "r[0] = x_word.at[0];",
        "r[1] = x_word.at[1];",
        "r[2] = x_word.at[2];",
        "r[3] = x_word.at[3];",
        "fw_store<4>(y + (t * 512 + tx * 4), fw_vec<fw_bf16, 4>{{r[0], r[1], r[2], r[3]}});",
        "}",
        "}",
    ]


def test_floats_are_narrowed_in_pairs() -> None:
    text = "\n".join(lines(copy_kernel(float32, bfloat16, 4, 1024)))
    assert (
        "fw_store<2>(reinterpret_cast<unsigned*>(y + (t * 512 + tx * 4)), fw_vec<unsigned, 2>"
        "{{fw_float_to_bf16x2(r[0], r[1]), fw_float_to_bf16x2(r[2], r[3])}});" in text
    )


def test_only_the_pieces_that_are_used_are_emitted() -> None:
    text = emit(elementwise("add", float32, 100), TARGET)
    assert text.startswith('extern "C"')
    text = emit(elementwise("max", bfloat16, 100), TARGET)
    assert "max.NaN.f32" in text
    assert "fw_e4m3" not in text and "fw_vec" not in text


def test_emission_is_deterministic() -> None:
    assert emit(warp_sum_kernel(float32), TARGET) == emit(warp_sum_kernel(float32), TARGET)


def test_predicate_and_fill() -> None:
    """Of global memory one predicated instruction, of shared memory a branch."""
    x, r = glob("x", "float32"), local("r", "float32")
    tile = Buffer("tile", float32, Int(128), Memory.SHARED, 16)
    tx = dims()["block"][0]
    s = Load(Reg(r), x, tx.var, predicate=less(tx.var, 100), fill=Imm(float("-inf"), float32))
    fill = "__uint_as_float(0xff800000u)"
    assert one(s, r, params=(x,), block=(tx,)) == [
        "const fw_vec<float, 1> x_word = "
        f"fw_load_where<1>(x + tx, tx < 100, fw_vec<float, 1>{{{{{fill}}}}});",
        "r = x_word.at[0];",
    ]
    body = (Alloc(tile, 0), Alloc(r), dataclasses.replace(s, src=tile))
    k = kernel("k", (), body, block=(tx,))
    assert lines(k)[-6:-1] == [
        "if (tx < 100) {",
        "r = tile[tx];",
        "} else {",
        f"r = {fill};",
        "}",
    ]


def test_loads_under_conditions_that_follow_each_other_make_no_branches() -> None:
    """Their conditions have a part in common, which a compiler would branch on once for all."""
    x, r, y = glob("x", "bfloat16"), local("r", "bfloat16", 8), glob("y", "bfloat16")
    tx = dims()["block"][0]
    inner = [all_of((less(3, tx.var), less(1, mod(8 * tx.var + k, 19)))) for k in range(8)]
    loads = [
        Load(Reg(r, Int(k)), x, 7 * tx.var + k, predicate=c, fill=Imm(0.0, bfloat16))
        for k, c in enumerate(inner)
    ]
    store = Store(y, 8 * tx.var, Reg(r), 8)
    k = kernel("k", (x, y), (Alloc(r), *loads, store), block=(tx,))
    code = sass(compile_cubin(emit(k, TARGET), TARGET, name="k").cubin)
    body = code[: code.index("EXIT")]
    assert body.count("LDG") == 8 and "BRA" not in body and "BSSY" not in body


def test_a_load_of_undefined_lanes_has_no_branch_and_stays_inside() -> None:
    """In shared memory it reads where it stands; elsewhere, or where that is not known, at 0."""
    tile = Buffer("tile", float32, Int(128), Memory.SHARED, 16)
    x, r = glob("x", "float32"), local("r", "float32")
    tx = dims()["block"][0]

    def spelled(src: Buffer, shift: int) -> str:
        lanes = Lanes(first=Int(0), stop=Int(1))
        s = Load(Reg(r), src, tx.var + shift, 1, less(tx.var, 100), lanes=lanes)
        body = (Alloc(tile, 0), Alloc(r), s)
        k = locate_loads(kernel("k", (x,), body, block=(tx,)))
        return next(line for line in lines(k) if "r = " in line)

    assert spelled(tile, 0) == "r = tile[tx];"
    assert spelled(tile, 28) == "r = tile[(tx < 100 ? (tx + 28) : 0)];"
    assert spelled(x, 0) == "r = x[(tx < 100 ? tx : 0)];"


def test_how_far_into_a_word_a_load_begins_is_spelled_where_it_is_known() -> None:
    x, r = glob("x", "float32"), local("r", "float32", 4)
    tx = dims()["block"][0]

    def spelled(index: Expr, predicate: Cond = TRUE) -> str:
        lanes = Lanes(None, *((Int(0), Int(4)) if predicate != TRUE else ()))
        s = Load(Reg(r), x, index, 4, predicate, lanes=lanes)
        found = lines(locate_loads(kernel("k", (x,), (Alloc(r), s), block=(tx,))))
        return next(
            text.split(" = ")[1] for text in found if "unaligned" in text or "within" in text
        )

    assert spelled(tx.var * 4 + 3) == "fw_elements(fw_load_unaligned<4, 3>(x, tx * 4 + 3));"
    assert spelled(tx.var * 3) == "fw_elements(fw_load_unaligned<4, -1>(x, tx * 3));"
    some = less(tx.var, 9)
    within = "fw_elements(fw_load_within<4, 3>(x, (tx < 9 ? (tx * 4 + 3) : 3), "
    assert spelled(tx.var * 4 + 3, some).startswith(within)
    within = "fw_elements(fw_load_within<4, -1>(x, (tx < 9 ? (tx * 3) : 0), "
    assert spelled(tx.var * 3, some).startswith(within)


def test_load_converts_to_the_register_and_store_back() -> None:
    x, r = glob("x", "float16"), local("r", "float32")
    load, store = Load(Reg(r), x, Int(3)), Store(x, Int(3), Reg(r))
    assert one(load, r, params=(x,)) == ["r = fw_f16_to_float(x[3]);"]
    assert one(store, r, params=(x,)) == ["x[3] = fw_float_to_f16(r);"]


def test_operands_of_every_kind() -> None:
    r, tx = local("r", "float32"), dims()["block"][0]
    eps = Argument("eps", float32)
    operands = (Index(tx.var * 2, float32), Arg(eps), Imm(-1.5, float32))
    s = Compute("fma", Reg(r), operands)
    assert one(s, r, arguments=(eps,), block=(tx,)) == [
        "r = fmaf(((float)(tx * 2)), eps, (-1.5f));"
    ]


def test_small_integers_wrap_before_they_widen() -> None:
    a, r = local("a", "uint8"), local("r", "int32")
    s = Compute("bitwise_not", Reg(r), (Reg(a),))
    assert one(s, a, r)[-1] == "r = (int)((unsigned char)(~a));"


def test_sixty_four_bit_index_where_bounds_do_not_prove_less() -> None:
    n = Var("n", 2)
    x, r = Buffer("x", float32, n * 4096, Memory.GLOBAL), local("r", "float32")
    found = one(Load(Reg(r), x, n * 7), r, params=(x,), symbols=(n,))
    assert found == ["r = x[n * 7];"]
    assert [p.ctype for p in parameters(kernel("k", (x,), (), symbols=(n,)))] == [
        "float*",
        "long long",
    ]


def test_parameters_are_buffers_then_arguments_then_symbols() -> None:
    n = Var("n", 2, 4096)
    k = kernel("k", (glob("x", float16),), (), symbols=(n,), arguments=(Argument("s", int8),))
    assert [(p.ctype, p.nbytes) for p in parameters(k)] == [
        ("fw_f16*", 8),
        ("signed char", 1),
        ("int", 4),
    ]
    assert "k(const fw_f16* x, signed char s, int n) {" in lines(k)


def test_noalias_and_min_blocks_come_from_the_kernel() -> None:
    k = elementwise("neg", float32, 100)
    k = dataclasses.replace(k, min_blocks=3, attributes=(("noalias", "true"),))
    assert lines(k)[:2] == [
        'extern "C" __global__ void __launch_bounds__(128, 3)',
        "neg_float32(const float* __restrict__ x0, float* __restrict__ y) {",
    ]


def test_gathered_index_is_a_register() -> None:
    x, r = glob("x", "float32"), local("r", "float32")
    for dtype, spelling in ((int32, "at"), (int64, "(int)at"), (uint8, "at")):
        at = local("at", dtype)
        found = one(Load(Reg(r), x, RegVar(Reg(at), 0, 999) * 2), r, params=(x,))
        assert found == [f"r = x[{f'({spelling})' if '(' in spelling else spelling} * 2];"]


def test_reserved_and_repeated_names_become_other_identifiers() -> None:
    a, b, c = local("float", "float32"), local("a.b", "float32"), local("a b", "float32")
    body = (Compute("add", Reg(a), (Reg(b), Reg(c))),)
    text = "\n".join(lines(kernel("fw_load", (), (Alloc(a), Alloc(b), Alloc(c), *body))))
    assert "v_fw_load() {" in text
    assert "v_float = a_b + a_b_2;" in text


def test_loops_and_branches_nest() -> None:
    r, i = local("r", "int32", 4), Var("i", 0, 3)
    inner = If(
        less(i, 2),
        (Compute("copy", Reg(r, i), (Imm(1, int32),)),),
        (Compute("copy", Reg(r, i), (Imm(2, int32),)),),
    )
    assert one(For(i, Int(4), (inner,), unroll=True), r)[1:] == [
        "#pragma unroll",
        "for (int i = 0; i < 4; ++i) {",
        "if (i < 2) {",
        "r[i] = 1;",
        "} else {",
        "r[i] = 2;",
        "}",
        "}",
    ]


def test_shuffle_of_a_short_type_goes_through_a_word() -> None:
    a, r = local("a", "bfloat16"), local("r", "float32")
    assert one(Shuffle(Reg(r), Reg(a), "down", Int(4), 16), a, r)[-1] == (
        "r = fw_bf16_to_float((fw_bf16)__shfl_down_sync(0xffffffffu, (unsigned)a, 4, 16));"
    )


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "float64", "int64"])
def test_shuffle_of_a_whole_word_keeps_its_bits(dtype: str) -> None:
    a, r = local("a", dtype), local("r", dtype)
    assert one(Shuffle(Reg(r), Reg(a), "xor", Int(4)), a, r)[-1] == (
        "r = __shfl_xor_sync(0xffffffffu, a, 4, 32);"
    )


def test_why_cannot_break_the_line() -> None:
    found = one(BlockSync(1, "first\nsecond \\"))
    assert found == ['asm volatile("bar.sync 0; // fw-sync 1" ::: "memory");  // first second']


def test_module_of_two_kernels_has_one_prelude() -> None:
    a, b = elementwise("max", float32, 9), elementwise("min", float32, 9)
    text = emit_module((a, b), TARGET)
    assert text.count("fw_max(float a") == 1 and text.count('extern "C"') == 2


def test_shared_bytes_and_written_buffers() -> None:
    k = reversed_kernel()
    assert shared_nbytes(k) == 1024 + 4 * NTHREADS
    assert [b.name for b in written_buffers(k)] == ["y"]


# --- rejections ---------------------------------------------------------------------------------


def assert_rejects(message: str, statement, *locals_: Buffer, params=(), error=SpecError) -> None:
    with pytest.raises(error, match=message):
        one(statement, *locals_, params=params)


def test_rejects_high_level_statements() -> None:
    r = local("r", "float32")
    s = ThreadReduce("add", Reg(r), Reg(r), ("tx",), Imm(0.0, float32))
    assert_rejects("ThreadReduce has no CUDA spelling; an earlier pass must expand it", s, r)


def test_rejects_shared_memory_without_an_address() -> None:
    def unpack(n):
        return dataclasses.replace(n, offset=None) if isinstance(n, Alloc) else n

    with pytest.raises(SpecError, match="shared buffer tile has no address; pack shared memory"):
        emit(rewrite(reversed_kernel(), unpack), TARGET)


def test_rejects_more_shared_memory_than_the_target_has() -> None:
    def move(n):
        return dataclasses.replace(n, offset=2**18) if isinstance(n, Alloc) else n

    with pytest.raises(SpecError, match="reverse needs 262656 bytes of shared memory a block"):
        emit(rewrite(reversed_kernel(), move), TARGET)


def test_rejects_read_only_policies_on_memory_that_is_written() -> None:
    x, r = glob("x", "float32"), local("r", "float32")
    body = (
        Alloc(r),
        Load(Reg(r), x, Int(0), cache=Cache.NON_COHERENT),
        Store(x, Int(0), Reg(r)),
    )
    with pytest.raises(SpecError, match="x is read with policy non_coherent, which is for memory"):
        emit(kernel("k", (x,), body), TARGET)


def test_rejects_variables_out_of_scope() -> None:
    x, r = glob("x", "float32"), local("r", "float32")
    assert_rejects(
        "uses ghost where it is not", Load(Reg(r), x, Var("ghost", 0, 3)), r, params=(x,)
    )


def test_rejects_functions_a_type_lacks() -> None:
    r = local("r", "bool")
    s = Compute("exp", Reg(r), (Reg(r),))
    assert_rejects("exp of bool has no CUDA spelling", s, r, error=UnsupportedError)
    assert_rejects(
        "sub of bool", Compute("sub", Reg(r), (Reg(r), Reg(r))), r, error=UnsupportedError
    )
    h = local("h", "float16")
    s = Compute("nextafter", Reg(h), (Reg(h), Reg(h)))
    assert_rejects("nextafter of float16", s, h, error=UnsupportedError)


def test_rejects_wrong_arity_and_unknown_functions() -> None:
    r = local("r", "float32")
    assert_rejects("add of 1 operands is not in core", Compute("add", Reg(r), (Reg(r),)), r)
    assert_rejects("frobnicate of 1 operands", Compute("frobnicate", Reg(r), (Reg(r),)), r)


def test_rejects_shuffles_it_does_not_know() -> None:
    r = local("r", "float32")
    assert_rejects("shuffle mode 'left'; use one of", Shuffle(Reg(r), Reg(r), "left", Int(1)), r)


def test_rejects_registers_of_symbolic_size() -> None:
    r = Buffer("r", bool_, Var("n", 2), Memory.LOCAL)
    assert_rejects("buffer r in local memory has size n", Alloc(r))


def test_rejects_a_module_with_one_name_twice() -> None:
    k = elementwise("neg", float32, 9)
    with pytest.raises(UserError, match="different names, got neg_float32, neg_float32"):
        emit_module((k, k), TARGET)


def test_rejects_memory_that_no_kernel_allocates() -> None:
    x = glob("x", "float32")
    assert_rejects("global buffer x is allocated in a kernel", Alloc(x))


def test_rejects_statements_between_roles() -> None:
    r = local("r", "float32")
    s = Compute("copy", Reg(r), (Imm(0.0, float32),))
    assert_rejects("Compute stands directly in roles; only roles may", Roles((s,)), r)


def test_rejects_values_that_are_in_memory() -> None:
    x, r = glob("x", "float32"), local("r", "float32")
    s = Compute("neg", Reg(r), (Reg(x),))
    assert_rejects("x lives in global memory, not in registers", s, r, params=(x,))


def test_rejects_floats_as_indices() -> None:
    x, r = glob("x", "float32"), local("r", "float32")
    s = Load(Reg(r), x, RegVar(Reg(r), 0, 7))
    assert_rejects("of float32 stands in an index; only integers may", s, r, params=(x,))


def test_rejects_syncs_without_a_spelling() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, eq=False)
    class Nap(SyncStatement):
        """A sync that nothing spells."""

    assert_rejects("Nap has no CUDA spelling; an earlier pass must expand it", Nap(0, ""))
