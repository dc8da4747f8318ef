"""Neural network functions as compositions of array operations, under the names of
torch.nn.functional, with `axis` for `dim`.

`X_backward(dy, saved..., *inputs)` is the gradient of `X`; `X_forward` is `X` with the values that
its gradient takes.
"""

import sys
from typing import TYPE_CHECKING

from fusewright.fusion import elsewhere
from fusewright.fusion.nn.activations import (
    elu,
    gelu,
    gelu_backward,
    glu,
    hardswish,
    leaky_relu,
    mish,
    relu,
    relu_backward,
    sigmoid,
    sigmoid_backward,
    silu,
    silu_backward,
    softplus,
    softplus_backward,
    swiglu,
    tanh,
    tanh_backward,
)
from fusewright.fusion.nn.attention import scaled_dot_product_attention
from fusewright.fusion.nn.batch_norms import (
    BatchNorm,
    batch_norm,
    batch_norm_backward,
    batch_norm_forward,
    instance_norm,
    instance_norm_backward,
    instance_norm_forward,
)
from fusewright.fusion.nn.convolutions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    fold,
    unfold,
)
from fusewright.fusion.nn.cross_entropies import (
    cross_entropy,
    cross_entropy_backward,
    cross_entropy_forward,
    nll_loss,
)
from fusewright.fusion.nn.distances import (
    cosine_similarity,
    local_response_norm,
    normalize,
    pairwise_distance,
)
from fusewright.fusion.nn.dropouts import dropout, dropout_backward, dropout_mask
from fusewright.fusion.nn.embeddings import (
    embedding,
    embedding_backward,
    one_hot,
    rotary_embedding,
    rotary_embedding_backward,
)
from fusewright.fusion.nn.likelihoods import (
    binary_cross_entropy,
    gaussian_nll_loss,
    huber_loss,
    multilabel_soft_margin_loss,
    poisson_nll_loss,
    soft_margin_loss,
)
from fusewright.fusion.nn.linears import linear, linear_backward
from fusewright.fusion.nn.losses import (
    binary_cross_entropy_with_logits,
    kl_div,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
)
from fusewright.fusion.nn.margins import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multi_margin_loss,
    triplet_margin_loss,
)
from fusewright.fusion.nn.norms import (
    group_norm,
    group_norm_backward,
    group_norm_forward,
    layer_norm,
    layer_norm_backward,
    layer_norm_forward,
    rms_norm,
    rms_norm_backward,
    rms_norm_forward,
)
from fusewright.fusion.nn.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from fusewright.fusion.nn.resampling import (
    interpolate,
)
from fusewright.fusion.nn.shuffles import (
    channel_shuffle,
    pixel_shuffle,
    pixel_unshuffle,
)
from fusewright.fusion.nn.softmaxes import (
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
)
from fusewright.fusion.nn.thresholds import (
    celu,
    hardshrink,
    hardsigmoid,
    hardtanh,
    logsigmoid,
    prelu,
    relu6,
    selu,
    softmin,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)

__all__ = [
    "BatchNorm",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_forward",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "dropout",
    "dropout_backward",
    "dropout_mask",
    "elu",
    "embedding",
    "embedding_backward",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "gelu_backward",
    "glu",
    "group_norm",
    "group_norm_backward",
    "group_norm_forward",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "instance_norm_backward",
    "instance_norm_forward",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_forward",
    "leaky_relu",
    "linear",
    "linear_backward",
    "local_response_norm",
    "log_softmax",
    "log_softmax_backward",
    "logsigmoid",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "relu_backward",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_forward",
    "rotary_embedding",
    "rotary_embedding_backward",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmax_backward",
    "softmin",
    "softplus",
    "softplus_backward",
    "softshrink",
    "softsign",
    "swiglu",
    "tanh",
    "tanh_backward",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
    "unfold",
]


if not TYPE_CHECKING:

    def __getattr__(name):
        """The error for a name that is not here, with where it is."""
        if name.startswith("__"):
            raise AttributeError(name)  # Python asks every module for some
        functions = dir(sys.modules["fusewright"])
        raise elsewhere.missing_name(name, "fusewright.nn", functions, __all__)
