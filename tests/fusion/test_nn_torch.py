"""The functions of `nn` against torch's on the CPU, where torch is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_checks import integers, normal, run

from fusewright.fusion import nn

torch = pytest.importorskip("torch")
F = torch.nn.functional
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]

ACTIVATIONS: dict[str, Case] = {
    name: (ours, theirs, (normal(4, 9) * 4,))
    for name, ours, theirs in (
        ("relu", nn.relu, F.relu),
        ("leaky_relu", nn.leaky_relu, F.leaky_relu),
        ("elu", nn.elu, F.elu),
        ("silu", nn.silu, F.silu),
        ("mish", nn.mish, F.mish),
        ("hardswish", nn.hardswish, F.hardswish),
        ("softplus", nn.softplus, F.softplus),
        ("gelu", nn.gelu, F.gelu),
        ("gelu_tanh", lambda x: nn.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
        ("softmax", lambda x: nn.softmax(x, 0), lambda x: F.softmax(x, 0)),
        ("log_softmax", lambda x: nn.log_softmax(x, 1), lambda x: F.log_softmax(x, 1)),
    )
}
X, W, B = normal(4, 6, 5), normal(6, seed=1), normal(6, seed=2)
MEAN, VAR = normal(6, seed=3), np.abs(normal(6, seed=4))
NORMS: dict[str, Case] = {
    "layer_norm": (
        lambda x, w, b: nn.layer_norm(x, (6, 5), w, b),
        lambda x, w, b: F.layer_norm(x, (6, 5), w, b),
        (X, normal(6, 5, seed=1), normal(6, 5, seed=2)),
    ),
    "rms_norm": (
        lambda x, w: nn.rms_norm(x, (5,), w),
        lambda x, w: F.rms_norm(x, (5,), w),
        (X, normal(5, seed=1)),
    ),
    "group_norm": (
        lambda x, w, b: nn.group_norm(x, 3, w, b),
        lambda x, w, b: F.group_norm(x, 3, w, b),
        (X, W, B),
    ),
    "batch_norm": (nn.batch_norm, F.batch_norm, (X, MEAN, VAR, W, B)),
    "batch_norm_training": (
        lambda *a: nn.batch_norm_forward(*a, training=True)[:3],
        lambda x, m, v, w, b: (F.batch_norm(x, m, v, w, b, training=True), m, v),
        (X, MEAN, VAR, W, B),
    ),
    "instance_norm": (
        lambda *a: nn.instance_norm_forward(*a)[:3],
        lambda x, m, v, w, b: (F.instance_norm(x, m, v, w, b), m, v),
        (X, MEAN, VAR, W, B),
    ),
}
LOGITS, CLASSES = normal(7, 5, 2), integers(5, 7, 2)
CLASSES[2] = -100
OPTIONS = (
    {},
    {"reduction": "sum"},
    {"reduction": "none", "label_smoothing": 0.3},
    {"label_smoothing": 0.1, "ignore_index": 3},
)
LOSSES: dict[str, Case] = {
    f"cross_entropy_{k}_{len(extra)}": (
        lambda *a, o=o: nn.cross_entropy(*a, **o),
        lambda *a, o=o: F.cross_entropy(*a, **o),
        (LOGITS, CLASSES if "ignore_index" not in o else np.abs(CLASSES) % 5, *extra),
    )
    for k, o in enumerate(OPTIONS)
    for extra in ((), (np.abs(normal(5, seed=6)),))
} | {
    "cross_entropy_soft": (
        lambda *a: nn.cross_entropy(*a, label_smoothing=0.2),
        lambda *a: F.cross_entropy(*a, label_smoothing=0.2),
        (LOGITS, np.abs(normal(7, 5, 2, seed=1)), np.abs(normal(5, seed=6))),
    ),
    "nll_loss": (nn.nll_loss, F.nll_loss, (LOGITS, CLASSES, np.abs(normal(5, seed=6)))),
    "mse_loss": (nn.mse_loss, F.mse_loss, (X, X[::-1].copy())),
    "smooth_l1_loss": (nn.smooth_l1_loss, F.smooth_l1_loss, (X, X[::-1].copy())),
    "kl_div": (nn.kl_div, F.kl_div, (X, np.abs(X))),
    "bce": (
        lambda x, t, w, p: nn.binary_cross_entropy_with_logits(x, t, w, pos_weight=p),
        lambda x, t, w, p: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=p),
        (X, np.abs(np.tanh(X)), np.abs(X), VAR[:, None]),
    ),
}
HEADS = tuple(normal(2, 3, 4, 8, seed=k) for k in range(3))
LAYERS: dict[str, Case] = {
    "glu": (nn.glu, F.glu, (normal(3, 8),)),
    "linear": (nn.linear, F.linear, (X, normal(3, 5), normal(3))),
    "embedding": (nn.embedding, F.embedding, (integers(9, 2, 3), normal(9, 4))),
    "one_hot": (lambda i: nn.one_hot(i, 7), lambda i: F.one_hot(i, 7), (integers(7, 5),)),
    "attention_causal": (
        lambda *a: nn.scaled_dot_product_attention(*a, is_causal=True),
        lambda *a: F.scaled_dot_product_attention(*a, is_causal=True),
        HEADS,
    ),
    "attention_mask": (
        nn.scaled_dot_product_attention,
        F.scaled_dot_product_attention,
        (*HEADS, np.tri(4, 4, 1, dtype=bool)),
    ),
}
CASES = ACTIVATIONS | NORMS | LOSSES | LAYERS


@pytest.mark.parametrize("name", CASES)
def test_same_numbers_as_torch(name: str) -> None:
    ours, theirs, inputs = CASES[name]
    expected = theirs(*(torch.from_numpy(a.copy()) for a in inputs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(run(ours, *inputs), expected, strict=True):
        assert got.dtype == want.numpy().dtype
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes_of_results_are_torchs(dtype: str) -> None:
    x = torch.from_numpy(X).to(getattr(torch, dtype))
    like = run(lambda v: nn.layer_norm(v, 5), X.astype(np.float32))[0]
    short = run(lambda v: nn.layer_norm(v, 5), _as_numpy(x))[0]
    want = F.layer_norm(x, (5,))
    assert str(short.dtype) == str(want.dtype).removeprefix("torch.")
    limit = 2.0 ** -{"float16": 10, "bfloat16": 7, "float32": 20}[dtype]
    np.testing.assert_allclose(short.astype(float), want.double().numpy(), atol=4 * limit)
    np.testing.assert_allclose(short.astype(float), like, atol=8 * limit)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_default_eps_of_rms_norm_is_torchs(dtype: str) -> None:
    x = torch.full((1, 4), 1e-3, dtype=getattr(torch, dtype))
    (got,) = run(lambda v: nn.rms_norm(v, 4), _as_numpy(x))
    want = F.rms_norm(x, (4,)).double().numpy()
    np.testing.assert_allclose(got.astype(float), want, rtol=1e-2)


def _as_numpy(x: Any) -> Any:
    import ml_dtypes

    if x.dtype == torch.bfloat16:
        return x.float().numpy().astype(ml_dtypes.bfloat16)
    return x.numpy()
