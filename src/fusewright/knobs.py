"""Every environment variable: name, type, default, meaning. The only reader of os.environ."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from fusewright.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Knob(Generic[T]):
    """One environment variable. `parse` turns its text into a value, ValueError for a bad one;
    `allowed` describes good ones; `default` is called where the variable is unset or empty."""

    name: str
    default: Callable[[], T]
    parse: Callable[[str], T]
    allowed: str
    doc: str

    @property
    def is_set(self) -> bool:
        """Whether the user chose."""
        return bool(os.environ.get(self.name, ""))

    def get(self) -> T:
        """The value now. Raises UserError for text that is not allowed."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError:
            raise UserError(f"{self.name}={text!r}: use {self.allowed}, or unset it") from None


def _processes_of_host() -> int:
    """How many processes of a job run on this host, as torchrun tells each of them."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(text)) if text.isdecimal() else 1


def _within(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _switch(text: str) -> bool:
    table = {"1": True, "on": True, "true": True, "0": False, "off": False, "false": False}
    if text.lower() not in table:
        raise ValueError(text)
    return table[text.lower()]


def _level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error", "recompiles"):
        raise ValueError(text)
    return text.lower()


def _cache_home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "fusewright"


SPEC = Knob(
    "FUSEWRIGHT_SPEC",
    lambda: 1,
    _within(0, 3),
    "a number from 0 to 3",
    "Checks of what passes hand on: 0 none, 1 at the borders of rooms, 2 after every pass over "
    "kernels, 3 and that text round-trips.",
)
DUMP = Knob(
    "FUSEWRIGHT_DUMP",
    lambda: "",
    str,
    "all, diff, or the name of a pass",
    "Writes the kernel after each pass (all), what each pass changed (diff), or the kernel after "
    "one pass (its name).",
)
DUMP_DIR = Knob(
    "FUSEWRIGHT_DUMP_DIR",
    lambda: Path("fusewright_dump"),
    Path,
    "a directory",
    "Where FUSEWRIGHT_DUMP writes, one folder a kernel.",
)
WITHOUT = Knob(
    "FUSEWRIGHT_WITHOUT",
    lambda: "",
    str,
    "a list such as promotion,pruning",
    "Parts of the memory pipeline to leave out, to see what they buy: scopes (loops bound to the "
    "grid count as loops, so that no two buffers share memory), in_place, counting, promotion, "
    "split, pruning.",
)
CACHE_DIR = Knob(
    "FUSEWRIGHT_CACHE_DIR",
    _cache_home,
    Path,
    "a directory",
    "Where compiled kernels are kept; by default in the user's cache directory.",
)
CACHE = Knob(
    "FUSEWRIGHT_CACHE",
    lambda: True,
    _switch,
    "1 or 0",
    "Whether compiled kernels are read from and written to the disk cache.",
)
TUNED = Knob(
    "FUSEWRIGHT_TUNED",
    lambda: True,
    _switch,
    "1 or 0",
    "Whether schedules that fw.tune kept for this device are used.",
)
LOG = Knob(
    "FUSEWRIGHT_LOG",
    lambda: "warning",
    _level,
    "debug, info, warning, error or recompiles",
    "The least serious message that is logged; recompiles: warnings, and every compile of a "
    "function that was compiled before.",
)
THREADS = Knob(
    "FUSEWRIGHT_THREADS",
    lambda: max(1, (os.cpu_count() or 1) // _processes_of_host()),
    _within(1, 1024),
    "a number from 1 to 1024",
    "Threads that compile kernels, and processes that make programs; by default one per processor, "
    "shared by the processes that torchrun starts on a host (LOCAL_WORLD_SIZE).",
)
BOUND_WAITS = Knob(
    "FUSEWRIGHT_BOUND_WAITS",
    lambda: 0,
    _within(0, 60_000),
    "a number of milliseconds from 0 to 60000",
    "A wait on an mbarrier that takes longer prints its role, slot and phase, one for a turn of "
    "blocks its semaphore, and traps; kernels are built for debugging then. 0: waits are not "
    "bounded.",
)
NVTX = Knob(
    "FUSEWRIGHT_NVTX",
    lambda: False,
    _switch,
    "1 or 0",
    "Whether launches are marked with NVTX ranges.",
)

KNOBS: tuple[Knob[int] | Knob[str] | Knob[bool] | Knob[Path], ...] = (
    SPEC,
    DUMP,
    DUMP_DIR,
    WITHOUT,
    CACHE_DIR,
    CACHE,
    TUNED,
    LOG,
    THREADS,
    BOUND_WAITS,
    NVTX,
)


@cache
def tell_unknown() -> None:
    """Warns, once a process, of variables in the environment that are named as this package's and
    are none of its."""
    known = {k.name for k in KNOBS}
    for name in sorted(n for n in os.environ if n.startswith("FUSEWRIGHT_") and n not in known):
        (close,) = difflib.get_close_matches(name, sorted(known), 1, 0.0)
        warnings.warn(
            f"the environment has {name}, which means nothing to fusewright; is {close} meant?",
            stacklevel=4,
        )
