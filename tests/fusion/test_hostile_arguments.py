"""Every public function with wrong arguments, one at a time: refused by an error that says why, or
right, but never a raw exception from the inside."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import ops


class Two:
    """An integer of a class of the caller."""

    def __index__(self) -> int:
        return 2


HOSTILE: list[Any] = [
    None, "no", float("nan"), float("inf"), -1.5, 10**400, -1, 7, True, 1j, [], (), [1, 2], (-9, 9),
    (1.5,), ("a",), {}, object(), np.ones(3), np.int64(99), np.longdouble(1), Two(), slice(None),
    ..., int,
]  # fmt: skip
GOOD: dict[str, Any] = {
    "axis": 0, "axes": (1, 0), "shape": (2, 3), "source": 0, "destination": 1, "shift": 1,
    "repeats": 2, "repetitions": (1, 2), "pad_width": 1, "start": 0, "stop": 5, "step": 1, "num": 4,
    "n_rows": 3, "k": 0, "fill_value": 1.0, "dtype": "float32", "seed": 1, "p": 0.5, "n": 1,
    "num_classes": 4, "normalized_shape": (4,), "num_groups": 1, "indexing": "ij", "side": "left",
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{n: getattr(ops, n) for n in ops.__all__ if n != "random"},
    **{f"random.{n}": getattr(ops.random, n) for n in ops.random.__all__},
    **{
        f"nn.{n}": getattr(fw.nn, n) for n in fw.nn.__all__ if inspect.isfunction(getattr(fw.nn, n))
    },
}


def _parameters(f: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(f).parameters.values() if p.kind is not p.VAR_KEYWORD]


def _usual(p: inspect.Parameter, x: Any) -> Any:
    return [x, x] if p.name == "arrays" and p.kind is not p.VAR_POSITIONAL else GOOD.get(p.name, x)


def calls(f: Callable[..., Any], x: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Calls with usual arguments but one."""
    parameters = _parameters(f)
    needed = [p for p in parameters if p.default is p.empty]
    behind = {
        p.name for p in parameters if p.default is not p.empty and p.kind is p.POSITIONAL_ONLY
    }
    for wrong in parameters:
        if wrong.name in behind and wrong is not parameters[len(needed)]:
            continue  # it cannot be given without those before it
        for value in HOSTILE:
            args: list[Any] = []
            named: dict[str, Any] = {}
            for p in needed if wrong in needed else [*needed, wrong]:
                given = value if p is wrong else _usual(p, x)
                if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD):
                    named[p.name] = given
                else:
                    args.append(given)
            yield args, named


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_arguments_are_refused_with_a_message(name: str):
    refused = 0

    def program(x: Any) -> Any:
        nonlocal refused
        for args, named in calls(FUNCTIONS[name], x):
            try:
                FUNCTIONS[name](*args, **named)
            except fw.FusewrightError as e:
                assert not isinstance(e, fw.InternalError | fw.SpecError), (args, named)
                assert len(str(e)) > 20, (args, named)
                refused += 1
            except Exception as e:
                raise AssertionError(f"{name}{args}{named}: {type(e).__name__}: {e}") from e
        return x

    fw.trace(program, fw.TensorSpec((3, 4), "float32"))
    assert refused >= 5


WORDS = {"sum": "axis 9", "concat": "axis 9", "take": "axis 9", "flip": "axis 9", "roll": "axis 9"}


@pytest.mark.parametrize("name", WORDS)
def test_messages_name_the_operation_and_the_number(name: str):
    def program(x: Any) -> Any:
        i = fw.astype(x[0], fw.int32)
        extra = {"take": (i,), "roll": (1,)}.get(name, ())
        return getattr(fw, name)([x] if name == "concat" else x, *extra, axis=9)

    with pytest.raises(fw.UserError, match=rf"{name}: {WORDS[name]} of an array of rank 2"):
        fw.trace(program, fw.TensorSpec((3, 4), "float32"))


NEEDS_OTHERS = """broadcast_shapes cond fori_loop scan while_loop""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(NEEDS_OTHERS)))
def test_numpy_arrays_stand_for_known_ones(name: str):
    """Any argument that may be an array may be numpy's, with the same result."""
    f = FUNCTIONS[name]
    for dtype, shape in [("f4", (4, 4)), ("f4", (1, 4, 8)), ("i4", (4,))]:
        x = (np.arange(np.prod(shape)).reshape(shape) % 3 + 1).astype(dtype)
        for parameter in [p for p in _parameters(f) if "Array" in str(p.annotation)]:
            try:
                expected = _results(f, parameter, x, fw.asarray)
            except fw.UserError:
                continue
            for a, e in zip(_results(f, parameter, x, np.asarray), expected, strict=True):
                assert a.dtype == e.dtype, (parameter.name, dtype, shape)
                np.testing.assert_array_equal(a, e)


def _results(
    f: Callable[..., Any], changed: inspect.Parameter, x: Any, make: Callable[[Any], Any]
) -> list[Any]:
    """What f makes of known arrays, one of them as `make` gives it."""
    args: list[Any] = []
    named: dict[str, Any] = {}
    for p in _parameters(f):
        if p.default is not p.empty and p.name != changed.name:
            continue
        given = _usual(p, fw.asarray(x))
        if p.name == changed.name:
            given = [make(x), make(x)] if p.name == "arrays" else make(x)
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD):
            named[p.name] = given
        else:
            args.append(given)
    found = f(*args, **named)
    return [np.asarray(y) for y in (found if isinstance(found, tuple | list) else [found])]


def test_integers_that_nothing_holds_are_refused():
    with pytest.raises(
        fw.UserError, match=r"is an integer of \d+ bits, .* nothing; use one below 2\*\*"
    ):
        fw.trace(lambda x: x + 10**400, fw.TensorSpec((4,), "float32"))
