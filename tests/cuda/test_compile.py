"""Emitted text compiles to cubins for every architecture, and its syncs reach the PTX."""

from __future__ import annotations

import dataclasses
import importlib
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from cuda_kernels import (
    casts_kernel,
    copy_kernel,
    elementwise,
    functions_kernel,
    reversed_kernel,
    warp_sum_kernel,
)

import fusewright.cuda.compile as compile_module
from fusewright.core.node import walk
from fusewright.cuda.compile import (
    Compiled,
    ModuleSource,
    bundle,
    compile_cubin,
    compiler_version,
)
from fusewright.cuda.emit import emit, emit_module, sync_ids_in_ptx
from fusewright.cuda.resources import resources
from fusewright.cuda.sass import sass
from fusewright.dtypes import ALL, bfloat16, float32, float64, int32, uint8
from fusewright.errors import InternalError, UserError
from fusewright.kir.ir import Cache, Kernel, SyncStatement
from fusewright.target import Target, target_of

pytest.importorskip("cuda.bindings.nvrtc")

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
SYNC_WORDS = re.compile(r"\b(bar|barrier|membar|fence|mbarrier)\.[a-z:.]+")


def modules(kernels: list[Kernel], arch: str, size: int = 16) -> list[ModuleSource]:
    parts = [kernels[k : k + size] for k in range(0, len(kernels), size)]
    return [ModuleSource(emit_module(p, target_of(arch)), f"m{k}") for k, p in enumerate(parts)]


def compiled_each(sources: list[ModuleSource], target: Target) -> list[Compiled]:
    """The modules compiled, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        made = (
            pool.submit(compile_cubin, s.text, target, name=s.name, contract=s.contract)
            for s in sources
        )
        return [m.result() for m in list(made)]


def all_kernels() -> list[Kernel]:
    functions = [functions_kernel(d, 1000) for d in ALL]
    casts = [casts_kernel(d, 1000) for d in ALL]
    loads = [copy_kernel(uint8, uint8, w, 4096, load=p) for w in (1, 2, 4, 8, 16) for p in Cache]
    stores = [
        copy_kernel(float32, bfloat16, w, 2048, store=p)
        for w in (1, 2, 4)
        for p in Cache
        if p not in (Cache.LAST_USE, Cache.NON_COHERENT)
    ]
    warps = [warp_sum_kernel(d) for d in ALL if d.kind != "bool"]
    return [*functions, *casts, *loads, *stores, *warps]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_function_cast_width_and_policy_compiles(arch: str) -> None:
    kernels = all_kernels()
    compiled = compiled_each(modules(kernels, arch), target_of(arch))
    found = {name: r for c in compiled for name, r in resources(c.log).items()}
    assert set(found) == {k.name for k in kernels}
    spilled = [n for n, r in found.items() if r.spill_loads or r.spill_stores]
    assert spilled == []
    assert {w for r in found.values() for w in r.warnings} == set()
    assert all(c.cubin[:4] == b"\x7fELF" for c in compiled)
    assert not any(SYNC_WORDS.search(c.ptx) for c in compiled)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_exactly_the_syncs_of_the_kernel_reach_the_ptx(arch: str) -> None:
    k = reversed_kernel()
    ptx = compile_cubin(emit(k, target_of(arch)), target_of(arch), name="reverse").ptx
    assert sync_ids_in_ptx(ptx) == {s.id for s in walk(k) if isinstance(s, SyncStatement)} == {7, 9}
    marked = [line for line in ptx.splitlines() if SYNC_WORDS.search(line)]
    assert len(marked) == 2 and all("// fw-sync" in line for line in marked)


def test_policies_and_widths_reach_the_ptx() -> None:
    target = target_of("sm_90a")
    k = copy_kernel(bfloat16, bfloat16, 8, 4096, load=Cache.NO_ALLOCATE, store=Cache.STREAMING)
    ptx = compile_cubin(emit(k, target), target, name="copy").ptx
    assert "ld.global.nc.L1::no_allocate.v4.u32" in ptx
    assert "st.global.cs.v4.u32" in ptx
    k = copy_kernel(float32, bfloat16, 4, 4096)
    ptx = compile_cubin(emit(k, target), target, name="copy").ptx
    assert re.search(r"ld\.global\S*\.v4\.", ptx) and "cvt.rn.bf16x2.f32" in ptx
    assert re.search(r"st\.global\.v2\.", ptx)


def test_products_and_sums_are_contracted_only_on_request() -> None:
    target = target_of("sm_90a")
    source = 'extern "C" __global__ void k(float* x) { x[0] = x[1] * x[2] + x[3]; }'
    assert "fma.rn" not in compile_cubin(source, target, name="k").ptx
    assert "fma.rn" in compile_cubin(source, target, name="k", contract=True).ptx


def test_functions_are_the_precise_ones() -> None:
    target = target_of("sm_90a")
    texts = [elementwise(fn, float32, 100) for fn in ("div", "sqrt")]
    ptx = compile_cubin(emit_module(texts, target), target, name="k").ptx
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx
    assert ".ftz" not in ptx and ".approx" not in ptx


def test_a_reciprocal_is_an_approximation_and_a_step_of_newton_without_a_branch() -> None:
    target = target_of("sm_90a")
    made = compile_cubin(emit(elementwise("reciprocal", float32, 128), target), target, name="k")
    assert "rcp.approx.f32" in made.ptx and made.ptx.count("fma.rn.f32") == 2
    assert ".ftz" not in made.ptx and "CALL" not in sass(made.cubin)


def test_resources_are_read_per_kernel() -> None:
    target = target_of("sm_90a")
    kernels = (elementwise("add", float64, 100), reversed_kernel())
    found = resources(compile_cubin(emit_module(kernels, target), target, name="m").log)
    assert list(found) and set(found) == {"add_float64", "reverse"}
    assert found["reverse"].barriers == 1 and found["add_float64"].barriers == 0
    assert all(4 <= r.registers <= 32 for r in found.values())
    assert all(r.stack_nbytes == 0 and r.spill_stores == 0 for r in found.values())


def test_resources_see_spills_and_stack() -> None:
    log = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    512 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 32 registers, used 2 barriers, 512 bytes cumulative stack size, 2064 bytes smem
ptxas warning : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"""
    r = resources(log)["k"]
    assert (r.registers, r.spill_stores, r.spill_loads, r.stack_nbytes) == (32, 24, 40, 512)
    assert (r.barriers, r.shared_nbytes, len(r.warnings)) == (2, 2064, 1)


