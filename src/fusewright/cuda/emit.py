"""KIR to CUDA C++: one statement a line, nothing decided here.

The text is self-contained (no headers). Every sync is inline PTX that carries its id in a comment
inside the assembly, so that it can be found again in the PTX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fusewright.core.conditions import all_of, equal, less, less_equal
from fusewright.core.expr import Var, floordiv
from fusewright.core.functions import FUNCTIONS
from fusewright.cuda import asynchronous, exprs, movement, scalars, semaphores, tensor, words
from fusewright.cuda.names import identifier
from fusewright.cuda.parameters import (
    Parameter as Parameter,
    parameters as parameters,
    shared_nbytes as shared_nbytes,
    shared_offset,
)
from fusewright.cuda.prelude import prelude
from fusewright.cuda.scalars import converted
from fusewright.cuda.writer import Spellings, Writer, constant_size
from fusewright.dtypes import DType, dtype_of
from fusewright.errors import SpecError, UserError, merged_text
from fusewright.kir import ir
from fusewright.kir.ir import Buffer, Kernel, Reg
from fusewright.memory import Memory
from fusewright.target import WARP_SIZE, Target

_AXES = "xyz"

_SHUFFLES = {"xor": "xor", "down": "down", "up": "up", "index": ""}


def sync_ids_in_ptx(text: str) -> set[int]:
    """The ids of the syncs that reached the PTX."""
    return {int(n) for n in re.findall(r"// fw-sync (\d+)", text)}


def emit(kernel: Kernel, target: Target, comments: Sequence[str] = ()) -> str:
    """The kernel as one self-contained CUDA C++ file, with comments at its head.

    Raises SpecError for KIR that no stage should have left (high-level reductions, shared memory
    without addresses, accesses of a width no instruction has), UnsupportedError for a function
    that a dtype does not have.
    """
    return _module((kernel,), target, comments)


def emit_module(kernels: Sequence[Kernel], target: Target) -> str:
    """Several kernels, of different names, as one file with one prelude."""
    return _module(kernels, target, ())


def _module(kernels: Sequence[Kernel], target: Target, comments: Sequence[str]) -> str:
    names = [identifier(k.name) for k in kernels]
    if len(set(names)) != len(names):
        raise UserError(f"kernels of one module need different names, got {', '.join(names)}")
    bodies = [_Emitter(k, target).text(comments) for k in kernels]
    products = tensor.product_functions(kernels)
    bodies = [products, *bodies] if products else bodies
    definitions = prelude("\n".join(bodies))
    return "\n".join((*([definitions] if definitions else []), *bodies))


class _Emitter(Writer):
    """Prints one kernel."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        super().__init__(kernel, target, SPELLINGS)
        self._hardware: dict[Var, str] = {}

    def text(self, comments: Sequence[str]) -> str:
        """The function, with comments, a line each, in front of its first statement."""
        k = self.kernel
        self._check_resources()
        name = self.names.of(k, k.name)
        signature = ", ".join(self._parameter(p) for p in parameters(k))
        self._declare_dimensions()
        self.body(k.body)
        bounds = f"{k.nthreads}, {k.min_blocks}" if k.min_blocks else f"{k.nthreads}"
        dims = [
            f"  const int {self.variables[v].code} = {register};"
            for v, register in self._hardware.items()
            if v in self.used
        ]
        cluster = f"__cluster_dims__({k.cluster_size}, 1, 1) " if k.cluster else ""
        bound = f"{cluster}__launch_bounds__({bounds})"
        head = f'extern "C" __global__ void {bound}\n{name}({signature}) {{'
        said = [f"  // {c}" for c in comments]
        return "\n".join((head, *said, *dims, *self.lines, "}", ""))

    def _check_resources(self) -> None:
        have, need = self.target.shared_nbytes_per_block, shared_nbytes(self.kernel)
        if need > have:
            raise SpecError(
                f"kernel {self.kernel.name} needs {need} bytes of shared memory a block, "
                f"{self.target} has {have}"
            )

    def _parameter(self, p: Parameter) -> str:
        match p.symbol:
            case Buffer():
                const = "" if p.symbol in self.written else "const "
                noalias = dict(self.kernel.attributes).get("noalias") == "true"
                changes = p.symbol in self.kernel.awaited  # while the kernel runs
                restrict = " __restrict__" if noalias and not changes else ""
                return f"{const}{p.ctype}{restrict} {self.names.of(p.symbol, p.symbol.name)}"
            case ir.TensorMap():
                name = tensor.map_name(self, p.symbol)
                return f"const __grid_constant__ {p.ctype} {name}"
            case ir.Argument():
                return f"{p.ctype} {self.names.of(p.symbol, p.symbol.name)}"
            case Var():
                self.bind(p.symbol, wide=p.nbytes == 8)
                return f"{p.ctype} {self.variables[p.symbol].code}"

    def _declare_dimensions(self) -> None:
        for source, dims in (("blockIdx", self.kernel.grid), ("threadIdx", self.kernel.block)):
            for axis, d in zip(_AXES, dims, strict=False):
                self.bind(d.var, wide=False)
                self._hardware[d.var] = f"{source}.{axis}"
        for d in self.kernel.cluster:
            size, first = self.kernel.cluster_size, self.kernel.grid[0].var
            self.bind(d.var, wide=False)
            self._hardware[d.var] = f"blockIdx.x % {size}u"
            self._hardware[first] = f"blockIdx.x / {size}u"


