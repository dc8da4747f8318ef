"""The peer that writes fusions for nvFuser, shown on a stand-in for its front end that computes
at once with numpy."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bench import nvfuser_peer
from bench.lot.families import draw
from bench.peers import Absent

import fusewright as fw
from fusewright.dtypes import dtype_of
from fusewright.fusion import ir

NAMES = {v: k for k, v in nvfuser_peer.DTYPES.items()}
ALIKE = {
    "div": "divide", "eq": "equal", "ge": "greater_equal", "gt": "greater", "le": "less_equal",
    "lt": "less", "mul": "multiply", "ne": "not_equal", "neg": "negative", "pow": "power",
    "round": "rint", "sub": "subtract", "permute": "transpose", "atan2": "arctan2",
}  # fmt: skip


class Dtypes:
    """Its names of dtypes, as numpy's dtypes."""

    def __getattr__(self, name: str) -> Any:
        return dtype_of(NAMES[name]).numpy


class Ops:
    """Its ops on numpy arrays; those of the same meaning have numpy's names."""

    definition: Definition

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(np, ALIKE.get(name, name))

    def cast(self, x: Any, dtype: Any) -> Any:
        return np.asarray(x).astype(dtype)

    def erf(self, x: Any) -> Any:
        return np.vectorize(math.erf, otypes=[x.dtype])(x)

    def full(self, shape: Sequence[int], value: Any, dtype: Any) -> Any:
        return np.full(shape, value, dtype)

    def iota(self, length: int, start: int, step: int, dtype: Any) -> Any:
        return np.arange(start, start + length * step, step, dtype=dtype)

    def broadcast_in_dim(self, x: Any, shape: Sequence[int], places: Sequence[int]) -> Any:
        own = dict(zip(places, np.shape(x), strict=True))
        return np.broadcast_to(np.reshape(x, [own.get(k, 1) for k in range(len(shape))]), shape)

    def sum(self, x: Any, axes: Sequence[int]) -> Any:
        return np.sum(x, tuple(axes))

    def max(self, x: Any, axes: Sequence[int]) -> Any:
        return np.max(x, tuple(axes))

    def min(self, x: Any, axes: Sequence[int]) -> Any:
        return np.min(x, tuple(axes))

    def slice(self, x: Any, start: Sequence[int], stop: Sequence[int]) -> Any:
        return x[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))]

    def cat(self, tensors: Sequence[Any], axis: int) -> Any:
        return np.concatenate(tensors, axis)

    def pad(self, x: Any, widths: Sequence[int], value: Any) -> Any:
        pairs = list(zip(widths[::2], widths[1::2], strict=True))
        return np.pad(x, pairs[::-1], constant_values=value)

    def index_select(self, x: Any, index: Any, axis: int) -> Any:
        return np.take(x, index, axis)

    def take_along_axis(self, x: Any, index: Any, axis: int) -> Any:
        return np.take_along_axis(x, index, axis)

    def linear(self, x: Any, w: Any) -> Any:
        """Sizes that are numbers make it search without end (0.2.36, 2026-11-28)."""
        assert not self.definition._is_static
        return np.matmul(x.astype(np.float32), w.astype(np.float32).T)


class Definition(AbstractContextManager["Definition"]):
    """Its FusionDefinition, of the arrays that it is first called with."""

    def __init__(self) -> None:
        self.ops, self._outputs, self._is_static = Ops(), list[Any](), False
        self.ops.definition = self

    def __exit__(self, *_: object) -> None:
        return None

    def from_pytorch(self, array: Any, static_sizes: bool = False) -> Any:
        self._is_static = static_sizes
        return array

    def define_scalar(self, value: Any, dtype: Any = None) -> Any:
        return value

    def add_output(self, value: Any) -> None:
        self._outputs.append(value)

    def execute(self, _: list[Any]) -> list[Any]:
        return self._outputs


@pytest.fixture
def _front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("nvfuser_direct")
    vars(module).update(FusionDefinition=Definition, DataType=Dtypes())
    monkeypatch.setitem(sys.modules, "nvfuser_direct", module)
    for name in nvfuser_peer.ENVIRONMENT:  # so that what the peer sets is taken back
        monkeypatch.setenv(name, "")


def _random(rng: np.random.Generator, t: ir.Tensor) -> Any:
    shape = tuple(int(str(n)) for n in t.shape)
    if not t.dtype.is_float:
        return rng.integers(0, 2, shape).astype(t.dtype.numpy)
    return (np.abs(rng.standard_normal(shape)) + 0.1).astype(t.dtype.numpy)


def _agrees(fusion: ir.Fusion, rng: np.random.Generator) -> None:
    arrays = [_random(rng, t) for t in fusion.inputs]
    got = nvfuser_peer.make(fusion, arrays)(*arrays)
    want = fw.evaluate(fusion, *arrays)
    wanted = want if isinstance(want, tuple | list) else [want]
    for g, w, t in zip(got, wanted, fusion.outputs, strict=True):
        assert g.dtype == t.dtype.numpy and g.shape == np.shape(w)
        exact, found = np.asarray(w, np.float64), np.asarray(g, np.float64)
        error = np.linalg.norm(found - exact) / (np.linalg.norm(exact) or 1.0)
        assert error < 2e-2, (t.name, error)


@pytest.mark.usefixtures("_front_end")
def test_draws_are_told_as_they_are() -> None:
    """Of 120 draws, those that nvFuser has ops for; more than half of them."""
    rng = np.random.default_rng(3)
    told, absent = 0, set[str]()
    for seed in range(208000, 208120):
        fusion = draw(seed, 2e3, 2e4).trace()
        try:
            _agrees(fusion, rng)
            told += 1
        except Absent as e:
            absent.add(str(e))
    assert told > 60, absent


@pytest.mark.usefixtures("_front_end")
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: fw.roll(x, 3, axis=0),
        lambda x: fw.pad(x[1:, :-2], ((0, 2), (1, 0)), constant_values=2.5),
        lambda x: fw.concat([fw.exp(x), x * 2], axis=1),
        lambda x: fw.nn.relu(fw.matmul(x, fw.exp(x).T) + 1),
        lambda x: (fw.max(x, axis=0), fw.cumulative_sum(x, axis=1), fw.full_like(x, 2.0)),
    ],
)
def test_programs_are_told_as_they_are(fn: Callable[..., Any]) -> None:
    spec = fw.TensorSpec((7, 9), "bfloat16")
    _agrees(fw.trace(fn, spec), np.random.default_rng(4))


@pytest.mark.usefixtures("_front_end")
def test_what_it_has_no_op_for_is_absent() -> None:
    spec = fw.TensorSpec((32, 8), "float32")
    for fn, why in (
        (lambda x: x[::2], "slices of step 1"),
        (lambda x: fw.sort(x), "nvFuser has n"),
    ):
        with pytest.raises(Absent, match=why):
            nvfuser_peer.make(fw.trace(fn, spec), [np.ones((32, 8), np.float32)])


def test_without_its_wheel_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvfuser_direct", None)
    for name in nvfuser_peer.ENVIRONMENT:
        monkeypatch.setenv(name, "")
    fusion = fw.trace(lambda x: x + 1, fw.TensorSpec((8,), "float32"))
    with pytest.raises(Absent, match="nvFuser is not installed"):
        nvfuser_peer.make(fusion, [np.ones(8, np.float32)])
