"""Analyses of straight code with many asynchronous copies: what they find, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.work import calls

import fusewright as fw
from fusewright.kir.analysis import completion
from fusewright.kir.analysis.accesses import find
from fusewright.kir.analysis.async_run import Instance
from fusewright.kir.analysis.completion import Completions, changed_groups
from fusewright.kir.analysis.meetings import meetings
from fusewright.kir.analysis.sites import sites
from fusewright.kir.ir import AsyncCommit, AsyncKind, AsyncWait, Kernel

KIND = AsyncKind.CP_ASYNC


def kernel_of(columns: int) -> Kernel:
    """One thread copies each element of a flipped row ahead of its use, by a statement each."""

    def program(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        return fw.name(fw.flip(fw.name(x + y, "m"), axis=1) * 2, "r")

    s = fw.Schedule(fw.trace(program, *[fw.TensorSpec((5, columns), "float64")] * 2))
    s["x"].cache_after(by=None)
    s["y"].cache_after(by="cp_async")
    s["r"].split(1, 4).split(2, 4).parallelize(2, fw.TIDx).parallelize(0, fw.BIDx)
    s.transform_like(s["r"])
    for copy in ("x_c", "y_c"):
        s[copy].parallelize(-1, fw.Vectorize)
    s.inline_most()
    for copy in ("x_c", "y_c"):
        s[copy].inline_at(s["m"], 2)
    s["y_c"].circular_buffer(2, 1)
    return s.lower().ir


@pytest.fixture(scope="module")
def kernels() -> tuple[Kernel, Kernel]:
    return kernel_of(16), kernel_of(32)


def _ends(done: Completions) -> Iterator[tuple[Instance, list[Instance], list[Instance]]]:
    groups = done.groups[KIND]
    for op in (op for acts in done.concerned[KIND] for op in acts.instances):
        yield op, list(groups.whole.get(op, ())), list(groups.read.get(op, ()))


def test_what_a_changed_sync_leaves_is_what_all_others_and_it_are(
    kernels: tuple[Kernel, Kernel],
) -> None:
    done = find(kernels[0]).completions
    syncs = [
        site.statement
        for site in sites(kernels[0])
        if isinstance(site.statement, AsyncCommit | AsyncWait)
    ]
    assert len(syncs) > 15
    ended = 0
    for s in syncs:
        now = [acts for acts in done.concerned[KIND] if acts.statement is not s]
        anew = Completions(
            {}, {}, {KIND: completion._groups(KIND, now)}, done.roles, None, {KIND: now}
        )
        left = changed_groups(done, KIND, {s: None})
        found = {op: (whole, read) for op, whole, read in _ends(left)}
        for op, whole, read in _ends(anew):
            assert found[op] == (whole, read)
            ended += bool(whole)
        assert left.groups[KIND].commits.of == anew.groups[KIND].commits.of
    assert ended


def test_each_change_looks_at_the_operations_around_it(
    kernels: tuple[Kernel, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Instance] = []
    ends_of = completion._ends_of

    def counted(op: Instance, *others: Any) -> list[Instance]:
        looked.append(op)
        return ends_of(op, *others)

    done = find(kernels[1]).completions
    monkeypatch.setattr(completion, "_ends_of", counted)
    waits = [e.statement for e in done.concerned[KIND] if isinstance(e.statement, AsyncWait)]
    changed_groups(done, KIND, {waits[len(waits) // 2]: None})
    assert 0 < len(looked) < 8 < len(waits)


def test_meetings_of_twice_the_copies_are_twice_the_work(kernels: tuple[Kernel, Kernel]) -> None:
    few, many = (calls(partial(meetings.__wrapped__, k)) for k in kernels)
    assert many < 2.8 * few
