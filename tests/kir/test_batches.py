"""Pairs of accesses that a write between them implies are left out, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from random_sync_kernels import Shape, random_kernel
from sync_kernels import kernel

import fusewright as fw
from fusewright.kir.analysis import batches, hazards
from fusewright.kir.analysis.order import (
    Hazard,
    SyncPoint,
    SyncScope,
    gap_position,
    orders,
    sync_at,
    tightest,
)
from fusewright.kir.analysis.ownership import spaces
from fusewright.kir.analysis.sites import BranchScope, sites
from fusewright.kir.ir import Kernel
from fusewright.kir.passes.pack_shared import pack_shared
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.target import target_of

S = "shared s: float32[64]\n"


class _EveryPair(batches.InOrder):
    def __init__(self, found: Sequence[batches.Batch], *, leaves_out: bool) -> None:
        super().__init__(found, leaves_out=False)


def _every_hazard(k: Kernel) -> tuple[Hazard, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hazards, "InOrder", _EveryPair)
        return hazards.hazards_in(spaces(k), k)


def _gaps(k: Kernel) -> Iterator[SyncPoint]:
    """A sync of each width before and behind every statement, loop and branch."""
    found = {}
    for site in sites(k):
        around = [(site.path, site.scopes)]
        for i, s in enumerate(site.scopes):
            path = s.path[:-1] if isinstance(s, BranchScope) else s.path
            around.append((path, site.scopes[:i]))
        for path, scopes in around:
            for gap in (path[-1], path[-1] + 1):
                found[gap_position(path[:-1], gap)] = scopes
    for position, scopes in found.items():
        for scope in (SyncScope.WARP, SyncScope.BLOCK, SyncScope.CLUSTER):
            yield sync_at(position, scopes, scope)


def _assert_all_are_implied(k: Kernel) -> tuple[int, int]:
    """Each pair has one among those that are left which no sync orders without ordering it."""
    points = list(_gaps(k))
    every, left = _every_hazard(k), tightest(hazards.hazards(k))
    by = [frozenset(n for n, p in enumerate(points) if orders(p, h)) for h in left]
    for h in every:
        mine = {n for n, p in enumerate(points) if orders(p, h)}
        assert any(
            b <= mine and r.is_simultaneous == h.is_simultaneous
            for r, b in zip(left, by, strict=True)
        ), str(h)
    return len(every), len(left)


SHAPES = (
    Shape(),
    Shape(buffers=1, statements=16, depth=1),
    Shape(buffers=2, statements=20, depth=3),
    Shape(buffers=3, statements=24, has_branches=False, depth=1),
)


def _counts(seeds: range) -> tuple[int, int]:
    every = left = 0
    for seed in seeds:
        target, k = target_of("sm_90a"), random_kernel(seed, SHAPES[seed % len(SHAPES)])
        for tried in (k, pack_shared(place_syncs(k, target), target)):
            a, b = _assert_all_are_implied(tried)
            every, left = every + a, left + b
    return every, left


def test_what_is_left_out_is_implied() -> None:
    every, left = _counts(range(12))
    assert left < every


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_what_is_left_out_of_many_kernels_is_implied(start: int) -> None:
    _counts(range(start, start + 50))


def _softmax(x: fw.Array) -> fw.Array:
    return fw.nn.softmax(x, axis=-1)


def _backward(dy: fw.Array, x: fw.Array) -> Any:
    c = fw.mean(dy * x, axis=-1, keepdims=True)
    return dy - x * c, fw.sum(dy * x, axis=0)


KERNELS: dict[str, tuple[Callable[..., Any], tuple[int, ...], int, str]] = {
    "slices of rows in clusters": (_softmax, (200, 40000), 1, "sm_90a"),
    "rings of boxes, and roles": (fw.matmul, (512, 512), 2, "sm_90a"),
    "rings of copies by threads": (fw.matmul, (256, 256), 2, "sm_80"),
    "rows and parts of columns": (_backward, (2048, 300), 2, "sm_90a"),
    "a network of comparisons": (fw.sort, (64, 17), 1, "sm_90a"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_left_out_of_schedules_is_implied(name: str) -> None:
    fn, shape, count, arch = KERNELS[name]
    spec = fw.TensorSpec(shape, "bfloat16")
    found = [
        _assert_all_are_implied(k.ir)
        for k in fw.compile(fw.trace(fn, *[spec] * count), arch).kernels
    ]
    assert sum(every for every, _ in found) > 0


def _pairs(body: str) -> list[str]:
    k = kernel(S + body)
    at = {site.path: n for n, site in enumerate(sites(k))}
    first = min(n for path, n in at.items() if path >= (4,))
    return [f"{h.kind} {at[h.before] - first}{at[h.after] - first}" for h in hazards.hazards(k)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # The second store stands between the first and the load.
        ("store s[63-tx] = r[0]\nstore s[tx] = r[0]\nr[0] = load s[tx^32]", ["WAW 01", "RAW 12"]),
        # One that is made in some blocks only does not order what others do.
        (
            "store s[63-tx] = r[0]\nif (bx == 0) { store s[tx] = r[0] }\nr[0] = load s[tx^32]",
            ["WAW 01", "RAW 02", "RAW 12"],
        ),
        # A read does not: two reads behind a store have to wait for it both.
        (
            "store s[63-tx] = r[0]\nr[0] = load s[tx]\nr[0] = load s[tx^1]",
            ["RAW 01", "RAW 02"],
        ),
        # A loop that runs surely is passed with what is in it.
        (
            "store s[63-tx] = r[0]\nfor (i < 2) { store s[tx] = r[0] }\nr[0] = load s[tx^32]",
            ["WAW 01", "RAW 12"],
        ),
    ],
)
def test_pairs_left_of_three_accesses(body: str, expected: list[str]) -> None:
    assert _pairs(body) == expected


def test_a_long_run_has_few_pairs() -> None:
    """Each store meets its neighbours, not all those before."""
    lines = [f"store s[tx^{1 << n % 6}] = r[0]\nr[0] = load s[tx]" for n in range(40)]
    k = kernel(S + "\n".join(lines))
    assert len(_every_hazard(k)) > 1500 and len(hazards.hazards(k)) < 250
    assert len(tightest(hazards.hazards(k))) < 100
