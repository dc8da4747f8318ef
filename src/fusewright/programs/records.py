"""Kernels and their places as records of text, from which they are read back and checked.

Files of `Program.save` and pickles hold these, and machine code beside them. A kernel is one object
wherever it is copied: copies of what holds it share its machine code.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import ONE, ZERO, Expr, Var, variables
from fusewright.cuda.compile import Compiled
from fusewright.cuda.parameters import shared_nbytes
from fusewright.dtypes import dtype_of
from fusewright.errors import SpecError, UserError
from fusewright.fusion.ir import Tensor, positions
from fusewright.fusion.known import Known
from fusewright.fusion.text import parse_expression
from fusewright.host.assemble import role_of
from fusewright.host.subspans import Moving, Subspan
from fusewright.kernel import Kernel, TensorInfo
from fusewright.kir.analysis.uses import global_reads, global_writes
from fusewright.kir.ir import Kernel as KernelIr
from fusewright.kir.names import with_unique_names
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, parse_later, print_kernel
from fusewright.kir.unread import Border
from fusewright.runtime.archive import pack, unpack
from fusewright.target import Target, target_of

DAMAGE = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, SpecError),
    OverflowError,
)
"""What reading a record raises that is not what was written."""


def constant_record(t: Known) -> dict[str, Any]:
    """What an array that a program holds is; its bytes are a member called after it."""
    return {"name": t.name, "dtype": str(t.dtype), "shape": list(t.data.shape)}


def restored_constant(record: Mapping[str, Any], members: Mapping[str, bytes]) -> Any:
    """The array of a record."""
    content, dtype = members[f"{record['name']}.constant"], dtype_of(record["dtype"])
    return np.frombuffer(content, dtype.numpy).reshape(record["shape"])


def kernel_record(k: Kernel, code: int | None) -> dict[str, Any]:
    """A kernel as text; `code` numbers its machine code among the members, None leaves it out."""
    printed = with_unique_names(k.ir)
    symbols = dict(
        zip((s.name for s in printed.symbols), (s.name for s in k.ir.symbols), strict=True)
    )
    built = k.compiled() if code is not None else None
    return {
        "name": k.name,
        "text": print_kernel(printed),
        "border": {
            "reads": sorted(b.name for b in global_reads(printed)),
            "writes": sorted(b.name for b in global_writes(printed)),
            "shared_nbytes": shared_nbytes(printed),
            "role": role_of(printed),
        },
        "symbols": symbols,
        "values": [number_record(v) for v in k.argument_values],
        "arrays": [_array_record(i) for i in (*k.inputs, *k.outputs)],
        "inputs": len(k.inputs),
        "schedule": k.schedule,
        "code": None if built is None else [f"{code}.cubin", built.ptx, built.log],
    }


def site_record(s: Subspan) -> dict[str, Any]:
    """A site as text: expressions in the shape symbols."""
    return {
        "tensor": s.tensor.name,
        "root": s.root.name,
        "offset": str(s.offset),
        "shape": [str(e) for e in s.shape],
        "strides": [str(e) for e in s.strides],
        "box": [[str(start), str(extent)] for start, extent in s.box],
        "axes": list(s.axes),
        "moving": None if s.moving is None else _moving_record(s.moving),
    }


def _moving_record(m: Moving) -> dict[str, Any]:
    return {
        "places": [site_record(p) for p in m.places],
        "start": [[axis, str(e)] for axis, e in m.start],
    }


def _restored_moving(
    r: dict[str, Any], values: Mapping[str, Tensor], symbols: Mapping[str, Var]
) -> Moving:
    places = tuple(restored_site(p, values, symbols) for p in r["places"])
    known = {**symbols, **{v.name: v for v in positions(len(places))}}
    start = tuple((int(axis), parse_expression(e, known)) for axis, e in r["start"])
    return Moving(places, start)


def restored_site(
    r: dict[str, Any], values: Mapping[str, Tensor], symbols: Mapping[str, Var]
) -> Subspan:
    """The site of a record over these values and symbols."""

    def read(texts: Sequence[str]) -> tuple[Expr, ...]:
        return tuple(parse_expression(t, symbols) for t in texts)

    pairs = [read(pair) for pair in r["box"]]
    return Subspan(
        values[r["tensor"]],
        read(r["shape"]),
        values[r["root"]],
        parse_expression(r["offset"], symbols),
        read(r["strides"]),
        tuple((start, extent) for start, extent in pairs),
        tuple(r["axes"]),
        None if r["moving"] is None else _restored_moving(r["moving"], values, symbols),
    )


def restored_kernel(
    r: dict[str, Any],
    members: Mapping[str, bytes],
    target: Target,
    known: Mapping[str, Var],
    *,
    later: bool = False,
) -> Kernel:
    """The kernel of a record over these symbols; code that the record lacks is made when it is
    asked for, and with `later` statements are read then."""
    symbols = {a: known[b] for a, b in r["symbols"].items()}
    kernel = _read_later(r, symbols) if later else _read_now(r, symbols, target)
    infos = [_restored_array(a, known) for a in r["arrays"]]
    values = tuple(number_of(v) for v in r["values"])
    n = r["inputs"]
    _agree("parameters", [b.dtype for b in kernel.arrays], [i.dtype for i in infos])
    for b, i in zip(kernel.arrays, infos, strict=True):
        _agree(f"the elements of {i.name}", b.size, _span(i))
    _agree("arguments", len(kernel.arguments), len(values))
    made = Kernel(kernel, target, tuple(infos[:n]), tuple(infos[n:]), values, r["schedule"])
    if r["code"] is not None:
        name, ptx, log = r["code"]
        made.adopt(Compiled(members[name], ptx, log, 0.0))
    return made


def _read_now(r: dict[str, Any], symbols: Mapping[str, Var], target: Target) -> KernelIr:
    """The kernel of a text that anybody may have changed: the simulator trusts what the spec has
    seen."""
    kernel = parse_kernel(r["text"], symbols)
    check_kernel(kernel, "final", target=target)
    return kernel


def _read_later(r: dict[str, Any], symbols: Mapping[str, Var]) -> KernelIr:
    b = r["border"]
    reads, writes = frozenset(b["reads"]), frozenset(b["writes"])
    border = Border(reads, writes, int(b["shared_nbytes"]), str(b["role"]))
    return parse_later(r["text"], symbols, border)


def check_launch(
    kernel: Kernel,
    reads: Sequence[Subspan],
    writes: Sequence[Subspan],
    values: Sequence[bool | int | float],
) -> None:
    """Raises ValueError for a launch whose places or values are not what its kernel takes."""
    infos = (*kernel.inputs, *kernel.outputs)
    counts = (len(kernel.inputs), len(kernel.outputs), len(kernel.argument_values))
    _agree(kernel.name, counts, (len(reads), len(writes), len(values)))
    for info, s in zip(infos, (*reads, *writes), strict=True):
        _agree(info.name, (info.shape, info.dtype), (s.shape, s.tensor.dtype))
        _agree(info.name, (s.root.dtype, s.root.ndim), (s.tensor.dtype, len(s.box)))
        _agree(info.name, (len(s.shape), len(s.shape)), (len(s.strides), len(s.axes)))


def _agree(what: str, wanted: object, found: object) -> None:
    if wanted != found:
        raise ValueError(f"{what}: {found} where {wanted} belongs")


def _array_record(i: TensorInfo) -> dict[str, Any]:
    """An array at a kernel's border as text: expressions in the shape symbols."""
    return {
        "name": i.name,
        "dtype": str(i.dtype),
        "shape": [str(e) for e in i.shape],
        "strides": [str(e) for e in i.strides],
    }


