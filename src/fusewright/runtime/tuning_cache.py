"""Candidates that were measured to be the fastest, kept in the disk cache by `fw.tune`.

One record for a group (its structure and where it writes), a target and a device. A record that
cannot be read, or names parameters in a form that no longer exists, is ignored and says so in the
log: what is lost is a measurement, never a result.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fusewright import knobs
from fusewright.errors import UserError
from fusewright.host.segment import Segment, structure_of
from fusewright.runtime.cache import KernelCache, cache_key
from fusewright.schedule.heuristics.common import Params
from fusewright.target import Target

SCHEMA = 1
FOLDER = "tuned"
"""Below the folder of compiled kernels, so that a cache without tuned schedules costs one look."""

_log = logging.getLogger("fusewright.tuned")


@dataclass(frozen=True, slots=True)
class TunedSchedule:
    """The parameters of the fastest candidate, and all that was measured, in microseconds."""

    params: Params
    measured: tuple[tuple[Params, float], ...]


class TuningCache:
    """The tuned schedules of one device."""

    def __init__(self, target: Target, device: str) -> None:
        self._target = target
        self._device = device
        self._path = knobs.CACHE_DIR.get() / FOLDER

    def get(self, segment: Segment) -> TunedSchedule | None:
        """The tuned schedule of a group; None where none is kept or the record is of no use."""
        if not self._path.is_dir():
            return None
        key = self._key(segment)
        entry = self._cache.get(key)
        if entry is None:
            return None
        try:
            return _tuned(entry.meta)
        except (KeyError, TypeError, ValueError) as e:
            _log.warning("a tuned schedule is ignored: its record %s is damaged (%s)", key, e)
            return None

    def put(self, segment: Segment, fastest: TunedSchedule) -> None:
        """Keeps a tuned schedule. Raises UserError where the disk does not take it."""
        record = {
            "tuned": SCHEMA,
            "device": self._device,
            "winner": _record(fastest.params),
            "measured": [[_record(p), us] for p, us in fastest.measured],
        }
        if not self._cache.put(self._key(segment), b"", record):
            raise UserError(
                f"tune: {self._cache.problem or f'{self._path} cannot be written'}; set "
                f"{knobs.CACHE_DIR.name} to a folder of your own"
            )

    @cached_property
    def _cache(self) -> KernelCache:
        return KernelCache(self._path)

    def _key(self, segment: Segment) -> str:
        structure, _ = structure_of(segment.fusion)
        places = list(segment.layouts)
        return cache_key(
            f"tuned {SCHEMA}", repr(structure), repr(places), self._target.arch, self._device
        )


def _record(params: Params) -> dict[str, Any]:
    return {
        "scheduler": params.scheduler,
        "values": [list(v) for v in params.values],
        "min_blocks": params.min_blocks,
    }


def _tuned(meta: dict[str, Any]) -> TunedSchedule:
    """Raises KeyError, TypeError or ValueError for anything but what `put` wrote."""
    if meta["tuned"] != SCHEMA:
        raise ValueError(f"version {meta['tuned']}, not {SCHEMA}")
    measured = tuple((_params(p), float(us)) for p, us in meta["measured"])
    return TunedSchedule(_params(meta["winner"]), measured)


def _params(record: Any) -> Params:
    values: list[tuple[str, object]] = []
    for name, value in record["values"]:
        if not isinstance(name, str) or not isinstance(value, int | str):
            raise TypeError(f"{name!r}: {value!r} is no parameter")
        values.append((name, value))
    scheduler, min_blocks = record["scheduler"], record["min_blocks"]
    if not isinstance(scheduler, str) or not isinstance(min_blocks, int):
        raise TypeError("a scheduler is a name, min_blocks a number")
    return Params(scheduler, tuple(values), min_blocks)
