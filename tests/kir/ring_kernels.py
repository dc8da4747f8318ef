"""Random loops over rings, and what analyses find in a kernel, told by which iterations stand for
its loops."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from product_texts import Lowered

from fusewright.core.memo import Memo
from fusewright.core.node import Node, rewrite
from fusewright.kir.analysis import iterations
from fusewright.kir.analysis.accesses import find
from fusewright.kir.analysis.fences import unfenced
from fusewright.kir.analysis.hazards import hazards, sync_orders, unordered
from fusewright.kir.analysis.order import Hazard
from fusewright.kir.analysis.role_conflicts import unguarded
from fusewright.kir.analysis.unfinished import unfinished
from fusewright.kir.ir import For, If, Kernel, Role, Statement
from fusewright.sim.verify import syncs_of, weaker_forms


@contextmanager
def standing_for_loops(*, turned: bool, shortened: bool) -> Iterator[None]:
    """By which rules few iterations stand for a loop: that it turns rings, and that everything in
    it is the same after a period. Without either all of them do."""
    none: Callable[..., None] = lambda *_: None  # noqa: E731
    kept = iterations._turned, iterations._shortened, iterations._PLANS
    iterations._PLANS = Memo(1 << 20, lambda *_: 1024)
    if not turned:
        iterations._turned = none  # type: ignore[assignment]
    if not shortened:
        iterations._shortened = none  # type: ignore[assignment]
    try:
        yield
    finally:
        iterations._turned, iterations._shortened, iterations._PLANS = kept


def findings(k: Kernel) -> dict[str, object]:
    """What analyses say of the order of a kernel's accesses."""
    done = find(k).completions
    return {
        "hazards": _listed(hazards(k)),
        "unordered": _listed(unordered(k)),
        "orders": {i: _listed(found) for i, found in sync_orders(k).items()},
        "unfenced": _listed(unfenced(k)),
        "unguarded": [(p.first.site.path, p.second.site.path) for p in unguarded(k)],
        "unfinished": sorted(
            (u.meeting.site.path, () if u.meeting.meets is None else u.meeting.meets.path)
            for u in unfinished(k)
        ),
        "stuck": sorted({e.instance.order for e in done.roles.stuck}),
    }


def _listed(found: Sequence[Hazard]) -> list[tuple[object, ...]]:
    """Hazards but for those over two iterations or more that are there over one as well: whatever
    orders the near pair orders the far one, too. Where a wait is moved so that it ends operations
    of two iterations before, the few iterations that stand for a loop have no far pair."""
    near = {_key(replace(h, distance=1)) for h in found if h.distance == 1}
    return sorted(
        {_key(h) for h in found if h.distance < 2 or _key(replace(h, distance=1)) not in near}
    )


def _key(h: Hazard) -> tuple[object, ...]:
    return (
        h.after, h.before, h.kind, h.space, str(h.before_buffer), str(h.after_buffer),
        h.scope.value, h.carried or (), h.distance, h.more_before, h.more_after, h.is_simultaneous,
    )  # fmt: skip


def iterations_of(k: Kernel) -> int:
    """How many iterations stand for the loops of a kernel that stand in no other, and in those."""
    return max((_product(k, site.loops) for site in find(k).places), default=1)


def _product(k: Kernel, loops: object) -> int:
    out = 1
    for loop in loops:  # type: ignore[attr-defined]
        out *= max(1, find(k).trips.get(loop.path, 1))
    return out


# --- random kernels ------------------------------------------------------------------------------


def random_product(seed: int) -> Lowered:
    """A product whose ring has one to six stages, of so many tiles that laps end anywhere."""
    rng = random.Random(seed)
    stages = rng.randrange(1, 7)
    roles = rng.random() < 0.6
    copied = max(min(1, stages - 1), rng.randrange(stages) if not roles else 0)
    ahead = "warp_specialized registers (40, 232)" if roles else f"ahead {copied}"
    tiles, depths = rng.choice([(70, 5), (30, 12), (12, 30), (5, 70), (16, 16), (1, 70)])
    return Lowered(
        m=128 * rng.randrange(1, tiles + 1),
        n=64,
        k=64 * rng.randrange(1, depths + 1),
        blocks=rng.choice((1, 1, 2)),
        ring=f"stages {stages} {ahead}",
        suffix=rng.choice(("registers", "boxes")),
        w_mn=rng.random() < 0.3,
    )


