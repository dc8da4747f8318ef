"""The census on models in plain torch: errors, counts, the page; and that it sees what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import census as room  # noqa: E402
from bench.census import Outcome, census, page  # noqa: E402
from bench.zoo import Architecture, architectures, loss_of, without_dropout  # noqa: E402

from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.table import LOWERINGS  # noqa: E402
from fusewright.fusion import ops  # noqa: E402

PLAIN = {a.name: a for a in architectures(packages="plain")}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_models_train_as_eager(name: str) -> None:
    found = census(PLAIN[name], "train", Options())
    assert found.is_good, found.line()
    assert found.taken > 0 and found.graphs == 2


QUICK = ("plain-experts", "plain-messages", "plain-residual")  # torch's own shapes take long


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PLAIN]
)
def test_plain_models_train_at_several_sizes(name: str) -> None:
    found = census(PLAIN[name], "dynamic", Options())
    assert found.is_good, found.line()


@pytest.mark.parametrize("name", PLAIN)
def test_plain_models_compute_as_eager(name: str) -> None:
    found = census(PLAIN[name], "inference", Options())
    assert found.is_good, found.line()


def test_launches_are_counted_for_a_gpu() -> None:
    found = census(PLAIN["plain-windows"], "inference", Options(), "sm_90a")
    assert found.is_good and found.launches is not None
    assert found.regions <= found.launches <= 3 * found.regions


def test_a_wrong_operator_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(out: Any, x: Any) -> Any:
        return ops.rsqrt(x) * 1.00001

    assert torch.ops.aten.rsqrt.default in LOWERINGS
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.rsqrt.default, wrong)
    found = census(PLAIN["plain-decoder"], "train", Options())
    assert not found.is_good
    assert found.line().startswith("BAD  plain-decoder train: ")


def test_an_exception_is_an_outcome() -> None:
    def build() -> Any:
        raise ValueError("no such model")

    broken = Architecture("broken", "plain", build, lambda batch, length: {})
    found = census(broken, "train", Options())
    (failure,) = found.failures
    assert failure.startswith("ValueError: no such model (") and not found.is_good


def test_the_limit_of_errors() -> None:
    assert Outcome("m", "train", {"loss": (1.19e-3, 1e-3)}).is_good
    assert not Outcome("m", "train", {"loss": (1.21e-3, 1e-3)}).is_good
    assert Outcome("m", "train", {"loss": (room.FLOOR, 0.0)}).is_good


def test_the_page_counts_architectures_first() -> None:
    one = Outcome("a", "train", left={"aten.sort.default: not taken": 5, "aten.mm.default: big": 1})
    two = Outcome("b", "train", left={"aten.mm.default: big": 1})
    assert page([one, two]).splitlines()[2:] == [
        "| 2 | 2 | `aten.mm.default` | big |",
        "| 1 | 5 | `aten.sort.default` | not taken |",
    ]


def test_models_are_without_dropout_and_the_loss_reads_all() -> None:
    model = without_dropout(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)))
    x = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(model(x), model[0](x))
    loss_of((torch.ones(2, dtype=torch.int64), x)).backward()
    assert (x.grad != 0).all()


def test_the_zoo_has_many_architectures() -> None:
    names = [a.name for a in architectures()]
    assert len(names) == len(set(names)) >= 50
    assert [a.name for a in architectures("gpt2,bert")] == ["gpt2", "bert"]
