"""Locks that a forked child finds open, and what else a child must forget.

A thread of the parent may hold a lock at the moment of the fork; in the child that thread does not
exist and the lock would never open.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_forgets: list[Callable[[], None]] = []


def fork_safe_lock() -> threading.Lock:
    """A lock that is open in a forked child."""
    made = threading.Lock()
    _locks.add(made)
    return made


def after_fork(forget: Callable[[], None]) -> Callable[[], None]:
    """Runs `forget` in every forked child; usable as a decorator."""
    _forgets.append(forget)
    return forget


def _in_child() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]
    for forget in _forgets:
        forget()


os.register_at_fork(after_in_child=_in_child)