def random_nest(seed: int) -> str:
    """A kernel of threads alone: a nest of two loops whose statements go around one or two rings,
    each some slots ahead or behind, under conditions at the ends; others touch one slot. Syncs
    stand anywhere, and are missing anywhere."""
    rng = random.Random(seed)
    outer, inner = rng.choice([(40, 6), (20, 12), (12, 20), (6, 40), (1, 70)])
    outer, inner = rng.randrange(1, outer + 1), rng.randrange(1, inner + 1)
    stages = [rng.randrange(1, 7) for _ in range(rng.choice((1, 1, 2)))]
    head = [f"shared s{i}: float32[{64 * n}] align 16" for i, n in enumerate(stages)]
    lap = f"({inner}*o + k)" if rng.random() < 0.7 else "k"

    def access(where: str, lap: str) -> str:
        i = rng.randrange(len(stages))
        slot = f"(({lap} + {rng.randrange(4)}) % {stages[i]})"
        if rng.random() < 0.15:
            slot = str(rng.randrange(stages[i]))
        elif where and rng.random() < 0.1:
            slot = f"(({lap} + o) % {stages[i]})"
        thread = rng.choice(("tx", "tx", "(tx ^ 1)", "(63 - tx)", "(tx ^ 32)"))
        condition = ""
        if where and rng.random() < 0.35:
            v, n = ("k", inner) if where == "k" else ("o", outer)
            condition = rng.choice(
                (f"0 < {v}", f"{v} + {rng.randrange(1, 4)} < {n}", f"{v} < {n - 1}", f"{v} == 0",
                 f"{v} % 2 == 0", "tx < 40", f"bx + 4*{v} < {4 * n - 1}")
            )  # fmt: skip
            condition = f" if ({condition})"
        place = f"s{i}[{thread} + 64*{slot}]"
        verb = rng.random() < 0.5
        return f"store {place} = r[0]{condition}" if verb else f"r[0] = load {place}{condition}"

    def body(where: str, lap: str, most: int) -> list[str]:
        out: list[str] = []
        for _ in range(rng.randrange(1, most + 1)):
            if rng.random() < 0.25:
                out.append(rng.choice(("block_sync", "block_sync", "warp_sync")))
            out.append(access(where, lap))
        return out

    inside = body("k", lap, 4)
    before, behind = body("o", f"{inner}*o", 2), body("o", f"({inner}*o + {inner - 1})", 2)
    lines = [*head, *body("", "0", 1), f"for (o < {outer}) {{", *before]
    lines += [f"for (k < {inner}) {{", *inside, "}", *behind, "}", *body("", "0", 2)]
    numbered = [f"{x} #{i}" if x.endswith("_sync") else x for i, x in enumerate(lines)]
    return "\n".join(numbered)


def changed(k: Kernel, rng: random.Random) -> Kernel:
    """A kernel with one of its syncs left out, made weaker, or moved over a neighbour."""
    s = rng.choice(syncs_of(k))
    weaker = weaker_forms(s)
    how = rng.choice(("out", "up", "down", *(("weaker",) if weaker else ())))

    def mend(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        if not any(x is s for x in body):
            return body
        at = next(i for i, x in enumerate(body) if x is s)
        rest = body[:at] + body[at + 1 :]
        if how == "out":
            return rest
        if how == "weaker":
            return (*body[:at], rng.choice(weaker), *body[at + 1 :])
        at = min(max(0, at + (1 if how == "down" else -1)), len(rest))
        return (*rest[:at], s, *rest[at:])

    def mended(node: Node) -> Node:
        match node:
            case Kernel() | For() | Role():
                return replace(node, body=mend(node.body))
            case If():
                return replace(node, then=mend(node.then), otherwise=mend(node.otherwise))
            case _:
                return node

    out = rewrite(k, mended)
    assert isinstance(out, Kernel)
    return out
