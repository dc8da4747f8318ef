"""The PyTorch backend on host tensors: functions and models beside eager, the order of effects,
layouts, reports, options; the oracle computes, and for some the simulator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_checks as checks  # noqa: E402

import fusewright as fw  # noqa: E402
import fusewright.frontends.torch as door  # noqa: E402
from fusewright.errors import UnsupportedError, UserError  # noqa: E402
from fusewright.frontends.fuse import Fused  # noqa: E402
from fusewright.frontends.torch import calls  # noqa: E402
from fusewright.frontends.torch.decompositions import decompositions  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options, options_of  # noqa: E402
from fusewright.frontends.torch.region import FusedRegion  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

nn = torch.nn.functional


def compiled(fn: Callable[..., Any], **options: Any) -> tuple[Any, list[GraphReport]]:
    torch.compiler.reset()
    reports: list[GraphReport] = []
    return torch.compile(fn, backend=compiler(Options(**options), reports.append)), reports


def assert_as_eager(fn: Callable[..., Any], *args: Any, **options: Any) -> list[GraphReport]:
    """The function beside eager, and that nothing fell back; the reports."""
    run, reports = compiled(fn, **options)
    got, want = run(*args), fn(*args)
    checks.assert_close(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want))
    assert [r.failures for g in reports for r in g.regions if r.failures] == []
    return reports


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


# --- functions ----------------------------------------------------------------------------------


def test_arguments_that_stand_for_negated_memory_are_read_as_what_they_show() -> None:
    """The imaginary part of a conjugate is such a view: a bit says that its memory is negated."""
    z = torch.complex(rand(300), rand(300)).conj()
    assert z.imag.is_neg()
    reports = assert_as_eager(lambda x: torch.sin(x) + x * 2, z.imag)
    reports += assert_as_eager(lambda z: torch.sin(z.imag) + z.imag * 2, z)
    assert all(g.regions for g in reports)


def test_torchs_table_of_decompositions_is_built_for_the_first_graph_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = decompositions()
    monkeypatch.setattr(torch._decomp, "core_aten_decompositions", None)
    again = decompositions()
    assert again is not first and again.keys() == first.keys()
    assert torch.ops.aten.gelu.default not in again
    assert torch.ops.aten.binary_cross_entropy.default in again


def chain(x: Any, w: Any, b: Any) -> Any:
    h = torch.tanh(x * 2 + 1) @ w
    y = nn.layer_norm(nn.gelu(h) + b, (h.shape[-1],))
    return nn.softmax(y * 3, -1), y.sum(0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_programs_are_compiled_before_the_first_call(dynamic: bool) -> None:
    """The call finds the program that was made for the types in the graph, and makes no other."""
    before: list[int] = []

    def model(x: Any, w: Any) -> Any:
        return torch.tanh(torch.softmax((x * 2).T, -1) @ w) + 1

    def call(self: FusedRegion, *args: Any) -> list[Any]:
        assert isinstance(self.fused, Fused)
        before.append(len(self.fused._programs))
        made = original(self, *args)
        assert len(self.fused._programs) == 1
        return made

    torch.compiler.reset()
    original = FusedRegion.__call__
    x, w = rand(6, 8), rand(6, 6)
    run = torch.compile(model, backend=compiler(Options(cpu="sim")), dynamic=dynamic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedRegion, "__call__", call)
        checks.assert_close([run(x, w)], [model(x, w)])
    assert before == [1, 1], "two regions stand around the product"


def test_layers_and_both_graphs_share_kernels() -> None:
    """A layer's regions are compiled once, and no operator is judged twice on equal types."""

    def model(x: Any, w: Any) -> Any:
        for k in range(3):  # the scale is an argument of the kernel
            x = torch.softmax(x * (k + 2.0), -1) @ w
        return x

    torch.compiler.reset()
    traced: list[str] = []
    reports: list[GraphReport] = []
    original = calls._problem

    def problem(node: Any) -> str | None:
        traced.append(str(node.target))
        return original(node)

    x, w = rand(6, 6), rand(6, 6)
    run = torch.compile(model, backend=compiler(Options(cpu="sim"), reports.append))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "_problem", problem)
        checks.assert_close([run(x, w)], [model(x, w)])
    regions = [r for g in reports for r in g.regions]
    kernels = {k for r in regions for p in r.fused._programs.values() for k in p.program.kernels}
    assert len(regions) == 3 and len(kernels) == 1
    assert len(traced) < sum(len(r.part.nodes) for r in regions)


