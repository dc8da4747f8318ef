"""How many elements and axes a value may have."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import numpy as np

from fusewright.errors import UserError

MAX_ELEMENTS = 2**63 - 1
"""The most elements of a value: indices have 64 bits."""
MAX_RANK = 64
"""The most axes of a value: numpy's arrays have no more (NumPy 2.0)."""


def check_count(op: str, shape: Iterable[object]) -> None:
    """UserError for a shape whose integer sizes give more elements than an index can count."""
    sizes = [int(cast("int", s)) for s in shape if isinstance(s, int | np.integer)]
    if math.prod(sizes) > MAX_ELEMENTS:
        raise UserError(
            f"{op}: the sizes {tuple(sizes)} give more than {MAX_ELEMENTS} elements, the most that "
            "an index of 64 bits can count"
        )


def check_rank(op: str, rank: int) -> None:
    """UserError for more axes than arrays have."""
    if rank > MAX_RANK:
        raise UserError(
            f"{op}: {rank} axes; arrays have at most {MAX_RANK}, as numpy's have: leave out axes "
            "of size 1, or merge axes with fw.reshape"
        )
