"""Upsampling and its gradient beside eager torch: values, strides, and no scatter is left."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.interpolation import interpolated  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402
from fusewright.fusion.array import Array  # noqa: E402

interpolate = torch.nn.functional.interpolate
aten = torch.ops.aten

BICUBIC = "aten.upsample_bicubic"
WHOLE: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("nearest", {"scale_factor": 2}, (2, 3, 5, 7)),
    ("nearest", {"size": (15, 14)}, (2, 3, 5, 7)),
    ("nearest", {"scale_factor": 3}, (2, 3, 5)),
    ("nearest", {"scale_factor": 2}, (2, 2, 3, 4, 5)),
    ("nearest-exact", {"scale_factor": 2}, (2, 3, 5, 7)),
]
OTHERS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("nearest", {"size": (9, 14)}, (2, 3, 5, 7)),
    ("nearest", {"scale_factor": 2.5}, (2, 3, 6, 7)),
    ("linear", {"scale_factor": 2}, (2, 3, 5)),
    ("bilinear", {"scale_factor": 2}, (2, 3, 5, 7)),
    ("bilinear", {"size": (9, 4), "align_corners": True}, (2, 3, 5, 7)),
    ("bicubic", {"scale_factor": 1.7}, (2, 3, 6, 7)),
    ("trilinear", {"scale_factor": 2}, (2, 2, 3, 4, 5)),
]


def _trained(
    mode: str, how: dict[str, Any], x: Any, options: Options | None = None
) -> list[GraphReport]:
    """The reports of a function that upsamples, whose result and gradient are as eager's."""

    def f(t: Any) -> Any:
        return interpolate(t.sin(), mode=mode, **how) * 2

    reports: list[GraphReport] = []
    torch.compiler.reset()
    run = torch.compile(f, backend=compiler(options or Options(), reports.append))
    own, eager = (x.detach().clone().requires_grad_() for _ in range(2))
    made, wanted = run(own), f(eager)
    torch.testing.assert_close(made, wanted)
    assert made.stride() == wanted.stride()
    dy = torch.randn_like(wanted)
    made.backward(dy)
    wanted.backward(dy)
    torch.testing.assert_close(own.grad, eager.grad)
    assert own.grad.stride() == eager.grad.stride()
    assert [r.failures for g in reports for r in g.regions if r.failures] == []
    with torch.no_grad():
        torch.testing.assert_close(run(x), f(x))
    return reports


def _left(reports: list[GraphReport]) -> set[str]:
    return {str(op) for g in reports for op, why in g.left if "alone" not in why}


@pytest.mark.parametrize(("mode", "how", "shape"), WHOLE)
def test_whole_repeats_are_ours_both_ways(
    mode: str, how: dict[str, Any], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    assert _left(_trained(mode, how, torch.randn(shape))) == set()


@pytest.mark.parametrize(("mode", "how", "shape"), OTHERS)
def test_other_gradients_are_one_kernel_of_torch(
    mode: str, how: dict[str, Any], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    left = _left(_trained(mode, how, torch.randn(shape)))
    operator = f"aten.upsample_{mode if mode != 'nearest' else 'nearest2d'}"
    assert {n.removesuffix("2d.default") for n in left if "backward" not in n} <= {BICUBIC}
    (back,) = (n for n in left if "backward" in n)
    assert back.startswith(operator)


@pytest.mark.parametrize(
    ("mode", "how", "shape"),
    [
        ("bilinear", {"scale_factor": 2}, (2, 3, 5, 7)),
        ("bilinear", {"size": (9, 4), "align_corners": True}, (2, 3, 5, 7)),
        ("linear", {"size": 1}, (2, 3, 5)),
        ("trilinear", {"size": (3, 5, 9)}, (1, 2, 4, 2, 5)),
        ("nearest", {"scale_factor": 3}, (2, 3, 5, 7)),
    ],
)
def test_kernels_agree_in_the_simulator(
    mode: str, how: dict[str, Any], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(2)
    options = Options(cpu="sim", target="sm_90a", min_ops=1)
    reports = _trained(mode, how, torch.randn(shape), options)
    assert not any("backward" not in n for n in _left(reports))


def test_what_no_quotient_of_sizes_tells_is_of_torch() -> None:
    left = _left(_trained("bilinear", {"scale_factor": 1.7}, torch.randn(2, 3, 6, 7)))
    assert "aten.upsample_bilinear2d.default" in left


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_channels_last_stays(mode: str) -> None:
    x = torch.randn(2, 5, 4, 6).contiguous(memory_format=torch.channels_last)
    _trained(mode, {"scale_factor": 2}, x)


def test_torch_traces_as_before_behind_us() -> None:
    key = torch._C.DispatchKey.Autograd
    op = aten.upsample_bilinear2d.vec
    known = op.py_kernels[key]
    _trained("bilinear", {"scale_factor": 2}, torch.randn(1, 2, 3, 4))
    assert op.py_kernels[key] is known


def _bilinear(scale: float | None) -> Any:
    return lambda x: aten.upsample_bilinear2d.default(x, [10, 11], False, scale, scale)


def test_what_is_refused_says_why() -> None:
    with pytest.raises(
        fw.UnsupportedError, match=r"interpolation by 1\.7 of 7 elements at 11 places"
    ):
        fw.from_torch(_bilinear(1.7), torch.randn(2, 3, 6, 7))
    with pytest.raises(
        fw.UnsupportedError, match="uint8, which is rounded otherwise between its elements"
    ):
        fw.from_torch(_bilinear(None), torch.zeros(2, 3, 6, 7, dtype=torch.uint8))


def test_symbolic_sizes_stay_symbolic() -> None:
    reports: list[GraphReport] = []
    torch.compiler.reset()
    backend = compiler(Options(), reports.append)
    run = torch.compile(lambda x: interpolate(x, scale_factor=2, mode="bilinear"), backend=backend)
    for rows in (6, 9):
        x = torch.randn(2, 3, rows, 7)
        torch._dynamo.mark_dynamic(x, 2)
        torch.testing.assert_close(run(x), interpolate(x, scale_factor=2, mode="bilinear"))
    assert len(reports) == 1


def test_interpolation_of_symbolic_sizes_is_refused() -> None:
    x = fw.trace(lambda x: x, fw.TensorSpec((2, 3, "n"), "float32"))
    with pytest.raises(fw.UnsupportedError, match="interpolation of n elements at 4 places"):
        interpolated((fw.float32,), Array(x.inputs[0]), [4], False)


@pytest.mark.parametrize("scale", [0.6, 2.0])
def test_an_empty_batch_is_spelled_as_torch_spells_it(scale: float) -> None:
    """torch's rule for upsampling that is not spelled out refuses it with a TypeError."""
    torch.compiler.reset()

    def fn(x: Any) -> Any:
        return interpolate(x.neg(), scale_factor=scale, mode="nearest-exact").neg()

    x = torch.randn(0, 3, 4, 4, requires_grad=True)
    got = torch.compile(fn, backend="fusewright")(x)
    want = fn(x)
    assert (got.shape, got.stride()) == (want.shape, want.stride())
    (grad,) = torch.autograd.grad(got.sum(), x)
    assert grad.shape == x.shape
