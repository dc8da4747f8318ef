"""Writes docs/ops.md: every operation with the first line of what it says of itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import array_api_strict

import fusewright as fw
from fusewright.fusion import ops

_INTRO = """# Operations

Written by `make docs` from the operations themselves. Those marked * are not in the array API
standard. Operators and methods on traced arrays follow the standard.
"""


def render() -> str:
    """The page."""
    sections = [_INTRO, *_sections(ops, mark=True)]
    sections += ["# fw.nn\n\nUnder the names of `torch.nn.functional`, with `axis` for `dim`.\n"]
    sections += [*_sections(fw.nn, mark=False)]
    return "\n".join(sections)


def _sections(package: ModuleType, *, mark: bool) -> Iterator[str]:
    """One table for each module of a package, in the order of the modules' names."""
    by_module: dict[str, list[tuple[str, Callable[..., Any]]]] = {}
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isroutine(value):
            by_module.setdefault(inspect.getmodule(inspect.unwrap(value)).__name__, []).append(
                (name, value)
            )
        elif inspect.ismodule(value):
            functions = [(f"{name}.{n}", getattr(value, n)) for n in value.__all__]
            by_module.setdefault(value.__name__, []).extend(functions)
    for module in sorted(by_module):
        title = module.rpartition(".")[2].replace("_", " ").capitalize()
        rows = [f"| `{n}`{_star(n, mark)} | {_summary(f)} |" for n, f in sorted(by_module[module])]
        yield "\n".join([f"## {title}\n", "| name | |", "|---|---|", *rows, ""])


def _star(name: str, mark: bool) -> str:
    return " *" if mark and not hasattr(array_api_strict, name) else ""


def _summary(f: Callable[..., Any]) -> str:
    """The first sentence of the docstring, on one line."""
    text = " ".join((inspect.getdoc(f) or "").partition("\n\n")[0].split())
    return text.replace("|", "\\|")


if __name__ == "__main__":
    path = Path(__file__).with_name("ops.md")
    path.write_text(render(), encoding="utf-8")
    print(path)
    import_module("make_api").write()
