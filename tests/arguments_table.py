"""For every public operation what each of its arguments may be changed to.

A row names two spellings of each argument: the usual one (None leaves it out) and another one. A
third word, the name of an error, says that the other one is refused. Arguments that are arrays
need only one: another array of the same kind is put in their place.
"""

from __future__ import annotations

from typing import TypeAlias

Row: TypeAlias = "dict[str, tuple[str | None, ...]]"

ARRAYS = {
    "x": ((4, 6), "float32"),
    "y": ((4, 6), "float32"),
    "z": ((4, 6), "float32"),
    "v": ((6,), "float32"),
    "u": ((4,), "float32"),
    "w": ((6, 6), "float32"),
    "n": ((4, 6), "int32"),
    "p": ((4, 6), "bool"),
    "k": ((3,), "int64"),
    "l": ((4,), "int64"),
    "t": ((4, 6), "int64"),
    "s": ((), "int64"),
    "img": ((2, 6, 6), "float32"),
    "per_image": ((2, 1, 1), "float32"),
    "big": ((6, 5), "float32"),
    "per_group": ((2, 3), "float32"),
    "per_row": ((4, 1), "float32"),
}
"""The arrays that rows speak of; each has a twin of another name, as `x2` of `x`."""

USUAL: Row = {
    "x": ("x",),
    "x1": ("x",),
    "x2": ("y",),
    "x3": ("z",),
    "axis": ("1", "0"),
    "keepdims": (None, "True"),
    "dtype": (None, "fw.float64"),
    "device": (None, "'cuda:0'", "UserError"),
    "copy": (None, "'no'", "UserError"),
    "include_initial": (None, "True"),
    "reduction": (None, "'sum'"),
    "eps": (None, "0.1"),
    "weight": ("v",),
    "bias": ("v",),
    "dy": ("y",),
    "indices": ("k",),
    "gate": ("x",),
    "shape": ("(4, 6)", "(6, 4)"),
    "k": (None, "1"),
    "momentum": (None, "0.5"),
    "normalized_shape": ("(6,)", "(4, 6)"),
    "mean": ("img[:1, :, :1]",),
    "seed": ("1", "2"),
    "offset": (None, "4"),
    "num_groups": ("3", "2"),
    "target": ("y",),
    "p": ("0.3", "0.4"),
    "ignore_index": (None, "3"),
    "label_smoothing": (None, "0.1"),
    "stable": (None, "'no'", "UserError"),
    "descending": (None, "True"),
    "correction": (None, "1.0"),
    "interleaved": (None, "True"),
    "approximate": (None, "'tanh'"),
    "beta": (None, "2.0"),
    "threshold": (None, "5.0"),
}
"""What an argument of this name is where its operation's row says nothing else."""

_NORM: Row = {
    "weight": (None, "v"),
    "bias": (None, "v"),
    "rstd": ("per_row",),
    "mean": ("per_row",),
}
_BY_CHANNEL: Row = {
    "x": ("img",),
    "dy": ("img * 2",),
    "weight": ("v",),
    "bias": ("v",),
    "running_mean": ("v",),
    "running_var": ("v * v",),
    "training": ("True", "False"),
    "mean": ("v",),
    "rstd": ("v * 2",),
}
_BY_GROUP: Row = {
    "x": ("img",),
    "dy": ("img * 2",),
    "weight": ("v",),
    "bias": ("v",),
    "mean": ("per_group",),
    "rstd": ("per_group * 2",),
}
_CLASSES: Row = {"target": ("l",), "weight": ("v",), "dy": ("u[0]",), "log_sum_exp": ("u",)}
_WHOLE: Row = {"x": ("n",), "x1": ("n",), "x2": ("t",)}
_TRUTH: Row = {"x": ("p",), "x1": ("p",), "x2": ("x > y",)}
_SIZED: Row = {"size": ("3", "4"), "fill": (None, "1")}
_CONV: Row = {
    "x": ("img",),
    "bias": (None, "u[:2]"),
    "stride": (None, "2"),
    "padding": (None, "1"),
    "dilation": (None, "2"),
    "groups": (None, "2", "UserError"),
}
_POOL: Row = {
    "x": ("img",),
    "kernel_size": ("3", "2"),
    "stride": ("2", "1"),
    "padding": ("1", "0"),
    "dilation": (None, "2"),
    "ceil_mode": ("True", "False"),
    "return_indices": (None, "True"),
    "count_include_pad": (None, "False"),
    "divisor_override": (None, "3"),
}

