"""Asynchronous copies, barriers and roles as PTX: every sync reaches it, old targets refuse."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import SUITE, Case, packed

from fusewright.core.node import walk
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit, emit_module, sync_ids_in_ptx
from fusewright.dtypes import bfloat16, dtype_of
from fusewright.errors import UnsupportedError
from fusewright.kir import ir
from fusewright.kir.asynchronous import BULK_REDUCTIONS
from fusewright.kir.passes.elect_issuers import elect_issuers
from fusewright.kir.text import parse_kernel
from fusewright.target import target_of

HOPPER, AMPERE = target_of("sm_90a"), target_of("sm_80")


def named(name: str) -> ir.Kernel:
    return elect_issuers(packed(next(c for c in SUITE if c.name == name).kernel()))


def ids(kernel: ir.Kernel) -> set[int]:
    return {n.id for n in walk(kernel) if isinstance(n, ir.SyncStatement)}


def test_every_kernel_of_the_suite_compiles_with_all_its_syncs() -> None:
    cases = [c for c in SUITE if not c.wrong]
    kernels = [dataclasses.replace(packed(c.kernel()), name=c.name) for c in cases]
    compiled = compile_cubin(emit_module(kernels, HOPPER), HOPPER, name="suite")
    parts = compiled.ptx.split(".visible .entry ")[1:]
    assert len(parts) == len(kernels)
    for part in parts:
        name = part.split("(")[0].strip()
        kernel = next(k for k in kernels if k.name == name)
        assert sync_ids_in_ptx(part) == ids(kernel), name


@pytest.mark.parametrize("name", ["copy_ring", "copy_zero_fill", "named", "split_barrier"])
def test_what_ampere_has_compiles_for_it(name: str) -> None:
    kernel = named(name)
    ptx = compile_cubin(emit(kernel, AMPERE), AMPERE, name=name).ptx
    assert sync_ids_in_ptx(ptx) == ids(kernel)


@pytest.mark.parametrize(
    ("name", "node"),
    [("bulk_once", "MbarInit"), ("store", "ProxyFence"), ("ring", "MbarInit")],
)
def test_ampere_has_no_bulk_copies(name: str, node: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{node} needs compute capability 9.0, which sm_80"):
        emit(named(name), AMPERE)


INSTRUCTIONS: list[tuple[str, str]] = [
    ("copy", "cp.async.ca.shared.global [%0], [%1], 4;"),
    ("copy_zero_fill", "cp.async.cg.shared.global [%0], [%1], 16, %2;"),
    ("copy_zero_fill", '"r"((unsigned)((tx < 50) ? 16 : 0))'),
    ("copy", "cp.async.commit_group; // fw-sync 0"),
    ("copy_ring", "cp.async.wait_group 1; // fw-sync 1"),
    ("named", "bar.sync 2, 64; // fw-sync 0"),
    ("named", "bar.arrive 1, 64; // fw-sync 1"),
    ("ring", "mbarrier.init.shared::cta.b64 [%0], 4; // fw-sync 1"),
    ("ring", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512; // fw-sync 8"),
    ("ring", "mbarrier.arrive.shared::cta.b64 _, [%0]; // fw-sync 6"),
    ("ring", "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"),
    ("ring", "const bool leads = fw_elected() && (tx >> 5) == 4;"),
    ("ring", "if (leads) {"),
    ("ring", "if (127 < tx) {"),
    ("ring", "if ((tx & 31) == 0) {"),
    ("store", "fence.proxy.async.shared::cta; // fw-sync 0"),
    ("store", "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"),
    ("store", "cp.async.bulk.wait_group.read 0; // fw-sync 3"),
    ("reduce", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;"),
]


@pytest.mark.parametrize(("name", "text"), INSTRUCTIONS)
def test_instructions(name: str, text: str) -> None:
    assert text in emit(named(name), HOPPER)


def test_every_bulk_reduction_compiles() -> None:
    kernels: list[ir.Kernel] = []
    for fn, names in BULK_REDUCTIONS.items():
        for name in names:
            dtype = dtype_of(name)
            text = f"""kernel {fn}_{name} {{
  param y: {dtype}[256] align 16
  grid (bx < 1)
  block (tx < 32)
  shared s: {dtype}[256] align 16 offset 0
  bulk_reduce.{fn} y[0] = s[0] size 16 by thread 0
}}"""
            kernels.append(parse_kernel(text))
    ptx = compile_cubin(emit_module(kernels, HOPPER), HOPPER, name="reductions").ptx
    assert ptx.count("cp.reduce.async.bulk") == len(kernels)
    assert "add.noftz.bf16" in ptx and bfloat16.name in BULK_REDUCTIONS["add"]


def test_an_unrolled_wait_has_labels_of_its_own() -> None:
    kernel = named("bulk_once")
    wait = next(n for n in walk(kernel) if isinstance(n, ir.MbarWait))
    twice = dataclasses.replace(
        kernel,
        body=(*kernel.body, dataclasses.replace(wait, id=9), dataclasses.replace(wait, id=10)),
    )
    ptx = compile_cubin(emit(twice, HOPPER), HOPPER, name="twice").ptx
    assert ptx.count("mbarrier.try_wait") == 3


def test_suite_names_are_unique() -> None:
    assert len({c.name for c in SUITE}) == len(SUITE)
    assert all(isinstance(c, Case) for c in SUITE)
