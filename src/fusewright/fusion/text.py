"""Fusions as text: `print_fusion` and `parse_fusion`, which are each other's inverse.

The right-hand sides are Python calls and their arguments Python literals and integer expressions,
so Python's own parser reads them.
"""

from __future__ import annotations

import ast
import copyreg
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import numpy.typing as npt

from fusewright.collection import without_collection
from fusewright.core import atoms, expr
from fusewright.core.expr import Expr, Var
from fusewright.dtypes import dtype_of
from fusewright.errors import SpecError, UserError
from fusewright.fusion import ir
from fusewright.fusion.call_numbers import CallNumber, Lap, NumberCheck, Symbol
from fusewright.fusion.ir import Fusion, Op, Shape, Sym, Tensor
from fusewright.fusion.known import Known
from fusewright.fusion.partition import Partition
from fusewright.fusion.printing import print_fusion
from fusewright.fusion.spec import check

__all__ = ["parse_expression", "parse_fusion", "print_fusion"]

_SIZE = re.compile(r"size (\w+): (.*)")
_NUMBER = re.compile(r"number (\w+): min=(\d+), max=(.*), multiple_of=(\d+), at=(\d+)")
_CHECK = re.compile(r"check (.*?): (['\"].*)")
_VALUE = re.compile(r"(\w+): (\w+)\[(.*?)\] = (.*)")
_BODY = re.compile(r"body (\w+)(?: for (\w+) < (.*))?:")
_RETURN = re.compile(r"return ?(.*)")
_CALL = re.compile(r"(\w+)\(((?:\w+(?:, |(?=\))))*)(.*)\)")
"""An op, its operands, which may have any names, those of Python's keywords too, and its fields."""

_OPS: dict[str, type[Any]] = {
    op.__name__: op
    for op in (
        ir.Input,
        ir.Constant,
        ir.Iota,
        ir.Size,
        ir.Pointwise,
        ir.Broadcast,
        ir.Permute,
        ir.Reshape,
        ir.Resize,
        ir.Parts,
        ir.IndexMap,
        ir.Concat,
        ir.Insert,
        ir.Reduce,
        ir.Scan,
        ir.Sort,
        ir.Take,
        ir.TakeAlong,
        ir.MatMul,
        ir.OwnKernel,
        ir.Region,
    )
}
_EXPRESSIONS = ("strides", "low", "high", "index", "coordinates", "start")  # tuples of them
_LITERALS: dict[str, type] = {
    "axis": int, "axes": tuple, "fn": str, "alignment": int, "result": int,
    "precision": str, "mode": str, "place": str, "merged": tuple, "carried": int,
    "sliced": int, "reverse": bool,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: expr.add,
    ast.Sub: lambda a, b: expr.add(a, expr.mul(b, -1)),
    ast.Mult: expr.mul,
    ast.FloorDiv: expr.floordiv,
    ast.Mod: expr.mod,
    ast.BitXor: atoms.xor,
}
_CALLS: dict[str, Callable[[Expr, Expr], Expr]] = {"min": atoms.minimum, "max": atoms.maximum}


def _reduced(fusion: Fusion) -> tuple[Callable[..., Fusion], tuple[Any, ...]]:
    """Pickles, and copies, of a fusion are its text, whatever the depth of its values."""
    held = {t.name: t.data for t in fusion.inputs if isinstance(t, Known)}
    return parse_fusion, (print_fusion(fusion), held) if held else (print_fusion(fusion),)


def parse_fusion(text: str, held: Mapping[str, npt.NDArray[Any]] | None = None) -> Fusion:
    """The fusion that a text describes, checked against the spec. `held`: the elements of inputs,
    by name, that the fusion holds itself; without them calls give these too.

    Raises SpecError with the number of the line that is wrong, and for a fusion that is.
    """
    reader = _Reader(held or {})
    for number, line in enumerate(text.strip().splitlines(), 1):
        if line.strip():
            try:
                reader.read(line.strip())
            except (SpecError, UserError, TypeError, SyntaxError) as e:
                raise SpecError(f"line {number}: {line.strip()!r}: {e}") from e
    fusion = reader.finish()
    check(fusion)
    return fusion


def parse_body(text: str, sizes: Mapping[str, Var]) -> Fusion:
    """The fusion of a body of a region, over the sizes of the program that it belongs to. Raises
    SpecError for another text."""
    reader = _Reader({}, dict(sizes))
    for line in text.strip().splitlines():
        if not _SIZE.fullmatch(line.strip()):
            reader.read(line.strip())
    return reader.finish()


