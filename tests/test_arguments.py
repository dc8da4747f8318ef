"""Every public argument changes a program or a result, or is refused with a typed error.

The walk reads the signatures: an argument without a row in the tables fails it, and so does a row
that no signature asks for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from arguments_table import ARRAYS, ROWS, USUAL
from fusewright.fusion.array import Array

ELSEWHERE = frozenset(
    (
        *(
            "benchmark",
            "kernel",
            "compile",
            "config",
            "evaluate",
            "from_torch",
            "fuse",
            "load",
            "parse_kernel",
        ),
        *("register_pytree", "trace", "tune", "verify"),
        *("custom_vjp", "grad", "jvp", "value_and_grad", "vjp", "vmap"),
    )
)
"""Functions that are not operations: their arguments are shown in `test_calls`."""

SPECS = {
    name: fw.TensorSpec(shape, dtype)
    for twin in ("", "2")
    for name, (shape, dtype) in ((f"{k}{twin}", v) for k, v in ARRAYS.items())
}


def operations() -> Iterator[tuple[str, Any]]:
    for room, prefix in ((fw, ""), (fw.nn, "nn.")):
        names = fw.__all__ if room is fw else [n for n in dir(room) if not n.startswith("_")]
        for n in sorted(set(names)):
            f = getattr(room, n)
            if inspect.isfunction(f) and n not in ELSEWHERE and not n.startswith("__"):
                yield prefix + n, f


def parameters(f: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(f).parameters.values())


def row(name: str, p: inspect.Parameter) -> tuple[str | None, ...]:
    """What an argument is, and what else it may be."""
    own = ROWS.get(name, {})
    found = own.get(p.name) or USUAL.get(p.name)
    assert found is not None, f"{name}({p.name}=): say in tests/arguments_table.py what it changes"
    if len(found) == 1:
        usual = found[0]
        assert usual is not None
        twin = re.sub(rf"(?<![\w.'])({'|'.join(ARRAYS)})\b(?!\(|=)", r"\g<1>2", usual)
        assert twin != usual, f"{name}({p.name}={usual}): names no array"
        return usual, twin
    return found


def spelled(name: str, f: Any, changed: str | None) -> str:
    """The call with usual arguments, one of them changed."""
    parts: list[str] = []
    for p in parameters(f):
        usual, other, *_ = row(name, p)
        text = other if p.name == changed else usual
        if text is None:
            continue
        is_named = p.kind is p.KEYWORD_ONLY or (
            p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty
        )
        parts.append(f"{p.name}={text}" if is_named else text)
    return f"fw.{name}({', '.join(parts)})"


def known(x: Any) -> object:
    """What is known of a result beside the operations that make it."""
    if isinstance(x, Array):
        return x.dtype, x.shape, x.numpy() if x.is_known else None
    return x


def seen(call: str) -> str:
    """What a call records, or gives where it records nothing."""
    given: list[str] = []

    def fn(**arrays: Any) -> Any:
        found = eval(call, {"fw": fw, "np": np}, dict(arrays))
        leaves = found if isinstance(found, tuple | list) else [found]
        given.append(repr([known(x) for x in leaves]))
        return [*(x for x in leaves if isinstance(x, Array) and not x.is_known), arrays["x"]]

    fusion = fw.trace(fn, **SPECS)
    return f"{fusion}\n{given[0]}"


WALK = [(name, p.name) for name, f in operations() for p in parameters(f)]


@pytest.mark.parametrize(("name", "argument"), WALK, ids=lambda x: str(x))
def test_an_argument_of_an_operation_changes_what_is_recorded(name: str, argument: str) -> None:
    f = dict(operations())[name]
    (p,) = (p for p in parameters(f) if p.name == argument)
    usual, other = seen_or_error(spelled(name, f, None)), spelled(name, f, argument)
    assert isinstance(usual, str), f"{spelled(name, f, None)}: {usual!r}"
    refusal = row(name, p)[2:]
    found = seen_or_error(other)
    if refusal:
        assert type(found).__name__ == refusal[0], f"{other}: {found!r}"
        assert argument in str(found) or name.rpartition(".")[2] in str(found)
    else:
        assert isinstance(found, str), f"{other}: {found!r}"
        assert found != usual, f"{other} records what {spelled(name, f, None)} does"


def seen_or_error(call: str) -> str | Exception:
    try:
        return seen(call)
    except Exception as e:
        return e


def test_no_row_is_for_an_argument_that_is_gone() -> None:
    known = {name: {p.name for p in parameters(f)} for name, f in operations()}
    assert [n for n in ROWS if n not in known] == []
