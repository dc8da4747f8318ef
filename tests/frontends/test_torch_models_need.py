"""What models need of the backend beside arithmetic: operators that would cut a region, small ones
that would be launches of their own, views by strides; results beside eager."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_checks as checks  # noqa: E402

from fusewright import dtypes  # noqa: E402
from fusewright.errors import UnsupportedError  # noqa: E402
from fusewright.frontends import fuse as fuse_room  # noqa: E402
from fusewright.frontends.fuse import Fused  # noqa: E402
from fusewright.frontends.torch import (  # noqa: E402
    dynamo,
    movement,
    partition,
    plain_scatters,
    region as region_room,
)
from fusewright.frontends.torch.calls import refusal  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402
from fusewright.frontends.torch.table import LOWERINGS  # noqa: E402
from fusewright.fusion.ir import Sym  # noqa: E402
from fusewright.runtime.arrays import Device  # noqa: E402

nn = torch.nn.functional


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def as_eager(fn: Callable[..., Any], *args: Any, **options: Any) -> list[GraphReport]:
    """The function beside eager, gradients too where arguments want them; the reports."""
    torch.compiler.reset()
    reports: list[GraphReport] = []
    run = torch.compile(fn, backend=compiler(Options(**options), reports.append))
    checks.assert_close(*map(torch.utils._pytree.tree_leaves, (run(*args), fn(*args))))
    wanted = [x for x in args if x.requires_grad]
    if wanted:
        sums = [f(*args).square().sum() for f in (run, fn)]
        checks.assert_close(*(torch.autograd.grad(s, wanted) for s in sums))
    assert [r.failures for g in reports for r in g.regions if r.failures] == []
    return reports


def left(reports: list[GraphReport]) -> list[str]:
    return [op for g in reports for op, _ in g.left]


# --- operators ----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("places", [(7,), (3, 4)])
def test_the_gradient_of_a_loss_at_many_places_is_no_scatter(
    places: tuple[int, ...], weighted: bool
) -> None:
    classes = torch.randint(0, 5, (2, *places), generator=torch.Generator().manual_seed(0))
    weight = torch.rand(5, generator=torch.Generator().manual_seed(1)) if weighted else None
    x = rand(2, 5, *places).requires_grad_()

    def loss(x: Any) -> Any:
        return nn.cross_entropy(x * 2, classes, weight, ignore_index=1)

    assert left(as_eager(loss, x)) == []


def test_the_gradient_of_a_weight_norm_is_fused() -> None:
    v, g = rand(6, 4, 3).requires_grad_(), rand(1, 1, 3).requires_grad_()
    assert left(as_eager(lambda v, g: torch._weight_norm(v * 1, g * 2, 2).sin(), v, g)) == []
    g = rand(6, 1, 1).requires_grad_()
    assert left(as_eager(lambda v, g: torch._weight_norm(v * 1, g * 2, 0).sin(), v, g)) == []


def test_a_choice_put_into_zeros_like_another_tensor() -> None:
    def straight_through(x: Any) -> Any:
        hard = torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)
        return (hard - x.detach() + x) * x

    assert left(as_eager(straight_through, rand(4, 9).requires_grad_())) == []


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
@pytest.mark.parametrize(
    "shape", [(9, 5), (7,), pytest.param((4, 3, 3), marks=pytest.mark.refuses)]
)
def test_the_gradient_of_an_indexed_table(cpu: str, shape: tuple[int, ...]) -> None:
    at = torch.tensor([[1, 3, 1], [0, -1, 3]])
    table = rand(*shape).requires_grad_()
    reports = as_eager(lambda t: torch.tanh(t.exp()[at] * 2), table, cpu=cpu)
    assert left(reports) == []


def test_an_index_of_two_axes_is_added_where_it_stands() -> None:
    x, at, new = rand(4, 6, 3), torch.tensor([3, 0, 3]), rand(3, 3)

    def add(x: Any, new: Any) -> Any:
        return x.exp().index_put((at, at - 4), new * 2, accumulate=True) + 1

    assert left(as_eager(add, x, new)) == []


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
@pytest.mark.parametrize("index", [[-2], [[1, 3, 1], [0, -1, 3]], 2])
@pytest.mark.parametrize("axis", [1, 2])
def test_the_gradient_of_columns(axis: int, index: Any, cpu: str) -> None:
    places = (slice(None),) * axis + (torch.tensor(index),)
    x = rand(3, 4, 5).requires_grad_()
    assert left(as_eager(lambda x: torch.tanh(x.exp()[places] * 2), x, cpu=cpu)) == []


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_rows_that_are_added_to_a_constant(dim: int, cpu: str) -> None:
    """The gradient of `index_select`, and messages that are summed; several have one place."""
    x, at = rand(5, 4, 3).requires_grad_(), torch.tensor([2, 0, 2])

    def chosen(x: Any) -> Any:
        return torch.tanh(x.exp().index_select(dim, at) * 2)

    assert left(as_eager(chosen, x, cpu=cpu)) == []

    def summed(x: Any, y: Any) -> Any:
        made = torch.full((5, 4, 3), 0.5).index_add(dim, at, (x * 2).narrow(dim, 0, 3) * y)
        return made.sin()

    assert left(as_eager(summed, x, rand(1).requires_grad_(), cpu=cpu)) == []


def test_rows_that_stay_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    at = torch.tensor([2, 0, 2])

    def to_argument(x: Any, y: Any) -> Any:
        return x.index_add(0, at, y.sin()) * 2

    assert "aten.index_add.default" in left(as_eager(to_argument, rand(4, 5), rand(3, 5)))

    def to_zeros(y: Any) -> Any:
        return torch.zeros(4, 5).index_add(0, at, y.sin()) * 2

    assert left(as_eager(to_zeros, rand(3, 5))) == []
    monkeypatch.setattr(plain_scatters, "ADDED", 59)
    assert "aten.index_add.default" in left(as_eager(to_zeros, rand(3, 5)))
    monkeypatch.setattr(plain_scatters, "ADDED", 60)
    assert left(as_eager(to_zeros, rand(3, 5))) == []


def test_index_put_that_stays_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    at = torch.tensor([2, 0])

    def put(x: Any, new: Any) -> Any:
        return (x * 2 + 1).index_put((at,), new)

    def add(x: Any, new: Any) -> Any:
        return (x * 2 + 1).index_put((at,), new, accumulate=True)

    (kept,) = as_eager(put, rand(5, 4), rand(2, 4))
    assert "the last of equal indices counts" in kept.left[0][1]
    monkeypatch.setattr(movement, "_COMPARED", 39)
    (found,) = as_eager(add, rand(5, 4), rand(2, 4))
    assert "would compare 40 times" in found.left[0][1]


@pytest.mark.parametrize("limits", [(0, 9, 2.0), (3, -4, -0.5), (0.25, 2, 0.25), (5, 1, -1.5)])
def test_ranges_of_real_steps(limits: tuple[float, ...]) -> None:
    def along(x: Any) -> Any:
        return torch.sin(torch.arange(*limits)[:, None] * x) + 1

    assert left(as_eager(along, rand(1, 3))) == []


@pytest.mark.parametrize("limits", [(0, Sym("n"), 0.5), (0, 8, Sym("n")), (Sym("n"), 2.5, 1)])
def test_ranges_of_real_steps_have_known_ends(limits: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedError, match="arange by a symbolic step, or real and symbolic"):
        LOWERINGS[torch.ops.aten.arange.start_step]((dtypes.float32,), *limits)


def test_batch_norm_by_running_statistics_whatever_a_device_makes_of_those_of_the_batch() -> None:
    """Torch has empty results on the host, and on some devices such of a place for each channel."""
    batch_norm = torch.ops.aten._native_batch_norm_legit_no_training.default
    given = (rand(2, 3, 4, 4), None, None, rand(3), rand(3).abs(), 0.1, 1e-5)
    graph = torch.fx.Graph()
    names = [
        graph.placeholder(f"a{k}") if isinstance(a, torch.Tensor) else a
        for k, a in enumerate(given)
    ]
    for n, a in zip(names, given, strict=True):
        if isinstance(n, torch.fx.Node):
            n.meta["val"] = a
    call = graph.call_function(batch_norm, tuple(names))
    call.meta["val"] = (given[0], rand(3), rand(3))
    read = [graph.call_function(operator.getitem, (call, k)) for k in range(3)]
    for k, n in enumerate(read):
        n.meta["val"] = call.meta["val"][k]
    graph.call_function(torch.ops.aten.relu.default, (read[0],))
    assert refusal(call) is None
    graph.output((read[1],))
    assert "torch float32[3]" in str(refusal(call))


def test_batch_norm_without_statistics() -> None:
    def norm(x: Any) -> Any:
        return nn.batch_norm(x.exp(), None, None, training=True).sin()

    reports = as_eager(norm, rand(3, 4, 5).requires_grad_())
    assert left(reports) == []


# --- views by strides ---------------------------------------------------------------------------

WHOLE = {
    "reshaped": ((4, 5), (5, 1)),
    "turned": ((5, 4), (1, 5)),
    "split": ((2, 2, 5), (5, 10, 1)),
    "a long axis of one": ((4, 1, 5), (5, 999, 1)),
}


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
@pytest.mark.parametrize("shown", WHOLE)
def test_a_strided_view_of_a_whole_tensor(shown: str, cpu: str) -> None:
    def view(x: Any) -> Any:
        return (x * 2 + 1).as_strided(*WHOLE[shown]).exp() + 1

    def source(x: Any) -> Any:
        return (x.T * 2 + 1).as_strided(*WHOLE[shown]).exp() + 1

    for fn in (view, source):
        (report,) = as_eager(fn, rand(4, 5), cpu=cpu)
        assert report.left == [] and len(report.regions) == 1


def test_a_write_through_a_strided_view() -> None:
    def write(x: Any, y: Any) -> Any:
        z = x * 2
        z.as_strided((5, 4), (1, 5)).copy_(y * 3)
        return z + 1

    (report,) = as_eager(write, rand(4, 5), rand(5, 4))
    assert report.left == [] and len(report.regions) == 1


def test_a_scatter_through_a_strided_view_is_a_new_tensor() -> None:
    """As is one of memory in another order, whose elements cannot be shown in those sizes."""
    x, y = rand(16), rand(2, 8)
    scattered = torch.as_strided_scatter

    def alone(x: Any, y: Any) -> Any:
        return scattered(x, y, (2, 8), (8, 1))

    def ordered(x: Any, y: Any) -> Any:
        return scattered(x * 2, y, (2, 2, 2, 2), (8, 4, 2, 1)) + 1

    torch.compiler.reset()
    made = torch.compile(alone, backend=compiler(Options()))(x, y)
    made += 1
    torch.testing.assert_close(made, y.flatten() + 1)
    torch.testing.assert_close(y, rand(2, 8))
    as_eager(ordered, x, rand(2, 2, 2, 2).mT)


def test_a_gradient_of_zeros_without_memory() -> None:
    """torch gives the gradient of a sign as zeros that are stored nowhere."""
    as_eager(lambda x: torch.sgn(x * 2 + 1), rand(4, 5).requires_grad_())


@pytest.mark.parametrize("shown", [((3, 3), (2, 1)), ((2, 5), (10, 1), 5), ((4, 4), (5, 1))])
def test_overlaps_and_parts_stay_torchs(shown: Any) -> None:
    def view(x: Any) -> Any:
        return (x * 2 + 1).as_strided(*shown).exp() + 1

    (report,) = as_eager(view, rand(4, 5))
    assert len(report.regions) == 2


def test_without_the_rewrite_a_strided_view_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "plain_strides", lambda graph: None)

    def view(x: Any) -> Any:
        return (x * 2 + 1).as_strided((5, 4), (1, 5)).exp() + 1

    (report,) = as_eager(view, rand(4, 5))
    assert len(report.regions) == 2


# --- what stands alone --------------------------------------------------------------------------


def counted(x: Any, w: Any, *counts: Any) -> Any:
    """Each sum is read by a product, so that it is no update of an argument."""
    return [x @ w, *((c + 1) @ (c * 2) for c in counts)]


def test_small_operators_are_one_region() -> None:
    (report,) = as_eager(counted, rand(3, 4), rand(4, 2), *(rand(4 + k, 4 + k) for k in range(5)))
    (region,) = report.regions
    assert len(region.part.outputs) == 10


@pytest.mark.parametrize("size", [128, 129])
def test_large_operators_are_torchs(size: int) -> None:
    def apart(x: Any, y: Any) -> Any:
        return (x + 1) @ (y * 2)

    assert partition._SMALL == 4 * 128 * 128
    (report,) = as_eager(apart, rand(size, size), rand(size, size))
    assert len(report.regions) == (1 if size == 128 else 0)


@pytest.mark.parametrize("rows", [128, 129])
def test_large_reductions_are_regions_of_their_own(rows: int) -> None:
    """torch's kernels for them are not at the speed of memory, as its elementwise ones are."""

    def norm(x: Any, w: Any) -> Any:
        y = torch.nn.functional.layer_norm(x @ w, (128,))
        return y @ w

    (report,) = as_eager(norm, rand(rows, 128), rand(128, 128))
    assert len(report.regions) == (1 if rows == 129 else 0)


