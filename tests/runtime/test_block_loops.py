"""Loops of several kernels, and loops that end when the device says so, in one block.

Values are compared by the oracle, the simulator with races, and the driver; each sync is shown to
be needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu as gpu
from test_control_flow import S, draw, numbers as numbers, witnessed

import fusewright as fw
from fusewright.core.expr import variables
from fusewright.errors import SpecError
from fusewright.host import whole_block
from fusewright.kir.analysis.uniformity import agreed_registers
from fusewright.kir.ir import For, Kernel, Load, RegVar
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import map_statements, walk_statements
from fusewright.programs import whole_loops
from fusewright.sim import machine


def agreed(gpu: FakeDriver, fn: Callable[..., Any], *arrays: Any) -> fw.Program:
    """The program of a function that is a loop in one launch of one block, and computes what the
    oracle does."""
    given = [np.asarray(a) for a in arrays]
    fusion = fw.trace(fn, *(S(a.shape, a.dtype.name) for a in given))
    p = witnessed(gpu, fusion, fw.evaluate(fusion, *given), *given)
    assert all(x.region is None for x in p.launches)
    assert any("one block does the work of all blocks" in r.rule for r in p.reasons), p.reasons
    return p


def loop_of(p: fw.Program) -> For:
    """The loop over the iterations in the last kernel."""
    (loop,) = [s for s in p.kernels[-1].ir.body if isinstance(s, For) and s.var.name == "lap"]
    return loop


def counted(x: Any) -> Any:
    return fw.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 0.5 + 1), (0, x))


def summed(x: Any) -> Any:
    return fw.while_loop(lambda v: fw.sum(fw.abs(v)) > 1, lambda v: v / 2, x)


def turned(x: Any) -> Any:
    return fw.while_loop(
        lambda s: (fw.max(s[1]) > 0.1) & (s[0] < 20),
        lambda s: (s[0] + 1, fw.roll(s[1], 1) * 0.5 + s[1] * 0.25),
        (0, x),
    )


def exchanged(x: Any) -> Any:
    """Values that take each other's place, of which an iteration reads one old and one new."""
    return fw.while_loop(
        lambda s: fw.max(fw.abs(s[0] - s[1])) > 1e-2,
        lambda s: (s[1], fw.tanh(s[0] * 0.25 + s[1] * 0.25)),
        (x, x * 2),
    )


def never(x: Any) -> Any:
    return fw.while_loop(lambda v: fw.sum(v) > 1e9, lambda v: fw.roll(v, 1) * 0.5, x)


