"""Neural network functions as compositions of array operations, under the names of
torch.nn.functional, with `axis` for `dim`.

`X_backward(dy, saved..., *inputs)` is the gradient of `X`; `X_forward` is `X` with the values that
its gradient takes.
"""

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
from fusewright.fusion.nn.cross_entropies import (
    cross_entropy,
    cross_entropy_backward,
    cross_entropy_forward,
    nll_loss,
)
from fusewright.fusion.nn.dropouts import dropout, dropout_backward, dropout_mask
from fusewright.fusion.nn.embeddings import (
    embedding,
    embedding_backward,
    one_hot,
    rotary_embedding,
    rotary_embedding_backward,
)
from fusewright.fusion.nn.linears import linear, linear_backward
from fusewright.fusion.nn.losses import (
    binary_cross_entropy_with_logits,
    kl_div,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
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
from fusewright.fusion.nn.softmaxes import (
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
)

__all__ = [
    "BatchNorm",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_forward",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "dropout",
    "dropout_backward",
    "dropout_mask",
    "elu",
    "embedding",
    "embedding_backward",
    "gelu",
    "gelu_backward",
    "glu",
    "group_norm",
    "group_norm_backward",
    "group_norm_forward",
    "hardswish",
    "instance_norm",
    "instance_norm_backward",
    "instance_norm_forward",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_forward",
    "leaky_relu",
    "linear",
    "linear_backward",
    "log_softmax",
    "log_softmax_backward",
    "mish",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "relu",
    "relu_backward",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_forward",
    "rotary_embedding",
    "rotary_embedding_backward",
    "scaled_dot_product_attention",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "smooth_l1_loss",
    "softmax",
    "softmax_backward",
    "softplus",
    "softplus_backward",
    "swiglu",
    "tanh",
    "tanh_backward",
]