def test_regions_stand_around_a_matrix_product() -> None:
    (report,) = assert_as_eager(chain, rand(6, 8), rand(8, 10), rand(10))
    assert [[str(n.target) for n in r.part.owned][:2] for r in report.regions] == [
        ["aten.mul.Tensor", "aten.add.Tensor"],
        ["aten.gelu.default", "aten.add.Tensor"],
    ]
    assert report.left == [("aten.mm.default", "a product on the host is torch's")]


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
def test_gradients_agree_with_eager(cpu: str) -> None:
    args = [rand(6, 8), rand(8, 10), rand(10)]

    def gradients(fn: Callable[..., Any]) -> list[Any]:
        own = [a.clone().requires_grad_() for a in args]
        probabilities, sums = fn(*own)
        (probabilities.pow(2).sum() + sums.sin().sum()).backward()
        return [a.grad for a in own]

    run, reports = compiled(chain, cpu=cpu)
    checks.assert_close(gradients(run), gradients(chain))
    assert [g.name for g in reports] == ["forward", "backward"]
    assert all(g.regions and not r.failures for g in reports for r in g.regions)


def test_a_small_transformer_trains_like_eager() -> None:
    torch.manual_seed(0)
    eager = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    ours = copy.deepcopy(eager)
    run, reports = compiled(ours)
    x = rand(2, 5, 16)
    for model, call in ((eager, eager), (ours, run)):
        call(x).square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())
    pairs = zip(eager.parameters(), ours.parameters(), strict=True)
    checks.assert_close(*zip(*((o.grad, e.grad) for e, o in pairs), strict=True))
    assert sum(len(g.regions) for g in reports) >= 4


def test_scalars_and_zero_dimensional_tensors_promote_as_in_torch() -> None:
    def mixed(i: Any, h: Any, z: Any) -> Any:
        return i + 2.5, i * z, h * 3, h + z, i > 1.5, (i + True) // 2, torch.where(i > 0, h, 1)

    assert_as_eager(
        mixed, torch.arange(-3, 3), rand(6).half(), torch.tensor(0.3, dtype=torch.float64)
    )


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_integer_division_rounds_as_in_torch(mode: str | None) -> None:
    a, b = torch.tensor([-7, 7, -7, 7, 6]), torch.tensor([2, 2, -2, -2, 3])
    assert_as_eager(lambda a, b: torch.div(a + 0, b, rounding_mode=mode), a, b)
    assert_as_eager(lambda a, b: (torch.fmod(a, b), torch.remainder(a, b)), a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_division_rounds_down_as_in_torch_at_infinities(dtype: Any) -> None:
    special = torch.tensor([0.0, -0.0, 1, -2.5, math.inf, -math.inf, math.nan], dtype=dtype)
    a, b = torch.meshgrid(special, special, indexing="ij")
    assert_as_eager(lambda a, b: torch.div(a + 0, b, rounding_mode="floor"), a, b)


def test_an_index_outside_one_axis_of_several_is_none_of_another_row() -> None:
    x, i, j = rand(3, 4), torch.tensor([0, 2, 3, -4, 1]), torch.tensor([4, -4, 0, 3, -5])
    run, _ = compiled(lambda x, i, j: x[i, j] + 0, cpu="sim", min_ops=1)
    found = run(x, i, j)
    assert torch.isnan(found).tolist() == [True, False, True, True, True]
    assert found[1] == x[2, 0]
    run, _ = compiled(lambda x, i, j: x[i, j] + 0)
    with pytest.raises(IndexError, match="out of"):
        run(x, i, j)


def test_a_result_has_the_strides_that_torch_gives_it() -> None:
    def f(x: Any) -> Any:
        return (x * 2 + 1).sigmoid()

    x = rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    run, _ = compiled(f)
    assert run(x).stride() == f(x).stride() == x.stride()
    checks.assert_close([run(x)], [f(x)])


@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (2, 3, 1, 1), (1, 3, 4, 5)])
def test_strides_of_axes_of_size_1_are_torchs_too(shape: tuple[int, ...]) -> None:
    x = rand(*shape).to(memory_format=torch.channels_last)
    run, _ = compiled(lambda x: x * 2 + 1)
    assert run(x).stride() == x.stride()
    checks.assert_close([run(x)], [x * 2 + 1])


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
def test_strides_of_empty_results_are_torchs(cpu: str) -> None:
    def f(x: Any) -> Any:
        return torch.tanh(x * 2), x.exp() + x.sum(1, keepdim=True)

    run, reports = compiled(f, cpu=cpu)
    for x in (torch.ones(3, 0, 5), torch.ones(0, 3)):
        assert [y.stride() for y in run(x)] == [y.stride() for y in f(x)]
    assert all(g.regions for g in reports)


