"""What a kernel must satisfy at each stage of the pipeline: a list of named checks.

A check looks at a kernel through `KernelFacts` and yields problems, each at a statement. Stages
follow each other; a check holds from its stage on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusewright.core.conditions import TRUE, prove
from fusewright.core.expr import Int, Var, constant_value, variables
from fusewright.core.functions import FUNCTIONS
from fusewright.dtypes import bool_, is_bitcast, uint32
from fusewright.errors import SpecError
from fusewright.kir.analysis.proved_lanes import proved_lanes
from fusewright.kir.analysis.uniformity import (
    agreed_registers,
    is_block_uniform,
    is_cluster_uniform,
    is_warp_uniform,
    only_issuer,
)
from fusewright.kir.analysis.words import kept_in_words, kept_uncut
from fusewright.kir.checks import (
    STAGES as STAGES,
    Check,
    KernelFacts,
    Problem,
    Stage as Stage,
    places_of,
    same_dtype,
)
from fusewright.kir.cluster_spec import CLUSTER_CHECKS
from fusewright.kir.ir import (
    Alloc,
    Arg,
    Buffer,
    Compute,
    Exchange,
    For,
    Guarded,
    If,
    Kernel,
    Load,
    RegVar,
    Role,
    Shuffle,
    Statement,
    Store,
    SyncStatement,
    ThreadReduce,
    ThreadScan,
)
from fusewright.kir.launch_spec import LAUNCH_CHECKS
from fusewright.kir.order_spec import ORDER_CHECKS
from fusewright.kir.semaphore_spec import SEMAPHORE_CHECKS
from fusewright.kir.symbols import operand_dtype
from fusewright.kir.sync_spec import SYNC_CHECKS
from fusewright.kir.tensor_spec import TENSOR_CHECKS
from fusewright.kir.text import print_statement
from fusewright.kir.traits import Team
from fusewright.kir.traverse import (
    all_variables,
    own_buffers,
    own_expressions,
    own_registers,
    registers_read,
    registers_written,
    statements_of,
)
from fusewright.memory import Memory
from fusewright.target import (
    LOCAL_NBYTES,
    MAX_GRID_X,
    MAX_GRID_YZ,
    MAX_THREADS_PER_BLOCK,
    WARP_SIZE,
    Target,
)

DIM_NAMES = ("tx", "ty", "tz")
REDUCTIONS = ("add", "mul", "max", "min", "and", "or")
SCANS = ("add", "mul", "max", "min")
SHUFFLE_MODES = ("xor", "down", "up", "index")


def check_kernel(kernel: Kernel, stage: Stage, *, target: Target | None = None) -> None:
    """Raise SpecError for the first broken check of `stage` or an earlier one; the message names
    the check, shows the statement and says what breaks which rule."""
    facts = KernelFacts(kernel, target, places_of(kernel))
    for check in CHECKS:
        if STAGES.index(check.since) > STAGES.index(stage):
            continue
        for statement, problem in check.find(facts):
            shown = "" if statement is None else f" at '{_headline(statement)}'"
            raise SpecError(
                f"kernel {kernel.name}, stage {stage}, check '{check.name}'{shown}: {problem}"
            )


def _headline(statement: Statement) -> str:
    return print_statement(statement).splitlines()[0].removesuffix(" {")


# --- the header -------------------------------------------------------------------------------


def _header(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    if not re.fullmatch(r"[A-Za-z_]\w*", k.name):
        yield None, f"the name {k.name!r} is not an identifier"
    for kind, dims in (("grid", k.grid), ("block", k.block)):
        if not 1 <= len(dims) <= 3:
            yield None, f"the {kind} has {len(dims)} dimensions; give 1 to 3"
    nthreads = 1
    for name, d in zip(DIM_NAMES, k.block, strict=False):
        extent = constant_value(d.extent)
        if d.var.name != name:
            yield None, f"block dimension {d.var} stands where {name} belongs"
        if extent is None or extent < 1:
            yield None, f"the block extent {d.extent} of {d.var} is not a constant >= 1"
        nthreads *= extent or 1
    if nthreads > MAX_THREADS_PER_BLOCK:
        yield None, f"{nthreads} threads in a block; the limit is {MAX_THREADS_PER_BLOCK}"
    for d in k.grid:
        strange = [v for v in variables(d.extent) if v not in k.symbols]
        if strange:
            yield None, f"the grid extent {d.extent} of {d.var} mentions {strange[0]}, no symbol"
    for d, most in zip(k.grid, (MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ), strict=False):
        extent = constant_value(d.extent)
        if extent is not None and not 0 <= extent <= most:
            yield None, f"the grid extent {extent} of {d.var} is not 0 to {most}"
    for p in k.params:
        if p.memory is not Memory.GLOBAL:
            yield None, f"parameter {p} lives in {p.memory.value} memory, not in global memory"


# --- scopes -----------------------------------------------------------------------------------


def _buffers_in_scope(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        if isinstance(s, Alloc):
            continue
        for b in own_buffers(s):
            if b not in place.buffers:
                yield s, f"buffer {b} is not allocated here; an Alloc must come before, around it"


def _allocated_once(facts: KernelFacts) -> Iterator[Problem]:
    seen: set[Buffer] = set()
    for s in statements_of(facts.kernel, Alloc):
        if s.buffer in seen:
            yield s, f"buffer {s.buffer} is allocated a second time; each has one Alloc"
        if s.buffer.memory is Memory.GLOBAL:
            yield s, f"buffer {s.buffer} lives in global memory; only parameters do"
        if not isinstance(s.buffer.size, Int):
            yield s, f"the size {s.buffer.size} of {s.buffer} is not constant"
        elif s.buffer.memory is Memory.LOCAL:
            nbytes = s.buffer.size.value * s.buffer.dtype.nbytes
            if nbytes > LOCAL_NBYTES:
                yield s, f"{s.buffer} has {nbytes} bytes; a thread has at most {LOCAL_NBYTES}"
        seen.add(s.buffer)


def _variables_in_scope(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        own = set[Var]()
        if type(s) is For:
            own.add(s.var)
            if s.var in place.variables:
                yield s, f"variable {s.var} is already in use around this loop"
        for value in own_expressions(s):
            for v in all_variables(value):
                known = v in place.variables or v in own or isinstance(v, RegVar)
                if not known:
                    yield s, f"variable {v} is not in scope; it is no symbol, dimension or loop"


def _arguments_declared(facts: KernelFacts) -> Iterator[Problem]:
    for s in statements_of(facts.kernel, Compute):
        for o in s.operands:
            if isinstance(o, Arg) and o.argument not in facts.kernel.arguments:
                yield s, f"{o.argument} is not an argument of the kernel"


# --- memories, types, widths ------------------------------------------------------------------


def _memories(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        for r in own_registers(s):
            if r.buffer.memory is not Memory.LOCAL:
                where = r.buffer.memory.value
                yield s, f"{r.buffer}[{r.index}] is used as a register but lives in {where} memory"
    for place in facts.acting:
        s = place.statement
        for use in s.memory_uses():
            if use.buffer.memory is Memory.LOCAL:
                yield s, f"{use.buffer} is in registers; only global and shared memory is accessed"


def _dtypes(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        match s:
            case Load():
                yield from same_dtype(s, s.dst.buffer.dtype, s.src.dtype, "a load keeps the dtype")
                if s.fill is not None:
                    yield from same_dtype(s, s.fill.dtype, s.src.dtype, "so does the fill")
            case Store():
                stored = s.src.buffer.dtype
                yield from same_dtype(s, stored, s.dst.dtype, "a store keeps the dtype")
            case Shuffle() | ThreadReduce() | ThreadScan():
                moved = s.src.buffer.dtype
                yield from same_dtype(s, s.dst.buffer.dtype, moved, "values keep a dtype")
                if isinstance(s, ThreadScan):
                    yield from same_dtype(s, s.carry.buffer.dtype, moved, "so does the carry")
                if isinstance(s, ThreadReduce | ThreadScan):
                    yield from same_dtype(s, s.identity.dtype, moved, "so does the identity")
            case Compute():
                yield from _compute_dtypes(s)
            case _:
                pass


def _compute_dtypes(s: Compute) -> Iterator[Problem]:
    function = FUNCTIONS.get(s.fn)
    if function is None:
        yield s, f"there is no function '{s.fn}'"
        return
    if len(s.operands) != function.arity:
        yield s, f"'{s.fn}' takes {function.arity} operands, not {len(s.operands)}"
        return
    dtypes = [operand_dtype(o) for o in s.operands]
    if s.fn == "where":
        if dtypes[0] is not bool_:
            yield s, f"the condition of 'where' is {dtypes[0]}, not bool"
        dtypes = dtypes[1:]
    for d in dtypes[1:]:
        yield from same_dtype(s, d, dtypes[0], f"the operands of '{s.fn}' have one dtype")
    if s.fn == "cast":
        return
    if s.fn == "bitcast":
        target = s.dst.buffer.dtype
        if not is_bitcast(dtypes[0], target):
            yield s, f"the bits of {dtypes[0]} are no {target}"
        return
    result = {"same": dtypes[0], "bool": bool_, "uint32": uint32}[function.result]
    yield from same_dtype(s, s.dst.buffer.dtype, result, f"the result of '{s.fn}' is {result}")


def _stored_once(facts: KernelFacts) -> Iterator[Problem]:
    """What a kernel says to store once is a parameter of it, and nothing is read of it."""
    k = facts.kernel
    for b in k.stored_once:
        if b not in k.params:
            yield None, f"{b}, which is to be stored once, is no parameter"
    for place in facts.acting:
        s = place.statement
        for b in {u.buffer: None for u in s.memory_uses() if not u.writes}:
            if b in k.stored_once:
                yield s, f"{b} is to be stored once, and is read"


def _bounds(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        written = [(u.reg, u.width) for u in registers_written(s)]
        for r, width in (*written, *registers_read(s)):
            low, high = r.index.interval
            size = constant_value(r.buffer.size) or 0
            last = width - 1
            runs = low is None or high is None or low <= high  # not in a loop of no trips
            if runs and ((high or 0) < 0 or (low or 0) + last >= size):
                yield s, f"register {r.buffer}[{r.index}] is outside of its {size} elements"


# --- control flow -----------------------------------------------------------------------------


def _uniform_extents(facts: KernelFacts) -> Iterator[Problem]:
    threads = {d.var for d in facts.kernel.block if constant_value(d.extent) != 1}
    agreed: frozenset[Buffer] | None = None
    for place in facts.acting:
        s = place.statement
        if not isinstance(s, For):
            continue
        if s.is_open and agreed is None:
            agreed = agreed_registers(facts.kernel)
        for v in all_variables(s.extent):
            differs = isinstance(v, RegVar) and (agreed is None or v.reg.buffer not in agreed)
            if v in threads or differs:
                yield s, f"the extent depends on {v}; all threads of a block run the same trips"


_UNIFORM = {  # of warpgroups `kir/tensor_spec.py` asks more
    Team.WARP: is_warp_uniform,
    Team.BLOCK: is_block_uniform,
    Team.CLUSTER: is_cluster_uniform,
}


def _convergence(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.acting:
        s, team = place.statement, place.statement.executed_by()
        is_uniform = None if team is None else _UNIFORM.get(team)
        if team is None or is_uniform is None:
            continue
        for c in place.conditions:
            if not is_uniform(c, facts.kernel):
                whole = team.value
                yield s, f"the threads of a {whole} meet here, but may disagree on '{c}' around it"


def _unique_ids(facts: KernelFacts) -> Iterator[Problem]:
    seen: set[int] = set()
    for place in facts.acting:
        s = place.statement
        if isinstance(s, SyncStatement):
            if s.id in seen:
                yield s, f"id {s.id} is taken by an earlier sync; ids are unique in a kernel"
            seen.add(s.id)


def _shuffles(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.acting:
        s = place.statement
        if not isinstance(s, Shuffle):
            continue
        if s.mode not in SHUFFLE_MODES:
            yield s, f"mode '{s.mode}' is not one of {', '.join(SHUFFLE_MODES)}"
        if s.width < 1 or s.width & (s.width - 1) or s.width > WARP_SIZE:
            yield s, f"width {s.width} is not a power of two of at most {WARP_SIZE}"


def _reductions(facts: KernelFacts) -> Iterator[Problem]:
    present = [d.var.name for d in (*facts.kernel.block, *facts.kernel.cluster)]
    for place in facts.acting:
        s = place.statement
        if not isinstance(s, ThreadReduce):
            continue
        if s.fn not in REDUCTIONS:
            yield s, f"'{s.fn}' is not one of {', '.join(REDUCTIONS)}"
        for d in s.dims:
            if d not in present:
                yield s, f"{d} is not a dimension of the block or cluster ({', '.join(present)})"
        if len(set(s.dims)) != len(s.dims) or not s.dims:
            yield s, f"the dimensions ({', '.join(s.dims)}) are not a set of at least one"


def _scans(facts: KernelFacts) -> Iterator[Problem]:
    present = [d.var.name for d in facts.kernel.block]
    for place in facts.acting:
        s = place.statement
        if not isinstance(s, ThreadScan):
            continue
        if s.fn not in SCANS:
            yield s, f"'{s.fn}' is not one of {', '.join(SCANS)}"
        if s.dim not in present:
            yield s, f"{s.dim} is not a dimension of the block ({', '.join(present)})"
        for r in (s.dst, s.src):
            if r.buffer is s.carry.buffer and r.index == s.carry.index:
                yield s, f"{s.carry.buffer}[{s.carry.index}] is its carry and its {r.buffer}"


# --- later stages -----------------------------------------------------------------------------


def _no_exchange(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.places:
        if isinstance(place.statement, Exchange):
            yield place.statement, "what threads combine is expanded by now"


def _packed(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        if not isinstance(s, Alloc) or s.buffer.memory is not Memory.SHARED:
            continue
        if s.offset is None:
            yield s, "shared memory is packed by now; the offset is missing"
            continue
        end = s.offset + (constant_value(s.buffer.size) or 0) * s.buffer.dtype.nbytes
        if s.offset < 0 or s.offset % s.buffer.alignment:
            yield s, f"offset {s.offset} is not a multiple of the alignment {s.buffer.alignment}"
        if facts.target is not None and end > facts.target.shared_nbytes_per_block:
            limit = facts.target.shared_nbytes_per_block
            yield s, f"it ends at byte {end}; a block of {facts.target} has {limit} bytes"


def _literal_registers(facts: KernelFacts) -> Iterator[Problem]:
    """A register has a place in the instruction, as a literal, or by the loops around it that the
    compiler unrolls."""
    kept = frozenset(
        s.var
        for s in statements_of(facts.kernel, For)
        if s.unroll and constant_value(s.extent) is not None
    )
    for place in facts.places:
        for r in own_registers(place.statement):
            if not (isinstance(r.index, Int) or kept.issuperset(all_variables(r.index))):
                where = f"{r.buffer}[{r.index}]"
                yield place.statement, f"the register {where} has no literal index; unroll the loop"


def _no_trivial_loops(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.acting:
        s = place.statement
        if isinstance(s, For) and constant_value(s.extent) in (0, 1):
            yield s, f"a loop of {s.extent} trips is no loop"


def _no_decided_conditions(facts: KernelFacts) -> Iterator[Problem]:
    for s in statements_of(facts.kernel, If, Guarded):
        if isinstance(s, If):
            if prove(s.condition) is not None:
                yield s, "the condition is decided; there is nothing to choose"
        elif s.predicate is not TRUE and s.predicate != TRUE:
            known = prove(s.predicate)
            stays = known is False and s.where_false() == (s,)  # zeros are written all the same
            if known is not None and not stays:
                yield s, f"the predicate is always {str(known).lower()}"


def _proved(facts: KernelFacts) -> Iterator[Problem]:
    """What the text of the kernel relies on holds."""
    statements = [place.statement for place in facts.places]
    allocated = [s for s in statements if isinstance(s, Alloc) and (s.in_words or s.uncut)]
    if allocated:
        fit = kept_in_words(facts.kernel) if any(s.in_words for s in allocated) else ()
        cut = kept_uncut(facts.kernel) if any(s.uncut for s in allocated) else ()
        for s in allocated:
            if s.in_words and s.buffer not in fit:
                yield s, f"{s.buffer} is kept in words, but not only loads of whole words fill it"
            if s.uncut and s.buffer not in cut:
                yield (
                    s,
                    f"{s.buffer} is kept uncut, but not only vectors fill it, some from anywhere",
                )
    for s in statements:
        if isinstance(s, Load):
            yield from _proved_lanes(s)
        if isinstance(s, Role) and s.issuer not in (None, only_issuer(s, facts.kernel)):
            yield s, f"thread {s.issuer} is not known to issue all that the role does, and alone"


def _proved_lanes(s: Load) -> Iterator[Problem]:
    proved, begins = proved_lanes(s), s.lanes.begins
    if begins not in (None, proved.begins):
        yield s, f"it is not known to begin {begins} elements into a word of {s.width}"
    if s.lanes.inside and not proved.inside:
        yield s, f"its lanes are not known to be inside of {s.src} wherever it stands"


CHECKS: tuple[Check, ...] = (
    Check("header", "lowered", _header),
    Check("allocated once", "lowered", _allocated_once),
    Check("buffers in scope", "lowered", _buffers_in_scope),
    Check("variables in scope", "lowered", _variables_in_scope),
    Check("arguments declared", "lowered", _arguments_declared),
    Check("memories", "lowered", _memories),
    Check("dtypes", "lowered", _dtypes),
    Check("stored once", "lowered", _stored_once),
    Check("register bounds", "lowered", _bounds),
    Check("shuffles", "lowered", _shuffles),
    Check("reductions", "lowered", _reductions),
    Check("scans over threads", "lowered", _scans),
    Check("uniform extents", "lowered", _uniform_extents),
    Check("convergence", "lowered", _convergence),
    Check("unique sync ids", "lowered", _unique_ids),
    *SYNC_CHECKS,
    *CLUSTER_CHECKS,
    *TENSOR_CHECKS,
    *SEMAPHORE_CHECKS,
    *LAUNCH_CHECKS,
    Check("no exchange of threads", "expanded", _no_exchange),
    Check("packed", "packed", _packed),
    Check("literal registers", "final", _literal_registers),
    Check("no trivial loops", "final", _no_trivial_loops),
    Check("proved facts", "final", _proved),
    Check("no decided conditions", "final", _no_decided_conditions),
    *ORDER_CHECKS,
)
