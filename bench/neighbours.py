"""Neighbours of a case: the same function a little off the sizes that schedules were tuned for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.cases import Case, Spec

VECTOR_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a case's sizes: rows and columns are those of its largest input."""

    suffix: str
    rows: int
    vectors: int
    columns: int


CHANGES = (
    Change("one vector longer", 0, 1, 0),
    Change("one row more", 1, 0, 0),
    Change("odd rows", 0, 0, 1),
)
_NBYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}


def neighbours(case: Case) -> tuple[Case, ...]:
    """The case with one vector (16 bytes) more a row, with one row more, and with rows one element
    longer. First axes of as many rows and last axes of as many columns change together, and of
    matrices either axis."""
    largest, dtype = max(case.inputs, key=lambda spec: _size(spec))
    rows, columns = largest[0], largest[-1]
    out: list[Case] = []
    for change in CHANGES:
        longer = columns + change.vectors * VECTOR_NBYTES // _NBYTES[dtype] + change.columns
        inputs = tuple(
            (_changed(shape, (rows, rows + change.rows), (columns, longer)), kind)
            for shape, kind in case.inputs
        )
        out.append(replace(case, name=f"{case.name}, {change.suffix}", inputs=inputs))
    return tuple(out)


def _size(spec: Spec) -> int:
    n = 1
    for extent in spec[0]:
        n *= extent
    return n


def _changed(
    shape: tuple[int, ...], rows: tuple[int, int], columns: tuple[int, int]
) -> tuple[int, ...]:
    if len(shape) == 2 and rows[0] != columns[0]:  # a transposed input has them the other way round
        return tuple({rows[0]: rows[1], columns[0]: columns[1]}.get(n, n) for n in shape)
    new = list(shape)
    if len(new) > 1 and new[0] == rows[0]:
        new[0] = rows[1]
    if new and new[-1] == columns[0]:
        new[-1] = columns[1]
    elif len(new) == 1 and new[0] == rows[0]:
        new[0] = rows[1]
    return tuple(new)
