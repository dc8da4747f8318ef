# ruff: noqa: E501  (kernel texts, one case a line)
"""KIR text: what is printed parses back, hand-written text is welcome, errors say where."""

from __future__ import annotations

import dataclasses
import random

import pytest

from fusewright.core import atoms, conditions, expr as ex
from fusewright.core.expr import Expr, Int, Var
from fusewright.dtypes import bfloat16, bool_, float32, int32, uint8
from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.ir import (
    Alloc,
    BlockSync,
    Buffer,
    Compute,
    Dim,
    For,
    Imm,
    Index,
    Kernel,
    Load,
    Reg,
    RegVar,
    Store,
    WarpSync,
)
from fusewright.kir.syntax import TEMPLATES, derive
from fusewright.kir.text import parse_kernel, print_kernel, print_statement
from fusewright.memory import Cache, Memory

CANONICAL = """kernel everything {
  symbol n in [2, 4096] multiple_of 8
  symbol m in [n, inf]
  param x: float32[128*n] align 16
  param y: bfloat16[128*n]
  argument alpha: float32
  grid (bx < n, by < 1 in [0, 7] multiple_of 4)
  block (tx < 128, ty < 2)
  min_blocks 2
  attribute "noalias" = "say \\"true\\""

  local r: float32[4]
  local p: int32[1]
  local b: bool[1]
  shared s: float32[128] align 16 offset 64 promote
  p[0] = copy(index(tx//2):int32)
  b[0] = copy(true:bool)
  given p[0] in [0, 63]: r[0..2] = load x[128*bx + 2*p[0]] if (tx < n && (bx < 3 || tx == 4)) else 0.0:float32 .streaming
  r[2] = load x[p[0]] else -inf:float32
  r[0..2] = load x[128*bx + tx] begins anywhere lanes 0..-tx + 3
  for (i < 4) unroll {
    for (j < i + 1) {
      r[i] = mul(r[j], alpha)
    }
  }
  for (k < n in [0, 4095]) {
    r[0] = where(b[0], r[1], 1e-07:float32) if (!(tx == k))
  }
  block_sync #3  // RAW smem s: store -> load
  warp_sync #7
  store s[(tx^(ty))] = r[0] .last_use
  if (tx < 4) {
    r[0] = shuffle.xor(r[1], 16) width 16
  } else {
    r[0] = thread_reduce.add(r[0]) over (tx, ty) identity nan:float32
  }
  store x[128*bx + tx] = r[0..2] if (tx < 64) .streaming
}
"""


def test_prints_to_the_same_bytes() -> None:
    text = CANONICAL.replace("(tx^(ty))", "(tx^ty)")
    once = print_kernel(parse_kernel(text))
    assert once.splitlines() == text.replace("(tx^ty)", "(tx^ty)").splitlines()
    assert str(parse_kernel(once)) == once


def test_hand_written_text_is_normalised() -> None:
    kernel = parse_kernel(
        """// a comment before everything
        kernel f { param x: float32[64] grid (bx<1) block (tx<32)
          local r: float32[1] // registers
          r[0]=load x[tx*2+tx*0 - (0)] if(tx>=1&&tx!=3)else 1:float32
          // alone
          store x[min(tx,31)] = r[0]
        }"""
    )
    load, store = kernel.body[1], kernel.body[2]
    assert isinstance(load, Load)
    assert str(load.index) == "2*tx"
    assert str(load.predicate) == "0 < tx && !(tx == 3)"
    assert load.fill is not None and load.fill.value == 1.0
    assert isinstance(store, Store) and str(store.index) == "tx"


def _header(**changes: object) -> Kernel:
    tx, bx = Var("tx", 0, 31), Var("bx", 0, 0)
    fields: dict[str, object] = {
        "name": "k",
        "params": (),
        "arguments": (),
        "symbols": (),
        "grid": (Dim(bx, Int(1)),),
        "block": (Dim(tx, Int(32)),),
        "body": (),
    }
    return Kernel(**(fields | changes))  # type: ignore[arg-type]


def test_symbols_that_share_a_name_are_told_apart() -> None:
    a, b = (Buffer("r", float32, Int(1), Memory.LOCAL) for _ in range(2))
    i, j = Var("i", 0, 3), Var("i", 0, 3)
    copy = Compute("copy", Reg(a), (Reg(b),))
    inner = For(j, Int(4), (Compute("copy", Reg(a), (Index(i * 8 + j, float32),)),))
    kernel = _header(body=(Alloc(a), Alloc(b), copy, For(i, Int(4), (inner,))))
    text = print_kernel(kernel)
    assert "local r: float32[1]\n  local r_1: float32[1]\n  r[0] = copy(r_1[0])" in text
    assert "for (i < 4) {\n    for (i_1 < 4) {\n      r[0] = copy(index(8*i + i_1):float32)" in text
    assert print_kernel(parse_kernel(text)) == text


