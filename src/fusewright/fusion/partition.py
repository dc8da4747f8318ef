"""A partition: how one axis is cut in parts. One value, made once, read by all that follows.

    runs         element p*each + q is number q of part p         parts are neighbours in memory
    interleaved  element q*count + p is number q of part p        parts differ by an element at most
    in packs     element (q*count + p)*pack + r is number q*pack + r of part p: interleaved, but
                 `pack` neighbours stay together

Where `count * each` is more than `size` some parts are short, and a fill stands for what they lack.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.core.expr import Int
from fusewright.errors import SpecError


@dataclass(frozen=True, slots=True)
class Partition:
    """`size` elements in `count` parts of `each` places. `is_strip`: a part is what a block has
    side by side of what it holds for another reduction. Raises SpecError for parts that do not hold
    all elements, for sizes below 1, and for packs that do not divide interleaved parts."""

    size: int
    count: int
    each: int
    is_interleaved: bool = False
    pack: int = 1
    is_strip: bool = False

    def __post_init__(self) -> None:
        if min(self.size, self.count, self.each) < 1:
            raise SpecError(f"{self}: a partition has elements, parts and places in them")
        if self.size > self.count * self.each:
            raise SpecError(f"{self}: {self.count} parts of {self.each} hold fewer elements")
        if self.pack < 1 or self.each % self.pack or (self.pack > 1 and not self.is_interleaved):
            raise SpecError(f"{self}: {self.pack} places are no pack of interleaved {self.each}")

    @staticmethod
    def by_count(
        size: int, count: int, *, is_interleaved: bool = False, pack: int = 1
    ) -> Partition:
        """So many parts, as short as they can be."""
        return Partition(size, count, -(-size // (count * pack)) * pack, is_interleaved, pack)

    @staticmethod
    def by_length(size: int, each: int, *, is_strip: bool = False) -> Partition:
        """As many runs of that length as it takes."""
        return Partition(size, -(-size // each), each, is_strip=is_strip)

    @property
    def missing(self) -> int:
        """The places that have no element."""
        return self.count * self.each - self.size

    @property
    def is_even(self) -> bool:
        """Whether all parts are full."""
        return not self.missing

    @property
    def shape(self) -> tuple[Int, ...]:
        """The axes of parts and of places in them, C order over which is that of the elements."""
        if not self.is_interleaved:
            return Int(self.count), Int(self.each)
        if self.pack == 1:
            return Int(self.each), Int(self.count)
        return Int(self.each // self.pack), Int(self.count), Int(self.pack)

    @property
    def part_axis(self) -> int:
        """Which of the axes counts the parts; the others count the places in a part."""
        return int(self.is_interleaved)

    @property
    def place_axes(self) -> tuple[int, ...]:
        """The axes that count the places in a part."""
        return tuple(a for a in range(len(self.shape)) if a != self.part_axis)

    def length(self, part: int) -> int:
        """The elements of a part."""
        if self.is_interleaved:
            rounds, rest = divmod(self.size, self.count * self.pack)
            return rounds * self.pack + min(max(rest - part * self.pack, 0), self.pack)
        return min(max(self.size - part * self.each, 0), self.each)
