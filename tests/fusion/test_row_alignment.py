"""How rows lie in words, against enumeration of the rows of a matrix."""

from __future__ import annotations

import pytest

from fusewright.fusion.row_alignment import (
    are_short,
    lanes_of_word,
    length_from_word,
    period_of_rows,
)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("length", [1, 3, 100, 101, 1024, 4098])
def test_rows_begin_alike_after_a_period_and_fit_their_words(length: int, itemsize: int) -> None:
    lanes = lanes_of_word(itemsize)
    starts = [row * length % lanes for row in range(4 * lanes)]
    period = period_of_rows(length, itemsize)
    assert starts.index(0, 1) == period and len(set(starts)) == period
    words = {(start + length - 1) // lanes + 1 for start in range(lanes)}
    assert max(words) * lanes == length_from_word(length, lanes)


@pytest.mark.parametrize(("lanes", "full", "short"), [(8, 8, False), (4, 8, False), (2, 8, True)])
def test_half_a_word_is_long_enough(lanes: int, full: int, short: bool) -> None:
    assert are_short(lanes, full) is short


def test_single_elements_of_words_of_two_are_no_reason_to_count_from_words() -> None:
    assert not are_short(1, 2) and are_short(1, 4)
