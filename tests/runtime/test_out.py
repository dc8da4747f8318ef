"""Bound calls with `out=`: results go where the caller says, and no promise is taken unchecked."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch
from fake_torch import FakeTorch, Tensor, tensor
from test_torch_calls import expected, normal, softmax

import fusewright as fw
from fusewright.errors import UserError
from fusewright.runtime.overwriting import are_apart

__all__ = ["gpu", "torch"]  # fixtures


def zeros(*shape: int) -> Tensor:
    return tensor(np.zeros(shape, np.float32))


def test_a_steady_call_with_out_is_one_launch(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(softmax)
    f(tensor(normal(6, 40)), out=zeros(6, 40))
    for k in range(3):
        x, y = tensor(normal(6, 40) + k), zeros(6, 40)
        gpu.calls.clear()
        torch.allocations.clear()
        torch.changed.clear()
        assert f(x, out=y) is y
        assert dict(gpu.calls) == {"cuLaunchKernelEx": 1} and torch.allocations == []
        assert torch.changed == [y], "torch knows that the tensor changed"
        np.testing.assert_allclose(y.array, expected(x.array), rtol=1e-5)
    assert len(f._calls) == 1 and f.program(x).copies == 0


def test_bound_calls_know_which_argument_out_is(gpu: FakeDriver, torch: FakeTorch) -> None:
    """One key would choose one program: where `out=` lies decides what may be written over."""
    f = fw.fuse(lambda x, y: (x + y, x - y))
    for _ in range(2):
        for place in ("x", "y", "other"):
            given = {"x": tensor(normal(8, 6)), "y": tensor(normal(8, 6) * 2)}
            given["other"] = zeros(8, 6)
            x, y = given["x"].array.copy(), given["y"].array.copy()
            made = f(given["x"], y=given["y"], out=(given[place], None))
            assert made[0] is given[place]
            np.testing.assert_array_equal(made[0].array, x + y)
            np.testing.assert_array_equal(made[1].array, x - y)
    assert len(f._calls) == 3


def test_calls_that_overwrite_their_arguments_are_bound_ahead(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    f = fw.fuse(lambda x, m, g: (x - m, m * 0.5 + g, x * 2))
    x, m, g = (tensor(normal(8, 6) + k) for k in range(3))
    f.run((x, m, g), {}, (x, m, None))
    call = f.bound((x, m, g), (x, m, None))
    assert call is not None and call.alike is not None
    for k in range(3):
        x, m, g = (tensor(normal(8, 6) + k + j) for j in range(3))
        want = [x.array - m.array, m.array * 0.5 + g.array, x.array * 2]
        gpu.calls.clear()
        torch.allocations.clear()
        torch.changed.clear()
        made = call.alike((x, m, g))
        assert made is not None and made[0] is x and made[1] is m
        for got, wanted in zip(made, want, strict=True):
            np.testing.assert_array_equal(got.array, wanted)
        assert dict(gpu.calls) == {"cuLaunchKernelEx": 1} and len(torch.allocations) == 1
        assert torch.changed == [x, m], "torch knows which tensors changed"


def test_what_overwrites_other_memory_is_looked_at_in_every_call(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    f = fw.fuse(lambda x, y: (x + 1, x * y))
    x, y, z = tensor(normal(8, 6)), tensor(normal(8, 6)), zeros(8, 6)
    whole = tensor(normal(12, 6))
    a, b = Tensor(whole.array[:8]), Tensor(whole.array[4:])
    for args, out in (((x, y), (z, None)), ((a, b), (a, None))):
        f.run(args, {}, out)
        call = f.bound(args, out)
        assert call is None or call.alike is None


def test_bound_calls_copy_where_out_meets_an_argument(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: x + fw.flip(x, axis=0))
    apart = zeros(8, 8)
    f(tensor(normal(8, 8)), out=apart)
    for start in (4, 8, 3):
        whole = tensor(normal(12 + start, 8))
        x, y = Tensor(whole.array[4:12]), Tensor(whole.array[start : start + 8])
        want = x.array + x.array[::-1]
        before = f.program(x).copies
        gpu.calls.clear()
        assert f(x, out=y) is y
        np.testing.assert_array_equal(y.array, want)
        if start != 4:  # where both are one, the argument is given away
            assert f.program(x).copies == before + 1 and gpu.calls["cuLaunchKernelEx"] == 1
    assert f(x, out=apart) is apart


def test_outs_that_have_an_element_in_common_are_refused(gpu: FakeDriver, torch: FakeTorch) -> None:
    """Also in bound calls; what only lies between each other's elements is no common one."""
    f = fw.fuse(lambda x: (x + 1, x * 2))
    x = tensor(normal(8, 8))
    f(x, out=(zeros(8, 8), zeros(8, 8)))
    whole = zeros(12, 8)
    for first, second in ((0, 4), (4, 0)):
        outs = Tensor(whole.array[first : first + 8]), Tensor(whole.array[second : second + 8])
        with pytest.raises(
            UserError, match=r"out= \d and \d share memory, bytes 128 to 256 of the first"
        ):
            f(x, out=outs)
    with pytest.raises(UserError, match="pass arrays without a common element"):
        f(x, out=(outs[0], outs[0]))
    assert not whole.array.any()
    wide = zeros(8, 16)
    a, b = Tensor(wide.array[:, ::2]), Tensor(wide.array[:, 1::2])
    f(x, out=(a, b))
    np.testing.assert_array_equal(a.array, x.array + 1)
    np.testing.assert_array_equal(b.array, x.array * 2)
    with pytest.raises(UserError, match="share memory"):
        f(x, out=(a, Tensor(wide.array[:, 2:10])))
    with pytest.raises(UserError, match="share memory"):
        f(x, out=(Tensor(wide.array[:, :8]), Tensor(wide.array[:, 7:15])))


