"""Several wrong arguments at once, and values of other kinds in the place of arrays: refused by an
error of this package that says why, or right, but never an exception from the inside."""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import ops

HOSTILE: list[Any] = [
    None, "no", "", float("nan"), float("inf"), -1.5, 10**400, -(10**18), -1, 0, 1, 2, 3, 7, True,
    1j, b"x", [], (), [1, 2], [[1, 2], [3]], (-9, 9), (1.5,), ("a",), {}, {"a": 1}, object(),
    np.float32(2.5), np.float64("nan"), np.int8(-3), np.uint64(2**63), np.bool_(True), np.ones(3),
    np.ones((4, 8), np.float16), np.ones((2, 2), object), np.ones(3, np.complex64),
    np.array(["a"]), np.array(3), np.zeros((0, 4)), slice(None), ..., int, set(), lambda: 0,
    "float32", "int8", "mean", "sum", "reflect", "left", "fill", 2**31, -(2**31), 2**62, 0.5,
    (2, 2), (1, 0), [0, 1], fw.float16, range(3), np.datetime64("2020-01-01"),
]  # fmt: skip
SPECS = [
    fw.TensorSpec((4, 8), "float32"), fw.TensorSpec((4, 8), "int32"), fw.TensorSpec((4, 8), "bool"),
    fw.TensorSpec((8,), "float32"), fw.TensorSpec((), "float32"), fw.TensorSpec((), "int64"),
    fw.TensorSpec((2, 3, 8, 8), "float32"), fw.TensorSpec((4, 8), "float16"),
    fw.TensorSpec((3,), "int64"), fw.TensorSpec((0, 4), "float32"), fw.TensorSpec((4, 8), "uint8"),
    fw.TensorSpec((5, 3, 3, 3), "float32"), fw.TensorSpec(("n", 8), "float32"),
    fw.TensorSpec((8, 8), "bfloat16"), fw.TensorSpec((4, 8), "uint64"),
]  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{n: getattr(fw, n) for n in ops.__all__ if callable(getattr(fw, n))},
    **{f"nn.{n}": getattr(fw.nn, n) for n in fw.nn.__all__ if callable(getattr(fw.nn, n))},
}


def drawn(rng: random.Random, arrays: tuple[Any, ...], p: inspect.Parameter) -> Any:
    """An array mostly, where the parameter has no default; else anything."""
    r = rng.random()
    if r < (0.9 if p.default is p.empty else 0.4):
        return rng.choice(arrays)
    if r < 0.93:
        return [rng.choice(arrays) for _ in range(rng.randrange(4))]
    return rng.choice(HOSTILE)


def drawn_call(rng: random.Random, f: Callable[..., Any], arrays: tuple[Any, ...]) -> Any:
    args: list[Any] = []
    named: dict[str, Any] = {}
    for p in inspect.signature(f).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            args += [drawn(rng, arrays, p) for _ in range(rng.randrange(3))]
        elif p.kind is p.KEYWORD_ONLY:
            if p.default is p.empty or rng.random() < 0.4:
                named[p.name] = drawn(rng, arrays, p)
        elif p.kind is not p.VAR_KEYWORD:
            if p.default is not p.empty and rng.random() < 0.4:
                break
            args.append(drawn(rng, arrays, p))
    return f(*args, **named)


def refused(call: Callable[[], Any], what: object) -> bool:
    """Whether an error of this package that says something refuses the call, or Python does for its
    arguments; any other exception fails."""
    try:
        call()
    except fw.InternalError as e:
        raise AssertionError(f"{what}: {e}") from e
    except fw.FusewrightError as e:
        assert len(str(e)) > 20, what
        return True
    except TypeError as e:
        own = str(Path(fw.__file__).parent)
        last = traceback.extract_tb(e.__traceback__)[-1].filename
        by_python = hasattr(e, "__notes__") or not last.startswith(own) or "argument" in str(e)
        assert by_python, f"{what}: {e}"
        return True
    except Exception as e:
        raise AssertionError(f"{what}: {type(e).__name__}: {e}") from e
    return False


@pytest.mark.parametrize("seed", range(6))
def test_operations_with_several_wrong_arguments(seed: int) -> None:
    rng = random.Random(seed)
    names = sorted(FUNCTIONS)
    counts = [0, 0]
    for k in range(150):
        name = rng.choice(names)
        where = f"seed {seed}, call {k}, {name}"
        call = lambda *arrays, f=FUNCTIONS[name]: drawn_call(rng, f, arrays)  # noqa: E731
        counts[refused(lambda call=call: fw.trace(call, *SPECS), where)] += 1
    assert min(counts) > 10  # some are right


