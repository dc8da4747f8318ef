"""Kernel IR: frozen nodes, identity equality, one doc line a node. The simulator defines them.

Unsynchronised KIR has one meaning: each statement runs for all threads of all blocks before the
next begins, and an asynchronous operation completes where it is issued. A kernel is right when
every execution its syncs allow computes what that lockstep execution computes.

Indices are `core.expr` expressions in the kernel's variables, in elements of the buffer they
index. Values live in LOCAL buffers (a thread's registers); nothing else is computed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from fusewright.core.expr import TRUE, ZERO, Cond, Expr, Var
from fusewright.core.node import Node
from fusewright.dtypes import DType
from fusewright.memory import Cache, Memory


class Buffer:
    """A symbol: a run of `size` elements of `dtype` in one memory. Equality is identity.

    LOCAL is per thread, SHARED per block, GLOBAL a kernel parameter. `alignment` in bytes is
    what the base is known to be aligned to.
    """

    __slots__ = ("alignment", "dtype", "memory", "name", "size")

    def __init__(
        self, name: str, dtype: DType, size: Expr, memory: Memory, alignment: int = 0
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.size = size
        self.memory = memory
        self.alignment = alignment or dtype.nbytes

    def __repr__(self) -> str:
        return self.name


class Argument:
    """A symbol: a scalar kernel parameter that the caller's program supplied."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self.dtype = dtype

    def __repr__(self) -> str:
        return self.name


# --- operands of Compute ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Reg(Node):
    """Element `index` of a LOCAL buffer."""

    buffer: Buffer
    index: Expr = ZERO


@dataclass(frozen=True, slots=True, eq=False)
class Imm(Node):
    """A literal of a dtype."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Index(Node):
    """The value of an integer expression, as a dtype."""

    expr: Expr
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Arg(Node):
    """The value of a scalar parameter."""

    argument: Argument


Operand: TypeAlias = Reg | Imm | Index | Arg


class RegVar(Var):
    """An integer register used inside an index expression (a gathered position)."""

    __slots__ = ("reg",)

    def __init__(self, reg: Reg, lower: Expr | int | None, upper: Expr | int | None) -> None:
        super().__init__(f"{reg.buffer.name}[{reg.index}]", lower if lower is not None else 0, upper)
        self.reg = reg


# --- structure --------------------------------------------------------------------------------


class Statement(Node):
    """Base of everything that can stand in a body."""

    __slots__ = ()


Body: TypeAlias = tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alloc(Statement):
    """Brings a LOCAL or SHARED buffer into being; `offset` in bytes once shared memory is packed.

    `promote` asks for a sync that frees the buffer's memory for later ones.
    """

    buffer: Buffer
    offset: int | None = None
    promote: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class For(Statement):
    """Runs the body for `var` = 0 .. extent-1; the extent is the same for all threads of a block."""

    var: Var
    extent: Expr
    body: Body
    unroll: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class If(Statement):
    """Runs `then` where the condition holds, `otherwise` where it does not."""

    condition: Cond
    then: Body
    otherwise: Body = ()


# --- data movement and computation --------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Load(Statement):
    """`dst[i .. i+width) = src[index .. index+width)` where the predicate holds, else `fill` (or
    nothing when fill is None)."""

    dst: Reg
    src: Buffer
    index: Expr
    width: int = 1
    predicate: Cond = TRUE
    fill: Imm | None = None
    cache: Cache = Cache.DEFAULT


@dataclass(frozen=True, slots=True, eq=False)
class Store(Statement):
    """`dst[index .. index+width) = src[i .. i+width)` where the predicate holds."""

    dst: Buffer
    index: Expr
    src: Reg
    width: int = 1
    predicate: Cond = TRUE
    cache: Cache = Cache.DEFAULT


@dataclass(frozen=True, slots=True, eq=False)
class Compute(Statement):
    """`dst = fn(operands)` where the predicate holds; `fn` is a name in `core.functions`.

    "cast" converts to the dtype of `dst`; "copy" moves. All other operands have one dtype.
    """

    fn: str
    dst: Reg
    operands: tuple[Operand, ...]
    predicate: Cond = TRUE


@dataclass(frozen=True, slots=True, eq=False)
class Shuffle(Statement):
    """`dst` = the value of `src` in lane `lane ^ operand` (xor), `lane + operand` (down),
    `lane - operand` (up) or `operand` (index) of the thread's warp; all 32 lanes take part.

    A lane outside `width` (a power of two) reads its own value.
    """

    dst: Reg
    src: Reg
    mode: str
    operand: Expr
    width: int = 32


@dataclass(frozen=True, slots=True, eq=False)
class ThreadReduce(Statement):
    """`dst` = `fn` over `src` of all threads that agree in the block dimensions not in `dims`.

    `dims` is a subset of ("tx", "ty", "tz"). Every thread of a group receives the result. High
    level: `expand_reductions` turns it into shuffles, stores and loads. `fn` in add, mul, max,
    min, or, and; `identity` fills where a workspace has no value.
    """

    fn: str
    dst: Reg
    src: Reg
    dims: tuple[str, ...]
    identity: Imm


# --- synchronisation ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class SyncStatement(Statement):
    """Base of every sync: `id` is unique in the kernel and reaches the PTX; `why` is for people."""

    id: int
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class BlockSync(SyncStatement):
    """All threads of the block wait for each other; orders all memory among them."""


@dataclass(frozen=True, slots=True, eq=False)
class WarpSync(SyncStatement):
    """The 32 lanes of each warp wait for each other; orders all memory among them."""


# --- the kernel ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Dim(Node):
    """One grid or block dimension: its variable (`bx`..`bz`, `tx`..`tz`) and its extent."""

    var: Var
    extent: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Node):
    """One launch: buffers in global memory, scalar parameters, shape symbols, and a body.

    `grid` and `block` are x, y, z; block extents are constant. `cluster` counts blocks along x.
    `min_blocks` is the number of blocks a multiprocessor must hold, 0 for no request.
    `noalias` says that no two parameters overlap in memory.
    """

    name: str
    params: tuple[Buffer, ...]
    arguments: tuple[Argument, ...]
    symbols: tuple[Var, ...]
    grid: tuple[Dim, ...]
    block: tuple[Dim, ...]
    body: Body
    min_blocks: int = 0
    attributes: tuple[tuple[str, str], ...] = field(default=())

    @property
    def nthreads(self) -> int:
        """Threads in a block."""
        n = 1
        for d in self.block:
            lower = d.extent.interval[0]
            assert lower is not None
            n *= lower
        return n

    def __str__(self) -> str:
        from fusewright.kir.text import print_kernel

        return print_kernel(self)