def test_bound_calls_copy_to_an_out_of_another_layout(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(softmax)
    for k in range(3):
        x = tensor(normal(6, 40))
        y = Tensor(np.zeros((6, 48), np.float32)[:, :40])  # rows with holes between them
        assert f(x, out=y) is y
        np.testing.assert_allclose(y.array, expected(x.array), rtol=1e-5)
        assert f.program(x).copies == k + 1


def test_bound_calls_keep_structures_apart(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: {"a": x + 1, "b": [x * 2]})
    x, y = tensor(normal(8, 6)), zeros(8, 6)
    for _ in range(2):
        assert f(x, out={"a": y, "b": [None]})["a"] is y
        np.testing.assert_array_equal(y.array, x.array + 1)
        assert f(x, out={"a": None, "b": (y,)})["b"][0] is y
        np.testing.assert_array_equal(y.array, x.array * 2)
        with pytest.raises(UserError, match="does not have the structure of the result"):
            f(x, out={"b": [None], "a": y})
        with pytest.raises(UserError, match=r"out= 0 is float32\[4, 6\], the result is"):
            f(x, out={"a": Tensor(y.array[:4]), "b": [None]})
        with pytest.raises(UserError, match="float is not an array"):
            f(x, out={"a": 1.0, "b": [None]})


def test_bound_calls_write_required_layouts(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: (x * 2, x + 1), out_layouts=[(1, 0), None])
    for _ in range(3):
        x = tensor(normal(8, 6))
        y = tensor(np.zeros((8, 6), np.float32), strides=(1, 8))
        torch.allocations.clear()
        assert f(x, out=(y, None))[0] is y
        np.testing.assert_array_equal(y.array, x.array * 2)
        assert torch.allocations == [(8, 6)] and f.program(x).copies == 0
    with pytest.raises(UserError, match=r"out= 0 is float32\[8\], the result is float32\[8, 6\]"):
        f(x, out=(tensor(normal(8)), None))


def test_bound_calls_with_out_lose_no_gradient(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(softmax)
    g = fw.fuse(softmax, out_layouts=[(1, 0)])
    x, y = tensor(normal(6, 40)), zeros(6, 40)
    y.requires_grad = True
    for fused in (f, g):
        torch.grad = False
        fused(x, out=y)
        torch.grad = True
        permute = Tensor.permute

        def recorded(self: Tensor, order, permute=permute) -> Tensor:
            view = permute(self, order)
            view.requires_grad = self.requires_grad
            return view

        Tensor.permute = recorded
        try:
            with pytest.raises(UserError, match=r"arrays of out= \[0\] require gradients"):
                fused(x, out=y)
        finally:
            Tensor.permute = permute


def test_donated_tensors_and_an_out_elsewhere(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda d, x: fw.insert(d, softmax(x), (3, 0)), donate=("d",))
    for _ in range(3):
        d, x, y = tensor(normal(40, 8)), tensor(normal(6, 8)), zeros(40, 8)
        want = d.array.copy()
        want[3:9] = expected(x.array)
        assert f(d, x, out=y) is y
        np.testing.assert_allclose(y.array, want, rtol=1e-5)


def test_programs_bind_out(gpu: FakeDriver, torch: FakeTorch) -> None:
    p = fw.compile(fw.trace(lambda x: (x + 1, x * 2), fw.TensorSpec((8, 6), "float32")))
    for _ in range(3):
        x, y = tensor(normal(8, 6)), zeros(8, 6)
        torch.allocations.clear()
        a, b = p(x, out=(None, y))
        assert b is y and torch.allocations == [(8, 6)]
        np.testing.assert_array_equal(a.array, x.array + 1)
        np.testing.assert_array_equal(y.array, x.array * 2)
    assert len(p.calls._bound) == 1
    with pytest.raises(UserError, match="out= has 1 arrays, the program has 2 outputs"):
        p(x, out=(y,))


def test_results_that_are_one_take_one_out(gpu: FakeDriver, torch: FakeTorch) -> None:
    def twice(x):
        y = x + 1
        return y, y

    f = fw.fuse(twice)
    x, y = tensor(normal(8, 6)), zeros(8, 6)
    for _ in range(2):
        assert f(x, out=(y, y))[1] is y
        with pytest.raises(UserError, match="take one and the same result"):
            f(x, out=(y, zeros(8, 6)))


def test_rejects_an_out_that_is_a_negated_view(gpu: FakeDriver, torch: FakeTorch) -> None:
    x, y = tensor(normal(6, 40)), zeros(6, 40)
    y.resolve_neg = lambda: tensor(y.array)
    with pytest.raises(UserError, match="is a negated view, whose memory holds other numbers"):
        fw.fuse(softmax)(x, out=y)


def test_apart_is_what_no_pair_denies() -> None:
    rng = np.random.default_rng(7)
    found = {True: 0, False: 0}
    for _ in range(3000):
        starts = rng.integers(0, 40, rng.integers(1, 6))
        spans = [(int(s), int(s + rng.integers(0, 9)), bool(rng.integers(2))) for s in starts]
        meets = any(
            (a[2] or b[2]) and a[0] < b[1] and b[0] < a[1] and a[0] < a[1] and b[0] < b[1]
            for k, a in enumerate(spans)
            for b in spans[:k]
        )
        assert are_apart(spans) is not meets, spans
        found[meets] += 1
    assert min(found.values()) > 500


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_arrays_in_any_order_are_written_by_the_kernel(
    gpu: FakeDriver, torch: FakeTorch, axes: tuple[int, ...]
) -> None:
    f = fw.fuse(lambda x: x * 2 + 1)
    x = normal(6, 40).reshape(6, 8, 5)
    back = tuple(np.argsort(axes))
    for k in range(3):
        target = Tensor(np.zeros([x.shape[a] for a in axes], np.float32).transpose(back))
        gpu.calls.clear()
        torch.allocations.clear()
        assert f(tensor(x + k), out=target) is target
        np.testing.assert_array_equal(target.array, (x + k) * 2 + 1)
        assert torch.allocations == [] and gpu.calls["cuLaunchKernelEx"] == 1
    assert len(f._programs) == 1 and all(c.program.copies == 0 for c in f._programs.values())