# --- structure ------------------------------------------------------------------------------


def _alloc(w: Writer, s: ir.Alloc) -> None:
    ctype, name = scalars.ctype(s.buffer.dtype), w.name(s.buffer)
    match s.buffer.memory:
        case Memory.LOCAL if s.buffer in w.in_words:
            w.line(f"unsigned {name}[{words.word_count(s.buffer)}];")
        case Memory.LOCAL if s.buffer in w.uncut:
            w.line(f"fw_uncut<{constant_size(s.buffer)}, {ctype}> {name};")
        case Memory.LOCAL:
            size = constant_size(s.buffer)
            w.line(f"{ctype} {name};" if size == 1 else f"{ctype} {name}[{size}];")
        case Memory.SHARED:
            base = f"fw_shared + {shared_offset(s)}"
            w.line(f"{ctype}* const {name} = reinterpret_cast<{ctype}*>({base});")
            tensor.allocated(w, s.buffer)
        case Memory.GLOBAL:
            raise SpecError(f"global buffer {s.buffer} is allocated in a kernel")
    w.in_scope[s.buffer] = None


def _for(w: Writer, s: ir.For) -> None:
    extent = w.index(s.extent)
    wide = not exprs.fits_int(s.extent)
    var = w.bind(s.var, wide=wide).code
    if s.unroll:
        w.unrolled.add(s.var)
    if s.unroll or s.overlap:
        w.line("#pragma unroll" if s.unroll else f"#pragma unroll {s.overlap}")
    ctype = "long long" if wide else "int"
    head = f"for ({ctype} {var} = 0; {var} < {extent.operand}; ++{var})"
    w.block(head, lambda: w.body(s.body))
    del w.variables[s.var]


def _if(w: Writer, s: ir.If) -> None:
    w.block(f"if ({w.condition(s.condition)})", lambda: w.body(s.then))
    if s.otherwise:
        w.lines.pop()
        w.block("} else", lambda: w.body(s.otherwise))


def _roles(w: Writer, s: ir.Roles) -> None:
    thread = w.thread()
    for role in s.body:
        if not isinstance(role, ir.Role):
            raise SpecError(f"{type(role).__name__} stands directly in roles; only roles may")
        first, stop = role.first * WARP_SIZE, role.stop * WARP_SIZE
        mine = all_of((less_equal(first, thread), less(thread, stop)))
        w.guarded(mine, lambda role=role: _role(w, role))


