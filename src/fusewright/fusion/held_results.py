"""At which other places a thread that holds results of a product may read it.

A thread of a warpgroup holds of its rows the columns `8 j + 2 (lane % 4) + e` of a tile, for all
`j`, and `e` 0 or 1 (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma; those
of mma.sync lie alike). So it has the partner of each of its columns where a map moves whole words
of 8 columns, or within pairs, and leaves no tile:

    (c + 64) % 128    tiles of 128, 256    c ^ 1    any tile    c + 2    none: it is another lane's
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import (
    Expr,
    IntLike,
    as_expr,
    constant_value,
    floordiv,
    mod,
    variables,
)
from fusewright.core.sampling import Sampler
from fusewright.core.substitution import substitute
from fusewright.fusion.ir import IndexMap, MatMul, Op, Shape
from fusewright.target import MMA_COLUMNS_UNIT, MMA_PAIR

MAX_COLUMNS = 1 << 21
"""Columns of a product of which all are looked at: a tenth of a second."""
TILE_WIDTHS = (256, 192, 128, 64, 32, 16)
"""Columns of the tiles that products of all sizes may have."""
Columns = npt.NDArray[Any]


def reads_held_result(op: Op, shape: Shape, maker: Op, source: Shape) -> TypeGuard[IndexMap]:
    """Whether an operation, which makes a value of a shape of what `maker` makes in a `source`
    shape, is a map of a product's results that reads for each place what the thread of that place
    holds, in tiles of some width: it runs along the product's own axes."""
    if not isinstance(op, IndexMap) or not isinstance(maker, MatMul) or shape != source:
        return False
    steps = _steps(op, shape)
    return steps is not None and any(_is_in_tiles(steps, n) for n in TILE_WIDTHS)


def is_held_in_tile(op: IndexMap, shape: Shape, columns: int) -> bool:
    """Whether threads hold what a map of a product's results reads in tiles of so many columns."""
    steps = _steps(op, shape)
    return steps is not None and _is_in_tiles(steps, columns)


def place_in_tile(op: IndexMap, word: IntLike, element: IntLike) -> tuple[Expr, Expr]:
    """The word of 8 columns of a tile, and the element of a pair, that a map reads for one of the
    own tile and thread."""
    own = op.coordinates[-1]
    column = as_expr(word) * MMA_COLUMNS_UNIT + element
    place = substitute(op.index[-1], {own: column})
    return floordiv(place, MMA_COLUMNS_UNIT), mod(place, MMA_PAIR)


def _steps(op: IndexMap, shape: Shape) -> Columns | None:
    """By how many columns a map of a value of its own shape moves each, where it reads the same
    row; None where it does not, or the row, or a size that is not known, decides."""
    *lead, column = op.index
    extent = constant_value(shape[-1])
    own = op.coordinates[-1]
    if extent is None or extent > MAX_COLUMNS or variables(column) != (own,):
        return None
    if tuple(lead) != op.coordinates[:-1]:
        return None
    columns = np.arange(extent)
    places = Sampler({own: columns}).value(column)
    return places - columns if places.min() >= 0 and places.max() < extent else None


def is_alike_in_tiles(values: Columns, columns: int) -> bool:
    """Whether values by column are the same for all lanes, and for all tiles of so many columns:
    the word of a tile and the element of a pair say which they are."""
    own = np.arange(min(len(values), columns))
    tile = values[: len(own)]
    first_lane = own // MMA_COLUMNS_UNIT * MMA_COLUMNS_UNIT + own % MMA_PAIR
    return bool((tile == tile[first_lane]).all() and (np.resize(tile, len(values)) == values).all())


def _is_in_tiles(steps: Columns, columns: int) -> bool:
    """Whether steps leave no tile of so many columns, and lead to the lane where they begin."""
    own = np.arange(min(len(steps), columns))
    places = own + steps[: len(own)]
    lanes = MMA_COLUMNS_UNIT // MMA_PAIR
    is_inside = (places >= 0).all() and (places < columns).all()
    is_of_lane = (places // MMA_PAIR % lanes == own // MMA_PAIR % lanes).all()
    return bool(is_inside and is_of_lane) and is_alike_in_tiles(steps, columns)
