"""What draws the wider random programs: arguments of any rank with symbolic and empty sizes and odd
names, and lines that keep what they raise. What is drawn, fuzz_motifs says.
"""

from __future__ import annotations

import keyword
import random
import re
from dataclasses import replace

import fuzz_ops
from fuzz_ops import count
from fuzz_programs import Builder, Impossible, Recipe, Step, makers

from fusewright.errors import (
    FusewrightError,
    InternalError,
    ScheduleError,
    SpecError,
)

WORDS = tuple(
    re.findall(
        r"\w+",
        """NULL max min abs int float double half char bool_ short long signed unsigned void static
    inline const auto extern struct union enum template typename typedef volatile register goto
    switch case default new delete this operator namespace using public private friend throw
    blockIdx threadIdx blockDim gridDim warpSize __shared__ __global__ _ __ ___ E T I N e i j t
    u t0 t1 t2 n_1 v_1 x_ nan inf NAN INFINITY HUGE_VAL M_PI EOF errno stdin assert printf
    memcpy main kernel smem shared global local grid block launch alloc load store sync barrier
    param uint32_t int64_t size_t ptrdiff_t uint4 float4 __half half2 bfloat16 float32 float16
    int32 true false null None_ CHAR_BIT UINT_MAX SIZE_MAX INT_MAX DBL_MAX FLT_MIN linux unix
    exp log sin sqrt rsqrt floor pow erf sum mean prod range len shape axes slice dtype target
    __CUDA_ARCH__ __LINE__ __FILE__ asm nullptr alignas static_assert wchar_t and_eq bitor BIDx
    TIDx Vectorize Serial input output arena root size stride hull pad_ where cuda std ptx mov
    ld st bar mma mbar tma π größe naïve 变量 K0 B0 S0 s0 p0 f0 out_0 arg0""",
    )
)
HOSTILE = tuple(w for w in WORDS if not keyword.iskeyword(w))
SYMBOLS = ("n", "n", "n", "m", "k")
SIZES = (1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 64, 65, 96, 100, 128, 255)
BOUND = (2, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 100, 129, 500, 1000, 4097)
MANY = (20, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33, 40, 48, 49)
FAULTS = (InternalError, ScheduleError, SpecError)

RESULTS = (
    "fw.nn.softmax({0}, axis=A)",
    "fw.nn.log_softmax({0}, axis=A)",
    "fw.cumulative_sum({0}, axis=A)",
    "fw.sum({0}, axis=A, keepdims=True)",
    "fw.max({0}, axis=A, keepdims=True)",
    "fw.mean({0}, axis=A, keepdims=True)",
    "{0} - fw.mean({0}, axis=A, keepdims=True)",
    "{0} * fw.rsqrt(fw.mean({0} * {0}, axis=A, keepdims=True) + 1e-3)",
    "fw.exp({0})",
    "fw.tanh({0}) + {0}",
    "{0} * 2",
)
READERS = (
    "fw.sum({0}, axis=A)",
    "fw.sum({0} * 2, axis=A)",
    "fw.max({0}, axis=A, keepdims=True)",
    "fw.sum({0})",
    "fw.cumulative_sum({0}, axis=A)",
    "fw.nn.softmax({0}, axis=A)",
    "fw.flip({0}, axis=A)",
    "fw.flip({0})",
    "fw.exp({0})",
    "{0} + 1",
    "fw.roll({0}, 1, axis=A)",
    "fw.argmax({0}, axis=A)",
)
ENDS = ("-1", "0", ":1", "-1:", "1:", "2:", ":-1", "1:-1", "::-1", "::2", "1::2", "::-2", "2:1:-1",
        ":0", "-2:", ":2", "None", "0:0")  # fmt: skip
ELEMENTWISE = (
    "fw.exp({0})", "fw.tanh({0})", "{0} * 2", "{0} + {1}", "{0} * {1}", "fw.maximum({0}, {1})",
    "fw.where({0} > {1}, {0}, {1})", "{0} - {1} * {1}", "fw.nn.gelu({0})", "fw.abs({0})",
    "fw.nn.silu({0}) * {1}", "-{0}",
)  # fmt: skip


class Broken(Exception):
    """A call that ended in an error which is no refusal; its line is the program's last."""


