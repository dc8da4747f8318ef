"""Enumerations that keys of tables are made of."""

from __future__ import annotations

from enum import Enum


class Choice(Enum):
    """An enumeration whose members hash as they compare, by identity. Those of `Enum` hash their
    names, by a function in Python: as keys of tables they would take longer than what is kept."""

    __hash__ = object.__hash__