def test_sass_shows_the_barrier() -> None:
    target = target_of("sm_90a")
    text = sass(compile_cubin(emit(reversed_kernel(), target), target, name="r").cubin)
    assert "BAR.SYNC" in text


def test_bundles_hold_sixteen_kernels_of_one_kind() -> None:
    target = target_of("sm_90a")
    kernels = [elementwise("add", float32, 100 + n) for n in range(20)]
    kernels = [dataclasses.replace(k, name=f"k{n}") for n, k in enumerate(kernels)]
    kernels[3] = dataclasses.replace(kernels[3], attributes=(("contract", "true"),))
    groups = bundle(kernels, target)
    assert [len(g) for _, g in groups] == [16, 3, 1]
    assert [s.contract for s, _ in groups] == [False, False, True]
    made = compiled_each([s for s, _ in groups], target)
    for compiled, (_, group) in zip(made, groups, strict=True):
        assert set(resources(compiled.log)) == {k.name for k in group}


def test_bundles_keep_kernels_of_one_name_apart() -> None:
    target = target_of("sm_90a")
    kernels = [elementwise("add", float32, 100 + n) for n in range(3)]
    kernels = [dataclasses.replace(k, name=n) for k, n in zip(kernels, "aba", strict=True)]
    groups = [members for _, members in bundle(kernels, target)]
    assert [[k.name for k in g] for g in groups] == [["a", "b"], ["a"]]
    assert {k for g in groups for k in g} == set(kernels)


def test_compiling_twice_gives_the_same_bytes() -> None:
    target = target_of("sm_90a")
    text = emit(elementwise("tanh", float32, 100), target)
    first, second = (compile_cubin(text, target, name="t") for _ in range(2))
    assert first.cubin == second.cubin


def test_an_empty_log_is_not_written_into_the_interpreter() -> None:
    """NVRTC writes into the object that it is given; one of a single byte is shared by a process,
    and an empty log is one zero."""
    given: list[bytes] = []
    fake = SimpleNamespace(
        nvrtcGetProgramLogSize=lambda program: (0, 1),
        nvrtcGetProgramLog=lambda program, out: (given.append(out) or 0,),
    )
    assert compile_module._bytes(fake, None, "ProgramLog") == b"\0"
    assert all(given[0] is not bytes([n]) for n in range(256))


def test_version_is_major_and_minor() -> None:
    assert re.fullmatch(r"1[3-9]\.\d+", compiler_version())


# --- rejections ---------------------------------------------------------------------------------


def test_text_that_does_not_compile_is_a_bug_with_its_log_and_source() -> None:
    with pytest.raises(InternalError, match=r"(?s)refused kernel module bad.*error.*1 int x ="):
        compile_cubin("int x = ;", target_of("sm_90a"), name="bad")


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"needs NVRTC .*pip install 'fusewright\[cuda\]'"):
        compile_cubin("", target_of("sm_90a"), name="k")
    with pytest.raises(UserError, match=r"pip install 'fusewright\[sass\]'"):
        sass(b"")


def test_bytes_that_are_no_cubin_are_refused() -> None:
    with pytest.raises(InternalError, match="nvdisasm failed"):
        sass(b"not a cubin")


def test_integer_arithmetic_is_spelled_without_calls() -> None:
    target = target_of("sm_80")
    ptx = compile_cubin(emit(elementwise("floordiv", int32, 100), target), target, name="k").ptx
    assert "call" not in ptx