class Wide(Builder):
    """Draws the wider programs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.hostile = self.rng.random() < 0.06
        self.refused: list[str] = []
        self.named: set[str] = set()
        self.every_result = False
        if self.rng.random() < 0.6:
            self.home = self.rng.choice(("float32", "float32", "float16", "bfloat16"))

    def _base_shape(self) -> tuple[int | str, ...]:
        rng = self.rng
        limit = rng.choice([600, 600, 3000, 8000])
        shape: list[int | str] = []
        for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 5])):
            n = rng.choice(SIZES)
            if count((*shape, n)) <= limit:
                shape.append(n)
        rng.shuffle(shape)
        kind = rng.random()
        if kind < 0.06 and shape:
            shape[rng.randrange(len(shape))] = 0
        elif kind < 0.36 and shape:
            shape[rng.randrange(len(shape))] = rng.choice(SYMBOLS)
            if rng.random() < 0.25:
                shape[rng.randrange(len(shape))] = rng.choice(SYMBOLS)
        return tuple(shape)

    # --- one line ---------------------------------------------------------------------------------

    def leaf(self, shape: tuple[object, ...], dtype: str, numbers: str = "any") -> int:
        if self.hostile:
            shape = tuple(self._size_name(n) if isinstance(n, str) else n for n in shape)
        made = super().leaf(shape, dtype, numbers)
        if self.hostile and self.rng.random() < 0.7:
            name = self.rng.choice(HOSTILE)
            if name not in self.named:
                self.named.add(name)
                self.leaves[-1] = replace(self.leaves[-1], name=name)
        return made

    def _size_name(self, name: str) -> str:
        """Sizes of the base shape get odd names, always the same ones."""
        if name not in SYMBOLS:
            return name
        return random.Random(f"{self.seed} {name}").choice(HOSTILE)

    def call(self, op: str, text: str, operands: tuple[int, ...]) -> int:
        try:
            return super().call(op, text, operands)
        except Impossible:
            raise
        except Exception as e:
            if isinstance(e, FusewrightError) and not isinstance(e, FAULTS):
                self.refused.append(f"{type(e).__name__} of {op}")
                raise
            self.steps.append(Step(op, text, operands))
            raise Broken(op) from e

    def line(self, text: str, *operands: int) -> int:
        """One call that a motif asks for; `A` in the text is an axis of the first operand."""
        if "A" in text.replace("NA", ""):
            rank = len(self.shape(operands[0]))
            if rank == 0:
                raise Impossible("no axis")
            text = text.replace("=A", f"={self.rng.randrange(rank)}")
        return self.call("motif", text, operands)

    def pick(self, texts: tuple[str, ...], *operands: int) -> int:
        return self.line(self.rng.choice(texts), *operands)

    def random_step(self, on: int | None = None) -> int:
        """A random call, on value `on` where that is given; the number of its value."""
        for _ in range(12):
            name = self.rng.choice(fuzz_ops.VIEWS if on is not None else list(makers()))
            self.forced = on
            made = self.step(name, makers()[name])
            self.forced = None
            if made:
                return len(self.arrays) - 1
        raise Impossible("nothing suits")

    def source_value(self, rank: int = 1) -> int:
        """A float argument, new or known."""
        shape = self.base
        while len(shape) < rank:
            shape = (self.rng.choice([1, 2, 3, 5]), *shape)
        return self.leaf(shape, self.home if self.home in fuzz_ops.FLOATS else "float32")

    def result(self) -> int:
        """A value that a kernel of its own may make: of a reduction, a scan, a softmax."""
        x = self.source_value() if self.rng.random() < 0.6 else self.value("float", 1)
        return self.pick(RESULTS, x)

    def recipe(self) -> Recipe:
        made = super().recipe()
        if not self.every_result:
            return made
        used = {o for s in self.steps for o in s.operands}
        first = len(self.leaves)
        place = [k if leaf else first + k for leaf, k in self.numbers]
        loose = [place[i] for i in range(len(self.arrays)) if i not in used]
        steps = tuple(replace(s, operands=tuple(place[o] for o in s.operands)) for s in self.steps)
        outputs = tuple(i for i in loose if i >= first)
        whole = replace(made, leaves=tuple(self.leaves), steps=steps, outputs=outputs)
        return whole.used()

    def broken_recipe(self) -> Recipe:
        """The program up to the line that broke it."""
        place = [k if leaf else len(self.leaves) + k for leaf, k in self.numbers]
        steps = tuple(replace(s, operands=tuple(place[o] for o in s.operands)) for s in self.steps)
        last = (len(self.leaves) + len(steps) - 1,)
        sizes = tuple((n, 5) for n in sorted(self.symbols))
        return Recipe(self.seed, tuple(self.leaves), steps, last, sizes).used()
