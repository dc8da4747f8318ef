"""Choices of the caller that hold for a block of code, a thread, or by default.

with fw.config(execution="stream"):
    y = f(x)
fw.config(deterministic=False).as_default()
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fusewright.errors import UserError

Execution = Literal["auto", "graph", "stream"]

_ALLOWED: dict[str, tuple[object, ...]] = {
    "execution": ("auto", "graph", "stream"),
    "deterministic": (True, False),
}


@dataclass(frozen=True, slots=True)
class _Values:
    """`execution`: programs of several kernels run as a CUDA graph ("graph"), one after the other
    on the caller's stream ("stream"), or as a graph from three kernels on ("auto").
    `deterministic`: results are bitwise equal from run to run on one device."""

    execution: Execution = "auto"
    deterministic: bool = True


class Config:
    """One set of choices. There is one object per set, so that identity is equality."""

    __slots__ = ("deterministic", "execution")

    def __init__(self, values: _Values) -> None:
        self.execution: Execution = values.execution
        self.deterministic = values.deterministic

    def __repr__(self) -> str:
        return f"Config(execution={self.execution!r}, deterministic={self.deterministic})"


_known: dict[_Values, Config] = {}
_default = [_Values()]
_current: ContextVar[_Values | None] = ContextVar("fusewright_config", default=None)


def active() -> Config:
    """The choices that hold here."""
    values = _current.get() or _default[0]
    found = _known.get(values)
    return found if found is not None else _known.setdefault(values, Config(values))


class config:
    """Changes choices for a `with` block, in this thread (or task) only.

    Raises UserError for a name or a value that does not exist.
    """

    def __init__(self, **changes: Any) -> None:
        names = [f.name for f in fields(_Values)]
        for name, value in changes.items():
            if name not in names:
                raise UserError(f"config({name}=...): there is no such choice; use {names}")
            if value not in _ALLOWED[name]:
                raise UserError(f"config({name}={value!r}): use one of {_ALLOWED[name]}")
        self._changes = changes
        self._tokens: list[Token[_Values | None]] = []

    def __enter__(self) -> Config:
        self._tokens.append(_current.set(replace(_current.get() or _default[0], **self._changes)))
        return active()

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())

    def as_default(self) -> None:
        """Changes the choices of every thread that is in no `with` block."""
        _default[0] = replace(_default[0], **self._changes)
