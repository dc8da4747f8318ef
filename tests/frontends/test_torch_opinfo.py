"""The backend's operators on torch's own samples, computed by the oracle on host tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_checks as checks  # noqa: E402

from fusewright.frontends.torch.options import Options  # noqa: E402

EVERY = Options(min_ops=1)
FAST = (
    *("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "where", "clamp"),
    *("exp", "log1p", "tanh", "sigmoid", "erf", "sign", "eq", "lt", "logical_and", "bitwise_xor"),
    *("bitwise_left_shift", "maximum", "fmax", "sum", "mean", "prod", "amax", "argmax", "max"),
    *("var", "std_mean", "any", "all", "cumsum", "softmax", "log_softmax", "logsumexp", "cat"),
    *("stack", "gather", "index_select", "take_along_dim", "flip", "roll", "tril", "masked_fill"),
    *("nn.functional.layer_norm", "nn.functional.group_norm", "nn.functional.gelu"),
    *("nn.functional.silu", "nn.functional.embedding", "nn.functional.nll_loss"),
    *("nn.functional.pad", "slice_scatter", "linalg.vector_norm"),
)
VIEWS = (
    *("expand", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "select", "narrow"),
    *("split", "split_with_sizes", "unbind", "diagonal", "unfold", "movedim"),
)


@pytest.mark.parametrize("name", FAST)
def test_common_operators_agree_with_eager(name: str) -> None:
    count = 0
    for dtype in (torch.float32, torch.int64):
        for op in checks.named(name, dtype, "cpu"):
            count += checks.assert_op_as_eager(op, dtype, "cpu", EVERY, limit=5)
    assert count > 0, f"no sample of {name} was fused"


@pytest.mark.parametrize("name", VIEWS)
def test_views_inside_a_region_agree_with_eager(name: str) -> None:
    count = 0
    for op in checks.named(name, torch.float32, "cpu"):
        count += checks.assert_op_as_eager(op, torch.float32, "cpu", EVERY, limit=5, inside=True)
    assert count > 0, f"no sample of {name} was fused"


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES += (torch.int64, torch.int8, torch.uint8, torch.bool)
PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_operator_agrees_with_eager(dtype: torch.dtype, inside: bool, part: int) -> None:
    ops = checks.part_of(dtype, "cpu", part, PARTS)
    failed, fused = checks.failures(ops, dtype, "cpu", EVERY, limit=8, inside=inside)
    assert failed == []
    assert fused > 50


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_every_operator_agrees_with_eager_in_the_simulator(dtype: torch.dtype, part: int) -> None:
    ops = checks.part_of(dtype, "cpu", part, PARTS)
    options = Options(min_ops=1, cpu="sim")
    failed, fused = checks.failures(ops, dtype, "cpu", options, limit=2, inside=True)
    assert failed == []
    assert fused > 50
