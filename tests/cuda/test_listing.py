"""Disassemblies: widths, loops by their jumps, divisions, against written listings and compiled
kernels."""

from __future__ import annotations

import pytest

import fusewright as fw
from fusewright.cuda.listing import (
    divisions,
    global_widths,
    innermost_loops,
    instructions,
    local_accesses,
)


def _listing(*lines: str) -> str:
    """Lines as nvdisasm prints them: labels end in a colon, all else is an instruction."""
    out: list[str] = []
    for i, line in enumerate(lines):
        out.append(line if line.endswith(":") else f"        /*{16 * i:04x}*/  {line} ;")
    return "\n".join(out)


NESTED = _listing(
    "S2R R0, SR_TID.X",
    ".L_x_1:",
    "MOV R1, RZ",
    ".L_x_2:",
    "FADD R1, R1, R2",
    "@!P0 BRA `(.L_x_2)",
    "FMUL R1, R1, R3",
    "@P1 BRA `(.L_x_1)",
    "EXIT",
    ".L_x_3:",
    "BRA `(.L_x_3)",
)


def _operations(text: str) -> list[list[str]]:
    return [[i.operation for i in loop] for loop in innermost_loops(instructions(text))]


def test_an_instruction_is_read_in_parts() -> None:
    (load,) = instructions(_listing(".L_x_7:", "@!P0 LDG.E.128.CONSTANT R4, desc[UR6][R2.64+0x10]"))
    assert load.labels == (".L_x_7",) and load.guard == "!P0"
    assert str(load) == "LDG.E.128.CONSTANT" and load.target == ""


def test_only_loops_without_another_are_innermost() -> None:
    assert _operations(NESTED) == [["FADD", "BRA"]]


def test_a_jump_back_into_the_middle_is_no_loop() -> None:
    """Work placed out of line jumps back behind where it came from."""
    text = _listing(
        "BRA.DIV UR4, `(.L_x_1)",
        "SHFL.BFLY PT, R2, R8, 0x1, 0x1f",
        ".L_x_0:",
        "I2F.U32.RP R1, R2",
        "EXIT",
        ".L_x_1:",
        "WARPSYNC.COLLECTIVE R7, `(.L_x_2)",
        ".L_x_2:",
        "SHFL.BFLY P6, R5, R8, R10, R9",
        "BRA `(.L_x_0)",
    )
    assert _operations(text) == []


def test_two_jumps_to_one_head_are_one_loop() -> None:
    text = _listing(
        "MOV R0, RZ",
        ".L_x_0:",
        "FADD R1, R1, R2",
        "@P0 BRA `(.L_x_0)",
        "FMUL R1, R1, R2",
        "@P1 BRA `(.L_x_0)",
        "EXIT",
    )
    assert _operations(text) == [["FADD", "BRA", "FMUL", "BRA"]]


def test_widths() -> None:
    code = instructions(
        _listing(
            "LDG.E.128 R4, desc[UR6][R2.64]",
            "LDG.E.64.CONSTANT R4, desc[UR6][R2.64]",
            "LDG.E.U16 R4, desc[UR6][R2.64]",
            "STG.E.64 desc[UR4][R2.64], R6",
            "STG.E.U8 desc[UR4][R2.64], R5",
            "LDS.128 R8, [R9]",
            "ST.E desc[UR4][R2.64], R5",
            "LDL R3, [R1]",
            "STL.64 [R1+0x8], R4",
        )
    )
    assert global_widths(code, "read") == {16: 1, 8: 1, 2: 1}
    assert global_widths(code, "write") == {8: 1, 1: 1}
    assert local_accesses(code) == 2


def test_divisions() -> None:
    code = instructions(
        _listing(
            "I2F.U32.RP R0, R5",
            "I2F.S64 R0, R2",
            "I2FP.F32.S32 R0, R2",
            "CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_u64)",
            "CALL.REL.NOINC `($__internal_1_$__cuda_sm20_dsqrt_rn_f64)",
        )
    )
    assert divisions(code) == 2


@pytest.mark.parametrize(("columns", "widths"), [(1024, {16}), (1023, {16})])
def test_a_compiled_kernel(columns: int, widths: set[int]) -> None:
    spec = fw.TensorSpec((4096, columns), "float32")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.sum(x, axis=1), spec)).kernels
    code = instructions(kernel.sass())
    assert set(global_widths(code, "read")) == widths and local_accesses(code) == 0


@pytest.mark.parametrize("rows", [4096, 4099])
def test_memory_that_begins_anywhere_is_read_as_global(rows: int) -> None:
    """An address that is made of an integer is a generic one."""
    spec = fw.TensorSpec((rows, 513), "bfloat16", alignment=2)
    (kernel,) = fw.compile(fw.trace(lambda x: x * 2.0, spec)).kernels
    assert "fw_load_anywhere" in kernel.cuda
    operations = {i.operation for i in instructions(kernel.sass())}
    assert "LDG" in operations and "LD" not in operations


def test_a_long_row_is_read_in_a_loop() -> None:
    spec = fw.TensorSpec((64, 1 << 20), "float32")
    kernel = fw.compile(fw.trace(lambda x: fw.sum(x, axis=1), spec)).kernels[0]
    loops = innermost_loops(instructions(kernel.sass()))
    assert any("LDG" in [i.operation for i in loop] for loop in loops)
