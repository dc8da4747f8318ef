"""Numbers of a call: one program serves all positions, and every call is checked."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_runs import run_on_bytes

import fusewright as fw
from fusewright import driver
from fusewright.errors import SpecError, UserError
from fusewright.fusion.text import parse_fusion

F32 = "float32"
ROWS = fw.TensorSpec((128, 16), F32)
BLOCK = fw.TensorSpec((3, 16), F32)
SQUARE = fw.TensorSpec((40, 40), F32)
N_ROWS = fw.TensorSpec(("n", 16), F32)

Case = tuple[Callable[..., Any], tuple[fw.TensorSpec, ...], tuple[str, ...], list[tuple[int, ...]]]


def written(c: Any, v: Any, at: Any) -> Any:
    return fw.insert(c, fw.exp(v), (at, 0))


CASES: dict[str, Case] = {
    "slice": (lambda x, at: x[at : at + 8] * 2, (ROWS,), ("at",), [(0,), (1,), (57,), (120,)]),
    "rest": (lambda x, at: fw.exp(x[at:]), (ROWS,), ("at",), [(0,), (1,), (127,), (128,)]),
    "before": (lambda x, at: x[at - 4 : at] * 2, (ROWS,), ("at",), [(4,), (128,)]),
    "steps": (lambda x, at: x[at : at + 8 : 2], (ROWS,), ("at",), [(0,), (5,), (120,)]),
    "row": (lambda x, at: x[at] + 1, (ROWS,), ("at",), [(0,), (127,)]),
    "range": (lambda x, a, b: fw.sum(x[a:b], axis=0), (ROWS,), ("a", "b"), [(0, 128), (5, 5)]),
    "prefix": (lambda x, n: fw.nn.softmax(x[:, : n + 1]), (SQUARE,), ("n",), [(0,), (1,), (39,)]),
    "scan": (lambda x, n: fw.cumulative_sum(x[:n], axis=0), (ROWS,), ("n",), [(0,), (1,), (128,)]),
    "scan of a few": (
        lambda x, n: fw.cumulative_sum(x[:, n:], axis=1),
        (fw.TensorSpec((9, 4), F32),),
        ("n",),
        [(0,), (3,), (4,)],
    ),
    "mean": (lambda x, at: fw.mean(x[: at + 1], axis=0), (ROWS,), ("at",), [(0,), (77,)]),
    "pad": (lambda x, a, b: fw.pad(x, ((a, b), (0, 0))), (BLOCK,), ("a", "b"), [(0, 0), (7, 2)]),
    "crop": (lambda x, a: fw.pad(x, ((-a, 0), (0, 0))) + 1, (ROWS,), ("a",), [(0,), (128,)]),
    "roll": (lambda x, a: fw.roll(x, a, axis=0) + 1, (ROWS,), ("a",), [(0,), (5,), (1000,)]),
    "on the left": (lambda x, a: (a + x) * a - (a - x), (ROWS,), ("a",), [(0,), (3,)]),
    "equal": (lambda x, a: fw.where(a == fw.arange(40), x, 0.0), (SQUARE,), ("a",), [(3,), (99,)]),
    "as an array": (lambda x, a: x + fw.asarray(a) + fw.full((16,), a), (ROWS,), ("a",), [(3,)]),
    "trips": (
        lambda x, a: fw.scan(lambda c, _: (c + a, c), x[0], None, length=a),
        *((ROWS,), ("a",), [(0,), (1,), (5,)]),
    ),
    "carried": (
        lambda x, a: fw.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 2, s[1] * 2), (a, x)),
        *((BLOCK,), ("a",), [(0,), (5,), (10,)]),
    ),
    "of a branch": (
        lambda x, a: fw.cond(x[0, 0] > 0, lambda v, n: v * n, lambda v, n: v + n, x, a),
        *((BLOCK,), ("a",), [(0,), (5,)]),
    ),
    "factor": (lambda x, a: x * a, (ROWS,), ("a",), [(0,), (3,)]),
    "mask": (lambda x, n: fw.where(fw.arange(40) <= n, x, 0.0), (SQUARE,), ("n",), [(0,), (100,)]),
    "insert": (written, (ROWS, BLOCK), ("at",), [(0,), (1,), (57,), (125,)]),
    "both axes": (
        lambda c, v, a, b: fw.insert(c, v, (a, b)),
        (SQUARE, fw.TensorSpec((3, 5), F32)),
        ("a", "b"),
        [(0, 0), (37, 35), (1, 20)],
    ),
    "any size": (written, (N_ROWS, BLOCK), ("at",), [(0,), (1,), (37,)]),
    "part of any size": (lambda x, at: x[at : at + 3] * 2, (N_ROWS,), ("at",), [(0,), (37,)]),
}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def arrays_for(specs: tuple[fw.TensorSpec, ...]) -> list[np.ndarray]:
    shapes = [[40 if isinstance(s, str) else s for s in spec.shape] for spec in specs]
    return [normal(*shape, seed=k) for k, shape in enumerate(shapes)]


def traced(case: Case) -> fw.Fusion:
    fn, specs, names, _ = case
    return fw.trace(fn, *specs, *map(fw.Sym, names))


def python(case: Case, arrays: list[np.ndarray], values: tuple[int, ...]) -> list[np.ndarray]:
    """The oracle of the same function where numbers are Python integers."""
    specs = [fw.TensorSpec(a.shape, F32) for a in arrays]
    return fw.evaluate(fw.trace(case[0], *specs, *values), *arrays)


@pytest.mark.parametrize("name", CASES)
def test_one_program_serves_all_values(name: str) -> None:
    case = CASES[name]
    fusion = traced(case)
    arrays = arrays_for(case[1])
    donated = ("c",) if fusion.inputs[0].name == "c" else ()
    for program in [fw.compile(fusion)] + [fw.compile(fusion, donate=donated)] * bool(donated):
        for values in case[3]:
            expected = python(case, arrays, values)
            result = program.simulate(*arrays, *values)
            assert result.races == []
            runs = [result.outputs, fw.evaluate(fusion, *arrays, *values)]
            if all(x.region is None for x in program.launches):
                runs.append(run_on_bytes(program, *arrays, *values))
            for outputs in runs:
                for a, b in zip(outputs, expected, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        report = fw.verify(program)
        assert report.ok, report


@pytest.mark.parametrize("name", CASES)
def test_text_files_and_pickles_keep_numbers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    fusion = traced(case)
    assert str(parse_fusion(str(fusion))) == str(fusion)
    program = fw.compile(fusion)
    arrays = arrays_for(case[1])
    expected = program.simulate(*arrays, *case[3][-1]).outputs[0]
    copies = [pickle.loads(pickle.dumps(program)), fw.load(program.save(tmp_path / "p.fw"))]
    for p in copies:
        assert np.array_equal(p.simulate(*arrays, *case[3][-1]).outputs[0], expected)
    for k in program.kernels:
        assert str(fw.parse_kernel(str(k.ir))) == str(k.ir)
        pickle.loads(pickle.dumps(k))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("slice", (121,), r"at \+ 8 must lie inside size 128: at is 121; at may be at most 120"),
        ("before", (3,), r"at - 4 must not be negative: at is 3; at may be at least 4"),
        ("range", (9, 3), r"must not end before it begins: a is 9, b is 3; a may be at most 3"),
        ("row", (128,), r"the index must lie inside size 128: at is 128; at may be at most 127"),
        ("crop", (129,), r"pad: axis 0 .* must not crop more than there is: a is 129; a may be at"),
        (
            "insert",
            (126,),
            r"insert: axis 0: 3 elements from at on must fit size 128: at is 126;",
        ),
        ("any size", (38,), r"must fit size n: at is 38, n is 40; at may be at most 37"),
        ("insert", (-1,), r"the number at is -1: it must be at least 0"),
        ("insert", (2.0,), r"argument 2: the number at is float 2.0; give a Python integer"),
        ("insert", (True,), r"argument 2: the number at is bool True"),
        ("insert", (), r"2 arguments: the number at is argument 2"),
    ],
)
def test_calls_are_refused(name: str, values: tuple[Any, ...], message: str) -> None:
    case = CASES[name]
    fusion = traced(case)
    program = fw.compile(fusion)
    arrays = arrays_for(case[1])
    for run in (program.simulate, lambda *a: fw.evaluate(fusion, *a), program):
        with pytest.raises(UserError, match=message):
            run(*arrays, *values)


def test_limits_of_symbols_are_checked() -> None:
    def f(x: fw.Array, at: Any) -> fw.Array:
        return x[at : at + 8]

    for sym, value, message in (
        (fw.Sym("at", min=3), 2, "the number at is 2: it must be at least 3 and at most 120"),
        (fw.Sym("at", max=7), 8, "the number at is 8: it must be at least 0 and at most 7"),
        (fw.Sym("at", multiple_of=4), 6, "the number at is 6, no multiple of 4"),
    ):
        with pytest.raises(UserError, match=message):
            fw.evaluate(fw.trace(f, ROWS, sym), normal(128, 16), value)


def test_a_number_may_be_a_size() -> None:
    n = fw.Sym("n")
    fusion = fw.trace(lambda x, n: x * n, fw.TensorSpec((n, 4), F32), n)
    x = normal(5, 4)
    assert np.allclose(fw.compile(fusion).simulate(x, 5).outputs[0], x * 5)
    for run in (fw.compile(fusion).simulate, lambda *a: fw.evaluate(fusion, *a)):
        with pytest.raises(UserError, match="number n is 6, but an axis of that size has 5"):
            run(x, 6)


def test_traces_that_are_refused() -> None:
    at = fw.Sym("at", min=0)
    with pytest.raises(UserError, match=r"size at in shape \(at,\) has min=0"):
        fw.TensorSpec((at,), F32)
    with pytest.raises(UserError, match="two different symbols are called 'n'"):
        fw.trace(lambda x, n: x * n, fw.TensorSpec((fw.Sym("n"),), F32), fw.Sym("n"))
    with pytest.raises(UserError, match="3 elements from 126 on may not fit size 128"):
        fw.trace(lambda c, v: fw.insert(c, v, (126, 0)), ROWS, BLOCK)
    with pytest.raises(UserError, match=r"must fit int8 .*; cast the array with fw.astype"):
        fw.trace(lambda x: x * x.shape[0], fw.TensorSpec(("n",), "int8"))
    for line, message in (
        ("size n: min=0", "min=0 is for numbers"),
        ("number n: min=0, max=None, multiple_of=1, at=0\n" * 2, "the number n is declared twice"),
        ("number n: min=0, max=None, multiple_of=1, at=0\ncheck m: 'm'", "no size 'm' is declared"),
    ):
        with pytest.raises(SpecError, match=message):
            parse_fusion(f"{line}\nreturn")


# --- caches ---------------------------------------------------------------------------------------


def attend(keys, values, k, v, q, at):
    """A step of decoding: one place of both caches is written, and all up to it are read."""
    keys, values = fw.insert(keys, k, (0, at, 0)), fw.insert(values, v, (0, at, 0))
    scores = fw.nn.softmax(q @ keys[:, : at + 1].mT, axis=-1)
    return keys, values, scores @ values[:, : at + 1]


CACHE, STEP = fw.TensorSpec((4, 96, 32), F32), fw.TensorSpec((4, 1, 32), F32)


@pytest.fixture(scope="module")
def decoding() -> fw.Program:
    fusion = fw.trace(attend, CACHE, CACHE, STEP, STEP, STEP, fw.Sym("at"))
    return fw.compile(fusion, donate=("keys", "values"))


def test_a_step_writes_one_place_and_reads_the_prefix(decoding: fw.Program) -> None:
    host = decoding.host
    appended = [x for x in host.launches if x.role == "copy"]
    assert len(appended) == 2 and host.stats["bytes_copied"] == 2 * 4 * 32 * 4
    for x in appended:
        write = x.bindings[-1]
        assert write.access.value == "W" and str(write.offset) == "128*at"
    readers = [
        b
        for x in host.launches
        if x.role == "kernel"
        for b in x.bindings
        if b.access.value == "R" and b.root.name in ("keys", "values")
    ]
    assert len(readers) == 2 and all(str(b.offset) == "0" for b in readers)
    assert host.stats["edges"]["maybe"] == 0
    order = {(e.producer, e.consumer) for e in host.edges}
    for w in range(len(appended)):
        root = host.launches[w].bindings[-1].root
        (r,) = [
            k
            for k, x in enumerate(host.launches)
            if x.role == "kernel" and any(b.root is root for b in x.bindings)
        ]
        assert (w, r) in order


def test_steps_of_decoding_agree(decoding: fw.Program) -> None:
    keys, values = np.zeros((4, 96, 32), np.float32), np.zeros((4, 96, 32), np.float32)
    for at in (0, 1, 2, 40, 95):
        k, v, q = (normal(4, 1, 32, seed=at + s) for s in range(3))
        expected_keys, expected_values = keys.copy(), values.copy()
        expected_keys[:, at], expected_values[:, at] = k[:, 0], v[:, 0]
        scores = q @ expected_keys[:, : at + 1].transpose(0, 2, 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        expected = weights @ expected_values[:, : at + 1]
        result = decoding.simulate(keys, values, k, v, q, at)
        assert result.races == []
        for outputs in (result.outputs, run_on_bytes(decoding, keys, values, k, v, q, at)):
            assert np.array_equal(outputs[0], expected_keys)
            assert np.array_equal(outputs[1], expected_values)
            np.testing.assert_allclose(outputs[2], expected, rtol=1e-4, atol=1e-5)
        keys, values = result.outputs[:2]


# --- fused functions ------------------------------------------------------------------------------


def append(cache, new, at):
    return fw.insert(cache, new * 2, (at, 0))


@pytest.mark.parametrize("dynamic", [{"at": ()}, {2: ()}, True])
def test_integers_that_are_marked_cost_no_compile(
    dynamic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    form = driver.chosen_form
    monkeypatch.setattr(driver, "chosen_form", lambda *a, **k: compiled.append(a) or form(*a, **k))
    f = fw.fuse(append, device="sim", dynamic=dynamic)
    cache, new = normal(64, 8), normal(2, 8)
    for at in range(0, 62, 5):
        expected = cache.copy()
        expected[at : at + 2] = new * 2
        assert np.array_equal(f(cache, new, at), expected)
        assert np.array_equal(f(cache, new, at=at), expected)
    assert len(compiled) == 2  # by position and by name
    with pytest.raises(UserError, match=r"2 elements from at on must fit size (64|n0)"):
        f(cache, new, 63)


def test_integers_that_a_function_needs_belong_to_it() -> None:
    @fw.fuse(device="sim", dynamic=True)
    def along(x, axis, times):
        for _ in range(times):
            x = x + fw.sum(x, axis=axis, keepdims=True)
        return x

    x = normal(6, 8)
    for axis in (0, 1, -1):
        np.testing.assert_allclose(
            along(x, axis, 1), x + x.sum(axis, keepdims=True), rtol=1e-5, atol=1e-6
        )


def test_marked_integers_whose_value_is_needed_are_refused() -> None:
    f = fw.fuse(lambda x, axis: fw.sum(x, axis=axis), device="sim", dynamic={"axis": ()})
    with pytest.raises(UserError, match=r"axis=axis is .*; it must be an integer"):
        f(normal(6, 8), 1)


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x, n: x * 2 if n == 3 else x, "n == 3"),
        (lambda x, n: x if n != 3 else x * 2, "n == 3"),
        (lambda x, n: x * 2 if n in (1, 3) else x, "n == 1"),
        (lambda x, n: x * 2 if n in range(2, 4) else x, "n == 2"),
        (lambda x, n: x * 2 if n % 3 == 0 else x, "n%3 == 0"),
    ],
)
def test_a_function_that_asks_which_number_it_is_gets_the_value(
    fn: Callable[..., Any], said: str
) -> None:
    f, marked = (fw.fuse(fn, device="sim", dynamic=d) for d in (True, {"n": ()}))
    x = normal(8)
    for n in (2, 3, 4):
        (expected,) = fw.evaluate(fw.trace(lambda a, n=n: fn(a, n), fw.TensorSpec((8,), F32)), x)
        np.testing.assert_array_equal(f(x, n), expected)
    with pytest.raises(UserError, match=f"^{said}: a number of a call has no value while its"):
        marked(x, 3)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_block_of_a_slice_is_never_short(rows: int) -> None:
    """Whether a limit is clamped does not depend on the size."""
    x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(F32)
    arguments = fw.TensorSpec(x.shape, F32), fw.Sym("at")
    if rows == 1:
        with pytest.raises(UserError, match=r"at \+ 2 must lie inside size 1, and lies outside"):
            fw.trace(lambda x, at: x[at : at + 2] * 2, *arguments)
        return
    program = fw.compile(fw.trace(lambda x, at: x[at : at + 2] * 2, *arguments))
    for at in range(rows - 1):
        result = program.simulate(x, at)
        assert result.races == []
        assert np.array_equal(result.outputs[0], 2 * x[at : at + 2])
    with pytest.raises(UserError, match=f"at is {rows - 1}; at may be at most {rows - 2}"):
        program.simulate(x, rows - 1)


@pytest.mark.parametrize("end", [2, 4])
def test_a_slice_to_a_fixed_end_never_begins_behind_it(end: int) -> None:
    x = np.arange(8, dtype=F32)
    fusion = fw.trace(lambda x, at: x[at + 2 : end] * 2, fw.TensorSpec((8,), F32), fw.Sym("at"))
    for at in range(end - 1):
        assert np.array_equal(fw.evaluate(fusion, x, at)[0], 2 * x[at + 2 : end])
    with pytest.raises(UserError, match=f"at may be at most {end - 2}"):
        fw.evaluate(fusion, x, end - 1)


def test_limits_that_are_no_numbers_are_clamped() -> None:
    fusion = fw.trace(lambda x: x[-9:7] * 2, fw.TensorSpec((5,), F32))
    assert fw.evaluate(fusion, np.ones(5, F32))[0].shape == (5,)