def _role(w: Writer, role: ir.Role) -> None:
    """What a role does. An elected lane of the warp of its issuer stands for that thread: of that
    lane the compiler knows that it is alone, so that what it issues takes no loop over lanes (PTX
    ISA, "elect.sync")."""
    issuer, w.role = role.issuer, role
    if issuer is not None:
        name = w.names.of(role, "leads")
        warp = w.condition(equal(floordiv(w.thread(), WARP_SIZE), issuer // WARP_SIZE))
        w.line(f"const bool {name} = fw_elected() && {warp};")
        w.leading[issuer] = name
    w.body(role.body)
    w.role = None
    w.leading.clear()


# --- computation ----------------------------------------------------------------------------


def _operand(w: Writer, o: ir.Operand) -> tuple[str, DType]:
    match o:
        case Reg():
            return w.value(o), o.buffer.dtype
        case ir.Imm():
            return scalars.literal(o.value, o.dtype), o.dtype
        case ir.Index():
            text = w.index(o.expr)
            source = dtype_of("int64" if text.wide else "int32")
            value = scalars.convert(text.code, source, o.dtype)
            return f"({scalars.widen(value, o.dtype)})", o.dtype
        case ir.Arg():
            name = w.names.of(o.argument, o.argument.name)
            return scalars.widen(name, o.argument.dtype), o.argument.dtype


def _compute(w: Writer, s: ir.Compute) -> None:
    function = FUNCTIONS.get(s.fn)
    if function is None or function.arity != len(s.operands):
        raise SpecError(f"{s.fn} of {len(s.operands)} operands is not in core.functions")
    w.guarded(s.predicate, lambda: w.line(f"{w.register(s.dst)} = {_value(w, s)};"))


def _check_index(w: Writer, s: ir.CheckIndex) -> None:
    place = '"' + " ".join(s.why.split()).replace("\\", "/").replace('"', "'") + '"'
    inside, index = w.register(s.inside), w.register(s.index)
    call = f"fw_index_outside({place}, {index}, {s.axis}, {w.integer(s.extent)});"
    if s.merged:
        call = f'fw_index_outside({place}, "{merged_text(s.merged)}");'
    w.guarded(s.predicate, lambda: w.line(f"if (!{inside}) {call}"))


def _value(w: Writer, s: ir.Compute) -> str:
    target = s.dst.buffer.dtype
    operands = [_operand(w, o) for o in s.operands]
    dtype = operands[1 if s.fn == "where" else 0][1]
    first = s.operands[0]
    if s.fn in ("cast", "copy") and dtype is target and isinstance(first, Reg):
        return w.register(first)
    if s.fn == "bitcast":
        return scalars.bitcast(operands[0][0], dtype, target)
    texts = tuple(t for t, _ in operands)
    known = s.operands[1] if len(texts) == 2 else None
    by = scalars.divided(s.fn, texts[0], known.value, dtype) if isinstance(known, ir.Imm) else None
    text = scalars.apply(s.fn, texts, dtype) if by is None else by
    result = _result_dtype(s.fn, dtype)
    if result is not target and result.is_integer and result.nbytes < 4:
        text = f"({scalars.ctype(result)})({text})"
    return scalars.convert(tensor.finished(w, text, result, target), result, target)


def _shuffle(w: Writer, s: ir.Shuffle) -> None:
    source, target = s.src.buffer.dtype, s.dst.buffer.dtype
    mode = _SHUFFLES.get(s.mode)
    if mode is None:
        raise SpecError(f"shuffle mode {s.mode!r}; use one of {', '.join(_SHUFFLES)}")
    value = w.register(s.src)
    if source.nbytes < 4:
        value = f"(unsigned){value}"
    name = f"__shfl_{mode}_sync" if mode else "__shfl_sync"
    lane = w.integer(s.operand)
    text = f"{name}(0xffffffffu, {value}, {lane}, {s.width})"
    if source.nbytes < 4:
        text = f"({scalars.ctype(source)}){text}"
    w.line(f"{w.register(s.dst)} = {converted(text, source, target)};")


def _result_dtype(fn: str, dtype: DType) -> DType:
    result = FUNCTIONS[fn].result
    return dtype.compute if result == "same" else dtype_of(result)


SPELLINGS: Spellings = {
    ir.Alloc: _alloc,
    ir.For: _for,
    ir.If: _if,
    ir.Roles: _roles,
    ir.Compute: _compute,
    ir.CheckIndex: _check_index,
    ir.Shuffle: _shuffle,
    ir.Load: movement.load,
    ir.Store: movement.store,
    **asynchronous.SPELLINGS,
    **semaphores.SPELLINGS,
    **tensor.SPELLINGS,
}
"""By class of statement."""
