"""A partition: how one axis is cut in parts. One value, made once, read by all that follows.

    runs         element p*each + q is number q of part p         parts are neighbours in memory
    interleaved  element q*count + p is number q of part p        parts differ by an element at most

Where `count * each` is more than `size` some parts are short, and a fill stands for what they lack.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.core.expr import Int
from fusewright.errors import SpecError


@dataclass(frozen=True, slots=True)
class Partition:
    """`size` elements in `count` parts of `each` places. Raises SpecError for parts that do not
    hold all elements, and for sizes below 1."""

    size: int
    count: int
    each: int
    is_interleaved: bool = False

    def __post_init__(self) -> None:
        if min(self.size, self.count, self.each) < 1:
            raise SpecError(f"{self}: a partition has elements, parts and places in them")
        if self.size > self.count * self.each:
            raise SpecError(f"{self}: {self.count} parts of {self.each} hold fewer elements")

    @staticmethod
    def by_count(size: int, count: int, *, is_interleaved: bool = False) -> Partition:
        """So many parts, as short as they can be."""
        return Partition(size, count, -(-size // count), is_interleaved)

    @staticmethod
    def by_length(size: int, each: int) -> Partition:
        """As many runs of that length as it takes."""
        return Partition(size, -(-size // each), each)

    @property
    def missing(self) -> int:
        """The places that have no element."""
        return self.count * self.each - self.size

    @property
    def is_even(self) -> bool:
        """Whether all parts are full."""
        return not self.missing

    @property
    def shape(self) -> tuple[Int, Int]:
        """The two axes, C order over which is the order of the elements."""
        first, second = (self.each, self.count) if self.is_interleaved else (self.count, self.each)
        return Int(first), Int(second)

    @property
    def part_axis(self) -> int:
        """Which of the two axes counts the parts; the other one counts the places in a part."""
        return int(self.is_interleaved)

    def length(self, part: int) -> int:
        """The elements of a part."""
        if self.is_interleaved:
            return max(-(-(self.size - part) // self.count), 0)
        return min(max(self.size - part * self.each, 0), self.each)