def test_sibling_loops_share_a_name_and_keywords_are_avoided() -> None:
    r = Buffer("load", float32, Int(1), Memory.LOCAL)
    loops = tuple(
        For(v, Int(4), (Compute("copy", Reg(r), (Index(v, float32),)),))
        for v in (Var("i", 0, 3), Var("i", 0, 3))
    )
    text = print_kernel(_header(body=(Alloc(r), *loops)))
    assert text.count("for (i < 4)") == 2
    assert "load_1[0] = copy(index(i):float32)" in text
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize("name", ["inside", "begins", "lanes", "unroll", "in_words"])
def test_words_behind_a_statement_are_names_on_the_next_line(name: str) -> None:
    x = Buffer("x", float32, Int(8), Memory.GLOBAL)
    r = Buffer(name, float32, Int(1), Memory.LOCAL)
    some = ir.Lanes(first=Int(0), stop=Int(1))
    body = (Alloc(r), Load(Reg(r), x, Int(0), lanes=some), Compute("copy", Reg(r), (Reg(r),)))
    text = print_kernel(_header(params=(x,), body=body))
    assert f"{name}[0] = copy({name}[0])" in text
    assert print_kernel(parse_kernel(text)) == text


def test_renaming_keeps_loop_limits_that_mention_the_renamed() -> None:
    i = Var("bx", 0, 3)
    j = Var("j", 0, i)
    r = Buffer("r", float32, Int(4), Memory.LOCAL)
    inner = For(j, i + 1, (Compute("copy", Reg(r, j), (Imm(0.0, float32),)),))
    text = print_kernel(_header(body=(Alloc(r), For(i, Int(4), (inner,)))))
    assert "for (bx_1 < 4) {\n    for (j < bx_1 + 1) {\n" in text
    assert print_kernel(parse_kernel(text)) == text


def test_gathered_positions_keep_their_limits() -> None:
    p = Buffer("p", int32, Int(1), Memory.LOCAL)
    x = Buffer("x", uint8, Int(64), Memory.GLOBAL)
    r = Buffer("r", uint8, Int(1), Memory.LOCAL)
    one, two = (RegVar(Reg(p), 0, 31) for _ in range(2))
    load = Load(Reg(r), x, one + two, predicate=conditions.less(one, 12))
    text = print_kernel(_header(params=(x,), body=(Alloc(p), Alloc(r), load)))
    assert "given p[0] in [0, 31]: r[0] = load x[2*p[0]] if (p[0] < 12)" in text
    again = parse_kernel(text)
    assert print_kernel(again) == text
    (gathered,) = ex.variables(again.body[2].index)  # type: ignore[attr-defined]
    assert isinstance(gathered, RegVar) and gathered.interval == (0, 31)


def test_a_node_without_a_template_gets_one() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, eq=False)
    class NamedSync(ir.SyncStatement):
        barrier: int
        cache: Cache
        regs: tuple[Reg, ...] = ()

    globals()["ir"] = ir
    NamedSync.__annotations__ |= {"cache": Cache, "regs": tuple[Reg, ...], "barrier": int}
    template = derive(NamedSync)
    r = Buffer("r", float32, Int(4), Memory.LOCAL)
    node = NamedSync(4, "turn", 2, Cache.KEEP, (Reg(r), Reg(r, Int(1))))
    text = "".join(p.print(node) for p in template.pieces)
    assert text == "named_sync #4 barrier(2) cache(keep) regs((r[0], r[1]))  // turn"


def test_every_statement_has_a_template() -> None:
    classes = [c for c in vars(ir).values() if isinstance(c, type) and issubclass(c, ir.Statement)]
    abstract = {ir.Statement, ir.SyncStatement, ir.Guarded, ir.Exchange}
    assert set(classes) - abstract == set(TEMPLATES) - abstract


def test_literals_keep_their_values() -> None:
    r = Buffer("r", float32, Int(1), Memory.LOCAL)
    values = [0.1, -0.0, float("inf"), float("-inf"), 1e30, 5e-324, 3]
    body = tuple(Compute("copy", Reg(r), (Imm(v, float32),)) for v in values)
    kernel = parse_kernel(print_kernel(_header(body=(Alloc(r), *body))))
    got = [s.operands[0].value for s in kernel.body[1:]]  # type: ignore[attr-defined]
    assert list(map(repr, got)) == [repr(float(v)) for v in values]
    assert print_statement(Compute("copy", Reg(r), (Imm(True, bool_),))) == "r[0] = copy(true:bool)"
    assert print_statement(Compute("f", Reg(r), (Imm(-1, bfloat16),))) == "r[0] = f(-1.0:bfloat16)"


def test_why_becomes_one_line() -> None:
    assert print_statement(BlockSync(1, "two\n lines ")) == "block_sync #1  // two lines"
    kernel = parse_kernel(print_kernel(_header(body=(WarpSync(2, "a // b"), WarpSync(3, "")))))
    assert [s.why for s in kernel.body] == ["a // b", ""]  # type: ignore[attr-defined]


