"""Branches: launches that leave room for others run beside them, in memory of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.host.branches import MAX_BRANCHES, branches
from fusewright.host.ir import Edge, EdgeKind

S = fw.TensorSpec


def edges(*pairs: tuple[int, int]) -> list[Edge]:
    return [Edge(a, b, EdgeKind.RAW, "t") for a, b in pairs]


def of(idle: str, *pairs: tuple[int, int]) -> tuple[int, ...]:
    """The branches of launches, `-` for one that takes most of the device, `o` for one with room
    beside it."""
    return branches(edges(*pairs), [100 * (x == "o") for x in idle]).of


def test_a_chain_is_one_branch() -> None:
    assert of("ooo", (0, 1), (1, 2)) == (0, 0, 0)
    assert of("") == ()


def test_two_launches_with_room_are_two_branches() -> None:
    assert of("oo") == (0, 1)
    assert of("o-") == (0, 1), "one of them leaves room for the other"


def test_launches_that_fill_the_device_are_one_branch() -> None:
    assert of("--") == (0, 0)
    assert of("---", (0, 2)) == (0, 0, 0)


def test_a_join_goes_on_along_one_branch_and_waits_for_the_others() -> None:
    found = branches(edges((0, 1), (0, 2), (1, 3), (2, 3)), [100] * 4)
    assert found.of == (0, 0, 1, 0)
    assert found.waits == ((), (), (0,), (2,))
    assert (found.count, found.last) == (2, (3, 2))


def test_a_branch_that_ended_is_taken_up_again() -> None:
    assert of("ooooo", (0, 2), (1, 2), (2, 3), (2, 4)) == (0, 1, 0, 0, 1)


def test_there_are_no_more_branches_than_the_device_has_room_for() -> None:
    assert max(of("o" * (MAX_BRANCHES + 1))) == MAX_BRANCHES - 1


def heads(*t: Any) -> Any:
    """Attention of heads of different lengths, which no launch joins."""
    out: list[Any] = []
    for q, k, v in zip(t[::3], t[1::3], t[2::3], strict=True):
        p = fw.nn.softmax(fw.matmul(q, fw.permute_dims(k, (1, 0))) * 0.125, axis=-1)
        out.append(fw.matmul(p, v))
    return fw.concat(out, axis=0)


def wide_heads(*t: Any) -> Any:
    """The same with scores that are kept in float32, as a number of each row is added to them."""
    out: list[Any] = []
    for q, k, v in zip(t[::3], t[1::3], t[2::3], strict=True):
        scores = fw.astype(fw.matmul(q, fw.permute_dims(k, (1, 0))), "float32")
        p = fw.nn.softmax(scores * fw.astype(q[:, :1], "float32"), axis=-1)
        out.append(fw.matmul(fw.astype(p, "bfloat16"), v))
    return fw.concat(out, axis=0)


def of_lengths(*lengths: int) -> list[fw.TensorSpec]:
    return [S((n, 64), "bfloat16") for n in lengths for _ in range(3)]


def test_small_heads_run_side_by_side() -> None:
    """Four heads are a path of three launches: none waits for bytes of another head."""
    program = fw.compile(fw.trace(heads, *of_lengths(128, 144, 160, 176)))
    stats = program.host.stats
    assert stats["edges"]["reuse"] == 0
    assert (stats["critical_path"], stats["branches"]) == (3, 4)


@pytest.mark.usefixtures("launched_apart")
def test_heads_that_leave_room_get_more_memory_than_the_least() -> None:
    """Products of 64 to 128 tiles leave room on half of the multiprocessors: what they would wait
    for is worth 3 MiB."""
    host = fw.compile(fw.trace(wide_heads, *of_lengths(512, 576, 640, 704))).host
    beside = [i for i, x in enumerate(host.launches) if x.idle]
    reuse = [e for e in host.edges if e.kind is EdgeKind.REUSE]
    assert len(beside) >= 8 and host.stats["peak_bytes"] > host.stats["lower_bound_bytes"]
    assert not [e for e in reuse if e.producer in beside and e.consumer in beside]


def test_large_heads_share_memory() -> None:
    host = fw.compile(fw.trace(wide_heads, *of_lengths(4096, 4224, 4352, 4480))).host
    assert host.stats["edges"]["reuse"] > 0
    assert host.stats["peak_bytes"] <= 1.07 * host.stats["lower_bound_bytes"]


def test_results_are_equal_in_every_order_that_the_edges_allow() -> None:
    fusion = fw.trace(heads, *[S((n, 16), "float32") for n in (12, 20, 28) for _ in range(3)])
    rng = np.random.default_rng(1)
    arrays = [
        rng.standard_normal([int(str(n)) for n in t.shape]).astype(np.float32)
        for t in fusion.inputs
    ]
    result = fw.compile(fusion).simulate(*arrays, check_races=True)
    assert result.races == []
    np.testing.assert_allclose(
        result.outputs[0], fw.evaluate(fusion, *arrays)[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.usefixtures("launched_apart")
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((64, 1024), "leaves room on 1"),
        ((65536, 1024), "takes most multiprocessors: shares memory"),
    ],
)
def test_explain_says_why_a_launch_has_a_branch(shape: tuple[int, int], words: str) -> None:
    def fn(a: Any, b: Any) -> Any:
        return fw.nn.softmax(a, axis=-1), fw.cumulative_sum(b, axis=-1)

    program = fw.compile(fw.trace(fn, S(shape, "float32"), S(shape, "float32")))
    text = str(fw.Report(program).show("host"))
    assert words in text
    assert program.host.branches.count == (2 if shape[0] == 64 else 1)
