"""Kernel IR: frozen nodes, identity equality, one doc line a node. The simulator defines them.

Unsynchronised KIR has one meaning: each statement runs for all threads of all blocks before the
next begins, and an asynchronous operation completes where it is issued. A kernel is right when
every execution its syncs allow computes what that lockstep execution computes.

Indices are `core.expr` expressions in the kernel's variables, in elements of the buffer they
index. Values live in LOCAL buffers (a thread's registers); nothing else is computed on.

Symbols and operands stand in `kir/symbols.py`, what statements say of themselves in
`kir/traits.py`, asynchronous work in `kir/asynchronous.py`, syncs in `kir/synchronisation.py`,
matrix products in `kir/tensor.py`; this module names them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from fusewright.core.conditions import TRUE, Cond
from fusewright.core.expr import Expr, Var, variables
from fusewright.core.node import Node
from fusewright.kir.asynchronous import (
    BulkLoad as BulkLoad,
    BulkReduce as BulkReduce,
    BulkStore as BulkStore,
    CpAsync as CpAsync,
    RemoteStore as RemoteStore,
)
from fusewright.kir.rules import accesses_words
from fusewright.kir.semaphores import (
    SemaphoreAcquire as SemaphoreAcquire,
    SemaphoreArrive as SemaphoreArrive,
    SemaphoreLeave as SemaphoreLeave,
    SemaphoreRelease as SemaphoreRelease,
)
from fusewright.kir.symbols import (
    WHOLE as WHOLE,
    Arg as Arg,
    Argument as Argument,
    Buffer as Buffer,
    Imm as Imm,
    Index as Index,
    Lanes as Lanes,
    Operand as Operand,
    Reg as Reg,
    RegVar as RegVar,
    TensorMap as TensorMap,
)
from fusewright.kir.synchronisation import (
    AsyncCommit as AsyncCommit,
    AsyncWait as AsyncWait,
    BarrierArrive as BarrierArrive,
    BlockSync as BlockSync,
    ClusterArrive as ClusterArrive,
    ClusterWait as ClusterWait,
    LaunchDependents as LaunchDependents,
    LaunchWait as LaunchWait,
    MbarArrive as MbarArrive,
    MbarExpect as MbarExpect,
    MbarInit as MbarInit,
    MbarInvalidate as MbarInvalidate,
    MbarWait as MbarWait,
    MmaFence as MmaFence,
    NamedSync as NamedSync,
    ProxyFence as ProxyFence,
    WarpSync as WarpSync,
)
from fusewright.kir.tensor import (
    BoxLoad as BoxLoad,
    BoxReduce as BoxReduce,
    BoxStore as BoxStore,
    LdMatrix as LdMatrix,
    Matrix as Matrix,
    Mma as Mma,
    PrefetchBox as PrefetchBox,
    PrefetchMap as PrefetchMap,
    SetMaxRegisters as SetMaxRegisters,
    StMatrix as StMatrix,
    WarpMma as WarpMma,
)
from fusewright.kir.traits import (
    AsyncKind as AsyncKind,
    Body as Body,
    Guarded as Guarded,
    MemoryUse,
    RegisterUse,
    Statement as Statement,
    SyncStatement as SyncStatement,
    Team,
    Visibility as Visibility,
)
from fusewright.memory import Cache as Cache, Memory as Memory

# --- structure ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Alloc(Statement):
    """Brings a LOCAL or SHARED buffer into being; `offset` in bytes once shared memory is packed.

    `promote` asks for a sync that frees the buffer's memory for later ones. `copied` asks for
    copies that pass by the registers, `stages` for as many tiles of the loop around it in memory,
    of which `ahead` are copied before they are used (`kir/passes/materialise_async.py`); where that
    is `warp_specialized`, warps of their own do it, and `registers` are those that each of their
    threads keeps, and that each of the others gets; in `ping_pong` warpgroups take the iterations
    of the outermost loop in turn (`kir/passes/ping_pong.py`). Registers `in_words` stay in the
    machine words that loads fill, those `uncut` in the two words that a vector from anywhere lies
    in (`kir/passes/keep_words.py`).
    """

    is_private: ClassVar[bool] = True

    buffer: Buffer
    offset: int | None = None
    promote: bool = False
    copied: AsyncKind | None = None
    stages: int = 1
    ahead: int = 0
    in_words: bool = False
    uncut: bool = False
    warp_specialized: bool = False
    registers: tuple[int, ...] = ()
    ping_pong: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class For(Statement):
    """Runs the body for `var` = 0 .. extent-1; the extent is the same for all threads of a block,
    and is asked for before each iteration, which may have changed a register in it.
    `overlap`: how many iterations the compiler may interleave, 0 for as many as it likes."""

    var: Var
    extent: Expr
    body: Body
    unroll: bool = False
    overlap: int = 0

    @property
    def is_open(self) -> bool:
        """Whether an iteration may say whether there is another one: the extent is in a
        register."""
        return any(isinstance(v, RegVar) for v in variables(self.extent))


@dataclass(frozen=True, slots=True, eq=False)
class If(Statement):
    """Runs `then` where the condition holds, `otherwise` where it does not."""

    condition: Cond
    then: Body
    otherwise: Body = ()


@dataclass(frozen=True, slots=True, eq=False)
class Role(Statement):
    """What warps `first` .. `stop`-1 of the block do; stands directly in a `Roles` only. The thread
    `issuer` issues all that the role does, where there is one, and another lane of its warp could
    as well (`kir/passes/elect_issuers.py`)."""

    first: int
    stop: int
    body: Body
    issuer: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Roles(Statement):
    """Runs its `Role` statements side by side, each by its own warps; the others pass by."""

    body: Body


# --- data movement and computation --------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Load(Guarded):
    """`dst[i .. i+width) = src[index .. index+width)` where the predicate holds, else `fill` (or
    nothing when fill is None); `lanes` says where in a word of that width the index lies, and which
    of the elements exist."""

    dst: Reg
    src: Buffer
    index: Expr
    width: int = 1
    predicate: Cond = TRUE
    fill: Imm | None = None
    cache: Cache = Cache.DEFAULT
    lanes: Lanes = WHOLE

    @property
    def is_total(self) -> bool:
        """Whether nothing of what `dst` held before is left."""
        return self.predicate == TRUE or self.fill is not None or not self.lanes.all_exist

    def where(self, predicate: Cond) -> Statement:
        """The load under another predicate, without fill and range where it needs none."""
        fill, lanes = self.fill, self.lanes
        if predicate == TRUE:
            lanes = lanes.everywhere(self.width)
            fill = None if lanes.all_exist else fill
        if predicate == self.predicate and fill is self.fill and lanes is self.lanes:
            return self
        return replace(self, predicate=predicate, fill=fill, lanes=lanes)

    def where_false(self) -> Body:
        if not self.is_total:
            return ()
        fill = self.fill or Imm(0.0 if self.src.dtype.is_float else 0, self.src.dtype)
        regs = (Reg(self.dst.buffer, self.dst.index + k) for k in range(self.width))
        return tuple(Compute("copy", r, (fill,)) for r in regs)

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        begins = self.lanes.begins
        step, begins = (1, 0) if begins is None else (self.width, begins)
        at = (self.src, False, self.index, self.width, self.predicate)
        return (MemoryUse(*at, step=step, begins=begins),)

    def register_uses(self) -> tuple[RegisterUse, ...]:
        return (_written(self.dst, self.width, is_total=self.is_total),)

    def problems(self) -> Iterator[str]:
        yield from accesses_words(self.src, self.index, self.width, self.lanes, self.cache)


@dataclass(frozen=True, slots=True, eq=False)
class Store(Guarded):
    """`dst[index .. index+width) = src[i .. i+width)` where the predicate holds; the index is a
    multiple of the width."""

    dst: Buffer
    index: Expr
    src: Reg
    width: int = 1
    predicate: Cond = TRUE
    cache: Cache = Cache.DEFAULT

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (MemoryUse(self.dst, True, self.index, self.width, self.predicate),)

    def register_uses(self) -> tuple[RegisterUse, ...]:
        return (RegisterUse(self.src, reads=True, writes=False, width=self.width),)

    def problems(self) -> Iterator[str]:
        yield from accesses_words(self.dst, self.index, self.width, cache=self.cache)
        if self.cache in (Cache.LAST_USE, Cache.NON_COHERENT):
            yield f"cache policy {self.cache.value} does not apply to stores"


@dataclass(frozen=True, slots=True, eq=False)
class Compute(Guarded):
    """`dst = fn(operands)` where the predicate holds; `fn` is a name in `core.functions`.

    "cast" converts to the dtype of `dst`; "copy" moves. All other operands have one dtype.
    """

    is_private: ClassVar[bool] = True

    fn: str
    dst: Reg
    operands: tuple[Operand, ...]
    predicate: Cond = TRUE

    def register_uses(self) -> tuple[RegisterUse, ...]:
        read = (o for o in self.operands if isinstance(o, Reg))
        return (
            _written(self.dst, is_total=self.predicate == TRUE),
            *(RegisterUse(r, reads=True, writes=False, takes_any=True) for r in read),
        )


@dataclass(frozen=True, slots=True, eq=False)
class CheckIndex(Guarded):
    """Stops the kernel with an error where the predicate holds and `inside` does not: `index` lies
    outside of axis `axis` of `extent` elements, at the line of the user's program that `why` says.
    `merged`: the axes that the program has in place of this one, if it has others.

    Stands only in kernels that were asked to look (`fw.config(check_indices=True)`)."""

    is_private: ClassVar[bool] = True

    inside: Reg
    index: Reg
    extent: Expr
    axis: int
    predicate: Cond = TRUE
    why: str = ""
    merged: tuple[int, ...] = ()

    def register_uses(self) -> tuple[RegisterUse, ...]:
        read = (self.inside, self.index)
        return tuple(RegisterUse(r, reads=True, writes=False) for r in read)


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

    def register_uses(self) -> tuple[RegisterUse, ...]:
        return _written(self.dst), RegisterUse(self.src, reads=True, writes=False)

    def executed_by(self) -> Team:
        return Team.WARP


class Exchange(Statement):
    """Base of what all threads of a block combine. High level: `expand_reductions` turns it into
    shuffles, stores and loads."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class ThreadReduce(Exchange):
    """`dst` = `fn` over `src` of all threads that agree in the block dimensions not in `dims`.

    `dims` is a subset of ("tx", "ty", "tz", "cx"); "cx" takes in all blocks of the cluster. Every
    thread of a group receives the result. `fn` in add, mul, max, min, or, and; `identity` fills
    where a workspace has no value.
    """

    fn: str
    dst: Reg
    src: Reg
    dims: tuple[str, ...]
    identity: Imm

    def register_uses(self) -> tuple[RegisterUse, ...]:
        return _written(self.dst), RegisterUse(self.src, reads=True, writes=False)

    def executed_by(self) -> Team:
        return Team.CLUSTER if "cx" in self.dims else Team.BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class ThreadScan(Exchange):
    """`dst` = `fn` over `carry` and `src` of all threads before this one along the dimension `dim`
    of the block, or behind it in `reverse`; then `carry` = `fn` over `carry` and `src` of all
    threads along it, the same in all of them. `fn` in add, mul, max, min."""

    fn: str
    dst: Reg
    src: Reg
    carry: Reg
    dim: str
    identity: Imm
    reverse: bool = False

    def register_uses(self) -> tuple[RegisterUse, ...]:
        carry = RegisterUse(self.carry, reads=True, writes=True)
        return _written(self.dst), RegisterUse(self.src, reads=True, writes=False), carry

    def executed_by(self) -> Team:
        return Team.BLOCK


