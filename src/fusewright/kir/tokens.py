"""Kernel text as tokens, and the parser of index expressions and conditions.

`//` is floor division inside brackets and begins a comment outside them. Operators by rising
precedence: `||`, `&&`, comparisons, `^`, `+ -`, `* // %`, unary `- !`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from fusewright.core import atoms, conditions, expr as ex
from fusewright.core.conditions import Cond
from fusewright.core.expr import Expr
from fusewright.errors import SpecError

Value: TypeAlias = Expr | Cond

_MAX_MAGNITUDE = 2**63
"""Of a number of an index, which has 64 bits on the device and in the simulator."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)
      | (?P<newline>\n)
      | (?P<comment>//[^\n]*)
      | (?P<real>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<integer>\d+)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<quoted>"(?:[^"\\\n]|\\.)*")
      | (?P<sign>\.\.|<=|>=|==|!=|&&|\|\||[-+*/%^<>!=(){}\[\],:.#])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text: `kind` is word, integer, real, quoted, sign, comment or end; line and
    column count from 1."""

    kind: str
    text: str
    line: int
    column: int


def tokenize(text: str) -> list[Token]:
    """The tokens of a kernel text, the last of kind "end". Raises SpecError on a strange sign."""
    out: list[Token] = []
    position, line, start, depth = 0, 1, 0, 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        column = position - start + 1
        if found is None:
            raise SpecError(
                f"line {line}, column {column}: unexpected character {text[position]!r}"
            )
        kind, piece = str(found.lastgroup), found.group()
        if kind == "comment" and depth:
            kind, piece = "sign", "//"
        position += len(piece)
        if kind == "newline":
            line, start = line + 1, position
        elif kind != "space":
            depth += (piece in ("(", "[")) - (piece in (")", "]"))
            depth = max(depth, 0)
            out.append(Token(kind, piece, line, column))
    out.append(Token("end", "end of text", line, position - start + 1))
    return out


_COMPARE: dict[str, Callable[[Expr, Expr], Cond]] = {
    "<": conditions.less,
    "<=": conditions.less_equal,
    ">": lambda a, b: conditions.less(b, a),
    ">=": lambda a, b: conditions.less_equal(b, a),
    "==": conditions.equal,
    "!=": lambda a, b: conditions.negate(conditions.equal(a, b)),
}
_ARITHMETIC: dict[str, tuple[int, Callable[[Expr, Expr], Expr]]] = {
    "^": (1, atoms.xor),
    "+": (2, ex.add),
    "-": (2, lambda a, b: a - b),
    "*": (3, ex.mul),
    "//": (3, ex.floordiv),
    "%": (3, ex.mod),
}
_CALLS: dict[str, Callable[[Expr, Expr], Expr]] = {"min": atoms.minimum, "max": atoms.maximum}


class TokenParser:
    """A cursor over tokens that reads expressions; `resolve` turns a name into an expression."""

    def __init__(self, text: str) -> None:
        self._tokens = tokenize(text)
        self._at = 0
        self._line = 0  # of the last token taken

    # --- the cursor

    def peek(self) -> Token:
        """The next token, comments left out."""
        return self._tokens[self._next()]

    def take(self) -> Token:
        """The next token, comments left out; the cursor moves behind it."""
        at = self._next()
        token = self._tokens[at]
        if token.kind != "end":
            self._at = at + 1
            self._line = token.line
        return token

    def _next(self) -> int:
        at = self._at
        while self._tokens[at].kind == "comment":
            at += 1
        return at

    def trailing_comment(self) -> str:
        """The text of a comment on the line of the last token taken, else ""."""
        token = self._tokens[self._at]
        if token.kind != "comment" or token.line != self._line:
            return ""
        self._at += 1
        return token.text.removeprefix("//").strip()

    def same_line(self) -> bool:
        """Whether the next token stands on the line of the last one taken."""
        return self.peek().line == self._line

    def mark(self) -> int:
        """The cursor, for `rewind`."""
        return self._at

    def rewind(self, mark: int) -> None:
        """Put the cursor back to a mark, taken at the beginning of a statement or a value."""
        self._at = mark
        self._line = self._tokens[mark - 1].line if mark else 0

    def fail(self, expected: str, token: Token | None = None) -> NoReturn:
        """Raise SpecError at a token (default: the next one)."""
        token = token or self.peek()
        found = token.text if token.kind == "end" else repr(token.text)
        raise SpecError(
            f"line {token.line}, column {token.column}: expected {expected}, found {found}"
        )

    def reject(self, problem: str, token: Token) -> NoReturn:
        """Raise SpecError for a token that is well formed but wrong."""
        raise SpecError(f"line {token.line}, column {token.column}: {problem}")

    def accept(self, *texts: str) -> bool:
        """Take these signs and words if they come next, all or none."""
        mark = self.mark()
        for text in texts:
            token = self.peek()
            if token.kind not in ("sign", "word") or token.text != text:
                self.rewind(mark)
                return False
            self.take()
        return True

    def expect(self, *texts: str) -> None:
        """Take these signs and words; SpecError when something else comes."""
        for text in texts:
            if not self.accept(text):
                self.fail(f"'{text}'")

    def word(self, expected: str = "a name") -> Token:
        """Take a word."""
        return self.take() if self.peek().kind == "word" else self.fail(expected)

    def quoted(self) -> str:
        """Take a string in double quotes."""
        token = self.take() if self.peek().kind == "quoted" else self.fail("a string in quotes")
        return re.sub(r"\\(.)", r"\1", token.text[1:-1])

    def integer(self, expected: str = "an integer") -> int:
        """Take an integer, with or without a minus."""
        negative = self.accept("-")
        if self.peek().kind != "integer":
            self.fail(expected)
        return -int(self.take().text) if negative else int(self.take().text)

    # --- expressions

    def resolve(self, name: Token) -> Expr:
        """The expression a name stands for; subclasses know the names in scope."""
        raise NotImplementedError(name.text)

    def expression(self) -> Expr:
        """Read an integer expression."""
        token = self.peek()
        value = self._any()
        return value if isinstance(value, Expr) else self.reject("a condition, not a number", token)

    def condition(self) -> Cond:
        """Read a condition."""
        token = self.peek()
        value = self._any()
        return value if isinstance(value, Cond) else self.reject("a number, not a condition", token)

    def _any(self) -> Value:
        first = self._all()
        if self.peek().text != "||":
            return first
        parts = [self._as_condition(first)]
        while self.accept("||"):
            parts.append(self._as_condition(self._all()))
        return conditions.any_of(parts)

    def _all(self) -> Value:
        first = self._comparison()
        if self.peek().text != "&&":
            return first
        parts = [self._as_condition(first)]
        while self.accept("&&"):
            parts.append(self._as_condition(self._comparison()))
        return conditions.all_of(parts)

    def _as_condition(self, value: Value) -> Cond:
        return value if isinstance(value, Cond) else self.fail("a comparison")

    def _as_number(self, value: Value) -> Expr:
        return value if isinstance(value, Expr) else self.fail("a number on both sides")

    def _comparison(self) -> Value:
        left = self._arithmetic(0)
        compare = _COMPARE.get(self.peek().text)
        if compare is None:
            return left
        self.take()
        return compare(self._as_number(left), self._as_number(self._arithmetic(0)))

    def _arithmetic(self, least: int) -> Value:
        left = self._unary()
        while True:
            token = self.peek()
            entry = _ARITHMETIC.get(token.text) if token.kind == "sign" else None
            if entry is None or entry[0] <= least:
                return left
            self.take()
            right = self._as_number(self._arithmetic(entry[0]))
            try:
                left = entry[1](self._as_number(left), right)
            except ZeroDivisionError as error:
                self.reject(str(error), token)

    def _unary(self) -> Value:
        if self.accept("-"):
            return -self._as_number(self._unary())
        if self.accept("!"):
            return conditions.negate(self._as_condition(self._unary()))
        return self._primary()

    def _primary(self) -> Value:
        token = self.take()
        if token.kind == "integer":
            if int(token.text) > _MAX_MAGNITUDE:
                self.reject(f"{token.text} is more than 64 bits of an index hold", token)
            return ex.Int(int(token.text))
        if token.text == "(" and token.kind == "sign":
            inner = self._any()
            self.expect(")")
            return inner
        if token.kind != "word":
            self.fail("a number, a name or '('", token)
        if token.text in ("true", "false"):
            return conditions.TRUE if token.text == "true" else conditions.FALSE
        if token.text in _CALLS and self.accept("("):
            left = self.expression()
            self.expect(",")
            right = self.expression()
            self.expect(")")
            return _CALLS[token.text](left, right)
        return self.resolve(token)


EXPRESSION_WORDS = ("true", "false", *_CALLS)
