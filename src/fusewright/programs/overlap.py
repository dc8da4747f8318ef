"""Launches of a simulated program that overlap: what one does early, against what those before it
may still do.

Each launch was executed after those before it. What its threads touch where they know that these
have ended comes behind them on a GPU, too; the rest is compared, byte by byte of the roots of the
host program, with all that the launches touch that may still run. Behind launch `p` those are

    when launch c begins      none, unless it begins early: then p, and what may run behind the wait
                              of p where each block of p has waited before it lets c begin, else
                              what may run when p begins
    behind the wait of c      what may run when p has ended
    when launch c has ended   what may run behind its wait; as at its begin, unless each block
                              waits
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fusewright.core.expr import Var
from fusewright.host.ir import Binding, HostLaunch, Root
from fusewright.kernel import Array, size_of
from fusewright.kir.ir import Buffer
from fusewright.sim.launches import TouchedMemory
from fusewright.sim.model import MODEL, Model
from fusewright.sim.report import Race


@dataclass(frozen=True, slots=True)
class _Touched:
    """The bytes of a root, from `first` on, that a launch reads and writes through a parameter."""

    root: Root
    first: int
    read: Array
    written: Array
    early_read: Array
    early_written: Array
    name: str


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch that has run: its name, what it touches, and the numbers of the launches that may
    run when it begins, behind its wait, when it has ended, and when it has let the next begin."""

    name: str
    touched: tuple[_Touched, ...]
    at_begin: frozenset[int] = frozenset()
    behind_wait: frozenset[int] = frozenset()
    at_end: frozenset[int] = frozenset()
    at_trigger: frozenset[int] = frozenset()


@dataclass(slots=True)
class Overlap:
    """The launches of a program so far, in order."""

    sizes: Mapping[Var, int]
    seed: int
    model: Model = MODEL
    _past: list[_Launch | None] = field(default_factory=list["_Launch | None"])

    def alone(self) -> None:
        """The next launch overlaps with none."""
        self._past.append(None)

    def launched(self, x: HostLaunch, touched: TouchedMemory) -> Iterator[Race]:
        """Takes in the next launch; what it does too early."""
        number, before = len(self._past), self._past[-1] if self._past else None
        is_early = touched.kernel.begins_early
        if is_early and before is None:
            message = f"#{number} {x.name} begins early, but no launch before it lets it begin"
            yield Race("rule", message, seed=self.seed)
        mine = _Launch(x.name, tuple(self._touched(x, touched)))
        if is_early and before is not None and self.model.triggers_order_nothing:
            at_begin = before.at_trigger | {number - 1}
            at_end = before.at_end if touched.waits else at_begin
            at_trigger = before.at_end if touched.triggers_late else at_begin
            mine = replace(
                mine, at_begin=at_begin, behind_wait=before.at_end, at_end=at_end,
                at_trigger=at_trigger,
            )  # fmt: skip
        self._past.append(mine)
        for k in sorted(mine.at_begin):
            other = self._past[k]
            if other is not None:
                pairs = ((p, q) for p in other.touched for q in mine.touched)
                names = f"#{number} {x.name}", f"#{k} {other.name}"
                is_over = k not in mine.behind_wait
                for p, q in pairs:
                    yield from self._meetings(p, q, names, only_early=is_over)

    def _touched(self, x: HostLaunch, touched: TouchedMemory) -> Iterator[_Touched]:
        """The bytes of roots that a launch touches."""
        bound: Mapping[Buffer, Binding] = dict(zip(x.kernel.params, x.bindings, strict=True))
        for b, found in touched.elements.items():
            masks = (found.read, found.written, found.early_read, found.early_written)
            if found.read.any() or found.written.any():
                read, written, *early = (np.repeat(m, b.dtype.nbytes) for m in masks)
                first, (early_read, early_written) = size_of(bound[b].offset, self.sizes), early
                yield _Touched(
                    bound[b].root, first, read, written, early_read, early_written, bound[b].tensor
                )

    def _meetings(
        self, p: _Touched, q: _Touched, names: tuple[str, str], *, only_early: bool
    ) -> Iterator[Race]:
        """Where a launch touches as `q` what another one that may still run touches as `p`."""
        low = max(p.first, q.first)
        high = min(p.first + len(p.read), q.first + len(q.read))
        if p.root is not q.root or low >= high:
            return
        old, new = slice(low - p.first, high - p.first), slice(low - q.first, high - q.first)
        read, written = (q.early_read, q.early_written) if only_early else (q.read, q.written)
        for verb, other, meet in (
            ("reads", "writes", read[new] & p.written[old]),
            ("writes", "reads", written[new] & p.read[old]),
            ("writes", "writes", written[new] & p.written[old]),
        ):
            if meet.any():
                at, count = low + int(np.argmax(meet)), int(np.count_nonzero(meet))
                message = (
                    f"launch {names[0]} {verb} {q.name} (byte {at} of {q.root}) while launch "
                    f"{names[1]}, which {other} it, may still run"
                )
                yield Race("race", message, count=count, seed=self.seed)