class _Reader:
    """Reads line after line; holds what the lines so far have named."""

    def __init__(
        self, held: Mapping[str, npt.NDArray[Any]], sizes: dict[str, Var] | None = None
    ) -> None:
        """`sizes`: those of the program that a body belongs to."""
        self._held = held
        self._sizes: dict[str, Var] = {} if sizes is None else sizes
        self._numbers: list[CallNumber] = []
        self._checks: list[NumberCheck] = []
        self._values: dict[str, Tensor] = {}
        self._outputs: tuple[Tensor, ...] | None = None
        self._bodies: dict[str, Fusion] = {}
        self._open: tuple[str, _Reader] | None = None

    def read(self, line: str) -> None:
        if self._open is not None:
            name, inside = self._open
            if inside._open is None and line == f"end {name}":
                self._bodies[name] = inside.finish()
                self._open = None
            else:
                inside.read(line)
            return
        if self._outputs is not None:
            raise SpecError("nothing may follow the return line")
        if found := _SIZE.fullmatch(line):
            self._read_size(*found.groups())
        elif found := _NUMBER.fullmatch(line):
            self._read_number(*found.groups())
        elif found := _CHECK.fullmatch(line):
            gap = _expression(_parsed(found[1]), self._sizes)
            self._checks.append(NumberCheck(gap, str(_literal(_parsed(found[2])))))
        elif found := _BODY.fullmatch(line):
            if found[1] in self._bodies:
                raise SpecError(f"the body {found[1]} is defined twice")
            if found[2]:
                self._read_lap(found[2], _expression(_parsed(found[3]), self._sizes))
            self._open = found[1], _Reader({}, self._sizes)
        elif found := _VALUE.fullmatch(line):
            self._read_value(*found.groups())
        elif found := _RETURN.fullmatch(line):
            names = found[1].split(",") if found[1] else []
            self._outputs = tuple(self._value(n.strip()) for n in names)
        else:
            raise SpecError(
                "expected 'size <name>: ...', 'number <name>: ...', 'check <gap>: ...', "
                "'body <name>:', '<name>: <dtype>[<shape>] = <op>' or 'return <names>'"
            )

    def finish(self) -> Fusion:
        if self._open is not None:
            raise SpecError(f"the body {self._open[0]} has no end; add 'end {self._open[0]}'")
        if self._outputs is None:
            raise SpecError("the text ends without a return line; add 'return <names>'")
        values = tuple(self._values.values())
        inputs = tuple(t for t in values if isinstance(t.op, ir.Input))
        numbers = tuple(sorted(self._numbers, key=lambda n: n.place))
        return Fusion(inputs, self._outputs, values, numbers, tuple(self._checks))

    def _read_size(self, name: str, bounds: str) -> None:
        if name in self._sizes:
            raise SpecError(f"the size {name} is declared twice")
        size = Sym(name, **_bounds(bounds))
        if size.interval[0] == 0:
            raise SpecError(f"size {name}: min=0 is for numbers; a symbolic size is at least 2")
        self._sizes[name] = size

    def _read_number(self, name: str, low: str, high: str, multiple: str, place: str) -> None:
        symbol = self._sizes.get(name)
        if symbol is None:
            upper = None if high == "None" else _expression(_parsed(high), self._sizes)
            symbol = self._sizes[name] = Symbol(name, int(low), upper, int(multiple))
        if any(n.symbol is symbol for n in self._numbers):
            raise SpecError(f"the number {name} is declared twice")
        self._numbers.append(CallNumber(symbol, int(place)))

    def _read_lap(self, name: str, trips: Expr) -> None:
        lap = Lap(name, trips)
        known = self._sizes.setdefault(name, lap)
        if not isinstance(known, Lap) or known.upper != lap.upper:
            raise SpecError(f"{name} is declared twice; give each loop a number of its own name")

    def _read_value(self, name: str, dtype: str, shape: str, call: str) -> None:
        if name in self._values:
            raise SpecError(f"the value {name} is defined twice")
        extents: Shape = _expressions(_parsed(f"({shape},)" if shape else "()"), self._sizes)
        op = self._op(call, extents)
        if name in self._held and isinstance(op, ir.Input):
            self._values[name] = Known(self._held[name], op.position, name)
        else:
            self._values[name] = Tensor(name, extents, dtype_of(dtype), op)

    def _op(self, call: str, shape: Shape) -> Op:
        parts = _CALL.fullmatch(call)
        if parts is None:
            raise SpecError("the right-hand side must be a call of an op")
        kind = _OPS.get(parts[1])
        if kind is None:
            raise SpecError(f"{parts[1]} is not an op; the ops are {', '.join(_OPS)}")
        tree = _parsed(f"dict({parts[3]})")
        if not isinstance(tree, ast.Call) or tree.args:
            raise SpecError("after its operands an op has fields, as in 'axis=0'")
        operands = tuple(self._value(name) for name in re.findall(r"\w+", parts[2]))
        fields: dict[str, Any] = {}
        names = self._sizes
        if kind is ir.Input:
            fields["position"] = sum(isinstance(t.op, ir.Input) for t in self._values.values())
        if kind is ir.IndexMap:
            at = tuple(Var(f"i{k}", 0, expr.add(s, -1)) for k, s in enumerate(shape))
            names = names | {v.name: v for v in at}
        if kind is ir.Insert:
            names = names | {v.name: v for v in ir.positions(max(len(operands) - 2, 0))}
        for k in tree.keywords:
            is_body = k.arg == "bodies"
            found = self._named_bodies(k.value) if is_body else _field(str(k.arg), k.value, names)
            fields[str(k.arg)] = found
        return cast("Callable[..., Op]", kind)(operands, **fields)

    def _named_bodies(self, tree: ast.expr) -> tuple[Fusion, ...]:
        names = [x.id for x in getattr(tree, "elts", ()) if isinstance(x, ast.Name)]
        missing = [n for n in names if n not in self._bodies]
        if missing or not names:
            raise SpecError(f"no body {ast.unparse(tree)} stands above; add 'body b0:' .. 'end b0'")
        return tuple(self._bodies[n] for n in names)

    def _value(self, name: str) -> Tensor:
        if name not in self._values:
            raise SpecError(f"no value {name!r} is defined above")
        return self._values[name]


