"""Which messages of errors no test matches: `python -m tools.untested_errors`.

Messages are the texts of an error, those given to a function that does nothing but make an error
of them (`_refusal(buffer, "its rows differ")`), and those that a check of kernels yields as a
`Problem`.

A message counts as matched when some test quotes `RUN` words of it that follow each other, values
between them aside, and that no more than one other message has. A test that matches values alone is
not seen, and one that quotes another message with the same words is; both are rare. Messages all
of whose words others have too, such as "; use one of", are left out.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[1]
ERRORS = frozenset(
    ("UserError", "ScheduleError", "UnsupportedError", "SpecError", "AxisError", "NoAttributeError")
)
"""What a user can cause; an InternalError is a defect, which has no test but its mending."""
RUN = 3
"""Words in a row that tell a message: two are too common, four too many for the short ones."""

WORDS_OF_VALUE = 4
"""Words that a value has in a test at most, such as `(3, 4, 5)`."""
VALUE = " .. "
_WORD = re.compile(r"[A-Za-z_]+|\d+")
Run: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Message:
    """Where an error is made, of what class, and the texts between its values."""

    file: Path
    line: int
    error: str
    parts: tuple[str, ...]

    @property
    def runs(self) -> frozenset[Run]:
        """The runs of words that tell it, as many texts as they stand in; all words of a short
        message."""
        words = [(w, k) for k, p in enumerate(self.parts) for w in _WORD.findall(p)]
        count = min(RUN, len(words))
        return frozenset(_run(words[k : k + count]) for k in range(len(words) - count + 1))

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: {self.error}: {' .. '.join(p.strip() for p in self.parts)}"
        )


def _run(words: Sequence[tuple[str, int]]) -> Run:
    """Words with where a value stands between two of them."""
    out = words[0][0]
    for (_, before), (word, part) in pairwise(words):
        out += f" {word}" if part == before else f"{VALUE}{word}"
    return out


def messages(root: Path) -> Iterator[Message]:
    """The errors of `ERRORS` that the sources under a folder make."""
    for file in sorted(root.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        made = dict(_makers(nodes))
        for node in nodes:
            for line, error, texts in _made(node, made):
                if parts := tuple(_parts(texts)):
                    yield Message(file.relative_to(root), line, error, parts)


def _makers(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Functions that do nothing but raise or return an error, with its class."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            match [s for s in node.body if not _is_text(s)]:
                case [ast.Raise(exc=ast.Call(func=ast.Name(id=error)))] if error in ERRORS:
                    yield node.name, error
                case [ast.Return(value=ast.Call(func=ast.Name(id=error)))] if error in ERRORS:
                    yield node.name, error
                case _:
                    pass


def _is_text(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)


def _made(node: ast.AST, makers: Mapping[str, str]) -> Iterator[tuple[int, str, Sequence[ast.AST]]]:
    """The line, the class and the texts of errors that a piece of the program makes by itself."""
    match node:
        case ast.Call(func=ast.Name(id=error), args=args) if error in ERRORS:
            yield node.lineno, error, args
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if (
            name in makers
        ):
            yield node.lineno, makers[name], args
        case ast.FunctionDef(returns=ast.expr() as returns) if "Problem]" in ast.unparse(returns):
            for s in ast.walk(node):
                match s:
                    case ast.Yield(value=ast.Tuple(elts=[_, text])):
                        yield s.lineno, "SpecError", [text]
                    case _:
                        pass
        case _:
            pass


def untested(sources: Path, tests: Path) -> list[Message]:
    """The messages of the sources that no test matches."""
    found = list(messages(sources))
    common = Counter(r for m in found for r in m.runs)
    texts = (re.sub(r"\\[bdsw]", " ", f.read_text()) for f in sorted(tests.rglob("*.py")))
    quoted = " ".join(w for text in texts for w in _WORD.findall(text))

    def is_quoted(run: Run) -> bool:
        pattern = re.escape(run).replace(re.escape(VALUE), rf"(?: \w+){{0,{WORDS_OF_VALUE}}} ")
        return f" {run} " in quoted if VALUE not in run else bool(re.search(pattern, quoted))

    telling = {m: [r for r in m.runs if common[r] <= 2] for m in found}
    return [m for m, runs in telling.items() if runs and not any(map(is_quoted, runs))]


def _parts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The literal texts of a message, cut where a value stands."""
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if _WORD.search(text):
                yield text
            case ast.JoinedStr(values=values):
                yield from _parts(values)
            case ast.BinOp(left=left, right=right):
                yield from _parts((left, right))
            case ast.IfExp(body=body, orelse=orelse):
                yield from _parts((body, orelse))
            case _:
                pass


def main() -> None:
    """Prints them."""
    found = untested(ROOT / "src" / "fusewright", ROOT / "tests")
    for m in found:
        print(m)
    count = sum(1 for _ in messages(ROOT / "src" / "fusewright"))
    print(f"{len(found)} of {count} messages are matched by no test")


if __name__ == "__main__":
    main()
