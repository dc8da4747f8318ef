"""How field values print and parse, by the type they are annotated with."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin

from fusewright.core.conditions import Cond
from fusewright.core.expr import Expr, Var
from fusewright.dtypes import ALL, DType, scalar_text
from fusewright.errors import InternalError
from fusewright.kir import ir
from fusewright.kir.tiles import Major
from fusewright.kir.tokens import Token, TokenParser


class Reader(TokenParser):
    """What templates need of the parser: the names in scope and the nodes."""

    def buffer(self) -> ir.Buffer:
        """Read the name of a buffer in scope."""
        raise NotImplementedError

    def argument(self) -> ir.Argument:
        """Read the name of a scalar parameter."""
        raise NotImplementedError

    def tensor_map(self) -> ir.TensorMap:
        """Read the name of a tensor map."""
        raise NotImplementedError

    def declare(self, symbol: ir.Buffer | Var, at: Token) -> None:
        """Bring a buffer or a variable, named by the token `at`, into scope."""
        raise NotImplementedError

    def body(self) -> ir.Body:
        """Read statements in braces."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Codec:
    """How the values of one type print and parse."""

    print: Callable[[Any], str]
    parse: Callable[[Reader], object]


def literal_text(imm: ir.Imm) -> str:
    """`0.5:float32`, `inf:float32`, `3:int64`, `true:bool`; the value as its dtype spells it."""
    match imm.dtype.kind:
        case "bool":
            value = "true" if imm.value else "false"
        case "float":
            value = scalar_text(float(imm.value))
        case _:
            value = str(int(imm.value))
    return f"{value}:{imm.dtype}"


def dtype_in(reader: Reader) -> DType:
    """Read the name of a dtype."""
    token = reader.word("a dtype")
    found = next((d for d in ALL if d.name == token.text), None)
    return found or reader.fail(f"a dtype ({', '.join(d.name for d in ALL)})", token)


def _parse_literal(reader: Reader) -> ir.Imm:
    negative = reader.accept("-")
    token = reader.take()
    if token.kind not in ("integer", "real") and token.text not in ("inf", "nan", "true", "false"):
        reader.fail("a literal such as 0.5:float32", token)
    reader.expect(":")
    dtype = dtype_in(reader)
    value = _literal_value(("-" if negative else "") + token.text, dtype)
    if value is None:
        reader.reject(f"{token.text} is not a value of {dtype}", token)
    return ir.Imm(value, dtype)


def _literal_value(text: str, dtype: DType) -> bool | int | float | None:
    if dtype.kind == "bool":
        return {"true": True, "false": False}.get(text)
    if text in ("true", "false"):
        return None
    if dtype.is_float:
        return float(text)
    return int(text) if text.lstrip("-").isdigit() else None


def _parse_reg(reader: Reader) -> ir.Reg:
    buffer = reader.buffer()
    reader.expect("[")
    index = reader.expression()
    reader.expect("]")
    return ir.Reg(buffer, index)


def _print_operand(operand: ir.Operand) -> str:
    match operand:
        case ir.Reg():
            return f"{operand.buffer.name}[{operand.index}]"
        case ir.Imm():
            return literal_text(operand)
        case ir.Index():
            return f"index({operand.expr}):{operand.dtype}"
        case ir.Arg():
            return operand.argument.name


def _parse_operand(reader: Reader) -> ir.Operand:
    token = reader.peek()
    if token.kind != "word" or token.text in ("inf", "nan", "true", "false"):
        return _parse_literal(reader)
    if reader.accept("index", "("):
        expr = reader.expression()
        reader.expect(")", ":")
        return ir.Index(expr, dtype_in(reader))
    mark = reader.mark()
    reader.take()
    is_register = reader.accept("[")
    reader.rewind(mark)
    return _parse_reg(reader) if is_register else ir.Arg(reader.argument())


def _print_multiplicand(operand: ir.Reg | ir.Matrix) -> str:
    if isinstance(operand, ir.Reg):
        return _print_operand(operand)
    return f"{operand.major.value} {operand.buffer.name}[{operand.index}]"


def _parse_matrix(reader: Reader) -> ir.Matrix:
    major = codec_of(Major).parse(reader)
    assert isinstance(major, Major)
    buffer = reader.buffer()
    reader.expect("[")
    index = reader.expression()
    reader.expect("]")
    return ir.Matrix(major, buffer, index)


def _parse_multiplicand(reader: Reader) -> ir.Reg | ir.Matrix:
    is_matrix = reader.peek().text in [m.value for m in Major]
    return _parse_matrix(reader) if is_matrix else _parse_reg(reader)


def quote(text: str) -> str:
    """The text in double quotes, on one line."""
    flat = " ".join(text.split("\n"))
    return '"' + flat.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parse_bool(reader: Reader) -> bool:
    if reader.accept("true"):
        return True
    reader.expect("false")
    return False


OPERAND = Codec(_print_operand, _parse_operand)
BARE = Codec(str, lambda r: r.word().text)

_CODECS: dict[object, Codec] = {
    int: Codec(str, lambda r: r.integer()),
    bool: Codec(lambda v: "true" if v else "false", _parse_bool),
    str: Codec(quote, lambda r: r.quoted()),
    Expr: Codec(str, lambda r: r.expression()),
    Cond: Codec(str, lambda r: r.condition()),
    DType: Codec(str, dtype_in),
    ir.Buffer: Codec(lambda b: b.name, lambda r: r.buffer()),
    ir.Argument: Codec(lambda a: a.name, lambda r: r.argument()),
    ir.Reg: Codec(_print_operand, _parse_reg),
    ir.Imm: Codec(literal_text, _parse_literal),
    ir.TensorMap: Codec(lambda m: m.name, lambda r: r.tensor_map()),
    ir.Matrix: Codec(_print_multiplicand, _parse_matrix),
    ir.Reg | ir.Matrix: Codec(_print_multiplicand, _parse_multiplicand),
    ir.Index: OPERAND,
    ir.Arg: OPERAND,
}


@cache
def codec_of(hint: object) -> Codec:
    """The codec of a field's type. Raises InternalError for a type without syntax."""
    if hint in _CODECS:
        return _CODECS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_codec(hint)
    arguments = get_args(hint)
    if get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_codec(codec_of(arguments[0]))
    if get_origin(hint) in (Union, types.UnionType):
        concrete = tuple(a for a in arguments if a is not type(None))
        if len(concrete) == 1:
            return _optional_codec(codec_of(concrete[0]))
        if all(a in get_args(ir.Operand) for a in concrete):
            return OPERAND
    raise InternalError(f"KIR text: no syntax for values of type {hint}; add it to kir/codecs.py")


def _enum_codec(enum: type[Enum]) -> Codec:
    def parse(reader: Reader) -> object:
        token = reader.word()
        for member in enum:
            if member.value == token.text:
                return member
        return reader.fail(f"one of {', '.join(str(m.value) for m in enum)}", token)

    return Codec(lambda v: str(v.value), parse)


def _optional_codec(inner: Codec) -> Codec:
    return Codec(
        lambda v: "none" if v is None else inner.print(v),
        lambda r: None if r.accept("none") else inner.parse(r),
    )


def _tuple_codec(inner: Codec) -> Codec:
    def parse(reader: Reader) -> object:
        reader.expect("(")
        items: list[object] = []
        while not reader.accept(")"):
            if items:
                reader.expect(",")
            items.append(inner.parse(reader))
        return tuple(items)

    return Codec(lambda v: "(" + ", ".join(inner.print(i) for i in v) + ")", parse)
