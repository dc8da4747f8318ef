"""When vectors are so short that rows are counted from words."""

from __future__ import annotations

import pytest

from fusewright.fusion.row_alignment import are_short


@pytest.mark.parametrize(("lanes", "full", "short"), [(8, 8, False), (4, 8, False), (2, 8, True)])
def test_half_a_word_is_long_enough(lanes: int, full: int, short: bool) -> None:
    assert are_short(lanes, full) is short


def test_single_elements_of_words_of_two_are_no_reason_to_count_from_words() -> None:
    assert not are_short(1, 2) and are_short(1, 4)