# --- what reads the same memory -----------------------------------------------------------------


@pytest.mark.parametrize("shape", [(37, 150), (130, 129)])
@pytest.mark.parametrize("cpu", ["oracle", "sim"])
def test_gradients_of_an_argument_and_of_a_weight_are_one_region(
    shape: tuple[int, ...], cpu: str
) -> None:
    """The weight's gradient reads what the argument's reads, and no result of it."""

    def norm(x: Any, w: Any, m: Any) -> Any:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (w * y.bfloat16().float()) @ m

    x, w, m = rand(*shape).requires_grad_(), rand(shape[1]).requires_grad_(), rand(shape[1], 3)
    forward, backward = as_eager(norm, x, w, m, cpu=cpu)
    assert len(forward.regions) == len(backward.regions) == 1


def test_operators_that_read_the_same_memory_are_one_region() -> None:
    def both(x: Any) -> Any:
        return (x + 1) @ (x.t() * 2)

    (report,) = as_eager(both, rand(129, 140))
    (region,) = report.regions
    assert len(region.part.inputs) == 1 and len(region.part.outputs) == 2


def test_operators_that_read_more_apart_than_together_are_not() -> None:
    def beside(x: Any, y: Any, z: Any) -> Any:
        return (x + z).exp() @ (y * z).sin()

    def small(x: Any, y: Any) -> Any:
        return (x.exp() + y[0]) @ x, (y.exp() + 1) @ x

    def third(x: Any, y: Any, z: Any) -> Any:
        return (x[0] * x[1] + z) @ (y[0] * y[1] - z)

    large = [rand(140, 140) for _ in range(2)]
    (report,) = as_eager(beside, *large, rand(140))
    assert len(report.regions) == 2
    (report,) = as_eager(third, rand(2, 140, 140), rand(2, 141, 140)[:, :140], large[0])
    assert len(report.regions) == 2
    (report,) = as_eager(small, large[0], rand(140, 140)[:3].clone())
    assert len(report.regions) == 2


