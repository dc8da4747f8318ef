"""Losses and the gradient of cross entropy."""

from __future__ import annotations

from fusewright import nn
from fusewright.corpus.case import case
from fusewright.fusion.array import Array


def _smoothed_cross_entropy(x: Array, t: Array) -> Array:
    return nn.cross_entropy(x, t, label_smoothing=0.1, ignore_index=0)


def _kl_divergence(student: Array, teacher: Array) -> Array:
    return nn.kl_div(
        nn.log_softmax(student, -1),
        nn.log_softmax(teacher, -1),
        reduction="batchmean",
        log_target=True,
    )


LOSSES = (
    case(
        "cross_entropy", nn.cross_entropy_forward, "bfloat16[b, v]", "int64[b] < v",
        full="b=4096 v=32000", small="b=6 v=67",
    ),
    case(
        "cross_entropy_smoothed", _smoothed_cross_entropy, "float32[b, v]", "int32[b] < v",
        full="b=4096 v=50257", small="b=5 v=51",
    ),
    case(
        "cross_entropy_pixels", nn.cross_entropy, "float32[b, c, p]", "uint8[b, p] < c",
        full="b=8 c=21 p=65536", small="b=2 c=5 p=23",
    ),
    case(
        "cross_entropy_backward", nn.cross_entropy_backward,
        "bfloat16[]", "float32[b] > 1", "bfloat16[b, v]", "int64[b] < v",
        full="b=4096 v=32000", small="b=6 v=67",
    ),
    case("mse_loss", nn.mse_loss, "float32[n]", "float32[n]", full="n=16777216", small="n=1001"),
    case(
        "smooth_l1_loss", nn.smooth_l1_loss, "float16[b, 4]", "float16[b, 4]",
        full="b=262144", small="b=37",
    ),
    case(
        "binary_cross_entropy", nn.binary_cross_entropy_with_logits,
        "float32[b, c]", "float32[b, c] < 1", full="b=65536 c=80", small="b=11 c=9",
    ),
    case(
        "kl_divergence", _kl_divergence, "bfloat16[b, v]", "bfloat16[b, v]",
        full="b=2048 v=32000", small="b=3 v=70",
    ),
)  # fmt: skip
