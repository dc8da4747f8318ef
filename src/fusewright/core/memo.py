"""Results that are kept by what they follow from, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(slots=True, eq=False)
class Memo(Generic[V]):
    """Results by key, of which those that were asked for last are kept: as many as take `limit`
    bytes together, by what `nbytes` says of a key and its result."""

    limit: int
    nbytes: Callable[[Hashable, V], int]
    _found: OrderedDict[Hashable, V] = field(default_factory=lambda: OrderedDict[Hashable, V]())
    _total: int = 0
    _lock: Lock = field(default_factory=Lock)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The result for a key; made, if it is not kept."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        made = make()
        with self._lock:
            if key not in self._found:
                self._found[key] = made
                self._total += self.nbytes(key, made)
            while self._total > self.limit:
                old, value = self._found.popitem(last=False)
                self._total -= self.nbytes(old, value)
        return made
