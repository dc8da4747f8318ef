"""Divisions that several statements need have a name, in the innermost place that has them all."""

from __future__ import annotations

import re

from cuda_kernels import dims, glob, kernel, local

import fusewright as fw
from fusewright.core.conditions import Cond, less
from fusewright.core.expr import Expr, Int, Var
from fusewright.cuda.emit import emit
from fusewright.cuda.shared_divisions import shared_divisions
from fusewright.kir.ir import Alloc, For, If, Kernel, Load, Reg, RegVar, Role, Roles, Store
from fusewright.target import target_of

TARGET = target_of("sm_90a")
SHAPE = dims(grid=64)
BX, TX = SHAPE["grid"][0].var, SHAPE["block"][0].var
X, Y = glob("x", "float32", 1 << 20), glob("y", "float32", 1 << 20)
R = local("r", "float32")
AT = BX * 128 + TX
ROW, COLUMN = AT // 12, AT % 12


def read(index: Expr, where: Cond) -> Load:
    return Load(Reg(R), X, index, 1, predicate=where)


def made(*body) -> Kernel:
    return kernel("moves", (X, Y), (Alloc(R), *body), **SHAPE)


def divisions(k: Kernel) -> tuple[int, int]:
    """How often the text divides, and how many names it gives."""
    text = emit(k, TARGET).split("__global__")[1]
    return len(re.findall(r"fw_(?:over|rest)<", text)), len(re.findall(r"const int \w+_bx", text))


def test_users_behind_conditions_share_a_name() -> None:
    k = made(read(ROW, less(COLUMN, 11)), read(ROW + 1, less(COLUMN, 10)))
    assert divisions(k) == (2, 2)
    text = emit(k, TARGET)
    assert text.index("part_bx =") < text.index("if (")
    assert "x[part_bx + 1]" in text and "if (rest_bx < 10)" in text


def test_one_user_keeps_its_division() -> None:
    assert divisions(made(read(ROW, less(COLUMN, 11)))) == (2, 0)


def test_what_one_branch_needs_is_computed_in_it() -> None:
    inside = If(less(TX, 5), (read(ROW, less(0, TX)), read(ROW + 1, less(1, TX))), ())
    k = made(inside)
    assert shared_divisions(k) == {inside.then[0]: (ROW,)}
    text = emit(k, TARGET)
    assert text.index("if (tx < 5)") < text.index("part_bx =")


def test_both_branches_of_one_statement_are_two_users() -> None:
    choice = If(less(TX, 5), (read(ROW, less(0, TX)),), (read(ROW + 1, less(1, TX)),))
    assert shared_divisions(made(choice)) == {choice: (ROW,)}


def test_what_a_loop_moves_is_computed_in_the_loop() -> None:
    v = Var("v", 0, 3)
    moving, fixed = (AT + v * 7) // 12, AT // 20
    body = (read(moving + fixed, less(TX, 5)), read(moving + fixed + 1, less(TX, 9)))
    loop = For(v, Int(4), body)
    k = made(loop, read(fixed, less(TX, 3)))
    assert shared_divisions(k) == {loop: (fixed,), body[0]: (moving,)}


def test_divisions_inside_of_others_come_first() -> None:
    digit = ROW // 5 % 7
    k = made(read(digit + ROW, less(TX, 5)), read(digit + ROW + 1, less(TX, 9)))
    names = re.findall(r"const int (\w+) = (.*);", emit(k, TARGET))
    for n, (name, _) in enumerate(names):
        assert all(name not in value for _, value in names[: n + 1])


def test_registers_and_powers_of_two_stay_where_they_are() -> None:
    at = RegVar(Reg(local("at", "int32")), 0, 1000)
    k = made(read(at // 12 + AT // 16, less(TX, 5)), read(at // 12 + AT // 16, less(TX, 9)))
    assert shared_divisions(k) == {}


def test_roles_share_nothing() -> None:
    first = Role(0, 2, (read(ROW, less(TX, 5)),))
    second = Role(2, 4, (read(ROW + 1, less(TX, 9)),))
    assert shared_divisions(made(Roles((first, second)))) == {}


def test_a_store_behind_every_lane_of_a_ragged_row_divides_once() -> None:
    program = fw.compile(
        fw.trace(lambda x: fw.pad(x, ((7, 6), (7, 2))), fw.TensorSpec((4096, 80), "bfloat16"))
    )
    (k,) = program.kernels
    body = k.cuda.split("__global__")[1]
    assert body.count("fw_over<12>(") == 1 and body.count("fw_rest<12>(") == 1


def test_the_same_statement_in_two_scopes_is_named_in_both() -> None:
    pair = (read(ROW, less(0, TX)), read(ROW + 1, less(1, TX)))
    k = made(If(less(TX, 5), pair, ()), Store(Y, AT, Reg(R), 1), If(less(5, TX), pair, ()))
    text = emit(k, TARGET)
    assert text.count("const int part_bx = ") == 1 and text.index("part_bx =") < text.index("if (")
