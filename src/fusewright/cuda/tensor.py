"""The CUDA spelling of matrix products, boxes and matrices.

Accumulators are arrays that only literal indices name, so that they stay in registers. Where the
IR has a fence or a wait for products, the compiler is told not to move uses of accumulators over
it: ptxas serialises products whose registers are touched under way (messages C7510 .. C7519).
Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor Data Movement".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fusewright.core.conditions import TRUE, Cond
from fusewright.core.expr import Expr, add, floordiv
from fusewright.core.node import walk
from fusewright.cuda import ptx
from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.ir import Buffer, Kernel, Reg, Statement
from fusewright.kir.tiles import CHUNK_NBYTES, Major

_TYPES = {"bfloat16": "bf16", "float16": "f16"}
_FRAGMENT_WORDS = 4


def _type_of(buffer: Buffer) -> str:
    found = _TYPES.get(buffer.dtype.name)
    if found is None:
        raise SpecError(f"{buffer} is {buffer.dtype}; products take {' and '.join(_TYPES)}")
    return found


def _name(s: ir.Mma) -> str:
    a = "registers" if isinstance(s.a, Reg) else s.a.major.value
    return f"fw_mma_{s.n}_{_type_of(s.b.buffer)}_{a}_{s.b.major.value}"


def product_functions(kernels: Iterable[Kernel]) -> str:
    """A function for each form of product that kernels make."""
    found = {_name(s): s for k in kernels for s in walk(k) if isinstance(s, ir.Mma)}
    return "".join(_function(name, s) for name, s in found.items())


def _function(name: str, s: ir.Mma) -> str:
    count, kind = s.n // 2, _type_of(s.b.buffer)
    words = _FRAGMENT_WORDS if isinstance(s.a, Reg) else 1
    accumulators = ", ".join(f"%{k}" for k in range(count))
    a = ", ".join(f"%{count + k}" for k in range(words))
    a = f"{{{a}}}" if words > 1 else a
    majors = [int(m.major is Major.MN) for m in (s.a, s.b) if isinstance(m, ir.Matrix)]
    instruction = (
        f"wgmma.mma_async.sync.aligned.m64n{s.n}k16.f32.{kind}.{kind} {{{accumulators}}}, {a}, "
        f"%{count + words}, p, 1, 1, {', '.join(map(str, majors))};"
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


class TensorStatements:
    """Prints the statements of products; what it needs of the printer of a kernel stands first."""

    def _line(self, text: str) -> None:
        raise NotImplementedError

    def _guarded(self, predicate: Cond, body: Callable[[], None]) -> None:
        raise NotImplementedError

    def _address(self, buffer: Buffer, index: Expr) -> str:
        raise NotImplementedError

    def _integer(self, e: Expr) -> str:
        raise NotImplementedError

    def _condition(self, c: Cond) -> str:
        raise NotImplementedError

    def _by(self, issuer: int | None) -> Cond:
        raise NotImplementedError

    def _map_name(self, m: ir.TensorMap) -> str:
        raise NotImplementedError

    def _fresh_name(self, symbol: object, wish: str) -> str:
        raise NotImplementedError

    def __init__(self, kernel: Kernel) -> None:
        self._matrices: dict[Buffer, dict[Major, ir.Matrix]] = {}
        self._accumulators: set[Buffer] = set()
        self._live: list[Buffer] = []
        for s in walk(kernel):
            if isinstance(s, ir.Mma):
                self._accumulators.add(s.dst.buffer)
                for m in (s.a, s.b):
                    if isinstance(m, ir.Matrix):
                        self._matrices.setdefault(m.buffer, {}).setdefault(m.major, m)
        self.tensor_statements: Mapping[type[Statement], Callable[[Any], None]] = {
            ir.BoxLoad: self._box,
            ir.BoxStore: self._box,
            ir.BoxReduce: self._box,
            ir.PrefetchMap: self._prefetch_map,
            ir.Mma: self._mma,
            ir.WarpMma: self._warp_mma,
            ir.LdMatrix: self._ld_matrix,
            ir.StMatrix: self._st_matrix,
            ir.SetMaxRegisters: self._set_max_registers,
        }

    # --- what an allocation brings

    def _allocated(self, buffer: Buffer) -> None:
        """Behind the declaration of a buffer: where descriptors of it begin."""
        if buffer in self._accumulators:
            self._live.append(buffer)
        for m in self._matrices.get(buffer, {}).values():
            name, low = self._base(m), m.descriptor.low
            self._line(
                f"const unsigned {name} = fw_chunk({self._address(buffer, add(0))}) + {low}u;"
            )

    def _base(self, m: ir.Matrix) -> str:
        first = self._matrices[m.buffer][m.major]
        return self._fresh_name(first, f"{m.buffer.name}_{m.major.value}")

    def _keep_accumulators(self) -> None:
        for b in self._live:
            self._line(f"fw_keep({self._fresh_name(b, b.name)});")

    # --- products

    def _descriptor(self, m: ir.Matrix) -> str:
        chunk = CHUNK_NBYTES // m.buffer.dtype.nbytes
        step = self._integer(floordiv(m.index, chunk))
        low = self._base(m) if step == "0" else f"{self._base(m)} + (unsigned)({step})"
        return f"fw_descriptor({low}, {m.descriptor.high:#x}u)"

    def _pointer(self, reg: Reg) -> str:
        name, index = self._fresh_name(reg.buffer, reg.buffer.name), self._integer(reg.index)
        return name if index == "0" else f"{name} + {index}"

    def _mma(self, s: ir.Mma) -> None:
        a = self._pointer(s.a) if isinstance(s.a, Reg) else self._descriptor(s.a)
        accumulate = "1" if s.accumulate == TRUE else f"({self._condition(s.accumulate)}) ? 1 : 0"
        b = self._descriptor(s.b)
        self._line(f"{_name(s)}({self._pointer(s.dst)}, {a}, {b}, {accumulate});")

    def _warp_mma(self, s: ir.WarpMma) -> None:
        d, a, b = (self._pointer(r) for r in (s.dst, s.a, s.b))
        kind = _type_of(s.a.buffer)
        words = [f'"r"(fw_pair({p} + {2 * k}))' for p, n in ((a, 4), (b, 2)) for k in range(n)]
        outputs = ", ".join(f'"+f"(({d})[{k}])' for k in range(4))
        self._line(
            f'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 '
            '{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" '
            f": {outputs} : {', '.join(words)});"
        )

    def _ld_matrix(self, s: ir.LdMatrix) -> None:
        form = f"{s.count}, {'true' if s.transposed else 'false'}"
        place = self._address(s.src, s.index)
        self._line(f"fw_ldmatrix<{form}>({self._pointer(s.dst)}, {place});")

    def _st_matrix(self, s: ir.StMatrix) -> None:
        form = f"{s.count}, {'true' if s.transposed else 'false'}"
        place = self._address(s.dst, s.index)
        self._line(f"fw_stmatrix<{form}>({place}, {self._pointer(s.src)});")

    def _set_max_registers(self, s: ir.SetMaxRegisters) -> None:
        way = "inc" if s.grows else "dec"
        self._line(ptx.assembly(f"setmaxnreg.{way}.sync.aligned.u32 {s.count};", ()))

    # --- boxes

    def _box(self, s: ir.BoxLoad | ir.BoxStore | ir.BoxReduce) -> None:
        tensor = ptx.Operand("l", f"&{self._map_name(s.map)}")
        coordinates = [ptx.number(self._integer(c)) for c in s.coordinates]
        if isinstance(s, ir.BoxLoad):
            barrier = ptx.shared(self._address(s.barrier, s.slot))
            operands = [ptx.shared(self._address(s.dst, s.index)), tensor, barrier]
        else:
            operands = [ptx.shared(self._address(s.src, s.src_index)), tensor]
        text = ptx.assembly(ptx.box_instruction(s), [*operands, *coordinates])
        self._guarded(self._by(s.issuer), lambda: self._line(text))

    def _prefetch_map(self, s: ir.PrefetchMap) -> None:
        tensor = ptx.Operand("l", f"&{self._map_name(s.map)}")
        text = ptx.assembly("prefetch.tensormap [%0];", [tensor])
        self._guarded(self._by(s.issuer), lambda: self._line(text))