def test_steps_fall_where_torchs_fall() -> None:
    def buckets(n: Any) -> Any:
        return (torch.log(n.float() / 8) / math.log(16) * 8).to(torch.int64) + 8

    assert_as_eager(buckets, torch.tensor([8, 16, 32, 64, 128]))


def test_a_write_to_every_second_column_is_fused() -> None:
    def f(x: Any) -> Any:
        y = x.clone()
        y[1:3, 1::2] = x[1:3, ::2] * 5
        return y + 1

    (report,) = assert_as_eager(f, rand(4, 6))
    assert report.left == []


def test_batch_norm_trains_like_eager() -> None:
    def layer(x: Any, mean: Any, variance: Any, w: Any, b: Any) -> Any:
        return nn.batch_norm(x, mean, variance, w, b, True, 0.1, 1e-5).relu()

    def results(fn: Callable[..., Any]) -> list[Any]:
        x, w, b = rand(4, 5, 3).requires_grad_(), rand(5).requires_grad_(), rand(5)
        mean, variance = torch.zeros(5), torch.ones(5)
        y = fn(x, mean, variance, w, b)
        y.square().sum().backward()
        return [y, x.grad, w.grad, mean, variance]

    run, reports = compiled(layer)
    checks.assert_close(results(run), results(layer))
    assert "aten._native_batch_norm_legit_functional.default" in reports[0].taken


@pytest.mark.parametrize("shape", [(3, 6), (2, 6, 5), (2, 6, 3, 5), (2, 6, 1, 1), (2, 6, 3, 2, 5)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_trains_like_eager(shape: tuple[int, ...], groups: int) -> None:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape))

    def layer(x: Any, w: Any, b: Any) -> Any:
        return nn.group_norm(x, groups, w, b).sigmoid()

    def results(fn: Callable[..., Any], given: Any) -> list[Any]:
        x, w, b = given.clone().requires_grad_(), rand(6).requires_grad_(), rand(6)
        y = fn(x, w, b)
        y.square().sum().backward()
        return [y, x.grad, w.grad]

    run, reports = compiled(layer)
    for order in (torch.contiguous_format, last) if last is not None else (None,):
        x = rand(*shape) if order is None else rand(*shape).contiguous(memory_format=order)
        checks.assert_close(results(run, x), results(layer, x))
    assert "aten.native_group_norm.default" in reports[0].taken


def test_floats_become_short_integers_as_in_torch() -> None:
    x = torch.tensor([300.0, -5.0, 1e3, 7.9])
    assert_as_eager(
        lambda x: (x.to(torch.int8) + 1, x.to(torch.uint8) * 2, (x + 0.5).to(torch.int16)), x
    )


def test_two_equal_results_have_memory_of_their_own() -> None:
    def f(x: Any) -> Any:
        y = x * 2 + 1
        return y, y.clone()

    run, _ = compiled(f, min_ops=1)
    a, b = run(rand(4))
    a.zero_()
    assert b.abs().sum() > 0


def test_writes_and_draws_keep_their_order() -> None:
    def f(x: Any, state: Any) -> Any:
        before = state * 2 + 1
        state.add_(x)
        first = torch.rand_like(x) * before + 1
        second = torch.rand_like(x) + 1
        state.mul_(2)
        return first * second, state * 3 - before

    x = rand(8)
    run, _ = compiled(f, min_ops=1)
    results = []
    for fn in (run, f):
        torch.manual_seed(3)
        state = torch.ones(8)
        results.append([*fn(x, state), state])
    checks.assert_close(*results)


def test_dropout_draws_torchs_mask() -> None:
    def f(x: Any) -> Any:
        return nn.dropout(x * 2 + 1, 0.5) + 1

    run, (*reports,) = compiled(f)
    x = rand(64)
    torch.manual_seed(5)
    got = run(x)
    torch.manual_seed(5)
    checks.assert_close([got], [f(x)])
    assert "aten.bernoulli" not in " ".join(op for g in reports for op in g.taken)


