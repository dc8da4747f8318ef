"""`fw.verify` of whole programs: its witnesses are the arrays that the kernels see in a run."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.programs.simulation import witnesses


def centred(x: fw.Array) -> fw.Array:
    return fw.max(x - fw.sum(x, axis=0), axis=1)


SHAPE = (600, 70)


def test_kernels_see_what_they_see_in_a_run() -> None:
    program = fw.compile(fw.trace(centred, fw.TensorSpec(SHAPE, "float32")))
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    found = {k.name: given for k, given, _ in witnesses(program, (x,))}
    assert sorted(found) == sorted(k.name for k in program.kernels) and len(found) > 1
    last = found[program.launches[-1].kernel.name]
    assert any(
        a.size == SHAPE[1] and np.allclose(a.ravel(), x.sum(axis=0, dtype=np.float64), 0, 1e-3)
        for a in last
    )


def test_only_launches_that_others_read_from_run_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel that reads nothing but arguments, and of the last one, the arrays are known."""
    ran: list[str] = []
    real = fw.Kernel.simulate

    def observed(self: fw.Kernel, *arrays: Any, **options: Any) -> Any:
        ran.append(self.name)
        return real(self, *arrays, **options)

    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    program = fw.compile(fw.trace(centred, fw.TensorSpec(SHAPE, "float32")))
    alone = fw.compile(fw.trace(lambda a: fw.max(a, axis=1), fw.TensorSpec(SHAPE, "float32")))
    monkeypatch.setattr(fw.Kernel, "simulate", observed)
    assert len(list(witnesses(program, (x,)))) == len(program.launches) > 1
    assert ran == [launch.kernel.name for launch in program.launches[:-1]]
    ((kernel, (given,), _),) = witnesses(alone, (x,))
    assert kernel is alone.kernels[0] and np.array_equal(given, x)
    assert len(ran) == len(program.launches) - 1


def test_a_program_is_verified_on_the_arrays_given(monkeypatch: pytest.MonkeyPatch) -> None:
    program = fw.compile(fw.trace(centred, fw.TensorSpec(SHAPE, "float32")))
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    seen: list[np.ndarray] = []
    module = importlib.import_module("fusewright.verify")
    real = module.verify_kernel

    def observed(kernel: Any, cases: Any, **options: Any) -> Any:
        seen.extend(a for c in cases for a in c.arrays.values())
        return real(kernel, cases, **options)

    monkeypatch.setattr(module, "verify_kernel", observed)
    report = fw.verify(program, x)
    assert report.ok and len(report.necessary) == sum(len(k.syncs) for k in program.kernels)
    for wanted in (x, x.sum(axis=0, dtype=np.float64)):
        assert any(
            a.size == wanted.size and np.allclose(a.reshape(wanted.shape), wanted, 0, 1e-3)
            for a in seen
        )


def test_too_few_arrays_are_refused() -> None:
    program = fw.compile(fw.trace(centred, fw.TensorSpec(SHAPE, "float32")))
    with pytest.raises(fw.UserError, match="the program takes 1 arrays, got 2"):
        fw.verify(program, *[np.zeros(SHAPE, np.float32)] * 2)


@pytest.mark.parametrize("shape", [("n", "m"), ("n", "n"), ("n", 3, "m")])
def test_every_symbol_is_long_in_some_witness(shape: tuple[int | str, ...]) -> None:
    """A scan of rows of 1024 and more has trips, and between two of them a barrier that no
    witness needs whose rows are shorter."""
    program = fw.compile(
        fw.trace(lambda x: fw.cumulative_sum(x, axis=-1), fw.TensorSpec(shape, "float32"))
    )
    report = fw.verify(program)
    assert report.ok and len(report.necessary) == 2, str(report)
