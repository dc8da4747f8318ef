"""Two processes over gloo: what torch spreads over them trains as without the backend, collectives
stay torch's, and machine code is compiled once for both."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no process groups", allow_module_level=True)

from torch.fx import Graph  # noqa: E402

from fusewright.frontends.torch.rewrite import in_order  # noqa: E402

WORKER = Path(__file__).with_name("distributed_worker.py")
WAYS = ("ddp", "ddp in buckets", "fsdp", "tensor parallel")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both processes found."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    folder = tmp_path_factory.mktemp("cache")
    environment = os.environ | {"FUSEWRIGHT_CACHE_DIR": str(folder), "FUSEWRIGHT_CACHE": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), port],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [p.communicate(timeout=300) for p in started]
    finally:
        for p in started:
            p.kill()
    assert [p.returncode for p in started] == [0, 0], [err[-3000:] for _, err in ended]
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


@pytest.mark.parametrize("how", WAYS)
def test_losses_are_those_of_eager(how: str, ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found[how]["fused"] == pytest.approx(found[how]["eager"], rel=1e-6)
        assert found[how]["failures"] == []
        assert sum(found[how]["regions"]) > 0


REGIONS = {
    "ddp": [5, 5],
    "ddp in buckets": [2, 2, 1, 1, 2, 2],
    "fsdp": [2, 2, 1, 1, 2, 2],
    "tensor parallel": [5, 5],
}
"""Between products there is one region: a norm with the sum in front of it, or a gate. What
collects or scatters stands beside a product, and cuts nothing else."""


@pytest.mark.parametrize("how", WAYS)
def test_collectives_cut_nothing_that_products_do_not(
    how: str, ranks: list[dict[str, Any]]
) -> None:
    for found in ranks:
        assert found[how]["regions"] == REGIONS[how]
        kinds = {name.split(".")[0] for name in found[how]["left"]}
        own = {n for n in found[how]["left"] if n.startswith("aten")}
        assert kinds <= {"aten", "_c10d_functional"}
        assert own <= {"aten.mm.default", "aten.add.Tensor", "aten.cat.default"}


def test_both_compile_once(ranks: list[dict[str, Any]]) -> None:
    codes = [found["machine code"] for found in ranks]
    assert sum(c["compiled"] for c in codes) == 3
    assert [c["compiled"] + c["found"] for c in codes] == [3, 3]


def test_a_collective_is_waited_for_right_before_its_reader() -> None:
    collective = torch.ops._c10d_functional
    graph = Graph()
    x = graph.placeholder("x")
    started = graph.call_function(collective.all_reduce.default, (x, "sum", "0"))
    waited = graph.call_function(collective.wait_tensor.default, (started,))
    shown = graph.call_function(torch.ops.aten.view.default, (waited, [4]))
    other = graph.call_function(torch.ops.aten.mm.default, (x, x))
    reader = graph.call_function(torch.ops.aten.mul.Tensor, (shown, other))
    last = graph.output(reader)
    assert in_order(graph, []) == [x, started, other, waited, shown, reader, last]
