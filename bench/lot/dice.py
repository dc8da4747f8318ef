"""The random choices of a draw: sizes, axes, dtypes, layouts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

from bench.lot.draws import ITEM_NBYTES, Argument

T = TypeVar("T")

LONGEST = 1 << 21
FLOATS = {"bfloat16": 7, "float32": 7, "float16": 3, "float64": 1}
"""How often each is drawn. The 8-bit floats are drawn by the families that cast."""
EIGHT_BITS = ("float8_e4m3", "float8_e5m2")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
SHORT = (2, 3, 4, 5, 6, 7, 8, 11, 16, 19, 32, 48)
USUAL = (64, 80, 128, 256, 512, 768, 1024, 2048, 4096, 5120, 8192, 11008, 32000, 50257)


class Dice:
    """A seed's choices; `low` and `high` bound the bytes that a draw moves."""

    def __init__(self, seed: int, low: float, high: float) -> None:
        self._random = random.Random(f"lot {seed}")
        self._bounds = math.log(low), math.log(high)
        self.nbytes = math.exp(self._random.uniform(*self._bounds))

    # --- plain choices ----------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self._random.random() < p

    def one(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self._random.randrange(len(items))]

    def some(self, items: Sequence[T], count: int) -> tuple[T, ...]:
        """Different ones of the items, in their order."""
        chosen = sorted(self._random.sample(range(len(items)), count))
        return tuple(items[k] for k in chosen)

    def between(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return self._random.randint(low, high)

    def spread(self, low: int, high: int) -> int:
        """An integer from low to high whose logarithm is spread evenly."""
        return min(high, int(math.exp(self._random.uniform(math.log(low), math.log(high + 1)))))

    def order(self, rank: int) -> tuple[int, ...]:
        """A permutation that is not the identity where there is another one."""
        axes = list(range(rank))
        while rank > 1 and axes == sorted(axes):
            self._random.shuffle(axes)
        return tuple(axes)

    # --- dtypes and shapes ------------------------------------------------------------------------

    def floating(self, *, eight_bits: float = 0.0) -> str:
        """A float dtype; one of 8 bits with a probability."""
        if self.chance(eight_bits):
            return self.one(EIGHT_BITS)
        return self._random.choices(list(FLOATS), list(FLOATS.values()))[0]

    def integer(self) -> str:
        """An integer dtype."""
        return self.one(INTEGERS)

    def size(self, near: float) -> int:
        """A size around a value: as it is, odd, a multiple of 8, or a power of two."""
        n = max(1, min(LONGEST, round(near)))
        match self._random.randrange(4):
            case 0:
                return n
            case 1:
                return n | 1
            case 2:
                return max(8, n // 8 * 8) if n >= 6 else n
            case _:
                return 1 << max(0, round(math.log2(n)))

    def shape(self, element_nbytes: float, rank: int = 0, least_rank: int = 1) -> tuple[int, ...]:
        """A shape of as many elements as the draw's bytes allow, about; of any rank for 0. Axes may
        be short, usual or of size 1."""
        elements = max(2.0, self.nbytes / element_nbytes)
        need = max(least_rank, math.ceil(math.log(elements) / math.log(LONGEST)))
        rank = rank or self.between(min(need, 5), 5)
        free = list(range(rank))
        sizes = [1] * rank
        left = elements
        if rank > 1 and self.chance(0.75):
            last = free.pop()
            sizes[last] = self._fitting(self.one(self.one((SHORT, USUAL, USUAL))), left)
            left /= sizes[last]
        if len(free) > 1 and self.chance(0.15):
            free.pop(self._random.randrange(len(free)))
        shares = [self._random.random() + 0.05 for _ in free]
        logs = [math.log(max(left, 1.0)) * s / math.fsum(shares) for s in shares]
        for k, at in sorted(zip(logs, free, strict=True)):
            sizes[at] = min(self.size(math.exp(k)), LONGEST)
        return self._filled(sizes, elements, free)

    def _fitting(self, size: int, elements: float) -> int:
        while size > elements:
            size = max(1, size // 4)
        return size if self.chance(0.6) else self.size(size * math.exp(self._random.gauss(0, 0.4)))

    def _filled(self, sizes: list[int], elements: float, free: list[int]) -> tuple[int, ...]:
        """Sizes whose longest free axis makes up for what rounding the others lost."""
        if free:
            at = max(free, key=lambda k: sizes[k])
            others = math.prod(sizes) // sizes[at]
            if not 0.7 < others * sizes[at] / elements < 1.4:
                sizes[at] = max(1, min(LONGEST, round(elements / others)))
        return tuple(sizes)

    def axes(self, rank: int) -> tuple[int, ...]:
        """Some axes: any of them, the last, the first or all."""
        match self._random.randrange(6):
            case 0 | 1:
                return (rank - 1,)
            case 2:
                return (0,)
            case _:
                return self.some(range(rank), self.between(1, rank))

    # --- arguments --------------------------------------------------------------------------------

    def argument(self, shape: tuple[int, ...], dtype: str, values: str = "normal") -> Argument:
        """An array of the shape: mostly in C order, else with rows apart, axes in another order in
        memory, or a first element that no vector begins at."""
        strides: tuple[int, ...] | None = None
        start = 0
        match self._random.randrange(16):
            case 0 if len(shape) > 1:
                strides = _strides(shape, self.order(len(shape)), 0)
            case 1 if len(shape) > 1:
                strides = _strides(shape, tuple(range(len(shape))), self.one((1, 8, 64)))
            case 2:
                start = self.between(1, 16 // ITEM_NBYTES[dtype])
            case _:
                pass
        return Argument(shape, dtype, strides, start, values)

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to this one: the same, of fewer axes, or with axes of size 1."""
        rank = len(shape)
        match self._random.randrange(4):
            case 0:
                return shape
            case 1:
                return shape[self.between(1, rank - 1) :] if rank > 1 else shape
            case _:
                ones = self.some(range(rank), self.between(1, rank))
                return tuple(1 if k in ones else n for k, n in enumerate(shape))


def _strides(shape: tuple[int, ...], order: tuple[int, ...], gap: int) -> tuple[int, ...]:
    """Strides of axes that lie in memory in an order, outermost first, and a gap after each row."""
    out = [1] * len(shape)
    step = 1
    for k in reversed(order):
        out[k] = step
        step = step * shape[k] + (gap if k == order[-1] else 0)
    return tuple(out)
