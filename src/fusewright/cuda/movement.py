"""Loads and stores as CUDA C++."""

from __future__ import annotations

from fusewright.core.conditions import TRUE, Truth
from fusewright.cuda import scalars, words
from fusewright.cuda.exprs import IntegerText
from fusewright.cuda.scalars import converted
from fusewright.cuda.tensor import finished
from fusewright.cuda.writer import Writer
from fusewright.dtypes import DType
from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.ir import WHOLE
from fusewright.memory import READ_ONLY, Cache, Memory
from fusewright.target import MAX_VECTOR_NBYTES

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


def load(w: Writer, s: ir.Load) -> None:
    """A load into registers, from global or shared memory."""
    if s.cache in READ_ONLY and s.src in w.written:
        raise SpecError(
            f"{s.src} is read with policy {s.cache.value}, which is for memory that the "
            "kernel does not write; use Cache.DEFAULT"
        )
    if not s.lanes.all_exist:
        _loaded(w, s)
        return
    if _has_no_branch(s):
        _loaded_where(w, s)
        return
    w.guarded(s.predicate, lambda: _loaded(w, s))
    if s.fill is not None and not (isinstance(s.predicate, Truth) and s.predicate.value):
        w.lines.pop()
        w.block("} else", lambda: _filled(w, s))


def _has_no_branch(s: ir.Load) -> bool:
    """Whether a load under a condition is predicated instructions: elements of global memory as
    they are, and a literal where the condition does not hold. A compiler threads the branches of
    several such loads through each other; the threads of a warp part, and each load is waited for
    alone."""
    return (
        s.predicate != TRUE
        and s.fill is not None
        and s.src.memory is Memory.GLOBAL
        and s.src.dtype is s.dst.buffer.dtype
    )


def _loaded_where(w: Writer, s: ir.Load) -> None:
    """A load under a condition, and what its registers hold where that does not hold."""
    assert s.fill is not None
    buffer, ctype = s.dst.buffer, scalars.ctype(s.src.dtype)
    fill = scalars.stored_literal(s.fill.value, s.fill.dtype, buffer.dtype)
    vector, count = f"fw_vec<{ctype}, {s.width}>", s.width
    otherwise = f"{vector}{{{{{', '.join([fill] * count)}}}}}"
    access = f"{_where(w, s)}, {w.every(s.predicate)}, {otherwise})"
    if buffer in w.uncut:
        w.line(f"{w.name(buffer)} = {access};")
        return
    access = f"fw_elements({access})" if s.lanes.is_cut else access
    if buffer in w.in_words:
        filled = words.words_of(s)
        targets = [f"{w.name(buffer)}[{k}]" for k in filled]
        vector, access = f"fw_vec<unsigned, {len(filled)}>", f"fw_as_words({access})"
    else:
        targets = [w.register(s.dst, k) for k in range(count)]
    word = w.names.of(s, f"{s.src.name}_word")
    w.line(f"const {vector} {word} = {access};")
    for k, target in enumerate(targets):
        w.line(f"{target} = {word}.at[{k}];")


def _where(w: Writer, s: ir.Load) -> str:
    """The function of a load under a condition, and where it reads."""
    base = w.name(s.src)
    if not s.lanes.is_cut and s.dst.buffer not in w.uncut:
        return f"{_LOADS[s.cache]}_where<{s.width}>({w.address(s.src, s.index)}"
    if s.src.alignment % (s.width * s.src.dtype.nbytes):
        return f"fw_load_anywhere_where<{s.width}>({base}, {w.integer(s.index)}"
    begins = -1 if s.lanes.begins is None else s.lanes.begins
    return f"fw_load_unaligned_where<{s.width}, {begins}>({base}, {w.integer(s.index)}"


def _loaded_words(w: Writer, s: ir.Load) -> None:
    word, filled = w.names.of(s, f"{s.src.name}_word"), words.words_of(s)
    address = f"reinterpret_cast<const unsigned*>({w.address(s.src, s.index)})"
    value = f"{_LOADS[s.cache]}<{len(filled)}>({address})"
    if s.lanes != WHOLE:
        value = f"fw_words_of({_span(w, s)})" if _is_span(s) else f"fw_as_words({_wide(w, s)})"
    w.line(f"const {_several(s)}<unsigned, {len(filled)}> {word} = {value};")
    for k, n in enumerate(filled):
        w.line(f"{w.name(s.dst.buffer)}[{n}] = {word}.at[{k}];")


def _loaded(w: Writer, s: ir.Load) -> None:
    if s.dst.buffer in w.uncut:
        w.line(f"{w.name(s.dst.buffer)} = {_cut(w, s)};")
        return
    if s.dst.buffer in w.in_words:
        _loaded_words(w, s)
        return
    source, target = s.src.dtype, s.dst.buffer.dtype
    if s.width == 1 and s.cache is Cache.DEFAULT:
        element = f"{w.name(s.src)}[{_place(w, s).code}]"
        w.line(f"{w.register(s.dst)} = {converted(element, source, target)};")
        return
    access = _wide(w, s)
    if s.width == 1:
        element = converted(f"{access}.at[0]", source, target)
        w.line(f"{w.register(s.dst)} = {element};")
        return
    word = w.names.of(s, f"{s.src.name}_word")
    w.line(f"const {_several(s)}<{scalars.ctype(source)}, {s.width}> {word} = {access};")
    for k in range(s.width):
        element = converted(f"{word}.at[{k}]", source, target)
        w.line(f"{w.register(s.dst, k)} = {element};")


