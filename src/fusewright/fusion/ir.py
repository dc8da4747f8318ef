"""Fusion IR: what is computed. Immutable; one result per op; frozen nodes, identity equality.

A `Tensor` is a value: name, shape, dtype and the op that makes it. Every op has `operands`, a
tuple of tensors, first; `fusion.spec` checks how many. Broadcasting is explicit: the operands of
`Pointwise` all have the shape of the result. Shapes are tuples of `core.expr` expressions:
constants, or symbols (`Sym`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, TypeAlias, cast

import numpy as np

from fusewright.arguments import INTEGER, TEXT, ArgumentRule, optional, several, shown, takes
from fusewright.core.expr import Expr, Int, Var, as_expr, constant_value, variables
from fusewright.dtypes import DType, dtype_of
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion.call_numbers import CallNumber, Lap, NumberCheck
from fusewright.fusion.counts import check_count, check_rank
from fusewright.fusion.partition import Partition
from fusewright.fusion.printing import print_fusion
from fusewright.fusion.source import Source

Scalar: TypeAlias = bool | int | float


class Sym(Var):
    """A symbolic size: `min <= size <= max`, a multiple of `multiple_of`. As an argument of `trace`
    it is a number of each call, such as a position, and its least value is 0 unless `min` is given.

    `Sym("n")` twice gives two different sizes; a string in a shape names one size within a trace.
    """

    __slots__ = ("least",)

    @takes(name=TEXT, min=optional(INTEGER), max=optional(INTEGER), multiple_of=INTEGER)
    def __init__(
        self, name: str, *, min: int | None = None, max: int | None = None, multiple_of: int = 1
    ) -> None:
        self.least = min or 0
        if min is None:
            min = 2
        if min < 2 and min != 0:
            raise UserError(
                f"Sym({name!r}, min={min}): a symbolic size is at least 2; sizes 0 and 1 need "
                "a trace of their own, give them as integers; a number of a call has min=0"
            )
        if max is not None and max < min:
            raise UserError(f"Sym({name!r}, min={min}, max={max}): max is below min")
        if multiple_of < 1:
            raise UserError(f"Sym({name!r}, multiple_of={multiple_of}): must be at least 1")
        super().__init__(name, min, max, multiple_of)


Shape: TypeAlias = tuple[Expr, ...]
ShapeLike: TypeAlias = "tuple[int | str | Sym, ...] | list[int | str | Sym]"


def _stride(s: object) -> Any:
    return s if isinstance(s, Expr) else INTEGER.taken(s)


_SIZES = several(
    ArgumentRule("a size", lambda s: s),
    "a tuple of sizes: integers, names, or fw.Sym objects; (n,) for one axis, () for none",
)
_STRIDES = several(
    ArgumentRule("a stride", _stride), "a tuple of integers, in elements, one per axis"
)


class TensorSpec:
    """What is known of an argument: shape, dtype, element strides (None: C order), alignment of
    its first element in bytes. `shape` entries: int, a name (one size per name and trace), Sym.

    Raises UserError for sizes that are negative or no integers, strides that are negative or of the
    wrong rank, or an alignment that is not a power of two.
    """

    __slots__ = ("alignment", "dtype", "shape", "strides")

    @takes(shape=_SIZES, strides=optional(_STRIDES), alignment=INTEGER)
    def __init__(
        self,
        shape: ShapeLike,
        dtype: object,
        *,
        strides: tuple[int, ...] | None = None,
        alignment: int = 16,
    ) -> None:
        check_count("TensorSpec", shape)
        check_rank("TensorSpec", len(shape))
        for s in shape:
            _check_size(s, shape)
            if isinstance(s, Var) and s.interval[0] == 0:
                raise UserError(
                    f"TensorSpec: size {s.name} in shape {shown(tuple(shape))} has min=0, as a "
                    "number of a call may; a symbolic size is at least 2"
                )
        if strides is not None and len(strides) != len(shape):
            raise UserError(
                f"TensorSpec: {len(strides)} strides for a shape of rank {len(shape)}; "
                "give one stride, in elements, per axis"
            )
        if any((constant_value(s) or 0) < 0 for s in (strides or ())):
            raise UserError(
                f"TensorSpec: strides {strides} hold a negative one; take the array in its "
                "own order and turn it with fw.flip"
            )
        if alignment < 1 or alignment & (alignment - 1):
            raise UserError(f"TensorSpec: alignment {alignment} is not a power of two")
        self.shape = tuple(int(s) if isinstance(s, np.integer) else s for s in shape)
        self.dtype = dtype_of(dtype)
        if self.dtype.is_complex:
            raise UnsupportedError(
                f"TensorSpec of {self.dtype}: kernels hold no complex numbers; use two real arrays"
            )
        self.strides = strides
        self.alignment = alignment

    def __repr__(self) -> str:
        extra = "" if self.strides is None else f", strides={self.strides}"
        return f"TensorSpec({self.shape}, {self.dtype}{extra})"


def _check_size(s: object, shape: ShapeLike) -> None:
    if isinstance(s, str | Var):
        return
    if isinstance(s, bool) or not isinstance(s, int | np.integer):
        raise UserError(
            f"TensorSpec: size {shown(s)} in shape {shown(tuple(shape))} is no integer, name or "
            "fw.Sym"
        )
    if s < 0:
        raise UserError(f"TensorSpec: size {s} in shape {tuple(shape)} is negative")


_BIRTHS = count()


def births() -> int:
    """A number above those of all values that there are, and below those of all to come."""
    return next(_BIRTHS)


class Tensor:
    """A value of a fusion. Equality is identity. `name` is unique within a fusion; `source` is the
    line of the program that it comes from, where that is known; `rule` a derivative that the
    program gives it in place of its op's, while it is recorded; `born` grows from value to value,
    so that a body knows what was there before it was recorded; `is_known`, once it was asked for,
    whether the value depends on no argument."""

    __slots__ = ("born", "dtype", "is_known", "name", "op", "rule", "shape", "source")

    def __init__(
        self, name: str, shape: Shape, dtype: DType, op: Op, source: Source | None = None
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.op = op
        self.source = source
        self.rule: Any = None
        self.is_known: bool | None = None
        self.born = next(_BIRTHS)

    def with_op(self, op: Op) -> Tensor:
        """The same value, made by another op; itself where the op is its own."""
        return self if op is self.op else Tensor(self.name, self.shape, self.dtype, op, self.source)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class OpBase:
    """Base of every op."""

    __slots__ = ()


class ViewBase(OpBase):
    """Base of ops whose result has all elements of their one operand and no others: at other
    places, or several times."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Input(OpBase):
    """An argument of the fusion. `strides` in elements per axis, `alignment` in bytes."""

    operands: tuple[Tensor, ...]
    position: int
    strides: tuple[Expr, ...]
    alignment: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant(OpBase):
    """A 0-d literal of the program."""

    operands: tuple[Tensor, ...]
    value: Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Iota(OpBase):
    """The coordinate along `axis` of the result, as the result's integer dtype."""

    operands: tuple[Tensor, ...]
    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class Size(OpBase):
    """A 0-d tensor holding the value of a shape expression."""

    operands: tuple[Tensor, ...]
    expr: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Pointwise(OpBase):
    """`fn` (a name in core.functions) of operands that all have the result's shape. "cast"
    rounds to the result's dtype; "copy" is nvFuser's `set`, and "segment_set" its `segment_set`: a
    copy that a kernel makes which does nothing else, and that others read."""

    operands: tuple[Tensor, ...]
    fn: str


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast(ViewBase):
    """Result axis j is operand axis `axes[j]`, or new where that is None. Operand axes appear in
    order, each once; a mapped axis has equal extents, or extent 1 in the operand."""

    operands: tuple[Tensor, ...]
    axes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Permute(ViewBase):
    """Result axis j is operand axis `axes[j]`."""

    operands: tuple[Tensor, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reshape(ViewBase):
    """The same elements in C order under another shape of equal size."""

    operands: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Resize(OpBase):
    """`result[i] = operand[i - low]` where that exists, else `fill`; negative amounts crop.
    result extent = low + operand extent + high, per axis."""

    operands: tuple[Tensor, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    fill: Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Parts(OpBase):
    """The run of operand axes `axes`, in C order one of `partition.size` elements, as the two axes
    of a partition in their place; `fill` where a part has no element."""

    operands: tuple[Tensor, ...]
    axes: tuple[int, ...]
    partition: Partition
    fill: Scalar


@dataclass(frozen=True, slots=True, eq=False)
class IndexMap(OpBase):
    """`result[c] = operand[index(c)]`: steps, flips, rolls, repeats, reflections. `coordinates`
    are the result's axes as variables; every index stays inside the operand."""

    operands: tuple[Tensor, ...]
    coordinates: tuple[Var, ...]
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Concat(OpBase):
    """The operands one after the other along `axis`."""

    operands: tuple[Tensor, ...]
    axis: int


class Position(Var):
    """The integer in an operand of rank 0, which only the device knows."""

    __slots__ = ()


@cache
def position(number: int) -> Position:
    """The integer in the operand of that number, of those of rank 0."""
    far = 1 << 62
    return Position(f"at{number}", -far, far)


def positions(count: int) -> tuple[Position, ...]:
    """The integers in that many operands of rank 0, in their order."""
    return tuple(map(position, range(count)))


@dataclass(frozen=True, slots=True, eq=False)
class Insert(OpBase):
    """The first operand with the second one, of its rank and dtype, in place of its elements from
    `start` on, which mentions the numbers in the other operands (`positions`), integers of rank 0.
    The block lies at the nearest place where it fits."""

    operands: tuple[Tensor, ...]
    start: tuple[Expr, ...]

    @property
    def moving(self) -> tuple[int, ...]:
        """The axes along which only the device knows where the block begins."""
        return tuple(
            k
            for k, e in enumerate(self.start)
            if any(isinstance(v, Position) for v in variables(e))
        )


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(OpBase):
    """`fn` in add, mul, max, min, and, or over `axes` (sorted, removed from the shape)."""

    operands: tuple[Tensor, ...]
    fn: str
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scan(OpBase):
    """Prefix `fn` (add, mul, max, min) along `axis`: of an element and those before it, or with
    `exclusive` of those before it only, the identity for the first. In `reverse`, what follows an
    element takes the place of what is before it."""

    operands: tuple[Tensor, ...]
    fn: str
    axis: int
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Sort(OpBase):
    """The elements, unsigned integers of 32 or 64 bits, in ascending order along `axis`."""

    operands: tuple[Tensor, ...]
    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class Take(OpBase):
    """`result[a.., i.., b..] = operand[a.., indices[i..], b..]` at `axis`. Negative indices count
    from the end; an index outside the axis reads `dtype.outside`. By `mode` that is what the
    program means ("fill"), or a mistake: the oracle raises, and kernels do where they are asked
    for it ("raise", of the `place` in the program), but do not look otherwise ("promise").
    `merged`: the program's own axes of which `axis` is made, where a map or others are in it."""

    operands: tuple[Tensor, ...]
    axis: int
    mode: str = "promise"
    place: str = ""
    merged: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TakeAlong(OpBase):
    """`result[.., i, ..] = operand[.., indices[.., i, ..], ..]`: indices have the operand's rank
    and, but for `axis`, its shape; they and the other fields mean what those of `Take` mean."""

    operands: tuple[Tensor, ...]
    axis: int
    mode: str = "promise"
    place: str = ""
    merged: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class MatMul(OpBase):
    """`(..., m, k) @ (..., k, n)`; leading axes equal (broadcast explicitly before). Products of
    16-bit floats may be of dtype float32, in which they are summed anyway. Operands of float32 are
    multiplied as they are, or rounded to tf32 first (`precision`)."""

    operands: tuple[Tensor, ...]
    precision: str = "ieee"


@dataclass(frozen=True, slots=True, eq=False)
class OwnKernel(OpBase):
    """One result, by number, of a kernel that the user wrote or scheduled; nothing looks into it.
    Results of one call share operands and `body`, which evaluates and makes the kernel; it is None
    where the fusion was read from a text."""

    operands: tuple[Tensor, ...]
    fn: str
    result: int
    body: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Region(OpBase):
    """One result, by number, of a part of the program with control flow; results of one call share
    operands and `bodies`, whose inputs stand for the operands and which have symbols of the whole.

    `fn` says which it is. "cond": operands are a condition and what branches take, `bodies` what
    is done where it is true and where it is false. "while_loop": the first `carried` operands are
    values that change, `bodies` the condition and what one iteration makes of them. "fori_loop" and
    "scan": `trips` iterations of one body, which takes carried values, a slice along the first axis
    of each of `sliced` operands (from the last one on if `reverse`), and what all iterations share;
    it gives the carried values, and slices of results that are stacked. `lap` stands in the body
    for the number of the slice that an iteration takes, where the body asks for it."""

    operands: tuple[Tensor, ...]
    fn: str
    result: int
    bodies: tuple[Fusion, ...]
    carried: int = 0
    sliced: int = 0
    trips: Expr | None = None
    reverse: bool = False
    lap: Lap | None = None

    @property
    def nresults(self) -> int:
        """How many results the call has."""
        return self.carried if self.fn == "while_loop" else len(self.bodies[-1].outputs)


Alone: TypeAlias = OwnKernel | Region
"""Ops whose results no kernel of ours makes beside other values: nothing looks into them."""

Op: TypeAlias = (
    Input
    | Constant
    | Iota
    | Size
    | Pointwise
    | Broadcast
    | Permute
    | Reshape
    | Resize
    | Parts
    | IndexMap
    | Concat
    | Insert
    | Reduce
    | Scan
    | Sort
    | Take
    | TakeAlong
    | MatMul
    | OwnKernel
    | Region
)


def behind_views(t: Tensor) -> Tensor:
    """The value whose elements a tensor shows at other places, or several times."""
    while isinstance(t.op, ViewBase):
        (t,) = t.op.operands
    return t


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """A program: inputs, outputs (a value may be an output twice, an input may be an output) and
    all values, operands before users. `symbols` are the free sizes, in order of appearance.
    `numbers` stand among the arguments of a call beside the inputs, and `checks` must hold of
    them."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    numbers: tuple[CallNumber, ...] = ()
    checks: tuple[NumberCheck, ...] = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops, operands before users."""
        return tuple(v.op for v in self.values)

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The symbolic sizes that occur in shapes, then those that layouts and ops alone mention (a
        part of an array has the strides of the whole), each in order of appearance, then the other
        numbers of a call."""
        from_shapes = (v for t in self.values for s in t.shape for v in variables(s))
        from_ops = (v for t in self.values for v in tensor_variables(t))
        given = (n.symbol for n in self.numbers)
        return tuple(dict.fromkeys((*from_shapes, *from_ops, *given)))

    def uses(self) -> dict[Tensor, tuple[Tensor, ...]]:
        """For each value the values that read it, in order."""
        table: dict[Tensor, list[Tensor]] = {v: [] for v in self.values}
        for v in self.values:
            for o in dict.fromkeys(v.op.operands):
                table[o].append(v)
        return {k: tuple(v) for k, v in table.items()}

    def __str__(self) -> str:
        return print_fusion(self)

    def __repr__(self) -> str:
        ends = [", ".join(map(repr, x)) for x in (self.inputs, self.outputs)]
        return f"<Fusion ({ends[0]}) -> ({ends[1]}), {len(self.values)} values>"


def tensor_variables(t: Tensor) -> tuple[Var, ...]:
    """The sizes that a value's shape and the expressions in the fields of its op mention, without
    the op's own coordinates."""
    own: tuple[Var, ...] = t.op.coordinates if isinstance(t.op, IndexMap) else ()
    found = [v for e in (*t.shape, *_expressions(t.op)) for v in variables(e)]
    if isinstance(t.op, Region):
        found += [v for body in t.op.bodies for v in body.symbols]
        own = () if t.op.lap is None else (t.op.lap,)
    known = (v for v in found if v not in own and not isinstance(v, Position))
    return tuple(dict.fromkeys(known))


def _expressions(op: Op) -> Iterator[Expr]:
    """The integer expressions in the fields of an op."""
    for f in dataclasses.fields(op):
        content: object = getattr(op, f.name)
        many = cast("tuple[object, ...]", content) if isinstance(content, tuple) else (content,)
        yield from (e for e in many if isinstance(e, Expr))


def with_operands(op: Op, operands: tuple[Tensor, ...]) -> Op:
    """The op with other operands; the same op when they are the same objects."""
    if operands == op.operands:  # tensors are equal to themselves only
        return op
    return dataclasses.replace(op, operands=operands)  # type: ignore[arg-type]


def topological(outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...]:
    """All values that the outputs need, operands before users, inputs first."""
    seen: dict[Tensor, None] = dict.fromkeys(inputs)
    for root in outputs:
        stack: list[tuple[Tensor, bool]] = [(root, False)]
        while stack:
            t, done = stack.pop()
            if done:
                seen[t] = None
                continue
            if t in seen:
                continue
            stack.append((t, True))
            stack.extend((o, False) for o in reversed(t.op.operands) if o not in seen)
    return tuple(seen)


def is_alone(t: Tensor) -> bool:
    """Whether a kernel makes a value and nothing else, or none does, where a block is written into
    memory that holds the rest of it; to others it is like an argument."""
    return isinstance(t.op, Insert) or (isinstance(t.op, Pointwise) and t.op.fn == "segment_set")


def moves_data(op: Op) -> bool:
    """Whether the op only moves values, so that its result keeps the stored type of its operand."""
    is_copy = isinstance(op, Pointwise) and op.fn == "copy"
    return is_copy or isinstance(op, ViewBase | Resize | Parts | IndexMap | Concat)


def constant_shape(t: Tensor) -> tuple[int, ...] | None:
    """The shape as integers, or None when an extent is symbolic."""
    sizes = [s.value for s in t.shape if isinstance(s, Int)]
    return tuple(sizes) if len(sizes) == len(t.shape) else None


def contiguous_strides(shape: Shape) -> tuple[Expr, ...]:
    """C-order strides, in elements."""
    out: list[Expr] = []
    step: Expr = as_expr(1)
    for s in reversed(shape):
        out.append(step)
        step = step * s
    return tuple(reversed(out))