ROWS: dict[str, Row] = {
    **{f"bitwise_{o}": _WHOLE for o in ("and", "or", "xor", "invert", "left_shift", "right_shift")},
    **{f"logical_{o}": _TRUTH for o in ("and", "or", "xor", "not")},
    "all": {"x": ("p",)},
    "any": {"x": ("p",)},
    "imag": {
        "x": (
            "fw.asarray([1j])",
            "fw.asarray([2.0 - 1j])",
        )
    },
    "real": {
        "x": (
            "fw.asarray([1j])",
            "fw.asarray([2.0 - 1j])",
        )
    },
    "conj": {
        "x": (
            "fw.asarray([1j])",
            "fw.asarray([2.0 - 1j])",
        )
    },
    "allclose": {"rtol": (None, "0.5"), "atol": (None, "0.5"), "equal_nan": (None, "True")},
    "isclose": {"rtol": (None, "0.5"), "atol": (None, "0.5"), "equal_nan": (None, "True")},
    "lerp": {"weight": ("z",)},
    "nan_to_num": {"nan": (None, "1.0"), "posinf": (None, "1.0"), "neginf": (None, "1.0")},
    "cross": {"x1": ("x[:, :3]",), "x2": ("y[:, :3]",), "axis": ("-1", "0", "UserError")},
    "diagonal": {"offset": (None, "1")},
    "outer": {"x1": ("v",), "x2": ("u",)},
    "arange": {"start": ("0", "1"), "stop": ("7", "9"), "step": (None, "2")},
    "argsort": {"axis": (None, "0")},
    "sort": {"axis": (None, "0")},
    "topk": {"k": ("2", "3"), "axis": (None, "0"), "largest": (None, "False")},
    "asarray": {"obj": ("[1, 2]", "[1, 3]"), "copy": (None, "False", "UserError")},
    "astype": {"dtype": ("fw.float64", "fw.int8")},
    "broadcast_arrays": {"arrays": ("x, v",)},
    "broadcast_to": {"x": ("v",), "shape": ("(4, 6)", "(2, 6)")},
    "broadcast_shapes": {"shapes": ("(4, 1)", "(5, 1)")},
    "can_cast": {"from_": ("fw.int8", "fw.float64"), "to": ("fw.int16", "fw.bool")},
    "clip": {"min": (None, "0"), "max": ("2", "3")},
    "concat": {"arrays": ("[x, y]",), "axis": (None, "1")},
    "stack": {"arrays": ("[x, y]",), "axis": (None, "1")},
    "count_nonzero": {},
    "cumulative_prod": {},
    "cumulative_sum": {},
    "diff": {"n": (None, "2"), "prepend": (None, "x"), "append": (None, "x")},
    "einsum": {"subscripts": ("'ij,ij->i'", "'ij,ij->j'"), "operands": ("x, y",)},
    "empty_like": {"x": ("x", "v")},
    "ones_like": {"x": ("x", "v")},
    "zeros_like": {"x": ("x", "v")},
    "vecdot": {"axis": ("-1", "-2")},
    "expand_dims": {"axis": ("0", "1")},
    "eye": {"n_rows": ("4", "5"), "n_cols": (None, "3")},
    "finfo": {"type": ("fw.float32", "fw.float16")},
    "iinfo": {"type": ("fw.int8", "fw.int16")},
    "from_dlpack": {
        "x": ("np.arange(3)", "np.arange(4)"),
        "device": (None, "(2, 0)", "UserError"),
        "copy": (None, "'no'", "UserError"),
    },
    "full": {"fill_value": ("1", "2")},
    "full_like": {"x": ("x", "v"), "fill_value": ("1", "2")},
    "insert": {"dest": ("x",), "value": ("x[:1, :2]",), "start": ("(0, 0)", "(1, 2)")},
    "isdtype": {"dtype": ("fw.int8", "fw.float32"), "kind": ("'integral'", "'bool'")},
    "isin": {
        "x1": ("fw.asarray([1, 2])", "fw.asarray([3])"),
        "x2": ("fw.asarray([1])", "fw.asarray([2])"),
        "invert": (None, "True"),
    },
    "linspace": {
        "start": ("0", "1"),
        "stop": ("5", "6"),
        "num": ("4", "5"),
        "endpoint": (None, "False"),
    },
    "matmul": {"x2": ("w",)},
    "matrix_transpose": {},
    "meshgrid": {"arrays": ("v, u",), "indexing": (None, "'ij'")},
    "moveaxis": {"x": ("img",), "source": ("0", "1"), "destination": ("2", "0")},
    "name": {"text": ("'h'", "'g'")},
    "nonzero": _SIZED,
    "ones": {},
    "pad": {
        "pad_width": ("1", "2"),
        "mode": (None, "'edge'"),
        "constant_values": (None, "3"),
        "end_values": (None, "'no'", "UserError"),
        "stat_length": (None, "0", "UserError"),
    },
    "permute_dims": {"x": ("img",), "axes": ("(0, 2, 1)", "(2, 1, 0)")},
    "repeat": {"repeats": ("2", "3")},
    "reshape": {"shape": ("(3, 8)", "(24,)"), "copy": (None, "True")},
    "result_type": {"arrays_and_dtypes": ("fw.int8, fw.int16", "fw.float32")},
    "roll": {"shift": ("1", "2"), "axis": ("1", "0")},
    "searchsorted": {
        "x1": ("fw.asarray([1, 3, 5])", "fw.asarray([4, 6, 8])"),
        "x2": ("fw.asarray([3, 6])", "fw.asarray([0, 9])"),
        "side": (None, "'right'"),
        "sorter": (None, "fw.asarray([2, 1, 0])"),
    },
    "squeeze": {"x": ("fw.expand_dims(x, axis=(0, 1))",), "axis": ("0", "(0, 1)")},
    "take": {"axis": ("1", "0")},
    "take_along_axis": {"indices": ("t[:, :4]",), "axis": (None, "0", "UserError")},
    "tensordot": {"x2": ("w",), "axes": ("1", "((1,), (1,))")},
    "tile": {"repetitions": ("(2, 1)", "(1, 2)")},
    "bincount": {
        "x": ("k",),
        "weights": (None, "v[:3]"),
        "minlength": ("2", "7", "UserError"),
        "length": ("4", "5"),
    },
    "compress": {"condition": ("p[0]",), "axis": ("1", "None", "UserError"), **_SIZED},
    "histogram": {
        "bins": ("3", "4"),
        "range": (None, "(0, 1)"),
        "weights": (None, "y"),
        "density": (None, "True"),
    },
    "scatter_add": {"dest": ("x",), "index": ("l",), "values": ("y",)},
    "segment_sum": {"values": ("x",), "ids": ("l",), "num_segments": ("3", "4")},
    "unique_all": _SIZED,
    "unique_counts": _SIZED,
    "unique_inverse": _SIZED,
    "unique_values": _SIZED,
    "unstack": {"axis": (None, "1")},
    "where": {"condition": ("p",)},
    "zeros": {},
    **{
        f"nn.max_pool{d}d": _POOL | ({"x": ("fw.stack([img, img])",)} if d == 3 else {})
        for d in (1, 2, 3)
    },
    **{
        f"nn.avg_pool{d}d": _POOL | ({"x": ("fw.stack([img, img])",)} if d == 3 else {})
        for d in (1, 2, 3)
    },
    **{
        f"nn.adaptive_avg_pool{d}d": {
            "x": ("fw.stack([img, img])",) if d == 3 else ("img",),
            "output_size": ("3", "2"),
        }
        for d in (1, 2, 3)
    },
    "nn.conv1d": _CONV | {"weight": ("img[:, :, :3]",)},
    "nn.conv3d": _CONV
    | {"x": ("fw.stack([img, img])",), "weight": ("fw.stack([img, img])[:, :, None, :3, :3]",)},
    "nn.conv2d": _CONV | {"weight": ("fw.stack([img, img])[:, :, :3, :3]",)},
    "nn.conv_transpose1d": _CONV
    | {"weight": ("fw.stack([w, w, w], axis=2)[:, :2]",), "groups": (None, "2")}
    | {"stride": ("2", "3"), "output_padding": (None, "1")},
    "nn.conv_transpose2d": _CONV
    | {"weight": ("fw.stack([img, img])[:, :, :3, :3]",), "groups": (None, "2")}
    | {"stride": ("2", "3"), "output_padding": (None, "1")},
    "nn.unfold": _CONV | {"kernel_size": ("3", "2")},
    "nn.fold": {
        "x": ("w",),
        "output_size": ("(2, 5)", "(3, 4)"),
        "kernel_size": ("(1, 3)", "(1, 2)", "UserError"),
        "dilation": (None, "2", "UserError"),
        "padding": (None, "1", "UserError"),
        "stride": (None, "2", "UserError"),
    },
    "nn.batch_norm": _BY_CHANNEL
    | {"axis": (None, "2"), "training": ("False", "True"), "momentum": (None, "0.5", "UserError")},
    "nn.batch_norm_backward": _BY_CHANNEL | {"axis": (None, "2")},
    "nn.batch_norm_forward": _BY_CHANNEL | {"axis": (None, "2")},
    "nn.instance_norm_forward": _BY_CHANNEL | {"use_input_stats": ("True", "False")},
    "nn.binary_cross_entropy_with_logits": {"weight": (None, "v"), "pos_weight": (None, "v")},
    "nn.cross_entropy": _CLASSES,
    "nn.cross_entropy_backward": _CLASSES,
    "nn.cross_entropy_forward": _CLASSES,
    "nn.nll_loss": _CLASSES,
    "nn.dropout_mask": {"p": ("0.1", "0.9")},
    "nn.hardtanh": {"min_val": (None, "-2.0"), "max_val": (None, "2.0")},
    "nn.threshold": {"threshold": ("0.5", "1.0"), "value": ("2.0", "3.0")},
    "nn.celu": {"alpha": (None, "2.0")},
    "nn.hardshrink": {"lambd": (None, "1.0")},
    "nn.softshrink": {"lambd": (None, "1.0")},
    "nn.normalize": {"p": (None, "1.0")},
    "nn.pairwise_distance": {"p": (None, "1.0")},
    "nn.local_response_norm": {
        "x": ("img",),
        "size": ("3", "2"),
        "alpha": (None, "0.5"),
        "k": (None, "2.0"),
    },
    "nn.huber_loss": {"delta": (None, "2.0")},
    "nn.binary_cross_entropy": {"weight": (None, "v")},
    "nn.gaussian_nll_loss": {"var": ("z",), "full": (None, "True")},
    "nn.poisson_nll_loss": {"log_input": ("False", "True"), "full": (None, "True")},
    "nn.multilabel_soft_margin_loss": {"weight": (None, "v")},
    "nn.hinge_embedding_loss": {"margin": (None, "2.0")},
    "nn.margin_ranking_loss": {"target": ("z",), "margin": (None, "2.0")},
    "nn.cosine_embedding_loss": {"target": ("u",), "margin": (None, "0.5")},
    "nn.triplet_margin_loss": {
        "anchor": ("x",),
        "positive": ("y",),
        "negative": ("z",),
        "margin": (None, "2.0"),
        "p": (None, "1.0"),
        "swap": (None, "True"),
    },
    "nn.multi_margin_loss": {
        "target": ("l",),
        "p": (None, "2"),
        "margin": (None, "2.0"),
        "weight": (None, "v"),
    },
    "nn.pixel_shuffle": {
        "x": ("fw.stack([img, img, img, img])[:, 0]",),
        "upscale_factor": ("2", "1"),
    },
    "nn.pixel_unshuffle": {"x": ("img",), "downscale_factor": ("2", "3")},
    "nn.channel_shuffle": {"x": ("img",), "groups": ("2", "3")},
    "nn.interpolate": {
        "x": ("img",),
        "size": (None, "3", "UserError"),
        "scale_factor": ("0.7", "2"),
        "mode": ("'linear'", "'nearest'"),
        "align_corners": (None, "True"),
        "recompute_scale_factor": (None, "True"),
        "antialias": (None, "True", "UnsupportedError"),
    },
    "nn.elu": {"alpha": (None, "2.0")},
    "nn.leaky_relu": {"negative_slope": (None, "0.5")},
    "nn.embedding": {"weight": ("x",)},
    "nn.embedding_backward": {
        "dy": ("x[:3]",),
        "num_embeddings": ("5", "7"),
        "padding_idx": (None, "1"),
    },
    "nn.group_norm": _BY_GROUP,
    "nn.group_norm_forward": _BY_GROUP,
    "nn.group_norm_backward": _BY_GROUP | {"num_groups": ("3", "2", "UserError")},
    "nn.instance_norm": _BY_CHANNEL
    | {"use_input_stats": ("False", "True"), "momentum": (None, "0.5", "UserError")},
    "nn.instance_norm_backward": _BY_CHANNEL
    | {"mean": ("img[:, :, 0]",), "rstd": ("img[:, :, 1]",)},
    "nn.kl_div": {"log_target": (None, "True")},
    "nn.layer_norm": _NORM,
    "nn.layer_norm_forward": _NORM,
    "nn.layer_norm_backward": _NORM | {"normalized_shape": ("(6,)", "(4, 6)", "UserError")},
    "nn.rms_norm": _NORM,
    "nn.rms_norm_forward": _NORM,
    "nn.rms_norm_backward": _NORM | {"normalized_shape": ("(6,)", "(4, 6)", "UserError")},
    "nn.linear": {"weight": ("w",)},
    "nn.linear_backward": {"weight": ("w",)},
    "nn.one_hot": {"num_classes": ("5", "6"), "axis": (None, "0")},
    "nn.rotary_embedding": {"cos": ("x[:, :3]",), "sin": ("y[:, :3]",)},
    "nn.rotary_embedding_backward": {"cos": ("x[:, :3]",), "sin": ("z[:, :3]",)},
    "nn.log_softmax_backward": {"y": ("x",)},
    "nn.softmax_backward": {"y": ("x",)},
    "nn.sigmoid_backward": {"y": ("x",)},
    "nn.tanh_backward": {"y": ("x",)},
    "nn.scaled_dot_product_attention": {
        "query": ("fw.concat([img, img])",),
        "key": ("img[:1]",),
        "value": ("img[1:]",),
        "attn_mask": (None, "w"),
        "dropout_p": ("0.2", "0.3"),
        "is_causal": (None, "True"),
        "scale": (None, "2.0"),
        "enable_gqa": (None, "True"),
    },
    "nn.swiglu": {"up": (None, "y")},
}
