"""The CUDA spelling of matrix products, boxes and matrices.

Accumulators are arrays that only literal indices name, so that they stay in registers. Where the
IR has a fence or a wait for products, the compiler is told not to move uses of accumulators over
it: ptxas serialises products whose registers are touched under way (messages C7510 .. C7519).
Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor Data Movement".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fusewright import dtypes
from fusewright.core.conditions import TRUE
from fusewright.core.expr import ZERO, floordiv
from fusewright.cuda import asynchronous, ptx
from fusewright.cuda.writer import Spellings, Writer
from fusewright.dtypes import DType
from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.ir import Buffer, Kernel, Reg
from fusewright.kir.tensor import TRANSPOSED_NBYTES
from fusewright.kir.tiles import CHUNK_NBYTES, Major
from fusewright.kir.traverse import walk_statements
from fusewright.target import MMA_DEPTH_NBYTES

_TYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "tf32",
    "float8_e4m3": "e4m3",
    "float8_e5m2": "e5m2",
}
_FRAGMENT_WORDS = 4


def _type_of(buffer: Buffer) -> str:
    found = _TYPES.get(buffer.dtype.name)
    if found is None:
        raise SpecError(f"{buffer} is {buffer.dtype}; products take {' and '.join(_TYPES)}")
    return found


def _name(s: ir.Mma) -> str:
    a = "registers" if isinstance(s.a, Reg) else s.a.major.value
    kinds = "_".join(dict.fromkeys(_type_of(o.buffer) for o in (s.a, s.b)))
    return f"fw_mma_{s.n}_{kinds}_{a}_{s.b.major.value}"


def product_functions(kernels: Iterable[Kernel]) -> str:
    """A function for each form of product that kernels make."""
    found = {_name(s): s for k in kernels for s in walk_statements(k) if isinstance(s, ir.Mma)}
    return "".join(_function(name, s) for name, s in found.items())


def _function(name: str, s: ir.Mma) -> str:
    count, kinds = s.n // 2, f"{_type_of(s.a.buffer)}.{_type_of(s.b.buffer)}"
    depth = MMA_DEPTH_NBYTES // s.b.buffer.dtype.nbytes
    words = _FRAGMENT_WORDS if isinstance(s.a, Reg) else 1
    accumulators = ", ".join(f"%{k}" for k in range(count))
    a = ", ".join(f"%{count + k}" for k in range(words))
    a = f"{{{a}}}" if words > 1 else a
    majors = [int(m.major is Major.MN) for m in (s.a, s.b) if isinstance(m, ir.Matrix)]
    across = majors if s.b.buffer.dtype.nbytes == TRANSPOSED_NBYTES else []
    instruction = (
        f"wgmma.mma_async.sync.aligned.m64n{s.n}k{depth}.f32.{kinds} {{{accumulators}}}, {a}, "
        f"%{count + words}, p, {', '.join(map(str, (1, 1, *across)))};"
    )
    outputs = ", ".join(f'"+f"(d[{k}])' for k in range(count))
    given = "const T* a" if words > 1 else "unsigned long long a"
    inputs = [f'"r"(fw_pair(a + {2 * k}))' for k in range(words)] if words > 1 else ['"l"(a)']
    head = "template <typename T>\n" if words > 1 else ""
    return (
        f"{head}__device__ __forceinline__ void {name}(float* d, {given}, "
        "unsigned long long b, int accumulate) {\n"
        f'  asm volatile("{{\\n\\t.reg .pred p;\\n\\tsetp.ne.b32 p, %{count + words + 1}, 0;'
        '\\n\\t"\n'
        f'               "{instruction}\\n\\t}}"\n'
        f"               : {outputs}\n"
        f'               : {", ".join(inputs)}, "l"(b), "r"(accumulate));\n}}\n\n'
    )


# --- what an allocation brings --------------------------------------------------------------------


def _matrices(w: Writer) -> Iterator[ir.Matrix]:
    """The operands of products in shared memory."""
    for s in w.products:
        yield from (m for m in (s.a, s.b) if isinstance(m, ir.Matrix))


def allocated(w: Writer, buffer: Buffer) -> None:
    """Behind the declaration of a buffer: where descriptors of it begin."""
    first = {m.major: m for m in _matrices(w) if m.buffer is buffer}
    for m in first.values():
        low = m.descriptor.low
        w.line(f"const unsigned {_base(w, m)} = fw_chunk({w.address(buffer, ZERO)}) + {low}u;")


def _base(w: Writer, m: ir.Matrix) -> str:
    first = next(o for o in _matrices(w) if o.buffer is m.buffer and o.major is m.major)
    return w.names.of(first, f"{m.buffer.name}_{m.major.value}")


def _keep_accumulators(w: Writer) -> None:
    for b in dict.fromkeys(s.dst.buffer for s in w.products):
        if b in w.in_scope:
            w.line(f"fw_keep({w.name(b)});")


def finished(w: Writer, text: str, source: DType, target: DType) -> str:
    """A float that is about to be converted alone, in a kernel with products.

    ptxas joins two conversions to 16 bits into one instruction, of which it then no longer knows
    that it reads products: it lands in front of the wait for them. An addition of nothing in
    between is not joined, and stays behind the wait.
    """
    narrows = source is dtypes.float32 and target in (dtypes.bfloat16, dtypes.float16)
    return f"fw_finished({text})" if w.products and narrows else text


# --- products -------------------------------------------------------------------------------------


def _descriptor(w: Writer, m: ir.Matrix) -> str:
    chunk = CHUNK_NBYTES // m.buffer.dtype.nbytes
    step = w.integer(floordiv(m.index, chunk))
    low = _base(w, m) if step == "0" else f"{_base(w, m)} + (unsigned)({step})"
    return f"fw_descriptor({low}, {m.descriptor.high:#x}u)"


def _pointer(w: Writer, reg: Reg) -> str:
    index = w.integer(reg.index)
    return w.name(reg.buffer) if index == "0" else f"{w.name(reg.buffer)} + {index}"


def _mma(w: Writer, s: ir.Mma) -> None:
    a = _pointer(w, s.a) if isinstance(s.a, Reg) else _descriptor(w, s.a)
    accumulate = "1" if s.accumulate == TRUE else f"({w.condition(s.accumulate)}) ? 1 : 0"
    w.line(f"{_name(s)}({_pointer(w, s.dst)}, {a}, {_descriptor(w, s.b)}, {accumulate});")


def _fence(w: Writer, s: ir.MmaFence) -> None:
    _keep_accumulators(w)
    asynchronous.sync(w, s)


def _wait(w: Writer, s: ir.AsyncWait) -> None:
    asynchronous.sync(w, s)
    if s.kind is ir.AsyncKind.MMA:
        _keep_accumulators(w)


def _warp_mma(w: Writer, s: ir.WarpMma) -> None:
    d, a, b = (_pointer(w, r) for r in (s.dst, s.a, s.b))
    kind = _type_of(s.a.buffer)
    words = [f'"r"(fw_pair({p} + {2 * k}))' for p, n in ((a, 4), (b, 2)) for k in range(n)]
    outputs = ", ".join(f'"+f"(({d})[{k}])' for k in range(4))
    w.line(
        f'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 '
        '{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" '
        f": {outputs} : {', '.join(words)});"
    )


def _ld_matrix(w: Writer, s: ir.LdMatrix) -> None:
    form = f"{s.count}, {'true' if s.transposed else 'false'}"
    w.line(f"fw_ldmatrix<{form}>({_pointer(w, s.dst)}, {w.address(s.src, s.index)});")


def _st_matrix(w: Writer, s: ir.StMatrix) -> None:
    form = f"{s.count}, {'true' if s.transposed else 'false'}"
    w.line(f"fw_stmatrix<{form}>({w.address(s.dst, s.index)}, {_pointer(w, s.src)});")


def _set_max_registers(w: Writer, s: ir.SetMaxRegisters) -> None:
    way = "inc" if s.grows else "dec"
    w.line(ptx.assembly(f"setmaxnreg.{way}.sync.aligned.u32 {s.count};", ()))


# --- boxes ----------------------------------------------------------------------------------------


def map_name(w: Writer, m: ir.TensorMap) -> str:
    """The parameter that is a tensor map."""
    return w.names.of(m, m.name)


def _box(w: Writer, s: ir.BoxLoad | ir.BoxStore | ir.BoxReduce) -> None:
    tensor = ptx.AssemblyOperand("l", f"&{map_name(w, s.map)}")
    coordinates = [ptx.number(w.integer(c)) for c in s.coordinates]
    if isinstance(s, ir.BoxLoad):
        assert s.barrier is not None, "the spec of stage expanded"
        barrier = ptx.shared(w.address(s.barrier, s.slot))
        operands = [ptx.shared(w.address(s.dst, s.index)), tensor, barrier]
    else:
        operands = [ptx.shared(w.address(s.src, s.src_index)), tensor]
    if isinstance(s, ir.BoxLoad) and s.blocks > 1:
        coordinates.append(ptx.AssemblyOperand("h", f"(unsigned short){(1 << s.blocks) - 1:#x}"))
    text = ptx.assembly(ptx.box_instruction(s), [*operands, *coordinates])
    w.issued(s.issuer, lambda: w.line(text))


def _prefetch_map(w: Writer, s: ir.PrefetchMap) -> None:
    tensor = ptx.AssemblyOperand("l", f"&{map_name(w, s.map)}")
    text = ptx.assembly("prefetch.tensormap [%0];", [tensor])
    w.issued(s.issuer, lambda: w.line(text))


def _prefetch_box(w: Writer, s: ir.PrefetchBox) -> None:
    tensor = ptx.AssemblyOperand("l", f"&{map_name(w, s.map)}")
    coordinates = [ptx.number(w.integer(c)) for c in s.coordinates]
    text = ptx.assembly(ptx.prefetch_instruction(len(coordinates)), [tensor, *coordinates])
    w.issued(s.issuer, lambda: w.line(text))


SPELLINGS: Spellings = {
    **dict.fromkeys((ir.BoxLoad, ir.BoxStore, ir.BoxReduce), _box),
    ir.PrefetchMap: _prefetch_map,
    ir.PrefetchBox: _prefetch_box,
    ir.Mma: _mma,
    ir.MmaFence: _fence,
    ir.AsyncWait: _wait,
    ir.WarpMma: _warp_mma,
    ir.LdMatrix: _ld_matrix,
    ir.StMatrix: _st_matrix,
    ir.SetMaxRegisters: _set_max_registers,
}
"""By class of statement."""
