"""The backend's operators on torch's own samples, computed by the oracle on host tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's own tables of samples need it

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
            count += checks.check_op(op, dtype, "cpu", EVERY, limit=5)
    assert count > 0, f"no sample of {name} was fused"


@pytest.mark.parametrize("name", VIEWS)
def test_views_inside_a_region_agree_with_eager(name: str) -> None:
    count = 0
    for op in checks.named(name, torch.float32, "cpu"):
        count += checks.check_op(op, torch.float32, "cpu", EVERY, limit=5, inside=True)
    assert count > 0, f"no sample of {name} was fused"


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.int8], ids=str)
def test_every_operator_agrees_with_eager(dtype: torch.dtype, inside: bool) -> None:
    failed: list[str] = []
    fused = 0
    for op in checks.operators(dtype, "cpu"):
        try:
            fused += checks.check_op(op, dtype, "cpu", EVERY, limit=8, inside=inside)
        except Exception as e:
            failed.append(f"{op.name}.{op.variant_test_name}: {type(e).__name__}: {str(e)[:200]}")
    print(f"{fused} calls were fused")
    assert failed == []