def _random_expr(rng: random.Random, variables: list[Var], depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([*variables, Int(rng.randint(-9, 40))])
    a, b = (_random_expr(rng, variables, depth - 1) for _ in range(2))
    match rng.randrange(8):
        case 0 | 1:
            return a + b
        case 2:
            return a - b
        case 3:
            return a * rng.choice([b, Int(rng.randint(-5, 64))])
        case 4:
            return a // rng.choice([2, 3, 4, 8, 32])
        case 5:
            return a % rng.choice([2, 3, 4, 8, 32, variables[-1]])
        case 6:
            return rng.choice([atoms.minimum, atoms.maximum])(a, b)
        case _:
            return atoms.xor(a % 16, b % 16)


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions_parse_back(seed: int) -> None:
    rng = random.Random(seed)
    tx, bx, n = Var("tx", 0, 31), Var("bx", 0, 3), Var("n", 2, None, 4)
    r = Buffer("r", int32, Int(1), Memory.LOCAL)
    body: list[ir.Statement] = [Alloc(r)]
    for _ in range(25):
        e, f = (_random_expr(rng, [tx, bx, n], 4) for _ in range(2))
        c = rng.choice([conditions.less, conditions.less_equal, conditions.equal])(e, f)
        d = rng.choice([conditions.any_of, conditions.all_of])(
            [conditions.negate(c), conditions.less(bx, f)]
        )
        body.append(Compute("copy", Reg(r), (Index(e, int32),), rng.choice([c, d])))
    kernel = _header(
        symbols=(n,), grid=(Dim(bx, Int(4)),), block=(Dim(tx, Int(32)),), body=tuple(body)
    )
    text = print_kernel(kernel)
    for a, b in zip(text.splitlines(), print_kernel(parse_kernel(text)).splitlines(), strict=True):
        assert a == b


BROKEN = [
    ("kernel", "line 1, column 7: expected the name of the kernel, found end of text"),
    ("kernel k { block (tx < 1) }", "expected 'grid (...)' in the header of the kernel, found '}'"),
    ("kernel k { grid (bx < 1) block (tx < 1) x }", "line 1, column 41: expected a statement"),
    ("kernel k { param x: f32[1] }", "column 21: expected a dtype (bool, int8"),
    ("kernel k { param x: float32[q] }", "a variable in scope (there is none), found 'q'"),
    ("kernel k { grid (bx < 2 block", "expected ',', found 'block'"),
    ("kernel k {\n  ? }", "line 2, column 3: unexpected character '?'"),
]
BROKEN_BODIES = [
    ("r[0] = load z[0]", "line 2, column 13: expected a buffer in scope (x, r), found 'z'"),
    ("r[0] = add(r[0], beta)", "a register, a literal or an argument (alpha), found 'beta'"),
    ("r[0] = add(r[0], 1.5:int32)", "column 18: 1.5 is not a value of int32"),
    ("r[0] = add(r[0], 1.5)", "expected ':', found ')'"),
    ("r[0..tx] = load x[0]", "a range of tx elements; give a constant number >= 1"),
    ("r[0] = load x[tx % 0]", "tx modulo 0: the modulus must be positive"),
    ("r[0] = load x[tx < 1]", "column 15: a condition, not a number"),
    ("r[0] = load x[0] if (tx)", "a number, not a condition"),
    ("r[0] = load x[0] .fast", "expected one of default, streaming"),
    (
        "for (i < 4) { r[0] = load x[i] }\nr[0] = load x[i]",
        "line 3, column 15: expected a variable",
    ),
    ("local x: float32[1]", "line 2, column 7: the name 'x' is taken; give every symbol its own"),
    ("block_sync 3", "expected '#', found '3'"),
    ("if (tx < 1) { r[0] = load x[0]", "expected a statement or '}', found end of text"),
    ("store x[0] = 1.0:float32", "expected a buffer, found '1.0'"),
    ("shared s: float32[64] tile 0 x 8", "a tile of 0 x 8 elements has none"),
    ("r[0] = load x[9223372036854775809*tx]", "is more than 64 bits of an index hold"),
    ("shared s: float32[64] tile 8 x -8", "a tile of 8 x -8 elements has none"),
]


def test_a_box_of_no_element_is_refused() -> None:
    text = "kernel k { param x: float32[64] map m: x sizes (8, 8) strides (1, 8) box (8, 0)"
    with pytest.raises(SpecError, match=r"a box of \(8, 0\) elements has none"):
        parse_kernel(text)


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_broken_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_kernel(text)
    assert message in str(error.value)


@pytest.mark.parametrize(("body", "message"), BROKEN_BODIES)
def test_broken_statements_are_refused(body: str, message: str) -> None:
    header = (
        "kernel k { param x: float32[64] argument alpha: float32 grid (bx < 1) block (tx < 32)"
        " local r: float32[4]\n"
    )
    with pytest.raises(SpecError) as error:
        parse_kernel(header + body + ("" if body.startswith("if") else "\n}"))
    assert message in str(error.value)
