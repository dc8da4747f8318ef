"""Programs of moves, joins, parts and insertions (`bench/moves.py`): launches and bytes over the
least, which is one read of what is needed of the arguments and one write of the results."""

from __future__ import annotations

import pytest
from bench import moves_page
from bench.moves import PROGRAMS

MORE: dict[str, tuple[int, float, str]] = {
    "queries, keys and values": (3, 1.0, "three results of parts of an argument, side by side"),
    "two steps of heat": (2, 2.0, "the second step would compute thirteen points of the first"),
    "causal taps of a norm": (2, 2.01, "four norms for each row take longer than storing one"),
    "total variation": (3, 1.0, "parts of both sums, and one kernel for what is left of them"),
    "every second row of a softmax": (1, 1.5, "the argument is bound whole; 1.0 moves"),
    "norm of the last token, multiplied": (2, 1.12, "the operand of a product is stored"),
    "join, then split": (2, 1.0, "results of different sizes that read different parts"),
    "join, then split in three": (3, 1.0, "results of different sizes that read different parts"),
    "25 pieces": (2, 1.0, "a kernel reads 24 values"),
    "25 functions": (2, 1.0, "a kernel reads 24 values"),
    "60 pieces": (3, 1.0, "a kernel reads 24 values"),
    "60 functions": (14, 1.0, "a kernel reads 24 values"),
    "reflect pad of a softmax": (
        3,
        1.0,
        "borders of rows are copied, one side read behind the other",
    ),
    "two softmaxes": (2, 1.0, "rows of different lengths, side by side"),
    "means beside rows": (2, 1.0, "a result of rows is repeated along them"),
    "norm of some heads": (2, 1.0, "two parts of an argument, side by side"),
    "two softmaxes in zeros": (3, 1.0, "the border is as large as the blocks"),
    "softmax in an argument": (2, 1.0, "what is kept of the argument is copied beside it"),
    "mean pad": (3, 1.5, "borders of rows, of columns, and the inside"),
    "maximum pad": (3, 1.5, "borders of rows, of columns, and the inside"),
    "minimum pad": (3, 1.5, "borders of rows, of columns, and the inside"),
    "median pad": (5, 4.0, "rows and columns are sorted"),
}
"""Launches, bytes over the least, and the reason, where they are more than one and 1.05."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_launches_and_bytes_of_moves_are_the_least(name: str) -> None:
    program = PROGRAMS[name].compiled()
    stats = program.host.stats
    launches, over, _ = MORE.get(name, (1, 1.05, ""))
    assert stats["launches"] == launches
    assert stats["bytes_moved"] <= max(over, 1.05) * PROGRAMS[name].least(program)


def test_what_takes_more_is_a_program_of_the_table() -> None:
    assert MORE.keys() <= PROGRAMS.keys()


@pytest.mark.parametrize(
    ("name", "launches", "path"),
    [("softmax of rows, norm of columns, column-major", 2, 2), ("four attention heads", 9, 3)],
)
def test_programs_of_layouts_and_branches(name: str, launches: int, path: int) -> None:
    """Rows, then columns: the softmax is stored for nobody, its rows are read again. Heads wait for
    nothing of each other, and one launch has the products of several."""
    found = moves_page.lines_of(name)
    assert (found.launches, found.path, found.fills + found.copies) == (launches, path, 0)
    assert found.launches_before is None or found.launches < found.launches_before


def test_the_page_names_programs_that_there_are() -> None:
    assert moves_page.BEFORE.keys() <= PROGRAMS.keys() | moves_page.FURTHER.keys()
    assert moves_page.FURTHER.keys() <= moves_page.BEFORE.keys()
