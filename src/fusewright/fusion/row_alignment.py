"""How rows lie in the words of memory, in plain numbers: what passes estimate, schedules decide.

A word is what one access moves at most, 16 bytes. Rows of 8k elements of 2 bytes all begin at
words; of 8k + 4 every second one does, and vectors of 4 fit all; of 8k + 1 every eighth one does,
and vectors are single elements. Such rows are counted from the word that they begin in: their first
and last vectors are short, the others are whole words.
"""

from __future__ import annotations

import math

from fusewright.target import MAX_VECTOR_NBYTES

SHORT = 4
"""Vectors of a word divided by this, or shorter ones, are given up for such ends. An H200 takes 40
KB under way on each multiprocessor (bandwidth times latency): of 2048 threads that is 2.5 vectors
of half a word each, which schedules have, but five of a quarter, and twice the instructions."""


def lanes_of_word(itemsize: int) -> int:
    """The elements of a word."""
    return MAX_VECTOR_NBYTES // itemsize


def are_short(lanes: int, full: int) -> bool:
    """Whether vectors of `lanes` elements are so short, where `full` are possible, that rows are
    better counted from a word."""
    return SHORT * lanes <= full


def period_of_rows(length: int, itemsize: int) -> int:
    """After how many rows of `length` elements the next one begins where the first one did."""
    lanes = lanes_of_word(itemsize)
    return lanes // math.gcd(length, lanes)


def length_from_word(length: int, lanes: int) -> int:
    """The elements of all words that have some of a row, wherever it begins."""
    return -(-(length - 1) // lanes) * lanes + lanes