def test_what_cannot_be_fused_runs_as_torch_would() -> None:
    def f(x: Any) -> Any:
        values, order = torch.sort(x * 2 + 1, dim=-1)
        return torch.view_as_real(torch.fft.fft(values)).square().sum(-1) + 1, order

    (report,) = assert_as_eager(f, rand(3, 7))
    left = dict(report.left)
    assert left["aten.sort.default"] == "the operator is not in the table"


def test_tangents_of_forward_mode_pass_through_what_torch_runs() -> None:
    def f(x: Any) -> Any:
        return torch.sin(x) * x + 1

    run, reports = compiled(f)
    x, t = rand(5), rand(2, 5)[0]
    checks.assert_close([run(x)], [f(x)])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        got = torch.autograd.forward_ad.unpack_dual(run(dual)).tangent
    checks.assert_close([got], [(torch.cos(x) * x + torch.sin(x)) * t])
    assert [len(g.regions) for g in reports] == [1]


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
def test_symbolic_sizes_serve_other_sizes(cpu: str) -> None:
    def f(x: Any) -> Any:
        return torch.softmax((x * 2 + 1).view(x.shape[0] * 2, 4), -1) * x.shape[0]

    torch.compiler.reset()
    reports: list[GraphReport] = []
    run = torch.compile(f, backend=compiler(Options(cpu=cpu), reports.append), dynamic=True)
    for n in (3, 5, 9):
        x = rand(n, 8)
        checks.assert_close([run(x)], [f(x)])
    assert len(reports) == 1
    assert [r.failures for r in reports[0].regions] == [[]]


# --- reports and options ------------------------------------------------------------------------


def test_explain_says_what_was_taken_and_why_the_rest_was_not() -> None:
    torch.compiler.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    report = door.explain(model, rand(4, 8))
    text = str(report)
    assert "forward: 2 operators in 1 fused regions" in text
    assert "fused_0: gelu, native_layer_norm" in text
    assert "1 x aten.addmm.default: a product on the host is torch's" in text
    assert "backward:" in text
    assert all(p.grad is None for p in model.parameters())


def test_a_region_of_one_operator_is_left_to_torch() -> None:
    (report,) = assert_as_eager(lambda x: x + 1, rand(4))
    assert report.regions == ()
    assert report.left == [("aten.add.Tensor", "alone: torch's own kernel moves the same bytes")]


@pytest.mark.parametrize(
    ("other", "count"),
    [
        (lambda x: x.T, 1),  # fast along the other axis
        (lambda x: x, 0),
        (lambda x: x[:1], 0),  # of what varies along one axis few sectors are read
        (lambda x: x.expand(2, -1, -1).permute(1, 2, 0)[..., 0], 0),  # lies as x does
    ],
)
def test_one_operator_of_values_that_lie_across_is_a_region(
    other: Callable[[Any], Any], count: int
) -> None:
    """torch's kernel would ask for a sector for each element of one of them."""
    given = rand(192, 192)
    (report,) = assert_as_eager(lambda x, y: x + y, given, other(rand(192, 192)))
    assert len(report.regions) == count
    (small,) = assert_as_eager(lambda x, y: x + y, rand(8, 8), other(rand(8, 8)))
    assert small.regions == ()


def test_a_constant_that_one_operator_reads_is_a_kernel_less() -> None:
    """torch fills a tensor of one element, and then chooses; a kernel has the number."""

    (report,) = assert_as_eager(lambda m, x: torch.where(m, x, torch.full((1, 4), 2.0)), *masked())
    (region,) = report.regions
    assert [str(n.target) for n in region.part.owned if "where" in str(n.target)] == [
        "aten.where.self"
    ]
    # one that torch makes anyway is none
    given = torch.full((1, 4), 2.0)
    (report,) = assert_as_eager(lambda m, x: torch.where(m, x, given), *masked())
    assert report.regions == ()
    (report,) = assert_as_eager(
        lambda m, x: (lambda c: (torch.where(m, x, c), c))(torch.full((1, 4), 2.0)), *masked()
    )
    assert report.regions == ()