# --- pieces -------------------------------------------------------------------------------------


@without_collection()
def _parsed(text: str) -> ast.expr:
    """The tree of an expression. Python 3.11 counts the depth of all trees in one place, and raises
    a SystemError where garbage that is collected meanwhile lets it run other code."""
    return ast.parse(text, mode="eval").body


def _bounds(text: str) -> dict[str, Any]:
    """`name=literal, ...` as a dictionary."""
    tree = _parsed(f"dict({text})")
    if not isinstance(tree, ast.Call) or tree.args:
        raise SpecError("expected bounds as in 'min=2, max=None, multiple_of=1'")
    return {str(k.arg): _literal(k.value) for k in tree.keywords}


def _literal(tree: ast.expr) -> Any:
    """A Python literal, in which `nan` and `inf` are floats."""
    match tree:
        case ast.Name(id="nan"):
            return math.nan
        case ast.Name(id="inf"):
            return math.inf
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf" | "nan" as name)):
            return -float(name)
        case _:
            try:
                return ast.literal_eval(tree)
            except ValueError:
                raise SpecError(f"{ast.unparse(tree)!r} is not a literal") from None


def _field(name: str, tree: ast.expr, names: Mapping[str, Var]) -> Any:
    if name in ("expr", "trips", "lap"):
        return _expression(tree, names)
    if name in _EXPRESSIONS:
        return _expressions(tree, names)
    if name == "partition":
        return _partition(tree)
    found = _literal(tree)
    kind = _LITERALS.get(name)
    if kind is not None and not isinstance(found, kind):
        raise SpecError(f"{name}={found!r} must be of type {kind.__name__}")
    return found


def _partition(tree: ast.expr) -> Partition:
    match tree:
        case ast.Call(func=ast.Name(id="Partition"), args=[]):
            return Partition(**{str(k.arg): _literal(k.value) for k in tree.keywords})
        case _:
            raise SpecError(f"{ast.unparse(tree)!r} is no Partition(size=.., count=.., each=..)")


def _expressions(tree: ast.expr, names: Mapping[str, Var]) -> Shape:
    if not isinstance(tree, ast.Tuple):
        raise SpecError(f"{ast.unparse(tree)!r} is not a tuple of integer expressions")
    return tuple(_expression(item, names) for item in tree.elts)


def parse_expression(text: str, names: Mapping[str, Var]) -> Expr:
    """An integer expression as it prints. Raises SpecError for any other text."""
    try:
        return _expression(_parsed(text), names)
    except SyntaxError as e:
        raise SpecError(f"{text!r} is not an integer expression") from e


def _expression(tree: ast.expr, names: Mapping[str, Var]) -> Expr:
    """An integer expression over named variables."""
    match tree:
        case ast.Constant(value=int(number)):
            if number > 2**63:
                raise SpecError(f"{number} is more than 64 bits of an index hold")
            return expr.as_expr(number)
        case ast.Name(id=name):
            return names[name] if name in names else _unknown(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return expr.mul(_expression(operand, names), -1)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _OPERATORS[type(operator)](_expression(left, names), _expression(right, names))
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _CALLS:
            return _CALLS[name](_expression(left, names), _expression(right, names))
        case _:
            raise SpecError(f"{ast.unparse(tree)!r} is not an integer expression")


def _unknown(name: str) -> NoReturn:
    raise SpecError(f"no size {name!r} is declared above; add 'size {name}: min=2'")


copyreg.pickle(Fusion, _reduced)