def _written(dst: Reg, width: int = 1, *, is_total: bool = True) -> RegisterUse:
    """What a statement puts into registers."""
    return RegisterUse(dst, reads=False, writes=True, width=width, is_total=is_total)


# --- the kernel ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Dim(Node):
    """One grid or block dimension: its variable (`bx`..`bz`, `tx`..`tz`) and its extent."""

    var: Var
    extent: Expr


def _product(dims: tuple[Dim, ...]) -> int:
    """Of the extents, which are constant."""
    n = 1
    for d in dims:
        lower = d.extent.interval[0]
        assert lower is not None
        n *= lower
    return n


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Node):
    """One launch: buffers in global memory, scalar parameters, shape symbols, and a body.

    `grid` and `block` are x, y, z; block extents are constant. With a `cluster` of one dimension
    `cx` of constant extent the grid counts clusters: `cx` tells the blocks of one apart, which are
    neighbours along x and may write each other's shared memory.
    `maps` are the tensor maps of parameters by which boxes are copied.
    `min_blocks` is the number of blocks a multiprocessor must hold, 0 for no request.
    `stored_once`: the parameters of which this launch stores every element once at most, and loads
    none, so that two stores to one of them never meet; `stored_in_turns`: those of which every
    element is stored, and what was stored loaded, by the blocks of one group only, each in a turn
    that guards it, so that two groups never meet there.
    `semaphores`: the parameters that hold flags and counters, zero before and behind every launch;
    `zeroed`: those that hold sums to which blocks add in any order, the same;
    `scratch`: those whose contents nobody else reads or has written.
    `noalias` says that no two parameters overlap in memory.
    `begins_early`: the launch may begin before those before it have ended; `awaited` are then the
    parameters in whose memory these write, or read what this one writes.
    """

    name: str
    params: tuple[Buffer, ...]
    arguments: tuple[Argument, ...]
    symbols: tuple[Var, ...]
    grid: tuple[Dim, ...]
    block: tuple[Dim, ...]
    body: Body
    cluster: tuple[Dim, ...] = ()
    min_blocks: int = 0
    stored_once: tuple[Buffer, ...] = ()
    stored_in_turns: tuple[Buffer, ...] = ()
    semaphores: tuple[Buffer, ...] = ()
    zeroed: tuple[Buffer, ...] = ()
    scratch: tuple[Buffer, ...] = ()
    begins_early: bool = False
    awaited: tuple[Buffer, ...] = ()
    attributes: tuple[tuple[str, str], ...] = field(default=())
    maps: tuple[TensorMap, ...] = ()

    @property
    def nthreads(self) -> int:
        """Threads in a block."""
        return _product(self.block)

    @property
    def state(self) -> tuple[Buffer, ...]:
        """The parameters that are zero before and behind every launch."""
        return (*self.semaphores, *self.zeroed)

    @property
    def arrays(self) -> tuple[Buffer, ...]:
        """The parameters that callers name: all but what is the kernel's own."""
        own = (*self.state, *self.scratch)
        return tuple(b for b in self.params if b not in own)

    @property
    def cluster_size(self) -> int:
        """Blocks in a cluster."""
        return _product(self.cluster)

    def __str__(self) -> str:
        from fusewright.kir.text import print_kernel

        return print_kernel(self)
