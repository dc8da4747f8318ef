"""Joined values on a device: pieces written in place, side by side in a graph."""

from __future__ import annotations

import pytest

import fusewright as fw
from fusewright.runtime.config import config

torch = pytest.importorskip("torch")


def soft(x):
    return fw.nn.softmax(x, axis=-1)


def normal(*shape: int, dtype=None):
    x = torch.randn(shape, generator=torch.Generator("cuda").manual_seed(7), device="cuda")
    return x if dtype is None else x.to(dtype)


def assert_close(got, want) -> None:
    tolerance = 2e-5 if want.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("execution", ["graph", "stream"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
def test_four_pieces_are_written_in_place_side_by_side(axis: int, dtype, execution: str) -> None:
    f = fw.fuse(lambda *xs: fw.concat([soft(x) for x in xs], axis=axis), device="cuda")
    shapes = [(37, 51), (37, 51), (37, 51), (37, 51)]
    xs = [normal(*s, dtype=dtype) + k for k, s in enumerate(shapes)]
    stats = f.program(*xs).host.stats
    assert (stats["launches"], stats["copies"], stats["edges"]["total"]) == (4, 0, 0)
    with config(execution=execution):
        for _ in range(3):
            assert_close(f(*xs), torch.cat([torch.softmax(x, -1) for x in xs], axis))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pads_inserts_and_stacks_agree_with_torch(dtype) -> None:
    def f(d, x, y):
        padded = fw.pad(soft(x), ((1, 2), (3, 4)), constant_values=2.5)
        inserted = fw.insert(d, soft(x * 2), (5, 7))
        return padded, inserted, fw.stack([soft(x + 1), soft(y)], axis=1)

    d, x, y = normal(100, 91, dtype=dtype), normal(33, 65, dtype=dtype), normal(33, 65, dtype=dtype)
    got = fw.fuse(f, device="cuda")(d, x, y)
    assert_close(got[0], torch.nn.functional.pad(torch.softmax(x, -1), (3, 4, 1, 2), value=2.5))
    want = d.clone()
    want[5:38, 7:72] = torch.softmax(x * 2, -1)
    assert_close(got[1], want)
    assert_close(got[2], torch.stack([torch.softmax(x + 1, -1), torch.softmax(y, -1)], 1))


def test_symbolic_pieces_and_a_reader_share_one_program() -> None:
    def f(x, y):
        c = fw.concat([soft(x), soft(y)], axis=1)
        return c, fw.sum(c, axis=0), soft(x)

    fused = fw.fuse(f, device="cuda", dynamic=True)
    for n, m in ((40, 7), (130, 51), (33, 1000)):
        x, y = normal(19, n), normal(19, m)
        c, s, a = fused(x, y)
        want = torch.cat([torch.softmax(x, -1), torch.softmax(y, -1)], 1)
        assert_close(c, want)
        assert_close(s, want.sum(0))
        assert_close(a, torch.softmax(x, -1))
    assert len(fused._programs) == 1


def test_device_arrays_travel_by_dlpack() -> None:
    class Only:
        def __init__(self, tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, **how):
            return self.tensor.__dlpack__(stream=how.get("stream"))

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    x = normal(17, 40)
    y = fw.fuse(soft, device="cuda")(Only(x))
    assert_close(torch.from_dlpack(y), torch.softmax(x, -1))
