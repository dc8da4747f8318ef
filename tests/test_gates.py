"""Each gate of the corpus passes what is right and stops what is not."""

from __future__ import annotations

import dataclasses
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

import fusewright as fw
from fusewright.corpus import CORPUS
from fusewright.gates.code import code_problems
from fusewright.gates.traffic import EXEMPT, LIMITS, Exempt, Limits, excesses, traffic_problems
from fusewright.kir.text import parse_kernel
from fusewright.sim.traffic import Traffic, traffic


@cache
def _sum_of_rows() -> fw.Kernel:
    spec = fw.TensorSpec((64, 4096), "float32")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.sum(x, axis=1), spec)).kernels
    return kernel


@cache
def _listing(kernel: fw.Kernel) -> str:
    return kernel.sass()


class Altered:
    """A kernel whose compiler made something else of it."""

    def __init__(self, kernel: fw.Kernel, **parts: Any) -> None:
        self.ir, self.name, self.syncs = kernel.ir, kernel.name, kernel.syncs
        found = dataclasses.replace(kernel.resources(), **parts.get("resources", {}))
        listing = parts.get("sass", "") + "\n" + _listing(kernel)
        for old, new in parts.get("instead", {}).items():
            assert old in listing, listing
            listing = listing.replace(old, new)
        text = kernel.ptx().replace(*parts.get("ptx", ("", "")))
        self.resources, self.sass, self.ptx = lambda: found, lambda: listing, lambda: text


def _instruction(text: str) -> str:
    return f"\n        /*fff0*/  {text} ;"


def test_a_right_kernel_passes() -> None:
    kernel = _sum_of_rows()
    assert kernel.syncs
    assert code_problems(kernel) == []
    assert traffic_problems("sum", kernel) == []


LOOP = (
    _instruction("NOP")
    + "\n.L_x_900:"
    + _instruction("I2F.U32.RP R0, R5")
    + _instruction("@P0 BRA `(.L_x_900)")
)

CASES: list[tuple[dict[str, Any], str]] = [
    ({"resources": {"spill_stores": 8, "spill_loads": 4}}, "spills 12 bytes of registers"),
    ({"resources": {"stack_nbytes": 16}}, "has a stack frame of 16 bytes"),
    ({"resources": {"warnings": ("warning: x",)}}, "was compiled with a warning: warning: x"),
    ({"sass": _instruction("STL [R1], R0")}, "accesses local memory in 1 instructions"),
    (
        {"instead": {"LDG.E.128": "LDG.E.64"}},
        "should read 16 bytes at once, but its widest access to global memory has 8",
    ),
    (
        {"sass": _instruction("STG.E.U16 desc[UR4][R2.64], R5")},
        "writes 2 bytes of global memory at once, and its schedule nothing narrower than 4",
    ),
    (
        {
            "sass": _instruction("HGMMA.64x8x16.F32.BF16 R24, gdesc[UR16], R24, gsb0")
            + _instruction("FADD R24, R24, R24")
            + _instruction("WARPGROUP.DEPBAR.LE gsb0, 0x0")
        },
        "touches accumulators in 1 instructions before the wait for their product",
    ),
    ({"sass": LOOP}, "divides integers 1 times in innermost loops"),
    ({"ptx": ("fw-sync 0", "")}, "lost the syncs #0 on the way to PTX"),
    ({"ptx": ("fw-sync 0", "fw-sync 0 // fw-sync 7")}, "has syncs #7 in its PTX that are not"),
]


@pytest.mark.parametrize(("parts", "message"), CASES, ids=[m[:24] for _, m in CASES])
def test_wrong_code_is_stopped(parts: dict[str, Any], message: str) -> None:
    found = code_problems(Altered(_sum_of_rows(), **parts))  # type: ignore[arg-type]
    assert any(message in p for p in found), found


