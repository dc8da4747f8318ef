"""The phases of an array of mbarriers, as far as straight control flow determines them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Slot(Generic[T]):
    """One mbarrier: arrivals and bytes that its phase still takes, phases completed, what was
    loaded in each phase, and how many phases each waiting thread (None: all) knows of."""

    count: int
    pending: int
    nbytes: int = 0
    completed: int = 0
    loads: list[tuple[int, T]] = field(default_factory=list[tuple[int, T]])
    known: dict[int | None, int] = field(default_factory=dict[int | None, int])


@dataclass(slots=True)
class Phases(Generic[T]):
    """The mbarriers of one buffer. Once an event is not understood, waits teach nothing."""

    _slots: dict[int, _Slot[T]] = field(default_factory=dict[int, _Slot[T]])
    _is_lost: bool = False

    def lose_track(self) -> None:
        """Some event may or may not happen, or concerns no known slot."""
        self._is_lost = True

    def begin(self, slot: int, count: int) -> None:
        """A fresh mbarrier whose phases take `count` arrivals."""
        self._slots[slot] = _Slot(count, count)

    def end(self, slot: int) -> None:
        """The mbarrier is ordinary memory again."""
        self._slots.pop(slot, None)

    def arrive(self, slot: int, arrivals: int, nbytes: int) -> None:
        """Arrivals, after the phase was told to take `nbytes` more."""
        m = self._slots.get(slot)
        if m is None:
            self.lose_track()
            return
        m.nbytes += nbytes
        m.pending -= arrivals
        self._advance(m)

    def load(self, slot: int, nbytes: int, load: T, *, only_first: bool = False) -> None:
        """An operation that delivers `nbytes` to the phase under way; `only_first`: to no other
        than the first, as others deliver too and may be a phase ahead or behind."""
        m = self._slots.get(slot)
        if m is None or (only_first and m.completed):
            self.lose_track()
            return
        m.loads.append((m.completed, load))
        m.nbytes -= nbytes
        self._advance(m)

    def _advance(self, m: _Slot[T]) -> None:
        if m.pending == 0 and m.nbytes == 0:
            m.completed += 1
            m.pending = m.count

    def wait(self, slot: int, parity: int | None, who: int | None) -> Iterable[T]:
        """What is complete behind a wait: loads of the phases whose end the parity guarantees."""
        m = self._slots.get(slot)
        if m is None or parity is None or self._is_lost:
            return ()
        known = max(m.known.get(who, 0), m.known.get(None, 0))
        phases = known if known % 2 != parity else known + 1
        if phases > m.completed:
            return ()
        m.known[who] = phases
        done = [load for phase, load in m.loads if phase < phases]
        if who is None:
            m.loads = [(phase, load) for phase, load in m.loads if phase >= phases]
        return done
