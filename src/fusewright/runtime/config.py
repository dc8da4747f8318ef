"""Choices of the caller that hold for a block of code, a thread, or by default.

with fw.config(execution="stream"):
    y = f(x)
fw.config(execution="graph").as_default()
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Literal

from fusewright.arguments import shown
from fusewright.errors import UserError

Execution = Literal["auto", "graph", "stream"]
Float32Matmul = Literal["ieee", "tf32"]

_ALLOWED: dict[str, tuple[object, ...]] = {
    "execution": ("auto", "graph", "stream"),
    "deterministic": (True, False),
    "float32_matmul": ("ieee", "tf32"),
    "check_indices": (True, False),
    "early_launches": (True, False),
}


@dataclass(frozen=True, slots=True, eq=False)
class Config:
    """`execution`: programs of several kernels run as a CUDA graph ("graph"), one after the other
    on the caller's stream ("stream"), or as a graph from three kernels on ("auto").
    `deterministic`: results are bitwise equal from run to run on one device. With False, schedules
    may ask for sums in the order in which blocks come (mode "arrival"), and `fw.tune` tries those.
    `float32_matmul`: products of float32 that are compiled under "tf32" round their operands to 10
    bits behind the point, to the nearest, ties to even, and sum in float32, where the target has
    matrix instructions for it; "ieee" rounds nothing.
    `check_indices`: kernels that are compiled under True stop at an index that lies outside of its
    axis in a look-up of mode "raise" (`fw.take`): in the simulator as an IndexError with the line
    of the program, on a GPU with the same line printed, and DeviceError of the next call of CUDA.
    `early_launches`: in programs that are compiled under True a launch may begin before the one
    before it has ended, and waits for it where it first touches memory that one may still touch
    (programmatic dependent launch, from compute capability 9.0 on; UserError for targets before).

    There is one object per set of choices, so that identity is equality and hashing is cheap."""

    execution: Execution = "auto"
    deterministic: bool = True
    float32_matmul: Float32Matmul = "ieee"
    check_indices: bool = False
    early_launches: bool = False

    @property
    def of_kernels(self) -> tuple[bool, ...]:
        """The choices that kernels are compiled under, beside that of `float32_matmul`."""
        return self.deterministic, self.check_indices, self.early_launches


_known: dict[tuple[object, ...], Config] = {}
_default = [Config()]
_current: ContextVar[Config | None] = ContextVar("fusewright_config", default=None)


def active() -> Config:
    """The choices that hold here."""
    return _current.get() or _default[0]


def _changed(base: Config, changes: dict[str, Any]) -> Config:
    made = replace(base, **changes)
    return _known.setdefault(astuple(made), made)


_known[astuple(_default[0])] = _default[0]


class config:
    """Changes choices for a `with` block, in this thread (or task) only.

    Raises UserError for a name or a value that does not exist.
    """

    def __init__(self, **changes: Any) -> None:
        names = [f.name for f in fields(Config)]
        for name, value in changes.items():
            if name not in names:
                raise UserError(f"config({name}=...): there is no such choice; use {names}")
            if not any(
                value is a or (isinstance(value, str) and value == a) for a in _ALLOWED[name]
            ):
                raise UserError(f"config({name}={shown(value)}): use one of {_ALLOWED[name]}")
        self._changes = changes
        self._tokens: list[Token[Config | None]] = []

    def __enter__(self) -> Config:
        self._tokens.append(_current.set(_changed(active(), self._changes)))
        return active()

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())

    def as_default(self) -> None:
        """Changes the choices of every thread that is in no `with` block."""
        _default[0] = _changed(_default[0], self._changes)