def test_a_division_that_the_program_asks_for_passes() -> None:
    spec = fw.TensorSpec((64, 4096), "int32")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.sum(x // 7, axis=1), spec)).kernels
    assert code_problems(Altered(kernel, sass=LOOP)) == []  # type: ignore[arg-type]


# --- traffic ------------------------------------------------------------------------------------


def _kernel(load: str, store: str, *, shared: str = "") -> Any:
    return parse_kernel(
        f"""kernel k {{
        param x: float32[65536] align 16
        param y: float32[65536] align 16
        grid (bx < 8)
        block (tx < 128)
        local r: float32[4] align 16
        {shared}
        {load}
        {store}
        }}"""
    )


STRAIGHT = ("r[0..4] = load x[512*bx + 4*tx]", "store y[512*bx + 4*tx] = r[0..4]")
SHARED = "shared s: float32[4096] align 16\nr[1] = copy(0.0:float32)\n"


@pytest.mark.parametrize(
    ("kernel", "sectors", "wavefronts", "nbytes"),
    [
        (_kernel(*STRAIGHT), 1, 0, 1),
        (_kernel("r[0] = load x[128*bx + tx]", "store y[128*bx + tx] = r[0]"), 1, 0, 1),
        (_kernel("r[0] = load x[1024*bx + 8*tx]", "store y[1024*bx + 8*tx] = r[0]"), 8, 0, 1),
        (_kernel("r[0] = load x[128*bx + tx + 1]", "store y[128*bx + tx + 1] = r[0]"), 1.25, 0, 1),
        (_kernel("r[0] = load x[0]", "store y[128*bx + tx] = r[0]"), 1, 0, 1),
        (
            _kernel(*STRAIGHT, shared=SHARED + "store s[tx] = r[1]\nr[2] = load s[127 - tx]"),
            1,
            1,
            1,
        ),
        (_kernel(*STRAIGHT, shared=SHARED + "store s[32*tx] = r[1]"), 1, 32, 1),
        (_kernel(*STRAIGHT, shared=SHARED + "store s[2*tx] = r[1]"), 1, 2, 1),
    ],
)
def test_traffic_of_patterns(kernel: Any, sectors: float, wavefronts: float, nbytes: float) -> None:
    found = traffic(kernel, {})
    assert found.sector_ratio == pytest.approx(sectors)
    assert found.wavefront_ratio == pytest.approx(wavefronts)
    assert found.byte_ratio == pytest.approx(nbytes)


def test_reading_twice_counts_twice() -> None:
    body = "r[0..4] = load x[512*bx + 4*tx]\nr[0..4] = load x[512*bx + 4*tx]"
    kernel = parse_kernel(
        f"""kernel k {{
        param x: float32[4096] align 16
        param y: float32[1] align 4
        grid (bx < 8)
        block (tx < 128)
        local r: float32[4] align 16
        {body}
        store y[0] = r[0] if (tx == 0 && bx == 0)
        }}"""
    )
    assert traffic(kernel, {}).byte_ratio == 2


def test_more_than_the_limit_is_told() -> None:
    found = Traffic(80, 10, 12, 10, 3_000_000, 1_000_000)
    assert excesses(found, Limits(sectors=8, wavefronts=1.2, nbytes=3)) == []
    assert excesses(found, Limits()) == [
        "moves 80 sectors of global memory, 8.00 times the least possible; its limit is 1.25",
        "moves 3,000,000 bytes of its large arrays, 3.00 times the least possible; its limit is "
        "1.1",
    ]
    assert (
        "12 wavefronts of shared memory, 1.20 times" in excesses(found, Limits(wavefronts=1.1))[1]
    )


def test_a_kernel_with_conflicts_is_stopped() -> None:
    bad = _kernel(*STRAIGHT, shared=SHARED + "store s[32*tx] = r[1]")
    kernel = SimpleNamespace(
        ir=bad, name="k", heuristic=SimpleNamespace(scheduler="rows"), arguments=dict, parts=()
    )
    (problem,) = traffic_problems("none", kernel)  # type: ignore[arg-type]
    assert problem.startswith("kernel k (rows) moves") and "wavefronts of shared memory" in problem


def test_an_exemption_changes_what_it_names() -> None:
    limits = Exempt("because", nbytes=9).of(LIMITS["pointwise"])
    assert limits == dataclasses.replace(LIMITS["pointwise"], nbytes=9)


def test_exemptions_are_needed() -> None:
    """Each names a fusion of the corpus that breaks the usual limits, and says why."""
    entries = {e.name: e for e in CORPUS}
    for name, exempt in EXEMPT.items():
        entry = entries[name]
        kernels = fw.compile(fw.trace(entry.fn, *entry.specs)).kernels
        found = [
            e
            for k in kernels
            if k.heuristic is not None
            for e in excesses(
                traffic(k.ir, k.arguments()), LIMITS.get(k.heuristic.scheduler, Limits())
            )
        ]
        assert found and len(exempt.reason) > 20, name


@pytest.mark.parametrize("entry", CORPUS, ids=lambda e: e.name)
def test_traffic_of_the_corpus(entry: Any) -> None:
    kernels = fw.compile(fw.trace(entry.fn, *entry.specs)).kernels
    assert [p for k in kernels for p in traffic_problems(entry.name, k)] == []