def test_what_would_be_kept_long_for_little_is_computed_first() -> None:
    def wait(x: Any, y: Any) -> Any:
        return (x.exp() + y) @ x, (y.sin() + y) @ x

    def near(x: Any, y: Any) -> Any:
        return (y.sin() + y) @ x, (x.exp() + y) @ x

    x, y = rand(140, 140), rand(140)
    (report,) = as_eager(wait, x, y)
    assert len(report.regions) == 2
    (report,) = as_eager(near, x, y)
    assert len(report.regions) == 1


OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw by lists": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adam by lists": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True, amsgrad=True),
    "rmsprop by lists": lambda p: torch.optim.RMSprop(p, lr=1e-2, foreach=True, centered=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "sgd by lists": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_step_of_an_optimiser(name: str) -> None:
    """One region for all parameters; torch itself does not compile Adafactor's step."""
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(0)
    start = [rand(*s) for s in ((64, 32), (64,), (7, 5), (16, 64))]
    ours, eagers = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))
    own, other = OPTIMISERS[name](ours), OPTIMISERS[name](eagers)
    reports: list[GraphReport] = []
    step = torch.compile(own.step, backend=compiler(Options(), reports.append))
    for _ in range(3):
        for p, q in zip(ours, eagers, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        step()
        other.step()
    for p, q in zip(ours, eagers, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    counts = {"adafactor": [], "sgd": [1, 1]}.get(name.split()[0], [1])
    assert [len(g.regions) for g in reports] == counts
    assert [r.failures for g in reports for r in g.regions if r.failures] == []
    assert set(left(reports)) <= {"aten.copy_.default"}


def test_the_mask_of_a_gradient_is_made_where_it_is_read() -> None:
    """The product behind a relu reads its result in the backward pass anyway."""

    def model(x: Any, w: Any, v: Any) -> Any:
        return (torch.relu(x @ w * 2 + 1) @ v).sin() * 2

    args = [rand(64, 16).double(), rand(16, 64).double(), rand(64, 16).double()]
    reports = as_eager(model, *(a.requires_grad_() for a in args))
    assert not any("aten.le" in op for op in left(reports))
    (region,) = [
        r for r in reports[1].regions if any("aten.le" in str(n.target) for n in r.part.owned)
    ]
    assert any("aten.where" in str(n.target) for n in region.part.owned)


def updated(x: Any, y: Any, z: Any) -> Any:
    """Three updates: of a plain tensor, of one that lies across, and of one that is read again."""
    x.mul_(0.5).add_(y)
    y.t().add_(x.t() * 2)
    before = z.clone()
    z.add_(x)
    return before.sum() + z.sum()


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are told that their tensors are on a GPU when they are asked what they can write."""
    real = region_room._described

    def described(value: Any, k: int) -> Any:
        return replace(real(value, k), device=Device("cuda", 0))

    monkeypatch.setattr(region_room, "_described", described)


@pytest.mark.usefixtures("as_on_gpu")
def test_regions_write_to_the_arguments_that_they_update() -> None:
    torch.compiler.reset()
    made = [rand(6, 8), rand(8, 6).t(), rand(6, 8)]
    ours, eagers = ([t.clone(memory_format=torch.preserve_format) for t in made] for _ in range(2))
    starts = [t.data_ptr() for t in ours]
    reports: list[GraphReport] = []
    run = torch.compile(updated, backend=compiler(Options(cpu="sim"), reports.append))
    for _ in range(3):
        torch.testing.assert_close(run(*ours), updated(*eagers), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours, eagers)
    assert [t.data_ptr() for t in ours] == starts
    (report,) = reports
    assert [f for r in report.regions for f in r.failures] == []
    assert sum(len(r.targets) for r in report.regions) >= 2


def stepped(x: Any, count: Any) -> None:
    """An update whose kernel reads a number in all threads."""
    count.add_(1)
    x.mul_(count)


@pytest.mark.usefixtures("as_on_gpu")
def test_what_kernels_cannot_write_in_place_is_copied() -> None:
    torch.compiler.reset()
    reports: list[GraphReport] = []
    run = torch.compile(stepped, backend=compiler(Options(cpu="sim"), reports.append))
    ours, eagers = ([rand(64, 64), torch.tensor(3.0)] for _ in range(2))
    for _ in range(3):
        run(*ours)
        stepped(*eagers)
        torch.testing.assert_close(ours, eagers)
    ((region,),) = [g.regions for g in reports]
    assert len(region.targets) == 1 and region.failures == []


def normed(x: Any, mean: Any, var: Any) -> Any:
    """A batch norm in training, whose statistics are sums of rows that many threads share."""
    return torch.nn.functional.batch_norm(x, mean, var, training=True).relu()


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("fn", [stepped, normed])
def test_no_program_is_made_to_see_that_it_cannot_write_in_place(
    fn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What many threads read, and one would write, is known before anything is compiled."""
    made: list[tuple[Any, Any]] = []
    real = fuse_room.compile_in_place

    def compile_in_place(fusion: Any, target: Any, donated: Any, **options: Any) -> Any:
        program = real(fusion, target, donated, **options)
        made.append((donated, program.holders))
        return program

    monkeypatch.setattr(fuse_room, "compile_in_place", compile_in_place)
    torch.compiler.reset()
    run = torch.compile(fn, backend=compiler(Options(cpu="sim", min_ops=1)))
    given = {
        stepped: (rand(64, 64), torch.tensor(3.0)),
        normed: (rand(4, 6, 5, 5), rand(6), rand(6).abs()),
    }[fn]
    ours, eagers = ([t.clone() for t in given] for _ in range(2))
    torch.testing.assert_close(run(*ours), fn(*eagers))
    torch.testing.assert_close(ours, eagers)
    assert made
    for donated, holders in made:
        assert {h for h in holders if h is not None} == set(donated)
        assert fn is stepped or not donated


@pytest.mark.usefixtures("as_on_gpu")
def test_torch_copies_what_a_lost_region_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("lost")

    torch.compiler.reset()
    reports: list[GraphReport] = []
    run = torch.compile(updated, backend=compiler(Options(cpu="sim"), reports.append))
    monkeypatch.setattr(Fused, "run", fails)
    made = [rand(6, 8), rand(8, 6).t(), rand(6, 8)]
    ours, eagers = ([t.clone(memory_format=torch.preserve_format) for t in made] for _ in range(2))
    for _ in range(2):
        torch.testing.assert_close(run(*ours), updated(*eagers), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours, eagers)
    assert any(r.targets and "lost" in r.failures[0] for g in reports for r in g.regions)


@pytest.mark.usefixtures("as_on_gpu")
def test_an_argument_that_is_read_behind_its_region_is_copied_into() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x * 2 + y
        w = torch.linalg.inv(x)
        x.copy_(z)
        return w

    torch.compiler.reset()
    ours, y = torch.eye(4) + 0.1 * rand(4, 4), rand(4, 4)
    eager = ours.clone()
    torch.testing.assert_close(torch.compile(f, backend="fusewright")(ours, y), f(eager, y))
    torch.testing.assert_close(ours, eager)
