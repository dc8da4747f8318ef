"""`fw.fuse` on real torch tensors in host memory, through the simulator."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import UserError
from fusewright.runtime.torch_calls import call_key

torch = pytest.importorskip("torch")


def softmax(x):
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def normal(*shape: int, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_softmax(dtype: str) -> None:
    x = normal(6, 40, dtype=getattr(torch, dtype))
    y = fw.fuse(softmax, device="sim")(x)
    assert isinstance(y, torch.Tensor) and y.dtype == x.dtype
    wide = torch.softmax(x.double(), -1)
    torch.testing.assert_close(y.double(), wide, rtol=1e-2 if x.itemsize == 2 else 1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "view", [lambda x: x.t(), lambda x: x[:, ::3], lambda x: x[:1].expand(8, -1), lambda x: x[:0]]
)
def test_views(view) -> None:
    x = view(normal(8, 12))
    assert torch.equal(fw.fuse(lambda x: x * 2, device="sim")(x), x * 2)


def test_out_and_layouts() -> None:
    x = normal(8, 12)
    y = torch.zeros(12, 8).t()
    f = fw.fuse(lambda x: x + 1, device="sim")
    assert f(x, out=y) is y and torch.equal(y, x + 1)
    g = fw.fuse(lambda x: x + 1, device="sim", out_layouts=[(1, 0)])
    assert g(x).stride() == (1, 8) and torch.equal(g(x), x + 1)


def test_raises_where_gradients_would_be_lost() -> None:
    f = fw.fuse(softmax, device="sim")
    x = normal(4, 8).requires_grad_()
    with pytest.raises(UserError, match="require gradients, which a program does not record"):
        f.program(x)(x)  # a program records nothing; the function itself does
    with torch.no_grad():
        torch.testing.assert_close(f(x), torch.softmax(x, -1))
    with torch.inference_mode():
        torch.testing.assert_close(f(x), torch.softmax(x, -1))


def test_raises_for_forward_mode_tangents() -> None:
    f = fw.fuse(softmax, device="sim")
    forward = torch.autograd.forward_ad
    with forward.dual_level(), torch.no_grad():
        dual = forward.make_dual(normal(4, 8), normal(4, 8))
        with pytest.raises(UserError, match="gradients"):
            f(dual)


def test_rejects_tensors_without_strides_and_other_devices() -> None:
    f = fw.fuse(softmax, device="sim")
    with pytest.raises(UserError, match="sparse"):
        f(normal(4, 8).to_sparse())
    with pytest.raises(UserError, match="meta"):
        f(torch.empty(4, 8, device="meta"))
    with pytest.raises(UserError, match="argument 1 a numpy array"):
        fw.fuse(lambda x, y: x + y, device="sim")(normal(4), np.zeros(4, np.float32))


def test_keys_tell_apart_what_programs_depend_on() -> None:
    x = normal(64)
    keys = [
        call_key((x,), {}),
        call_key((x[1:],), {}),
        call_key((x[::2],), {}),
        call_key((x.double(),), {}),
        call_key((x.detach().clone().requires_grad_(),), {}),
        call_key((torch.nn.Parameter(x, requires_grad=False), 1), {}),
        call_key((x, True), {}),
        call_key((x, {1: 2}), {}),
        call_key((x, {True: 2}), {}),
        call_key((x, 0.0), {}),
        call_key((x, -0.0), {}),
        call_key((x,), {"y": 0.0}),
        call_key((x,), {}, x),
        call_key((x,), {}, x.clone()),
        call_key((x,), {}, (x.clone(),)),
        call_key((x,), {}, {"a": x.clone()}),
        call_key((x,), {}, {"b": x.clone()}),
        call_key((x, x.clone()), {}, x.clone()),
        call_key((x, x.clone()), {}, x),
        call_key((x, x), {}, x),
        call_key(([x],), {}),
        call_key(((x,),), {}),
        call_key(((x, None),), {}),
        call_key(({"a": x},), {}),
        call_key(({"b": x},), {}),
        call_key(({"b": [x]},), {}),
    ]
    assert None not in keys and len(set(keys)) == len(keys)
    assert call_key((x.clone(),), {}) == keys[0]
    assert call_key(([x],), {}, x) is None and call_key((x,), {}, 1.0) is None
    assert call_key((np.zeros(3),), {}) is None