@pytest.mark.parametrize("shape", [(1,), (7,), (130,), (5, 13), (33, 67), (3, 4, 5)])
@pytest.mark.parametrize("f", [counted, summed, turned, exchanged, never])
def test_loops_that_the_device_ends(
    gpu: FakeDriver, f: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    p = agreed(gpu, f, draw(*shape))
    assert loop_of(p).is_open and p.host.launches[-1].role == "kernel"


def test_newtons_method_reads_what_does_not_change(gpu: FakeDriver) -> None:
    def f(x: Any) -> Any:
        return fw.while_loop(
            lambda s: fw.any(fw.abs(s * s - x) > 1e-3), lambda s: 0.5 * (s + x / s), x
        )

    p = agreed(gpu, f, abs(draw(1000)) + 0.1)
    assert len(p.launches) == 1 and p.host.stats["copies"] == 0


@pytest.mark.parametrize(("a", "b"), [(1071, 462), (5, 0), (13, 8)])
def test_numbers_alone(gpu: FakeDriver, a: int, b: int) -> None:
    def f(a: Any, b: Any) -> Any:
        return fw.while_loop(lambda s: s[1] != 0, lambda s: (s[1], s[0] % s[1]), (a, b))[0]

    p = agreed(gpu, f, np.int32(a), np.int32(b))
    assert int(p.simulate(np.int32(a), np.int32(b)).outputs[0]) == np.gcd(a, b)


def test_a_bound_on_the_device(gpu: FakeDriver) -> None:
    def f(x: Any, n: Any) -> Any:
        return fw.fori_loop(0, n, lambda i, v: v * 0.5 + fw.astype(i, "float32"), x)

    agreed(gpu, f, draw(9), np.array(4, np.int32))


@pytest.mark.parametrize("reverse", [False, True])
def test_several_kernels_an_iteration(gpu: FakeDriver, reverse: bool) -> None:
    """One reads rows that another one makes, also where it stacks them."""

    def f(h: Any, xs: Any, w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            z = fw.tanh(h @ w + x)
            return fw.roll(z, 1, axis=1) * 0.5, (z, z * 2)

        return fw.scan(step, h, xs, reverse=reverse)

    p = agreed(gpu, f, draw(4, 8), draw(5, 4, 8), draw(8, 8))
    assert "kernels in one launch" in str(p.reasons) and str(loop_of(p).extent) == "5"


def cases() -> list[tuple[Callable[[Any], Any], np.ndarray]]:
    rng = np.random.default_rng(3)
    return [(f, rng.normal(size=s).astype("f4")) for f in (summed, turned) for s in ((130,), (65,))]


@pytest.mark.parametrize(("f", "x"), cases())
def test_every_sync_is_needed(f: Callable[[Any], Any], x: np.ndarray) -> None:
    p = fw.compile(fw.trace(f, S(x.shape, "float32")))
    found = fw.verify(p, x)
    assert found.ok and len(found.necessary) >= 3, str(found)


@pytest.mark.parametrize("place", ["now", "after"])
def test_both_places_are_needed(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Where an iteration writes over what it reads, or a condition reads what was there before, the
    simulator says so, or values are wrong."""
    made = whole_block._Writer._stage

    def stage(self: Any, kernel: Kernel, now: Any, after: Any) -> Any:
        return made(self, kernel, *((now, now) if place == "now" else (after, after)))

    monkeypatch.setattr(whole_block._Writer, "_stage", stage)
    monkeypatch.setattr(machine, "MOST_TRIPS", 50)
    x = draw(300)
    fusion = fw.trace(turned, S((300,), "float32"))
    found = fw.compile(fusion).simulate(x)
    wanted = fw.evaluate(fusion, x)
    same = all(np.allclose(a, b, atol=1e-5) for a, b in zip(found.outputs, wanted, strict=True))
    assert found.races or not same


def test_a_loop_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MOST_TRIPS", 50)
    p = fw.compile(fw.trace(lambda x: fw.while_loop(lambda v: fw.sum(v) > 0, fw.exp, x), "f32[5]"))
    with pytest.raises(fw.UserError, match="a loop has run 50 iterations in the simulator"):
        p.simulate(np.ones(5, np.float32))


def test_files_have_the_loop(tmp_path: Path) -> None:
    x = draw(33)
    p = fw.compile(fw.trace(turned, S((33,), "float32")))
    assert loop_of(p).is_open
    p.save(tmp_path / "loop.fw")
    again = fw.load(tmp_path / "loop.fw")
    for a, b in zip(again.simulate(x).outputs, p.simulate(x).outputs, strict=True):
        assert np.array_equal(a, b)


def test_text_has_the_loop() -> None:
    p = fw.compile(fw.trace(turned, S((33,), "float32")))
    ir = p.kernels[-1].ir
    assert print_kernel(parse_kernel(print_kernel(ir))) == print_kernel(ir)
    assert "for (lap < limit[0] in" in print_kernel(ir)
    assert p.kernels[-1].cubin


def test_a_limit_that_threads_do_not_share_is_refused() -> None:
    """The limit is read from one place; at a place for each thread the spec refuses it."""
    ir = fw.compile(fw.trace(summed, S((130,), "float32"))).kernels[-1].ir
    (loop,) = [s for s in walk_statements(ir) if isinstance(s, For) and s.is_open]
    (v,) = variables(loop.extent)
    assert isinstance(v, RegVar)
    limit = v.reg.buffer
    assert limit in agreed_registers(ir)
    thread = ir.block[0].var

    def apart(s: Any) -> Any:
        is_asked = isinstance(s, Load) and s.src.name == "goes_on"
        return replace(s, index=thread) if is_asked else s

    changed = map_statements(ir, apart)
    assert limit not in agreed_registers(changed)
    with pytest.raises(SpecError, match="all threads of a block run the same trips"):
        check_kernel(changed, "lowered")


def test_why_iterations_are_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(fn: Callable[..., Any], why: str, *specs: Any) -> None:
        p = fw.compile(fw.trace(fn, *specs))
        assert any(x.region is not None for x in p.launches)
        assert any(why in r.rule for r in p.reasons), p.reasons

    launched(summed, "one multiprocessor would take longer", "f32[640,640]")
    launched(summed, "its blocks are as many as a call says", S(("n",), "float32"))
    launched(
        lambda m, v: fw.while_loop(
            lambda s: fw.sum(s) > 1, lambda s: fw.nn.softmax(m @ s) * fw.max(s), v
        ),
        "threads of its kernels exchange values in blocks of",
        "f32[32,32]",
        "f32[32]",
    )
    monkeypatch.setattr(whole_loops, "are_faster_alone", lambda *_: True)
    launched(turned, "bytes, more than a block has", "f32[30000]")
