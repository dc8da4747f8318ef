"""KIR to CUDA C++: one statement a line, nothing decided here.

The text is self-contained (no headers). Every sync is inline PTX that carries its id in a comment
inside the assembly, so that it can be found again in the PTX.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fusewright.core import expr as ex
from fusewright.core.conditions import TRUE, Cond, Truth, all_of, equal, less, less_equal
from fusewright.core.expr import Expr, Var
from fusewright.core.functions import FUNCTIONS
from fusewright.cuda import exprs, places, ptx, scalars, words
from fusewright.cuda.exprs import Text
from fusewright.cuda.names import Names, identifier
from fusewright.cuda.parameters import (
    Parameter as Parameter,
    constant_size,
    parameters as parameters,
    shared_nbytes as shared_nbytes,
    shared_offset,
)
from fusewright.cuda.pieces import prelude
from fusewright.cuda.tensor import TensorStatements, product_functions
from fusewright.dtypes import DType, dtype_of
from fusewright.errors import SpecError, UnsupportedError, UserError
from fusewright.kir import ir
from fusewright.kir.analysis.uses import written_buffers
from fusewright.kir.ir import Buffer, Kernel, Reg, RegVar, Statement
from fusewright.memory import Cache, Memory
from fusewright.target import MAX_VECTOR_NBYTES, WARP_SIZE, Target

_AXES = "xyz"

_LOADS = {
    Cache.DEFAULT: "fw_load",
    Cache.STREAMING: "fw_load_cs",
    Cache.LAST_USE: "fw_load_lu",
    Cache.NON_COHERENT: "fw_load_nc",
    Cache.NO_ALLOCATE: "fw_load_na",
    Cache.KEEP: "fw_load_keep",
}
_STORES = {
    Cache.DEFAULT: "fw_store",
    Cache.STREAMING: "fw_store_cs",
    Cache.NO_ALLOCATE: "fw_store_na",
    Cache.KEEP: "fw_store_keep",
}
_READ_ONLY_POLICIES = (Cache.NON_COHERENT, Cache.NO_ALLOCATE)

_SHUFFLES = {"xor": "xor", "down": "down", "up": "up", "index": ""}


def sync_ids_in_ptx(text: str) -> set[int]:
    """The ids of the syncs that reached the PTX."""
    return {int(n) for n in re.findall(r"// fw-sync (\d+)", text)}


def emit(kernel: Kernel, target: Target) -> str:
    """The kernel as one self-contained CUDA C++ file.

    Raises SpecError for KIR that no stage should have left (high-level reductions, shared memory
    without addresses, accesses of a width no instruction has), UnsupportedError for a function
    that a dtype does not have.
    """
    return emit_module((kernel,), target)


def emit_module(kernels: Sequence[Kernel], target: Target) -> str:
    """Several kernels, of different names, as one file with one prelude."""
    names = [identifier(k.name) for k in kernels]
    if len(set(names)) != len(names):
        raise UserError(f"kernels of one module need different names, got {', '.join(names)}")
    bodies = [_Emitter(k, target).text() for k in kernels]
    products = product_functions(kernels)
    bodies = [products, *bodies] if products else bodies
    definitions = prelude("\n".join(bodies))
    return "\n".join((*([definitions] if definitions else []), *bodies))


def check_target(s: Statement, target: Target) -> None:
    """Raise UnsupportedError when the target has no such instruction."""
    feature = s.feature()
    if feature is not None and not target.has(feature):
        raise UnsupportedError(
            f"{type(s).__name__} needs compute capability {feature.since}, which {target} does not "
            "have; copy with loads and stores, and use other barriers"
        )


def _comment(text: str) -> str:
    return " ".join(text.split()).rstrip("\\")


class _Emitter(TensorStatements):
    """Prints one kernel; holds what is in scope and the lines so far."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        super().__init__(kernel)
        self._kernel = kernel
        self._target = target
        self._names = Names()
        self._in_words = words.kept_in_words(kernel)
        self._vars: dict[Var, Text] = {}
        self._hardware: dict[Var, str] = {}
        self._used: set[Var] = set()
        self._lines: list[str] = []
        self._depth = 1
        self._written = frozenset(written_buffers(kernel))
        self._statements: dict[type[Statement], Callable[[Any], None]] = {
            ir.Alloc: self._alloc,
            ir.For: self._for,
            ir.If: self._if,
            ir.Load: self._load,
            ir.Store: self._store,
            ir.RemoteStore: self._remote_store,
            ir.Compute: self._compute,
            ir.Shuffle: self._shuffle,
            ir.Roles: self._roles,
            ir.CpAsync: self._cp_async,
            **dict.fromkeys((ir.BulkLoad, ir.BulkStore, ir.BulkReduce), self._bulk),
            **self.tensor_statements,
        }

    # --- the kernel

    def text(self) -> str:
        k = self._kernel
        self._check_resources()
        name = self._names.of(k, k.name)
        signature = ", ".join(self._parameter(p) for p in parameters(k))
        self._declare_dimensions()
        self._body(k.body)
        bounds = f"{k.nthreads}, {k.min_blocks}" if k.min_blocks else f"{k.nthreads}"
        dims = [
            f"  const int {self._vars[v].code} = {register};"
            for v, register in self._hardware.items()
            if v in self._used
        ]
        cluster = f"__cluster_dims__({k.cluster_size}, 1, 1) " if k.cluster else ""
        bound = f"{cluster}__launch_bounds__({bounds})"
        head = f'extern "C" __global__ void {bound}\n{name}({signature}) {{'
        return "\n".join((head, *dims, *self._lines, "}", ""))

    def _check_resources(self) -> None:
        have, need = self._target.shared_nbytes_per_block, shared_nbytes(self._kernel)
        if need > have:
            raise SpecError(
                f"kernel {self._kernel.name} needs {need} bytes of shared memory a block, "
                f"{self._target} has {have}"
            )

    def _parameter(self, p: Parameter) -> str:
        match p.symbol:
            case Buffer():
                const = "" if p.symbol in self._written else "const "
                noalias = dict(self._kernel.attributes).get("noalias") == "true"
                restrict = " __restrict__" if noalias else ""
                return f"{const}{p.ctype}{restrict} {self._names.of(p.symbol, p.symbol.name)}"
            case ir.TensorMap():
                return f"const __grid_constant__ {p.ctype} {self._map_name(p.symbol)}"
            case ir.Argument():
                return f"{p.ctype} {self._names.of(p.symbol, p.symbol.name)}"
            case Var():
                self._bind(p.symbol, wide=p.nbytes == 8)
                return f"{p.ctype} {self._vars[p.symbol].code}"

    def _declare_dimensions(self) -> None:
        for source, dims in (("blockIdx", self._kernel.grid), ("threadIdx", self._kernel.block)):
            for axis, d in zip(_AXES, dims, strict=False):
                self._bind(d.var, wide=False)
                self._hardware[d.var] = f"{source}.{axis}"
        for d in self._kernel.cluster:
            size, first = self._kernel.cluster_size, self._kernel.grid[0].var
            self._bind(d.var, wide=False)
            self._hardware[d.var] = f"blockIdx.x % {size}u"
            self._hardware[first] = f"blockIdx.x / {size}u"

    # --- lines and expressions

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)

    def _block(self, head: str, body: Callable[[], None]) -> None:
        self._line(f"{head}{{" if not head else f"{head} {{")
        self._depth += 1
        live = len(self._live)
        body()
        del self._live[live:]
        self._depth -= 1
        self._line("}")

    def _bind(self, var: Var, *, wide: bool) -> Text:
        self._vars[var] = Text(self._names.of(var, var.name), wide, atomic=True)
        return self._vars[var]

    def _spell(self, var: Var) -> Text:
        if isinstance(var, RegVar):
            return self._register_index(var)
        text = self._vars.get(var)
        if text is None:
            raise SpecError(f"kernel {self._kernel.name} uses {var} where it is not defined")
        self._used.add(var)
        return text

    def _register_index(self, var: RegVar) -> Text:
        dtype, code = var.reg.buffer.dtype, self._reg(var.reg)
        if not dtype.is_integer:
            raise SpecError(f"register {var} of {dtype} stands in an index; only integers may")
        if dtype.nbytes < 4 or dtype.name == "int32":
            return Text(code, wide=False, atomic=True)
        if exprs.fits_int(var):
            return Text(f"(int){code}", wide=False)
        return Text(code if dtype.name == "int64" else f"(long long){code}", wide=True)

    def _integer(self, e: Expr) -> str:
        return exprs.integer(e, self._spell).code

    def _condition(self, c: Cond) -> str:
        return exprs.condition(c, self._spell)

    def _reg(self, reg: Reg, offset: int = 0) -> str:
        buffer = reg.buffer
        if buffer.memory is not Memory.LOCAL:
            raise SpecError(f"{buffer} lives in {buffer.memory.value} memory, not in registers")
        name = self._name(buffer)
        if buffer in self._in_words:
            return words.element(name, reg, ex.add(reg.index, offset))
        if constant_size(buffer) == 1:
            return name
        return f"{name}[{self._integer(ex.add(reg.index, offset))}]"

    def _map_name(self, m: ir.TensorMap) -> str:
        return self._names.of(m, m.name)

    def _fresh_name(self, symbol: object, wish: str) -> str:
        return self._names.of(symbol, wish)

    def _name(self, buffer: Buffer) -> str:
        return self._names.of(buffer, buffer.name)

    def _address(self, buffer: Buffer, index: Expr) -> str:
        if isinstance(index, ex.Int) and index.value == 0:
            return self._name(buffer)
        return f"{self._name(buffer)} + {exprs.integer(index, self._spell).operand}"

    def _guarded(self, predicate: Cond, body: Callable[[], None]) -> None:
        if isinstance(predicate, Truth) and predicate.value:
            body()
        else:
            self._block(f"if ({self._condition(predicate)})", body)

    # --- structure

    def _body(self, body: Iterable[Statement]) -> None:
        for s in body:
            check_target(s, self._target)
            if isinstance(s, ir.SyncStatement):
                self._sync(s)
                continue
            write = self._statements.get(type(s))
            if write is None:
                raise SpecError(
                    f"{type(s).__name__} has no CUDA spelling; an earlier pass must expand it"
                )
            write(s)

    def _alloc(self, s: ir.Alloc) -> None:
        ctype, name = scalars.ctype(s.buffer.dtype), self._name(s.buffer)
        match s.buffer.memory:
            case Memory.LOCAL if s.buffer in self._in_words:
                self._line(f"unsigned {name}[{words.word_count(s.buffer)}];")
            case Memory.LOCAL:
                size = constant_size(s.buffer)
                self._line(f"{ctype} {name};" if size == 1 else f"{ctype} {name}[{size}];")
            case Memory.SHARED:
                base = f"fw_shared + {shared_offset(s)}"
                self._line(f"{ctype}* const {name} = reinterpret_cast<{ctype}*>({base});")
            case Memory.GLOBAL:
                raise SpecError(f"global buffer {s.buffer} is allocated in a kernel")
        self._allocated(s.buffer)

    def _for(self, s: ir.For) -> None:
        extent = exprs.integer(s.extent, self._spell)
        wide = not exprs.fits_int(s.extent)
        var = self._bind(s.var, wide=wide).code
        if s.unroll or s.overlap:
            self._line("#pragma unroll" if s.unroll else f"#pragma unroll {s.overlap}")
        ctype = "long long" if wide else "int"
        head = f"for ({ctype} {var} = 0; {var} < {extent.operand}; ++{var})"
        self._block(head, lambda: self._body(s.body))
        del self._vars[s.var]

    def _if(self, s: ir.If) -> None:
        self._block(f"if ({self._condition(s.condition)})", lambda: self._body(s.then))
        if s.otherwise:
            self._lines.pop()
            self._block("} else", lambda: self._body(s.otherwise))

    def _roles(self, s: ir.Roles) -> None:
        thread = self._thread()
        for role in s.body:
            if not isinstance(role, ir.Role):
                raise SpecError(f"{type(role).__name__} stands directly in roles; only roles may")
            first, stop = role.first * WARP_SIZE, role.stop * WARP_SIZE
            mine = all_of((less_equal(first, thread), less(thread, stop)))
            self._guarded(mine, lambda body=role.body: self._body(body))

    def _thread(self) -> Expr:
        """The linear number of the thread in its block."""
        linear: Expr = ex.ZERO
        for d in reversed(self._kernel.block):
            linear = linear * d.extent + (ex.ZERO if d.extent == ex.ONE else d.var)
        return linear

    def _by(self, issuer: int | None) -> Cond:
        return TRUE if issuer is None else equal(self._thread(), issuer)

    # --- synchronisation

    def _sync(self, s: ir.SyncStatement) -> None:
        instruction = ptx.sync_instruction(s, in_cluster=bool(self._kernel.cluster))
        if instruction is None:
            raise SpecError(f"{type(s).__name__} has no CUDA spelling")
        operands: list[ptx.Operand] = []
        who: Cond = TRUE
        match s:
            case ir.MbarArrive():
                operands = [ptx.shared(self._address(s.barrier, s.slot))]
                who = equal(self._thread() % WARP_SIZE, 0) if s.per_warp else TRUE
            case ir.MbarWait():
                parity = ptx.number(self._integer(s.parity))
                operands = [ptx.shared(self._address(s.barrier, s.slot)), parity]
                who = self._by(s.issuer)
            case ir.MbarInit() | ir.MbarExpect() | ir.MbarInvalidate():
                operands = [ptx.shared(self._address(s.barrier, s.slot))]
                who = self._by(s.issuer)
            case _:
                pass
        why = f"  // {_comment(s.why)}" if s.why else ""
        text = ptx.assembly(instruction, operands, s)
        if isinstance(s, ir.MmaFence):
            self._keep_accumulators()
        self._guarded(who, lambda: self._line(f"{text}{why}"))
        if isinstance(s, ir.AsyncWait) and s.kind is ir.AsyncKind.MMA:
            self._keep_accumulators()

    # --- asynchronous copies

    def _cp_async(self, s: ir.CpAsync) -> None:
        nbytes = s.width * s.dst.dtype.nbytes
        operands = [
            ptx.shared(self._address(s.dst, s.index)),
            ptx.in_global(self._address(s.src, s.src_index)),
        ]
        predicate, counts = s.predicate, s.zero_fill and s.predicate != TRUE
        if counts:
            operands.append(ptx.number(f"({self._condition(predicate)}) ? {nbytes} : 0"))
            predicate = TRUE
        bypass = s.cache is Cache.NO_ALLOCATE
        text = ptx.assembly(ptx.copy_instruction(nbytes, bypass=bypass, counts=counts), operands)
        self._guarded(predicate, lambda: self._line(text))

    def _bulk(self, s: ir.BulkLoad | ir.BulkStore | ir.BulkReduce) -> None:
        to, source = self._address(s.dst, s.index), self._address(s.src, s.src_index)
        operands = [ptx.in_global(to), ptx.shared(source)]
        if isinstance(s, ir.BulkLoad):
            barrier = ptx.shared(self._address(s.barrier, s.slot))
            operands = [ptx.shared(to), ptx.in_global(source), barrier]
        text = ptx.assembly(ptx.bulk_instruction(s), operands)
        self._guarded(self._by(s.issuer), lambda: self._line(text))

    # --- data movement

    def _load(self, s: ir.Load) -> None:
        self._check_access(s.src, s.width, s.cache, _LOADS)
        if s.cache in _READ_ONLY_POLICIES and s.src in self._written:
            raise SpecError(
                f"{s.src} is read with policy {s.cache.value}, which is for memory that the "
                "kernel does not write; use Cache.DEFAULT"
            )
        if s.first is not None:
            self._loaded(s)
            return
        self._guarded(s.predicate, lambda: self._loaded(s))
        if s.fill is not None and not (isinstance(s.predicate, Truth) and s.predicate.value):
            self._lines.pop()
            self._block("} else", lambda: self._filled(s))

    def _loaded_words(self, s: ir.Load) -> None:
        word, filled = self._names.of(s, f"{s.src.name}_word"), words.words_of(s)
        address = f"reinterpret_cast<const unsigned*>({self._address(s.src, s.index)})"
        value = f"{_LOADS[s.cache]}<{len(filled)}>({address})"
        if s.unaligned or s.first is not None:
            value = f"fw_as_words({self._wide(s)})"
        self._line(f"const fw_vec<unsigned, {len(filled)}> {word} = {value};")
        for k, n in enumerate(filled):
            self._line(f"{self._name(s.dst.buffer)}[{n}] = {word}.at[{k}];")

    def _loaded(self, s: ir.Load) -> None:
        if s.dst.buffer in self._in_words:
            self._loaded_words(s)
            return
        source, target = s.src.dtype, s.dst.buffer.dtype
        if s.width == 1 and s.cache is Cache.DEFAULT:
            element = f"{self._name(s.src)}[{self._place(s).code}]"
            self._line(f"{self._reg(s.dst)} = {_converted(element, source, target)};")
            return
        access = self._wide(s)
        if s.width == 1:
            element = _converted(f"{access}.at[0]", source, target)
            self._line(f"{self._reg(s.dst)} = {element};")
            return
        word = self._names.of(s, f"{s.src.name}_word")
        self._line(f"const fw_vec<{scalars.ctype(source)}, {s.width}> {word} = {access};")
        for k in range(s.width):
            element = _converted(f"{word}.at[{k}]", source, target)
            self._line(f"{self._reg(s.dst, k)} = {element};")

    def _wide(self, s: ir.Load) -> str:
        """The elements of a load as a `fw_vec`; where none of its lanes exists, those at 0."""
        base, load = self._name(s.src), f"{_LOADS[s.cache]}<{s.width}>"
        if s.unaligned:
            cut = f"<{s.width}, {places.early_in_word(s)}>"
            if s.first is None:
                return f"fw_load_unaligned{cut}({base}, {self._integer(s.index)})"
            size = self._integer(s.src.size)
            return f"fw_load_within{cut}({base}, {self._place(s).operand}, {size})"
        if s.first is None:
            return f"{load}({self._address(s.src, s.index)})"
        return f"{load}({base} + {self._place(s).operand})"

    def _place(self, s: ir.Load) -> Text:
        """Where a load begins; as early as possible where none of its lanes exists, unless that is
        in shared memory and stays in its buffer anyway."""
        index = exprs.integer(s.index, self._spell)
        if s.first is None or s.predicate == TRUE or places.is_inside(s):
            return index
        start = max(0, places.early_in_word(s)) if s.unaligned else 0
        code = f"({self._condition(s.predicate)} ? {index.operand} : {start})"
        return Text(code, index.wide, atomic=True)

    def _filled(self, s: ir.Load) -> None:
        assert s.fill is not None
        if s.dst.buffer in self._in_words:
            for k in words.words_of(s):
                word = words.fill_word(s.fill, s.dst.buffer)
                self._line(f"{self._name(s.dst.buffer)}[{k}] = {word};")
            return
        value = scalars.literal(s.fill.value, s.fill.dtype)
        text = scalars.convert(value, s.fill.dtype.compute, s.dst.buffer.dtype)
        for k in range(s.width):
            self._line(f"{self._reg(s.dst, k)} = {text};")

    def _store(self, s: ir.Store) -> None:
        self._check_access(s.dst, s.width, s.cache, _STORES)
        self._guarded(s.predicate, lambda: self._stored(s))

    def _stored(self, s: ir.Store) -> None:
        source, target = s.src.buffer.dtype, s.dst.dtype
        ctype, function = scalars.ctype(target), _STORES[s.cache]
        registers = [self._reg(s.src, k) for k in range(s.width)]
        if s.width == 1 and s.cache is Cache.DEFAULT:
            element = _converted(registers[0], source, target)
            self._line(f"{self._name(s.dst)}[{self._integer(s.index)}] = {element};")
            return
        address, count = self._address(s.dst, s.index), s.width
        elements = [_converted(r, source, target) for r in registers]
        pairs = _packed(registers, source, target)
        if pairs is not None:
            ctype, elements, count = f"unsigned{' short' * (target.nbytes == 1)}", pairs, len(pairs)
            address = f"reinterpret_cast<{ctype}*>({address})"
        value = f"fw_vec<{ctype}, {count}>{{{{{', '.join(elements)}}}}}"
        self._line(f"{function}<{count}>({address}, {value});")

    def _remote_store(self, s: ir.RemoteStore) -> None:
        if s.dst.memory is not Memory.SHARED or s.src.buffer.dtype is not s.dst.dtype:
            raise SpecError(f"a remote store writes elements of {s.dst} in shared memory")
        bits = scalars.bits(self._reg(s.src), s.dst.dtype)
        address, rank = self._address(s.dst, s.index), self._integer(s.rank)
        barrier = None if s.barrier is None else self._address(s.barrier, s.slot)
        text = ptx.remote_store(address, rank, bits, s.dst.dtype.nbytes, barrier)
        self._guarded(s.predicate, lambda: self._line(text))

    def _check_access(
        self, buffer: Buffer, width: int, cache: Cache, policies: dict[Cache, str]
    ) -> None:
        nbytes = width * buffer.dtype.nbytes
        if buffer.memory is Memory.LOCAL:
            raise SpecError(f"{buffer} lives in registers; Load and Store move to and from memory")
        if width < 1 or nbytes > MAX_VECTOR_NBYTES or nbytes & (nbytes - 1):
            raise SpecError(
                f"access of {width} x {buffer.dtype} = {nbytes} bytes to {buffer}; one access "
                f"moves a power of two of bytes, at most {MAX_VECTOR_NBYTES}"
            )
        if cache not in policies or (cache is not Cache.DEFAULT and buffer.memory is Memory.SHARED):
            raise SpecError(f"cache policy {cache.value} does not apply to this access to {buffer}")

    # --- computation

    def _operand(self, o: ir.Operand) -> tuple[str, DType]:
        match o:
            case Reg():
                return scalars.widen(self._reg(o), o.buffer.dtype), o.buffer.dtype
            case ir.Imm():
                return scalars.literal(o.value, o.dtype), o.dtype
            case ir.Index():
                text = exprs.integer(o.expr, self._spell)
                source = dtype_of("int64" if text.wide else "int32")
                value = scalars.convert(text.code, source, o.dtype)
                return f"({scalars.widen(value, o.dtype)})", o.dtype
            case ir.Arg():
                name = self._names.of(o.argument, o.argument.name)
                return scalars.widen(name, o.argument.dtype), o.argument.dtype

    def _compute(self, s: ir.Compute) -> None:
        function = FUNCTIONS.get(s.fn)
        if function is None or function.arity != len(s.operands):
            raise SpecError(f"{s.fn} of {len(s.operands)} operands is not in core.functions")
        self._guarded(s.predicate, lambda: self._line(f"{self._reg(s.dst)} = {self._value(s)};"))

    def _value(self, s: ir.Compute) -> str:
        target = s.dst.buffer.dtype
        operands = [self._operand(o) for o in s.operands]
        dtype = operands[1 if s.fn == "where" else 0][1]
        first = s.operands[0]
        if s.fn in ("cast", "copy") and dtype is target and isinstance(first, Reg):
            return self._reg(first)
        text = scalars.apply(s.fn, tuple(t for t, _ in operands), dtype)
        result = _result_dtype(s.fn, dtype)
        if result is not target and result.is_integer and result.nbytes < 4:
            text = f"({scalars.ctype(result)})({text})"
        return scalars.convert(text, result, target)

    def _shuffle(self, s: ir.Shuffle) -> None:
        source, target = s.src.buffer.dtype, s.dst.buffer.dtype
        mode = _SHUFFLES.get(s.mode)
        if mode is None:
            raise SpecError(f"shuffle mode {s.mode!r}; use one of {', '.join(_SHUFFLES)}")
        value = self._reg(s.src)
        if source.nbytes < 4:
            value = f"(unsigned){value}"
        name = f"__shfl_{mode}_sync" if mode else "__shfl_sync"
        lane = self._integer(s.operand)
        text = f"{name}(0xffffffffu, {value}, {lane}, {s.width})"
        if source.nbytes < 4:
            text = f"({scalars.ctype(source)}){text}"
        self._line(f"{self._reg(s.dst)} = {_converted(text, source, target)};")


def _result_dtype(fn: str, dtype: DType) -> DType:
    result = FUNCTIONS[fn].result
    return dtype.compute if result == "same" else dtype_of(result)


def _converted(text: str, source: DType, target: DType) -> str:
    """An element of `source`, as it lies in memory, as one of `target`."""
    if source is target:
        return text
    return scalars.convert(scalars.widen(text, source), source.compute, target)


def _packed(registers: list[str], source: DType, target: DType) -> list[str] | None:
    """Floats narrowed two by two, where one instruction does that."""
    if source is target or source.compute.name != "float32" or len(registers) % 2:
        return None
    wide = [scalars.widen(r, source) for r in registers]
    pairs = [
        scalars.convert_pair(low, high, target)
        for low, high in zip(wide[::2], wide[1::2], strict=True)
    ]
    found = [p for p in pairs if p is not None]
    return found or None
