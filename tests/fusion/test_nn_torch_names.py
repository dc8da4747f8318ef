"""What `fw.nn` has under torch's names: forward and gradient against torch's on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_checks import assert_like_torch, integers, normal, run1

import fusewright as fw
from fusewright.fusion import nn

torch = pytest.importorskip("torch")
F = torch.nn.functional

X, Y, Z = (np.asarray(normal(4, 6, 5, seed=k)) * 2 for k in range(3))
P, Q = np.asarray(0.05 + 0.9 * np.abs(np.tanh(X))), np.abs(np.tanh(Y))
PLANE = np.asarray(normal(2, 12, 4, 6))
SIGNS = np.where(Z > 0, 1.0, -1.0)
ROWS, CLASSES = np.asarray(normal(7, 5)), integers(5, 7)
Call = Callable[..., Any]

SAME: dict[str, tuple[np.ndarray, ...]] = {
    **dict.fromkeys(
        (
            *("hardtanh", "hardsigmoid", "relu6", "selu", "celu", "logsigmoid", "softsign"),
            *("tanhshrink", "softshrink", "hardshrink", "elu", "normalize"),
        ),
        (X,),
    ),
    "prelu": (X, np.asarray(normal(6))),
    "cosine_similarity": (X, Y),
    "pairwise_distance": (X, Y),
    "huber_loss": (X, Y),
    "binary_cross_entropy": (P, Q),
    "gaussian_nll_loss": (X, Y, np.abs(Z) + 0.1),
    "poisson_nll_loss": (X, np.abs(Y)),
    "soft_margin_loss": (X, Y),
    "hinge_embedding_loss": (X, SIGNS),
    "margin_ranking_loss": (X, Y, SIGNS),
    "cosine_embedding_loss": (X[0], Y[0], SIGNS[0, :, 0]),
    "triplet_margin_loss": (X, Y, Z),
    "multilabel_soft_margin_loss": (X[0], Q[0]),
}
"""Functions called alike in both, with the arrays that they take."""

DIFFERENTIATED = {
    "soft_margin_loss": 1,
    "hinge_embedding_loss": 1,
    "cosine_embedding_loss": 2,
    "margin_ranking_loss": 2,
    "binary_cross_entropy": 1,
}
"""How many of the arrays have gradients in torch, where not all have one."""

TUNED: dict[str, tuple[Call, Call, tuple[np.ndarray, ...]]] = {
    "hardtanh": (lambda x: nn.hardtanh(x, -0.5, 2), lambda x: F.hardtanh(x, -0.5, 2), (X,)),
    "celu": (lambda x: nn.celu(x, 1.5), lambda x: F.celu(x, 1.5), (X,)),
    "threshold": (lambda x: nn.threshold(x, 0.3, 7), lambda x: F.threshold(x, 0.3, 7), (X,)),
    "softshrink": (lambda x: nn.softshrink(x, 0.2), lambda x: F.softshrink(x, 0.2), (X,)),
    "hardshrink": (lambda x: nn.hardshrink(x, 0.2), lambda x: F.hardshrink(x, 0.2), (X,)),
    "prelu": (nn.prelu, F.prelu, (X, np.asarray(normal(1)))),
    "softmin": (lambda x: nn.softmin(x, 1), lambda x: F.softmin(x, 1), (X,)),
    "normalize 1": (lambda x: nn.normalize(x, 1, 0), lambda x: F.normalize(x, 1, 0), (X,)),
    "normalize 3": (lambda x: nn.normalize(x, 3.0), lambda x: F.normalize(x, 3.0), (X,)),
    "normalize inf": (
        lambda x: nn.normalize(x, float("inf")),
        lambda x: F.normalize(x, float("inf")),
        (X,),
    ),
    "cosine_similarity": (
        lambda a, b: nn.cosine_similarity(a, b, -1),
        lambda a, b: F.cosine_similarity(a, b, -1),
        (X, Y[:1]),
    ),
    "pairwise_distance": (
        lambda a, b: nn.pairwise_distance(a, b, 1, 1e-3, True),
        lambda a, b: F.pairwise_distance(a, b, 1, 1e-3, True),
        (X, Y),
    ),
    "local_response_norm": (
        lambda x: nn.local_response_norm(x, 3, 0.1, 0.5, 2.0),
        lambda x: F.local_response_norm(x, 3, 0.1, 0.5, 2.0),
        (X,),
    ),
    "local_response_norm 4": (
        lambda x: nn.local_response_norm(x, 4, 0.1),
        lambda x: F.local_response_norm(x, 4, 0.1),
        (X,),
    ),
    "pixel_shuffle": (lambda x: nn.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(x, 2), (PLANE,)),
    "pixel_unshuffle": (
        lambda x: nn.pixel_unshuffle(x, 2),
        lambda x: F.pixel_unshuffle(x, 2),
        (PLANE,),
    ),
    "channel_shuffle": (
        lambda x: nn.channel_shuffle(x, 3),
        lambda x: F.channel_shuffle(x, 3),
        (PLANE,),
    ),
    "huber_loss": (
        lambda a, b: nn.huber_loss(a, b, reduction="sum", delta=0.5),
        lambda a, b: F.huber_loss(a, b, reduction="sum", delta=0.5),
        (X, Y),
    ),
    "binary_cross_entropy": (
        lambda a, b, w: nn.binary_cross_entropy(a, b, w, reduction="none"),
        lambda a, b, w: F.binary_cross_entropy(a, b, w, reduction="none"),
        (P, Q, np.abs(Z)),
    ),
    "gaussian_nll_loss": (
        lambda a, b, v: nn.gaussian_nll_loss(a, b, v, True, 1e-3),
        lambda a, b, v: F.gaussian_nll_loss(a, b, v, True, 1e-3),
        (X, Y, np.abs(Z[..., :1]) + 0.1),
    ),
    "poisson_nll_loss": (
        lambda a, b: nn.poisson_nll_loss(a, b, False, True, 1e-3),
        lambda a, b: F.poisson_nll_loss(a, b, False, True, eps=1e-3),
        (P, np.abs(Y)),
    ),
    "hinge_embedding_loss": (
        lambda a, t: nn.hinge_embedding_loss(a, t, 2.0),
        lambda a, t: F.hinge_embedding_loss(a, t, 2.0),
        (X, SIGNS),
    ),
    "margin_ranking_loss": (
        lambda a, b, t: nn.margin_ranking_loss(a, b, t, 0.5, reduction="none"),
        lambda a, b, t: F.margin_ranking_loss(a, b, t, 0.5, reduction="none"),
        (X, Y, SIGNS),
    ),
    "cosine_embedding_loss": (
        lambda a, b, t: nn.cosine_embedding_loss(a, b, t, 0.1),
        lambda a, b, t: F.cosine_embedding_loss(a, b, t, 0.1),
        (X[0], Y[0], SIGNS[0, :, 0]),
    ),
    "triplet_margin_loss": (
        lambda a, b, c: nn.triplet_margin_loss(a, b, c, 0.7, 2, 1e-5, True),
        lambda a, b, c: F.triplet_margin_loss(a, b, c, 0.7, 2, 1e-5, True),
        (X, Y, Z),
    ),
    "multilabel_soft_margin_loss": (
        lambda a, t, w: nn.multilabel_soft_margin_loss(a, t, w, reduction="none"),
        lambda a, t, w: F.multilabel_soft_margin_loss(a, t, w, reduction="none"),
        (X[0], Q[0], np.abs(Z[0])),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_called_alike(name: str) -> None:
    rtol = 1e-7 if name == "hardsigmoid" else 1e-9  # torch's sixth is one of float32
    wrt = DIFFERENTIATED.get(name)
    assert_like_torch(getattr(nn, name), getattr(F, name), *SAME[name], wrt=wrt, rtol=rtol)


@pytest.mark.parametrize("name", TUNED)
def test_called_with_options(name: str) -> None:
    ours, theirs, arrays = TUNED[name]
    assert_like_torch(ours, theirs, *arrays, wrt=DIFFERENTIATED.get(name))


@pytest.mark.parametrize("options", [{}, {"p": 2, "margin": 0.5, "reduction": "none"}])
def test_multi_margin_loss(options: dict[str, Any]) -> None:
    weight = np.abs(np.asarray(normal(5)))
    at = torch.from_numpy(CLASSES)
    assert_like_torch(
        lambda x: nn.multi_margin_loss(
            x, fw.asarray(CLASSES), weight=fw.asarray(weight), **options
        ),
        lambda x: F.multi_margin_loss(x, at, weight=torch.from_numpy(weight), **options),
        ROWS,
    )


@pytest.mark.parametrize("name", ["elu", "celu", "selu"])
def test_gradients_are_finite_where_an_exponential_is_not(name: str) -> None:
    x = np.array([-3.0, 0.0, 2.0, 1000.0])
    assert_like_torch(getattr(nn, name), getattr(F, name), x)


def test_nan_stays_nan() -> None:
    x = np.array([np.nan, 1.0])
    for name in ("hardtanh", "hardshrink", "softshrink", "relu6", "selu", "softsign", "logsigmoid"):
        found = run1(getattr(nn, name), x)
        np.testing.assert_array_equal(np.isnan(found), [True, False], err_msg=name)
    np.testing.assert_array_equal(np.isnan(run1(lambda x: nn.threshold(x, 0, 1), x)), [True, False])


@pytest.mark.parametrize("name", ["selu", "logsigmoid", "normalize", "huber_loss", "prelu"])
def test_one_kernel_computes_it(name: str) -> None:
    arrays = [a.astype(np.float32) for a in SAME[name]]
    specs = [fw.TensorSpec(a.shape, "float32") for a in arrays]
    fusion = fw.trace(lambda *xs: getattr(nn, name)(*xs), *specs)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    (expected,) = fw.evaluate(fusion, *arrays)
    np.testing.assert_allclose(result.outputs[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: nn.hardtanh(x, 1, 0), "min_val=1 is above max_val=0"),
        (lambda x: nn.hardshrink(x, -1), "lambd=-1 must not be negative"),
        (lambda x: nn.prelu(x, x[0]), "give one weight, or a vector of one for each channel"),
        (lambda x: nn.celu(x, 0), "alpha=0 divides by zero; use relu"),
        (lambda x: nn.normalize(x, -1), "p=-1 must be positive; math.inf is"),
        (lambda x: nn.local_response_norm(x, 0), "size=0: windows hold one channel or more"),
        (lambda x: nn.huber_loss(x, x, delta=0), "delta=0 must be positive"),
        (lambda x: nn.gaussian_nll_loss(x, x, x, eps=0), "eps=0 must be positive"),
        (
            lambda x: nn.multi_margin_loss(x, fw.asarray([1])),
            "they are (samples, classes) and (samples,)",
        ),
        (
            lambda x: nn.multi_margin_loss(x[0], fw.zeros((6,), dtype="int64"), 3),
            "p=3: it is 1 or 2",
        ),
        (lambda x: nn.pixel_shuffle(x, 0), "upscale_factor=0 must be positive"),
        (lambda x: nn.pixel_shuffle(x, 3), "4 channels are not known to be a multiple of 9"),
    ],
)
def test_rejections(call: Call, message: str) -> None:
    with pytest.raises(fw.UserError, match=re.escape(message)):
        fw.trace(call, fw.TensorSpec(X.shape, "float32"))
