"""Writes docs/api.md and docs/api-operations.md: signatures and docstrings of the public names."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import fusewright as fw
from fusewright.frontends.fuse import Fused
from fusewright.fusion import ops
from fusewright.kir.prediction import Prediction
from fusewright.schedule.schedule import ScheduledTensor

_API = """# API

Written by `make docs` from the docstrings. Operations have [pages of their own](ops.md), with
[signatures](api-operations.md).
"""
_OPERATIONS = """# Operations, with signatures

Written by `make docs` from the docstrings. [The list](ops.md) has a line for each. Arrays are
values of a trace, or data, which is computed at once. What follows `*` is given by name.
"""
_KINDS = {
    "Parallel": "what a loop is bound to",
    "Memory": "where a value lives",
    "DType": "an element type",
}
INNER = ("Tuning",)
"""Classes of public names whose attributes the docstring of a function explains."""
BESIDE = {"Fused": Fused, "ScheduledTensor": ScheduledTensor, "Prediction": Prediction}
"""Classes that no public name is, and that calls return."""


def render() -> str:
    """The page of everything but operations."""
    names = [n for n in set(fw.__all__).difference(ops.__all__) if not n.startswith("_")]
    values = {n: getattr(fw, n) for n in names}
    functions = {n: v for n, v in values.items() if inspect.isfunction(v)}
    classes = {n: v for n, v in values.items() if inspect.isclass(v)} | BESIDE
    errors = {n: v for n, v in classes.items() if issubclass(v, Exception)}
    rest = [n for n in sorted(values) if n not in {*functions, *classes, "nn"}]
    parts = [_API, "## Functions\n"]
    parts += [_function(f"fw.{n}", f, 3) for n, f in sorted(functions.items())]
    parts += ["## Classes\n"]
    parts += [_class(n, c) for n, c in sorted(classes.items()) if n not in errors]
    parts += ["## Errors\n", "\n".join(_error(n, c) for n, c in sorted(errors.items()))]
    parts += ["## Other names\n", "\n".join(_value(n, values[n]) for n in rest)]
    return _joined(parts)


def render_operations() -> str:
    """The page of operations."""
    parts = [_OPERATIONS, *_module("fw", ops), "## fw.nn\n", *_module("fw.nn", fw.nn)]
    return _joined(parts)


def _joined(parts: list[str]) -> str:
    return "\n".join(p.rstrip() + "\n" for p in parts if p)


def _module(prefix: str, package: ModuleType) -> Iterator[str]:
    for name in sorted(set(package.__all__)):
        value = getattr(package, name)
        if inspect.isroutine(value):
            yield _function(f"{prefix}.{name}", value, 3)
        elif inspect.ismodule(value):
            yield from _module(f"{prefix}.{name}", value)


def _function(name: str, f: Callable[..., Any], level: int) -> str:
    text = inspect.getdoc(f) or ""
    return f"{'#' * level} {name}\n\n```\n{name}{_signature(f)}\n```\n\n{_quoted(text)}\n"


def _signature(f: Callable[..., Any]) -> str:
    """The parameters and what is returned, annotations as they are written, without `self`."""
    found = inspect.signature(f)
    kept = [p for p in found.parameters.values() if p.name != "self"]
    text = str(found.replace(parameters=kept))
    text = re.sub(r"'([^']*)'", lambda m: m[1] if _is_annotation(text, m) else m[0], text)
    return text if len(text) <= 80 else _wrapped(text)


def _is_annotation(text: str, found: re.Match[str]) -> bool:
    """Whether a quoted text is an annotation, which the sources keep as texts, and no default."""
    return text[: found.start()].endswith((": ", "-> "))


def _wrapped(text: str) -> str:
    """A parameter a line."""
    inside, behind = text[1:].rsplit(")", 1)
    parts = re.split(r", (?=[*\w/]+(?::|=|,|$))", inside)
    return "(\n" + "".join(f"    {p},\n" for p in parts) + ")" + behind


def _class(name: str, c: type) -> str:
    parts = [f"### {name}\n", _quoted(inspect.getdoc(c) or "") + "\n"]
    if name not in INNER:
        own = [(n, v) for n, v in vars_of(c) if not n.startswith("_") or n == "__call__"]
        values = [(n, v) for n, v in own if isinstance(v, property | cached_property)]
        methods = [(n, v) for n, v in own if inspect.isfunction(v)]
        rows = [f"| `{n}` | {_first(v)} |" for n, v in values]
        if rows:
            parts += ["\n".join(["| attribute | |", "|---|---|", *rows]) + "\n"]
        parts += [_function(f"{name}.{n}", v, 4) for n, v in methods]
    return "\n".join(parts)


def vars_of(c: type) -> list[tuple[str, Any]]:
    """The attributes of a class and of its bases in this package, sorted."""
    found: dict[str, Any] = {}
    for base in reversed(c.__mro__):
        if base.__module__.startswith("fusewright"):
            found |= {n: v for n, v in vars(base).items() if _has_words(v)}
    return sorted(found.items())


def _has_words(value: Any) -> bool:
    return bool(inspect.getdoc(value)) and (
        inspect.isfunction(value) or isinstance(value, property | cached_property)
    )


def _error(name: str, c: type) -> str:
    bases = ", ".join(b.__name__ for b in c.__bases__)
    return f"- **{name}** ({bases}): {_first(c)}"


def _value(name: str, value: Any) -> str:
    kind = _KINDS.get(type(value).__name__, "")
    return f"- `fw.{name}`: {kind or repr(value)}"


def _first(value: Any) -> str:
    """The first paragraph of the docstring, on one line."""
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return text.replace("|", "\\|")


def _quoted(text: str) -> str:
    """A docstring as it is written: indented parts are code."""
    return textwrap.dedent(text).strip()


PAGES = {"api.md": render, "api-operations.md": render_operations}


def write() -> None:
    """Writes the pages."""
    for name, page in PAGES.items():
        path = Path(__file__).with_name(name)
        path.write_text(page(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    write()