def masked() -> tuple[Any, Any]:
    return rand(3, 4) > 0, rand(3, 4)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        (None, Options()),
        ("default", Options()),
        ("reduce-overhead", Options(cudagraphs=True)),
        ("max-autotune", Options(cudagraphs=True, tune=True)),
        ("max-autotune-no-cudagraphs", Options(tune=True)),
    ],
)
def test_modes_mean_what_they_mean_for_inductor(mode: str | None, wanted: Options) -> None:
    assert options_of(None, mode) == wanted
    assert options_of({"cudagraphs": False}, mode) == replace(wanted, cudagraphs=False)
    torch.compiler.reset()
    x = torch.ones(4, 4)
    run = torch.compile(lambda x: (x * 2 + 1).sin(), backend="fusewright", mode=mode)
    torch.testing.assert_close(run(x), (x * 2 + 1).sin())


def test_options_of_inductor_mean_the_same_or_nothing() -> None:
    given = {"triton.cudagraphs": True, "max_autotune": True, "epilogue_fusion": True}
    assert options_of(given) == Options(cudagraphs=True, tune=True)
    with pytest.raises(UserError, match=r"option max_autotune=2: use one of \(False, True\)"):
        options_of({"max_autotune": 2})


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UserError, match=r"option 'fast' of the fusewright backend: use one of"):
        door.explain(torch.sin, rand(2), options={"fast": True})
    with pytest.raises(UserError, match=r"option cpu='gpu': use one of"):
        door.explain(torch.sin, rand(2), options={"cpu": "gpu"})
    with pytest.raises(UserError, match=r"mode='fast' of the fusewright backend: use one of"):
        options_of(None, "fast")


def test_the_backend_is_known_by_name() -> None:
    if "fusewright" not in torch._dynamo.list_backends():
        pytest.skip("the package is not installed, only on the path")
    torch.compiler.reset()
    x = rand(5)
    run = torch.compile(lambda x: torch.sin(x) * 2, backend="fusewright", fullgraph=True)
    checks.assert_close([run(x)], [torch.sin(x) * 2])


# --- functions of torch as fusions --------------------------------------------------------------


def test_a_torch_function_becomes_a_fusion() -> None:
    x, w = rand(3, 8), rand(8)
    fusion = fw.from_torch(lambda x, w: nn.rms_norm(x, (8,), w).relu_(), x, w)
    assert [str(t.dtype) for t in fusion.inputs] == ["float32", "float32"]
    (got,) = fw.evaluate(fusion, x.numpy(), w.numpy())
    checks.assert_close([torch.from_numpy(got)], [nn.rms_norm(x, (8,), w).relu()])


def test_from_torch_names_what_it_cannot_fuse() -> None:
    with pytest.raises(UnsupportedError, match=r"cannot fuse aten\.sort\.default: the operator is"):
        fw.from_torch(lambda x: torch.sort(x)[0] + 1, rand(4))


def test_from_torch_refuses_captured_tensors() -> None:
    w = rand(4)
    with pytest.raises(UserError, match=r"captured from outside.*; pass it as an argument"):
        fw.from_torch(lambda x: x + w, rand(4))


# --- fused functions as operators ---------------------------------------------------------------

scaled_softmax = door.custom_op(
    fw.fuse(lambda x, y: fw.nn.softmax(x * 2 + y, -1), device="sim"), "fusewright_tests::softmax"
)


def test_a_fused_function_stays_one_node_under_compile() -> None:
    graphs: list[Any] = []

    def record(module: Any, _inputs: Any) -> Any:
        graphs.append(module.graph)
        return module

    torch.compiler.reset()
    x, y = rand(4, 6), rand(6)
    run = torch.compile(lambda x, y: scaled_softmax(x, y) + 1, backend=record, fullgraph=True)
    checks.assert_close([run(x, y)], [torch.softmax(x * 2 + y, -1) + 1])
    assert sum("softmax" in str(n.target) for n in graphs[0].nodes) == 1


def test_a_registered_operator_keeps_torchs_rules() -> None:
    operator = torch.ops.fusewright_tests.softmax.default
    found = torch.library.opcheck(operator, ([rand(4, 6), rand(6)],))
    assert len(found) >= 4 and set(found.values()) == {"SUCCESS"}


def test_a_registered_operator_trains_through_its_function() -> None:
    x, y = rand(4, 6).requires_grad_(), rand(6)
    (made,) = torch.autograd.grad((scaled_softmax(x, y) ** 2).sum(), [x])
    (expected,) = torch.autograd.grad((torch.softmax(x * 2 + y, -1) ** 2).sum(), [x])
    checks.assert_close([made], [expected])
    with torch.no_grad():
        assert scaled_softmax(x, rand(6)).shape == (4, 6)