def _wide(w: Writer, s: ir.Load) -> str:
    """The elements of a load as a `fw_vec`; where none of its lanes exists, those at 0."""
    if _is_span(s):
        return f"fw_elements_of({_span(w, s)})"
    if s.lanes.is_cut:
        return f"fw_elements({_cut(w, s)})"
    load = f"{_LOADS[s.cache]}<{s.width}>"
    if s.lanes.all_exist:
        return f"{load}({w.address(s.src, s.index)})"
    return f"{load}({w.name(s.src)} + {_place(w, s).operand})"


def _cut(w: Writer, s: ir.Load) -> str:
    """The two words of a load that begins anywhere, as a `fw_uncut`."""
    base, begins = w.name(s.src), -1 if s.lanes.begins is None else s.lanes.begins
    is_aligned = s.src.alignment % (s.width * s.src.dtype.nbytes) == 0
    if s.lanes.all_exist:
        name = f"unaligned<{s.width}, {begins}>" if is_aligned else f"anywhere<{s.width}>"
        return f"fw_load_{name}({base}, {w.integer(s.index)})"
    name = f"within<{s.width}, {begins}>" if is_aligned else f"anywhere_within<{s.width}>"
    return f"fw_load_{name}({base}, {_place(w, s).operand}, {w.integer(s.src.size)})"


def _is_span(s: ir.Load) -> bool:
    """Whether a load brings more than a word."""
    return s.width * s.src.dtype.nbytes > MAX_VECTOR_NBYTES


def _several(s: ir.Load) -> str:
    """The template of the elements that a load brings."""
    return "fw_run" if _is_span(s) else "fw_vec"


def _span(w: Writer, s: ir.Load) -> str:
    """The three words that hold more than one, as a `fw_span`."""
    base = w.name(s.src)
    name = "span" if s.src.alignment % MAX_VECTOR_NBYTES == 0 else "span_anywhere"
    if s.lanes.all_exist:
        return f"fw_load_{name}<{s.width}>({base}, {w.integer(s.index)})"
    size = w.integer(s.src.size)
    return f"fw_load_{name}_within<{s.width}>({base}, {_place(w, s).operand}, {size})"


def _place(w: Writer, s: ir.Load) -> IntegerText:
    """Where a load begins; as early as possible where none of its lanes exists, unless that is
    in shared memory and stays in its buffer anyway."""
    index = w.index(s.index)
    if s.lanes.all_exist or s.predicate == TRUE or s.lanes.inside:
        return index
    start = s.lanes.begins or 0
    code = f"({w.condition(s.predicate)} ? {index.operand} : {start})"
    return IntegerText(code, index.wide, atomic=True)


def _filled(w: Writer, s: ir.Load) -> None:
    assert s.fill is not None
    if s.dst.buffer in w.in_words:
        for k in words.words_of(s):
            word = words.fill_word(s.fill, s.dst.buffer)
            w.line(f"{w.name(s.dst.buffer)}[{k}] = {word};")
        return
    text = scalars.stored_literal(s.fill.value, s.fill.dtype, s.dst.buffer.dtype)
    for k in range(s.width):
        w.line(f"{w.register(s.dst, k)} = {text};")


def store(w: Writer, s: ir.Store) -> None:
    """A store of registers to global or shared memory."""
    if w.products and s.predicate != TRUE:
        _stored_late(w, s)
    else:
        w.guarded(s.predicate, lambda: _stored(w, s))


def _stored_late(w: Writer, s: ir.Store) -> None:
    """A store whose value is computed in front of its branch. ptxas does work of a branch early,
    even before the wait for the products that it reads; within one block of code it does not."""
    value, address, count = _vector(w, s)
    name = w.names.of(s, f"{s.dst.name}_value")
    w.line(f"const auto {name} = fw_computed({value});")
    w.guarded(s.predicate, lambda: w.line(f"{_STORES[s.cache]}<{count}>({address}, {name});"))


def _stored(w: Writer, s: ir.Store) -> None:
    source, target = s.src.buffer.dtype, s.dst.dtype
    if s.width == 1 and s.cache is Cache.DEFAULT:
        element = converted(finished(w, w.register(s.src), source, target), source, target)
        w.line(f"{w.name(s.dst)}[{w.integer(s.index)}] = {element};")
        return
    value, address, count = _vector(w, s)
    w.line(f"{_STORES[s.cache]}<{count}>({address}, {value});")


def _vector(w: Writer, s: ir.Store) -> tuple[str, str, int]:
    """What a store writes as a `fw_vec`, where, and how many elements that are."""
    source, target = s.src.buffer.dtype, s.dst.dtype
    registers = [w.register(s.src, k) for k in range(s.width)]
    ctype, address, count = scalars.ctype(target), w.address(s.dst, s.index), s.width
    pairs = _packed(registers, source, target)
    if pairs is not None:
        ctype, elements, count = f"unsigned{' short' * (target.nbytes == 1)}", pairs, len(pairs)
        address = f"reinterpret_cast<{ctype}*>({address})"
    else:
        alone = [finished(w, r, source, target) for r in registers]
        elements = [converted(r, source, target) for r in alone]
    return f"fw_vec<{ctype}, {count}>{{{{{', '.join(elements)}}}}}", address, count


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
