"""The PTX of syncs and asynchronous copies, as inline assembly.

Sources: PTX ISA, "Parallel Synchronization and Communication Instructions" and "Asynchronous
copy". A sync carries its id in a comment inside the assembly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.core.expr import Expr
from fusewright.dtypes import DType
from fusewright.kir import ir
from fusewright.memory import Memory

_PROXY = {Memory.SHARED: "shared::cta", Memory.GLOBAL: "global"}
_WAIT = (
    "{{\\n\\t.reg .pred done;\\n\\tagain:\\n\\t"
    "mbarrier.try_wait.parity{scope}.shared::cta.b64 done, [%0], %1;\\n\\t@!done bra again;\\n\\t}}"
)
_TRY_WAIT = (
    "{{\\n\\t.reg .pred done;\\n\\t"
    "mbarrier.try_wait.parity{scope}.shared::cta.b64 done, [%1], %2;\\n\\t"
    "selp.u32 %0, 1, 0, done;\\n\\t}}"
)
_ARRIVE_AT_BLOCK = (
    "{\\n\\t.reg .b32 at;\\n\\tmapa.shared::cluster.u32 at, %0, %1;\\n\\t"
    "mbarrier.arrive.shared::cluster.b64 _, [at];\\n\\t}"
)
_ACROSS_BLOCKS = ".acquire.cluster"


@dataclass(frozen=True, slots=True)
class AssemblyOperand:
    """An input of inline assembly: its constraint and its C++ text."""

    constraint: str
    text: str


def shared(pointer: str) -> AssemblyOperand:
    """An address in shared memory."""
    return AssemblyOperand("r", f"(unsigned)__cvta_generic_to_shared({pointer})")


def in_global(pointer: str) -> AssemblyOperand:
    """An address in global memory."""
    return AssemblyOperand("l", f"__cvta_generic_to_global({pointer})")


def number(text: str) -> AssemblyOperand:
    """A 32-bit number, whatever the width of the integer that it is computed in."""
    return AssemblyOperand("r", f"(unsigned)({text})")


def assembly(
    ptx: str, operands: Sequence[AssemblyOperand], sync: ir.SyncStatement | None = None
) -> str:
    """One statement of inline assembly that orders the memory accesses around it."""
    mark = "" if sync is None else f" // fw-sync {sync.id}"
    inputs = ", ".join(f'"{o.constraint}"({o.text})' for o in operands)
    between = f" :: {inputs} : " if inputs else " ::: "
    return f'asm volatile("{ptx}{mark}"{between}"memory");'


def sync_instruction(
    s: ir.SyncStatement,
    *,
    in_cluster: bool = False,
    has_roles: bool = False,
    sees_stores: bool = False,
) -> str | None:
    """The instruction of a sync; the operand %0 of those on an mbarrier is its address, %1 of a
    wait the parity, of an arrival at another block's the number of the block. In a cluster other
    blocks see an mbarrier behind a barrier without more; a wait that `sees_stores` of theirs drops
    what the first-level cache holds. Lanes that come from roles may come to a barrier of the
    cluster one by one. None for syncs without an instruction."""
    aligned = "" if has_roles else ".aligned"
    match s:
        case ir.BlockSync():
            return "bar.sync 0;"
        case ir.WarpSync():
            return "bar.warp.sync 0xffffffff;"
        case ir.ClusterArrive():
            return f"barrier.cluster.arrive.{'relaxed' if s.relaxed else 'release'}{aligned};"
        case ir.ClusterWait():
            return f"barrier.cluster.wait.acquire{aligned};"
        case ir.NamedSync():
            return f"bar.sync {s.barrier}, {s.nthreads};"
        case ir.BarrierArrive():
            return f"bar.arrive {s.barrier}, {s.nthreads};"
        case ir.MmaFence():
            return "wgmma.fence.sync.aligned;"
        case ir.AsyncCommit():
            return f"{_group(s.kind)}.commit_group{_aligned(s.kind)};"
        case ir.AsyncWait(kind=ir.AsyncKind.MMA):
            return f"wgmma.wait_group.sync.aligned {s.keep};"
        case ir.AsyncWait():
            return f"{_group(s.kind)}.wait_group{'.read' if s.reads_only else ''} {s.keep};"
        case ir.ProxyFence():
            return f"fence.proxy.async.{_PROXY[s.space]};"
        case ir.MbarInit():
            init = f"mbarrier.init.shared::cta.b64 [%0], {s.count};"
            return f"{init}\\n\\tfence.mbarrier_init.release.cluster;" if in_cluster else init
        case ir.MbarExpect():
            return f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {s.nbytes};"
        case ir.MbarArrive(rank=Expr()):
            return _ARRIVE_AT_BLOCK
        case ir.MbarArrive():
            return "mbarrier.arrive.shared::cta.b64 _, [%0];"
        case ir.MbarWait():
            return _WAIT.format(scope=_ACROSS_BLOCKS if sees_stores else "")
        case ir.MbarInvalidate():
            return "mbarrier.inval.shared::cta.b64 [%0];"
        case ir.LaunchWait():
            return "griddepcontrol.wait;"
        case ir.LaunchDependents():
            return "griddepcontrol.launch_dependents;"
        case _:
            return None


def try_wait(
    s: ir.MbarWait, result: str, operands: Sequence[AssemblyOperand], *, sees_stores: bool
) -> str:
    """One try of a wait, 1 in `result` where the phase is complete."""
    text = _TRY_WAIT.format(scope=_ACROSS_BLOCKS if sees_stores else "")
    inputs = ", ".join(f'"{o.constraint}"({o.text})' for o in operands)
    return f'asm volatile("{text} // fw-sync {s.id}" : "=r"({result}) : {inputs} : "memory");'


def read_semaphore(
    s: ir.SemaphoreAcquire, result: str, scope: str, operands: Sequence[AssemblyOperand]
) -> str:
    """One look at a semaphore, whose value comes to `result`."""
    inputs = ", ".join(f'"{o.constraint}"({o.text})' for o in operands)
    text = f"ld.acquire.{scope}.global.u32 %0, [%1]; // fw-sync {s.id}"
    return f'asm volatile("{text}" : "=r"({result}) : {inputs} : "memory");'


def _group(kind: ir.AsyncKind) -> str:
    match kind:
        case ir.AsyncKind.CP_ASYNC:
            return "cp.async"
        case ir.AsyncKind.BULK:
            return "cp.async.bulk"
        case ir.AsyncKind.MMA:
            return "wgmma"


def _aligned(kind: ir.AsyncKind) -> str:
    return ".sync.aligned" if kind is ir.AsyncKind.MMA else ""


_STORED = {1: ("u8", "r"), 2: ("u16", "h"), 4: ("u32", "r"), 8: ("u64", "l")}


def remote_store(
    pointer: str, rank: str, bits: Sequence[str], nbytes: int, barrier: str | None
) -> str:
    """A store of the bits of elements of so many bytes where `pointer` points in the shared memory
    of block `rank` of the cluster, counted by the mbarrier to which `barrier` points there. Source:
    PTX ISA, `mapa`, `st` and `st.async`."""
    kind, constraint = _STORED[nbytes]
    operands = [shared(pointer), number(rank), *(AssemblyOperand(constraint, b) for b in bits)]
    value = ", ".join(f"%{k}" for k in range(2, len(operands)))
    if len(bits) > 1:
        kind, value = f"v{len(bits)}.{kind}", f"{{{value}}}"
    place = "mapa.shared::cluster.u32 at, %0, %1;\\n\\t"
    if barrier is None:
        text = f"{{\\n\\t.reg .b32 at;\\n\\t{place}st.shared::cluster.{kind} [at], {value};\\n\\t}}"
        return assembly(text, operands)
    kind = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{kind}"
    place += f"mapa.shared::cluster.u32 by, %{len(operands)}, %1;\\n\\t"
    text = f"{{\\n\\t.reg .b32 at, by;\\n\\t{place}{kind} [at], {value}, [by];\\n\\t}}"
    return assembly(text, [*operands, shared(barrier)])


def copy_instruction(nbytes: int, *, bypass: bool, counts: bool) -> str:
    """`cp.async` from global (%1) to shared memory (%0); with `counts` %2 bytes are read and the
    rest is zeros; `bypass` passes by the first-level cache."""
    level = "cg" if bypass else "ca"
    return f"cp.async.{level}.shared.global [%0], [%1], {nbytes}{', %2' if counts else ''};"


def bulk_instruction(s: ir.BulkLoad | ir.BulkStore | ir.BulkReduce) -> str:
    """A bulk copy to %0 from %1; a load counts on the mbarrier %2."""
    nbytes = s.size * s.dst.dtype.nbytes
    match s:
        case ir.BulkLoad():
            kind = "shared::cluster.global.mbarrier::complete_tx::bytes"
            return f"cp.async.bulk.{kind} [%0], [%1], {nbytes}, [%2];"
        case ir.BulkStore():
            return f"cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], {nbytes};"
        case ir.BulkReduce():
            fn = f"{s.fn}{_reduced_type(s.fn, s.dst.dtype)}"
            kind = f"global.shared::cta.bulk_group.{fn}"
            return f"cp.reduce.async.bulk.{kind} [%0], [%1], {nbytes};"


def box_instruction(s: ir.BoxLoad | ir.BoxStore | ir.BoxReduce) -> str:
    """A copy between %0 in shared memory and a box of the tensor map %1; a load counts on the
    mbarrier %2. The coordinates are the operands behind, then a bit for each block that a load goes
    to."""
    rank = len(s.coordinates)
    first = 3 if isinstance(s, ir.BoxLoad) else 2
    tensor = f"[%1, {{{', '.join(f'%{first + d}' for d in range(rank))}}}]"
    match s:
        case ir.BoxLoad():
            kind = f"{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            if s.blocks > 1:
                kind = f"{kind}.multicast::cluster"
                return f"cp.async.bulk.tensor.{kind} [%0], {tensor}, [%2], %{first + rank};"
            return f"cp.async.bulk.tensor.{kind} [%0], {tensor}, [%2];"
        case ir.BoxStore():
            kind = f"{rank}d.global.shared::cta.tile.bulk_group"
            return f"cp.async.bulk.tensor.{kind} {tensor}, [%0];"
        case ir.BoxReduce():
            kind = f"{rank}d.global.shared::cta.{s.fn}.tile.bulk_group"
            return f"cp.reduce.async.bulk.tensor.{kind} {tensor}, [%0];"


def prefetch_instruction(rank: int) -> str:
    """The fetch of a box of the tensor map %0 at coordinates %1 and on into the second-level
    cache."""
    places = ", ".join(f"%{1 + d}" for d in range(rank))
    return f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [%0, {{{places}}}];"


def _reduced_type(fn: str, dtype: DType) -> str:
    short = {"float16": "f16", "bfloat16": "bf16"}.get(dtype.name)
    if short is not None:
        return f".noftz.{short}" if fn == "add" else f".{short}"
    letter = {"float": "f", "int": "s", "uint": "u"}[dtype.kind]
    return f".{letter}{8 * dtype.nbytes}"