def _restored_array(r: dict[str, Any], symbols: Mapping[str, Var]) -> TensorInfo:
    shape = tuple(parse_expression(e, symbols) for e in r["shape"])
    strides = tuple(parse_expression(e, symbols) for e in r["strides"])
    _agree(r["name"], len(shape), len(strides))
    for e in (*shape, *strides):
        if prove(less_equal(ZERO, e)) is False:
            raise ValueError(f"{r['name']}: {e} is no size, and no stride")
    return TensorInfo(r["name"], shape, dtype_of(r["dtype"]), strides)


def _span(i: TensorInfo) -> Expr:
    """Elements from the first to the last of an array in its layout."""
    return sum((stride * (n - 1) for n, stride in zip(i.shape, i.strides, strict=True)), ONE)


def number_record(v: bool | int | float) -> list[str]:
    """A scalar as text that keeps every bit of a number, and its type."""
    return [type(v).__name__, v.hex() if isinstance(v, float) else repr(int(v))]


def number_of(v: list[str]) -> bool | int | float:
    """The scalar of a record."""
    kind, text = v
    match kind:
        case "float":
            return float.fromhex(text)
        case "bool":
            return bool(int(text))
        case _:
            return int(text)


# --- kernels by themselves ----------------------------------------------------------------------


def _sizes(k: Kernel) -> list[list[Any]]:
    """The symbols of a kernel, each with its bounds."""
    extents = (e for i in (*k.inputs, *k.outputs) for e in (*i.shape, *i.strides))
    found = {s.name: s for s in (*(v for e in extents for v in variables(e)), *k.ir.symbols)}
    return [[s.name, *s.interval, s.multiple_of] for s in found.values()]


def _restored(content: bytes) -> Kernel:
    """The kernel of a pickle. Raises UserError for text that describes none."""
    record, members = unpack(content, "the pickle of a kernel")
    try:
        known = {
            name: Var(name, low, high, multiple) for name, low, high, multiple in record["sizes"]
        }
        return restored_kernel(record["kernel"], members, target_of(record["target"]), known)
    except DAMAGE as e:
        raise UserError(f"a pickle does not describe a kernel ({e!r}); pickle it again") from e


def _reduced(k: Kernel) -> tuple[Callable[[bytes], Kernel], tuple[bytes]]:
    """A pickle holds text, and the machine code if it has been made."""
    code = k.compiled() if k.is_compiled else None
    record = {
        "target": k.target.arch,
        "sizes": _sizes(k),
        "kernel": kernel_record(k, None if code is None else 0),
    }
    return _restored, (pack(record, {} if code is None else {"0.cubin": code.cubin}),)


copyreg.pickle(Kernel, _reduced)