X = np.ones((4, 8), np.float32)
F = fw.fuse(lambda x: fw.exp(x) + 1, device="sim")
FUSION = fw.trace(fw.exp, SPECS[0])
PROGRAM = fw.compile(FUSION)
STRANGERS: dict[str, Any] = {
    "itself": F, "a program": PROGRAM, "a fusion": FUSION, "a kernel": PROGRAM.kernels[0],
    "a spec": SPECS[0], "a function": len, "a class": dict, "a text": "x", "nothing": None,
    "ragged lists": [[1.0, 2.0], [3.0]], "objects": X.astype(object), "texts": np.array(["a"]),
    "complex": X.astype("c8"), "other byte order": X.astype(">f4"), "bytes": np.ones(3).view("V8"),
    "records": np.zeros(3, [("a", "f4")]), "a decimal": Decimal(1), "a fraction": Fraction(1, 2),
    "an iterator": iter([1]), "a memory view": memoryview(X), "a masked array": np.ma.array(X),
    "a set": {1}, "dates": np.array(["2020-01-01"], "M8[D]"), "a module": fw, "a type": fw.float32,
}  # fmt: skip


@pytest.mark.parametrize("name", list(STRANGERS))
def test_what_is_no_array_in_the_place_of_one(name: str) -> None:
    value = STRANGERS[name]
    calls: dict[str, Callable[[], Any]] = {
        "call": lambda: F(value),
        "call beside": lambda: F(X, value),
        "out": lambda: F(X, out=value),
        "nested": lambda: F([X, {"a": value}]),
        "program": lambda: PROGRAM(value, device="sim"),
        "simulate": lambda: PROGRAM.simulate(value),
        "evaluate": lambda: fw.evaluate(FUSION, value),
        "asarray": lambda: fw.asarray(value),
        "sum": lambda: fw.trace(lambda x: x + value, SPECS[0]),
        "from the left": lambda: fw.trace(lambda x: value + x, SPECS[0]),
        "join": lambda: fw.trace(lambda x: fw.concat([x, value]), SPECS[0]),
        "index": lambda: fw.trace(lambda x: x[value], SPECS[0]),
        "taken": lambda: fw.trace(lambda x: fw.take(x, value, axis=0), SPECS[0]),
        "filled": lambda: fw.trace(
            lambda x: fw.take(x, fw.arange(3), axis=0, mode="fill", fill_value=value), SPECS[0]
        ),
        "result": lambda: fw.trace(lambda x: (x, value), SPECS[0]),
        "grad": lambda: fw.trace(lambda x: fw.grad(fw.sum)(value), SPECS[0]),
        "vmap": lambda: fw.trace(lambda x: fw.vmap(fw.exp)(value), SPECS[0]),
        "loop": lambda: fw.trace(lambda x: fw.fori_loop(0, 3, lambda i, c: c, value), SPECS[0]),
        "compile": lambda: fw.compile(value),
        "report": lambda: str(fw.Report(value)) if value is not PROGRAM else None,
        "measured": lambda: str(fw.Report(PROGRAM, measured=value)) if value is not None else None,
        "choice": lambda: fw.config(check_indices=value),
    }
    count = sum(refused(call, (name, what)) for what, call in calls.items())
    assert count >= 4


def test_sizes_that_no_address_counts_are_refused_where_data_are_known() -> None:
    for call in (
        lambda: fw.unique_values(fw.asarray([1, 2]), size=2**62).numpy(),
        lambda: fw.broadcast_to(fw.asarray([1.0]), (2**61,)).numpy(),
    ):
        with pytest.raises(fw.UserError, match="has more bytes than an address counts"):
            call()


def test_a_view_of_memory_is_an_array() -> None:
    assert np.array_equal(fw.asarray(memoryview(X)).numpy(), X)


def test_a_map_over_no_array_is_refused() -> None:
    with pytest.raises(fw.UserError, match="vmap: no mapped argument is an array"):
        fw.trace(lambda x: fw.vmap(lambda y: y)(3) + x, "f32[3]")


def test_reports_of_what_is_no_program_are_refused() -> None:
    with pytest.raises(fw.UserError, match="Report: the program is int; it must be a program"):
        fw.Report(3)  # type: ignore[arg-type]
    with pytest.raises(fw.UserError, match=r"Report: measured= is float; it must be what"):
        fw.Report(PROGRAM, measured=3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [-(2**31), -(2**63), -2, float("nan"), None, [2], (3,), "3", 1.5])
def test_sizes_beside_one_that_is_computed_are_refused(size: Any) -> None:
    with pytest.raises(fw.UserError, match=r"reshape: size .* (is negative|sizes are integers)"):
        fw.trace(lambda x: fw.reshape(x, (size, -1)), SPECS[0])


@pytest.mark.parametrize(
    "shapes", [((0, 4), (4, 0)), ((8, 4), (4, 0)), ((0, 4), (4, 8)), ((8, 0), (0, 8))]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_without_elements(shapes: tuple[tuple[int, int], ...], dtype: str) -> None:
    specs = [fw.TensorSpec(s, dtype) for s in shapes]
    arrays = [np.ones(s, t.dtype.numpy) for s, t in zip(shapes, specs, strict=True)]
    fusion = fw.trace(lambda x, y: (x @ y, fw.sum(x @ y)), *specs)
    got, total = fw.compile(fusion).simulate(*arrays).outputs
    assert got.shape == (shapes[0][0], shapes[1][1]) and not got.any() and total == 0
