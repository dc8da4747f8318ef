"""How many elements a value may have."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import numpy as np

from fusewright.errors import UserError

MAX_ELEMENTS = 2**63 - 1
"""The most elements of a value: indices have 64 bits."""


def check_count(op: str, shape: Iterable[object]) -> None:
    """UserError for a shape whose integer sizes give more elements than an index can count."""
    sizes = [int(cast("int", s)) for s in shape if isinstance(s, int | np.integer)]
    if math.prod(sizes) > MAX_ELEMENTS:
        raise UserError(
            f"{op}: the sizes {tuple(sizes)} give more than {MAX_ELEMENTS} elements, the most that "
            "an index of 64 bits can count"
        )
