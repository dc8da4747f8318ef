"""Branches on a GPU: as a graph from two launches on, and as streams in a caller's capture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch
from fake_torch import FakeTorch, tensor

import fusewright as fw
from fusewright.errors import InternalError
from fusewright.host.graph import ancestors
from fusewright.runtime import plan
from fusewright.runtime.config import config
from fusewright.runtime.graphs import MAX_EXECUTABLES

__all__ = ["gpu", "torch"]  # fixtures

pytestmark = pytest.mark.usefixtures("launched_apart")
STREAM = 7


def apart(a: Any, b: Any) -> Any:
    """Two kernels that share nothing, with more blocks than a chip has multiprocessors, each
    with fewer."""
    return fw.nn.softmax(a, axis=-1), fw.cumulative_sum(b, axis=-1)


def diamond(a: Any, b: Any) -> Any:
    """Two branches, a scan and two sorts, which meet in a softmax."""
    x = fw.cumulative_sum(a, axis=0)
    y = fw.sort(fw.sort(b, axis=0) + a, axis=1)
    return fw.nn.softmax(fw.concat([x, y], axis=0), axis=0), x


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.uniform(0.5, 1.5, (900, 40)).astype(np.float32) for _ in range(2)]


def places_of(gpu: FakeDriver, count: int) -> tuple[list[Any], list[list[Any]]]:
    """One program as written out in several places, each with tensors of its own: arguments, and
    results in memory that stays."""
    f = fw.fuse(apart)
    tensors = [list(map(tensor, (*arrays(), *map(np.zeros_like, arrays())))) for _ in range(count)]
    f(*tensors[0][:2])
    bound = f.bound(tuple(tensors[0][:2]))
    assert bound is not None
    steps = [bound.steps() for _ in range(count)]
    gpu.calls.clear()
    return [s.launch for s in steps if s is not None], tensors


def called(launch: Any, tensors: list[Any], stream: int = 77) -> None:
    launch(*[x.data_ptr() for x in tensors], stream)


def test_places_of_one_program_do_not_have_each_others_graphs_updated(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    count = MAX_EXECUTABLES + 2
    launches, tensors = places_of(gpu, count)
    for _ in range(3):
        for launch, own in zip(launches, tensors, strict=True):
            for y in own[2:]:
                y.array[...] = 0
            called(launch, own)
            np.testing.assert_allclose(own[3].array, own[1].array.cumsum(-1), rtol=1e-5)
    assert gpu.calls["cuGraphLaunch"] == 3 * count and gpu.calls["cuGraphInstantiate"] == count
    assert gpu.calls["cuGraphExecKernelNodeSetParams"] == gpu.calls["cuLaunchKernelEx"] == 0


def test_a_place_whose_addresses_change_has_its_graphs_updated(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    (launch, *_), tensors = places_of(gpu, MAX_EXECUTABLES + 1)
    for own in tensors:
        called(launch, own)
        np.testing.assert_allclose(own[3].array, own[1].array.cumsum(-1), rtol=1e-5)
    assert gpu.calls["cuGraphInstantiate"] == MAX_EXECUTABLES
    assert gpu.calls["cuGraphExecKernelNodeSetParams"] == 2


def test_a_place_that_is_captured_launches_one_by_one(gpu: FakeDriver, torch: FakeTorch) -> None:
    (launch,), (own,) = places_of(gpu, 1)
    gpu.capturing.add(STREAM)
    called(launch, own, STREAM)
    assert gpu.calls["cuLaunchKernelEx"] == 2 and gpu.calls["cuGraphLaunch"] == 0


def test_a_replay_in_a_place_that_fails_says_so(
    gpu: FakeDriver, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launch,), (own,) = places_of(gpu, 1)
    gpu.refuse = "cuGraphLaunch"
    gpu.cuGetErrorString = lambda status: (0, b"lost")
    monkeypatch.setattr("importlib.import_module", lambda name: gpu)
    with pytest.raises(InternalError, match="cuGraphLaunch failed: lost"):
        called(launch, own)


def test_two_launches_with_room_beside_them_are_a_graph(gpu: FakeDriver, torch: FakeTorch) -> None:
    p = fw.fuse(apart)
    for _ in range(2):
        p(*map(tensor, arrays()))
    assert gpu.calls["cuGraphLaunch"] == 2 and gpu.calls["cuLaunchKernelEx"] == 0
    for nodes in gpu.graphs:
        assert [after for *_, after in nodes] == [(), ()]
    with config(execution="stream"):
        p(*map(tensor, arrays()))
    assert gpu.calls["cuLaunchKernelEx"] == 2


@pytest.mark.parametrize("fn", [apart, diamond])
def test_a_capture_gets_the_edges_of_the_program(
    gpu: FakeDriver, torch: FakeTorch, fn: Any
) -> None:
    xs = arrays()
    fusion = fw.trace(fn, *[fw.TensorSpec(x.shape, "float32") for x in xs])
    p = fw.compile(fusion)
    torch.stream, torch.captured = STREAM, True
    gpu.capturing.add(STREAM)
    for _ in range(2):
        first = len(gpu.after)
        found = p(*map(tensor, xs))
        for y, want in zip(found, fw.evaluate(fusion, *xs), strict=True):
            np.testing.assert_allclose(y.array, want, rtol=1e-4, atol=1e-5)
        own = [{k - first for k in a if k >= first} for a in gpu.after[first:]]
        before = ancestors(p.host.edges, len(p.host.launches))
        for k, waits in enumerate(own):
            assert waits == {j for j in range(k) if before[k] >> j & 1}, "no edge more, none less"
        assert set(range(first, len(gpu.after))) <= gpu.behind(STREAM), "all branches are joined"
        assert all(a >= set(range(first)) for a in gpu.after[first:]), "behind what came before"
    assert p.host.branches.count > 1 and gpu.open_events == 0
    assert gpu.calls["cuStreamCreate"] == p.host.branches.count - 1, "streams are kept"
    assert gpu.capture_mode == "CU_STREAM_CAPTURE_MODE_GLOBAL"


def test_behind_a_capture_calls_use_the_stream_again(gpu: FakeDriver, torch: FakeTorch) -> None:
    xs = arrays()
    p = fw.compile(fw.trace(apart, *[fw.TensorSpec(x.shape, "float32") for x in xs]))
    torch.stream, torch.captured = STREAM, True
    gpu.capturing.add(STREAM)
    p(*map(tensor, xs))
    gpu.capturing.clear()
    torch.captured = False
    with config(execution="stream"):
        p(*map(tensor, xs))
    assert [s for _, s in gpu.launched[-2:]] == [STREAM, STREAM]


def test_a_launch_that_fails_leaves_no_event(
    gpu: FakeDriver, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(result: tuple[int, ...], call: str) -> None:
        raise InternalError(f"{call} failed with {result[0]}")

    monkeypatch.setattr(plan, "check", check)
    xs = arrays()
    p = fw.compile(fw.trace(diamond, *[fw.TensorSpec(x.shape, "float32") for x in xs]))
    torch.stream, torch.captured = STREAM, True
    gpu.capturing.add(STREAM)
    p(*map(tensor, xs))
    gpu.refuse = "cuLaunchKernelEx"
    with pytest.raises(InternalError, match="launch of"):
        p(*map(tensor, xs))
    assert gpu.open_events == 0
