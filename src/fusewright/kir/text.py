"""KIR as text: `print_kernel` and `parse_kernel`. `parse(print(k))` prints to the same bytes.

    kernel scale {
      symbol n in [2, 4096] multiple_of 8
      param x: float32[128*n] align 16
      argument alpha: float32
      grid (bx < n)
      block (tx < 128)

      local r: float32[1]
      r[0] = load x[128*bx + tx]
      r[0] = mul(r[0], alpha)
      store x[128*bx + tx] = r[0]
    }

The syntax of statements stands in `kir/syntax.py`, that of expressions in `kir/tokens.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fusewright.arguments import TEXT, instance_of, optional, takes
from fusewright.core.expr import Expr, Var
from fusewright.kir.codecs import Reader, dtype_in, quote
from fusewright.kir.ir import (
    Argument,
    Body,
    Buffer,
    Dim,
    Kernel,
    Memory,
    Reg,
    RegVar,
    Statement,
    TensorMap,
)
from fusewright.kir.names import with_unique_names
from fusewright.kir.syntax import (
    COMPUTE,
    TEMPLATES,
    Template,
    buffer_text,
    indent,
    limits_text,
    map_text,
    parse_buffer,
    parse_limits,
    parse_map,
    parse_range,
    print_statement,
    range_text,
)
from fusewright.kir.tokens import Token
from fusewright.kir.unread import Border, unread_kernel

__all__ = ["parse_kernel", "parse_later", "print_kernel", "print_statement"]

_DIMS = ("grid", "block", "cluster")
_HEADER = (
    "name", "params", "maps", "arguments", "symbols", *_DIMS, "body", "attributes",
    "stored_once", "stored_in_turns", "semaphores", "zeroed", "scratch", "awaited",
)  # fmt: skip
_LISTS = ("stored_once", "stored_in_turns", "semaphores", "zeroed", "scratch", "awaited")
_NUMBERS = {
    f.name: f.default for f in fields(Kernel) if f.name not in _HEADER and f.default is not MISSING
}


_BEHIND_HEADER = "\n\n"


def print_kernel(kernel: Kernel) -> str:
    """The text of a kernel. Symbols that share a name are told apart by a suffix."""
    k = with_unique_names(kernel)
    lines = [f"symbol {s.name}{limits_text(s)}" for s in k.symbols]
    lines += [buffer_text(b) for b in k.params]
    lines += [map_text(m) for m in k.maps]
    lines += [f"argument {a.name}: {a.dtype}" for a in k.arguments]
    lines.append(_dims_text("grid", k.grid))
    lines.append(_dims_text("block", k.block))
    if k.cluster:
        lines.append(_dims_text("cluster", k.cluster))
    for name, default in _NUMBERS.items():
        value: object = getattr(k, name)
        if value != default:
            lines.append(f"{name} {str(value).lower()}")
    for name in _LISTS:
        listed: tuple[Buffer, ...] = getattr(k, name)
        if listed:
            lines.append(f"{name} ({', '.join(b.name for b in listed)})")
    lines += [f"attribute {quote(key)} = {quote(value)}" for key, value in k.attributes]
    lines.append("")
    lines += [print_statement(s) for s in k.body]
    return f"kernel {k.name} {{\n{_indented(lines)}}}\n"


def _indented(lines: list[str]) -> str:
    return indent("\n".join(lines)).replace("\n  \n", "\n\n")


def _dims_text(kind: str, dims: tuple[Dim, ...]) -> str:
    return f"{kind} ({', '.join(range_text(d.var, d.extent) for d in dims)})"


_SYMBOLS = optional(instance_of(Mapping, words="a mapping from names to shape symbols"))


@takes(text=TEXT, symbols=_SYMBOLS)
def parse_kernel(text: str, symbols: Mapping[str, Var] | None = None) -> Kernel:
    """The kernel that a text describes; `symbols` are shape symbols to use for those of that name.

    Raises SpecError with line and column, what was expected and what stands there.
    """
    parser = _Parser(text, symbols or {})
    kernel = parser.kernel()
    if parser.peek().kind != "end":
        parser.fail("end of text")
    return kernel


def parse_later(text: str, symbols: Mapping[str, Var], border: Border) -> Kernel:
    """The kernel of a text that `print_kernel` wrote, of whose body `border` is known: it is read
    when somebody asks for it. Raises SpecError as `parse_kernel`, for the body then."""
    header, _, body = text.partition(_BEHIND_HEADER)
    parser = _Parser(header, symbols)
    fields = parser.header()
    above = "\n" * (header.count("\n") + len(_BEHIND_HEADER))  # errors name the line of the text

    def read() -> Body:
        return parser.behind(above + body).behind_header()

    return unread_kernel(Kernel(**fields, body=()), read, border)


def _by_word(*, assigns: bool) -> dict[str, Template]:
    """The templates by the words they can begin with, behind a register and `=` or not."""
    return {word: t for t in TEMPLATES.values() if t.assigns is assigns for word in t.lead}


class _Parser(Reader):
    """Names in scope: buffers and arguments of the whole kernel, variables by nesting."""

    def __init__(self, text: str, symbols: Mapping[str, Var]) -> None:
        super().__init__(text)
        self._shared = symbols
        self._by_word = _by_word(assigns=False)
        self._by_assignment = _by_word(assigns=True)
        self._buffers: dict[str, Buffer] = {}
        self._arguments: dict[str, Argument] = {}
        self._maps: dict[str, TensorMap] = {}
        self._variables: list[dict[str, Var]] = [{}]
        self._gathered: dict[str, RegVar] = {}

    def behind(self, text: str) -> _Parser:
        """A parser of what follows, which knows the names that this one has read."""
        made = _Parser(text, self._shared)
        made._buffers, made._arguments = dict(self._buffers), dict(self._arguments)
        made._maps, made._variables = dict(self._maps), [dict(scope) for scope in self._variables]
        return made

    # --- names

    def resolve(self, name: Token) -> Expr:
        for scope in reversed(self._variables):
            if name.text in scope:
                return scope[name.text]
        if name.text in self._buffers and self.accept("["):
            index = self.expression()
            self.expect("]")
            return self._position(Reg(self._buffers[name.text], index))
        return self.fail(f"a variable in scope ({self._known(self._variable_names())})", name)

    def _variable_names(self) -> list[str]:
        return [v for scope in self._variables for v in scope]

    @staticmethod
    def _known(names: list[str]) -> str:
        return ", ".join(names) if names else "there is none"

    def _position(self, reg: Reg) -> RegVar:
        fresh = RegVar(reg, 0, None)
        return self._gathered.setdefault(fresh.name, fresh)

    def buffer(self) -> Buffer:
        token = self.word("a buffer")
        found = self._buffers.get(token.text)
        return found or self.fail(f"a buffer in scope ({self._known(list(self._buffers))})", token)

    def argument(self) -> Argument:
        token = self.word("an argument")
        found = self._arguments.get(token.text)
        known = self._known(list(self._arguments))
        return found or self.fail(f"a register, a literal or an argument ({known})", token)

    def tensor_map(self) -> TensorMap:
        token = self.word("a tensor map")
        found = self._maps.get(token.text)
        known = self._known(list(self._maps))
        return found or self.fail(f"a tensor map of the header ({known})", token)

    def declare(self, symbol: Buffer | TensorMap | Var, at: Token) -> None:
        taken: dict[str, object] = {**self._buffers, **self._arguments, **self._maps}
        for scope in self._variables:
            taken |= scope
        if symbol.name in taken:
            self.reject(f"the name '{symbol.name}' is taken; give every symbol its own", at)
        if isinstance(symbol, Var):
            self._variables[-1][symbol.name] = symbol
        elif isinstance(symbol, TensorMap):
            self._maps[symbol.name] = symbol
        else:
            self._buffers[symbol.name] = symbol

    # --- the header

    def kernel(self) -> Kernel:
        """Read a kernel."""
        header = self.header()
        return Kernel(**header, body=self.behind_header())

    def behind_header(self) -> Body:
        """Read the statements, and what ends a kernel."""
        return self._statements()

    def header(self) -> dict[str, Any]:
        """Read what stands in front of the statements: the fields of a kernel, but for its body."""
        self.expect("kernel")
        found: dict[str, object] = {"name": self.word("the name of the kernel").text}
        self.expect("{")
        symbols: list[Var] = []
        params: list[Buffer] = []
        attributes: list[tuple[str, str]] = []
        dims: dict[str, tuple[Dim, ...]] = {}
        while True:
            if self.accept("symbol"):
                symbols.append(self._symbol())
            elif self.accept("param"):
                params.append(self._param())
            elif self.accept("map"):
                self._map()
            elif self.accept("argument"):
                self._scalar()
            elif self.peek().text in _LISTS:
                name = self.take().text
                found[name] = tuple(self._buffer_list())
            elif self.accept("attribute"):
                key = self.quoted()
                self.expect("=")
                attributes.append((key, self.quoted()))
            elif self.peek().text in _DIMS and self.peek().kind == "word":
                kind = self.take().text
                dims[kind] = self._dims()
            elif self.peek().text in _NUMBERS:
                name = self.take().text
                found[name] = self._number()
            else:
                break
        for kind in ("grid", "block"):
            if kind not in dims:
                self.fail(f"'{kind} (...)' in the header of the kernel")
        return {
            "params": tuple(params),
            "arguments": tuple(self._arguments.values()),
            "symbols": tuple(symbols),
            "grid": dims["grid"],
            "block": dims["block"],
            "cluster": dims.get("cluster", ()),
            "attributes": tuple(attributes),
            "maps": tuple(self._maps.values()),
            **found,
        }

    def _number(self) -> int | bool:
        for word, value in (("true", True), ("false", False)):
            if self.accept(word):
                return value
        return self.integer()

    def _symbol(self) -> Var:
        name = self.word("the name of a symbol")
        self.expect("in")
        symbol = Var(name.text, *parse_limits(self))
        self.declare(symbol, name)
        symbol = self._shared.get(name.text, symbol)
        self._variables[-1][name.text] = symbol
        return symbol

    def _param(self) -> Buffer:
        name = self.word("the name of a parameter")
        buffer = parse_buffer(self, name.text, Memory.GLOBAL)
        self.declare(buffer, name)
        return buffer

    def _map(self) -> None:
        name = self.word("the name of a tensor map")
        self.declare(parse_map(self, name.text), name)

    def _scalar(self) -> None:
        name = self.word("the name of an argument").text
        self.expect(":")
        self._arguments[name] = Argument(name, dtype_in(self))

    def _buffer_list(self) -> list[Buffer]:
        self.expect("(")
        out: list[Buffer] = []
        while not self.accept(")"):
            if out:
                self.expect(",")
            out.append(self.buffer())
        return out

    def _dims(self) -> tuple[Dim, ...]:
        self.expect("(")
        out: list[Dim] = []
        while not self.accept(")"):
            if out:
                self.expect(",")
            token = self.peek()
            v, extent = parse_range(self)
            self.declare(v, token)
            out.append(Dim(v, extent))
        return tuple(out)

    # --- statements

    def body(self) -> Body:
        self.expect("{")
        return self._statements()

    def _statements(self) -> Body:
        out: list[Statement] = []
        while not self.accept("}"):
            out.append(self._statement())
        return tuple(out)

    def _statement(self) -> Statement:
        outer, self._gathered = self._gathered, {}
        self._variables.append({})
        while self.accept("given") or (self._gathered and self.accept(",")):
            self._given()
        if self._gathered:
            self.expect(":")
        template = self._template()
        found: dict[str, object] = {}
        for piece in template.pieces:
            piece.parse(self, found)
        self._variables.pop()
        self._gathered = outer
        return template.cls(**found)

    def _given(self) -> None:
        buffer = self.buffer()
        self.expect("[")
        index = self.expression()
        self.expect("]", "in")
        lower, upper, _ = parse_limits(self)
        v = RegVar(Reg(buffer, index), lower, upper)
        self._gathered[v.name] = v

    def _template(self) -> Template:
        token = self.peek()
        if token.kind == "word" and token.text in self._by_word:
            return self._by_word[token.text]
        if token.text not in self._buffers:
            self.fail("a statement or '}'")
        mark = self.mark()
        self.take()
        self.expect("[")
        while not self.accept("]"):
            if self.peek().kind == "end" or self.peek().text in ("=", "{", "}"):
                self.fail("']'")
            self._skip_brackets()
        self.expect("=")
        word = self.word("load, shuffle, thread_reduce or the name of a function")
        self.rewind(mark)
        return self._by_assignment.get(word.text, COMPUTE)

    def _skip_brackets(self) -> None:
        if self.take().text == "[":
            while not self.accept("]"):
                if self.peek().kind == "end":
                    self.fail("']'")
                self._skip_brackets()
