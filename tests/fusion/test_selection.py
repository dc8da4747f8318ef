"""Arrays in keys: numpy's elements, the launches they take, gradients, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw


def _key(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A random key with at least one array: masks only where no integers are."""
    common = tuple(rng.integers(1, 4, rng.integers(0, 3)))
    key: list[Any] = []
    for size in shape[: rng.integers(1, len(shape) + 1)]:
        match rng.integers(0, 7):
            case 0:
                key.append(slice(None, None, -1))
            case 1:
                key.append(int(rng.integers(-size, size)))
            case 2:
                key.extend([None, slice(0, 2)])
            case 3 if not common:
                key.append(rng.integers(0, 2, size).astype(bool))
            case 4 if common and common[0] == size:
                key.append(np.arange(size).reshape(size, *(1,) * (len(common) - 1)))
            case _:
                own = tuple(1 if rng.integers(0, 3) == 0 else n for n in common)
                key.append(rng.integers(-size, size, own).astype(rng.choice(["i8", "i4", "i2"])))
    if not any(isinstance(k, np.ndarray) for k in key):
        key.insert(0, np.array([0, -1]))
        return tuple(key[: len(shape)])
    return tuple(key)


def _selected(x: np.ndarray, key: tuple[Any, ...]) -> np.ndarray | None:
    """What numpy selects; None for a key whose masks and arrays do not go together."""
    try:
        return x[key]
    except IndexError:
        return None


def _traced(rng: np.random.Generator, key: tuple[Any, ...]) -> tuple[int, ...]:
    """The arrays of integers in a key that are arguments; the others are constants."""
    arrays = [k for k, item in enumerate(key) if isinstance(item, np.ndarray)]
    return tuple(k for k in arrays if key[k].dtype != bool and rng.integers(0, 2))


@pytest.mark.parametrize("seed", range(120))
def test_elements_are_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rng.integers(1, 6, rng.integers(1, 5))).astype(np.float32)
    key = _key(rng, x.shape)
    while (want := _selected(x, key)) is None:
        key = _key(rng, x.shape)
    traced = _traced(rng, key)

    def f(x: Any, *given: Any) -> Any:
        items = list(key)
        for k, array in zip(traced, given, strict=True):
            items[k] = array
        return x[tuple(items)]

    arrays = [key[k] for k in traced]
    specs = [fw.TensorSpec(a.shape, str(a.dtype)) for a in (x, *arrays)]
    fusion = fw.trace(f, *specs)
    (got,) = fw.evaluate(fusion, x, *arrays)
    assert got.shape == want.shape and np.array_equal(got, want)
    if seed % 8 == 0:
        run = fw.compile(fusion).simulate(x, *arrays)
        assert run.races == [] and np.array_equal(run.outputs[0], want)


def test_the_likelihood_of_labels_is_one_gather() -> None:
    """Rows that are followed, with sizes that are known and with symbols."""

    def picked(x: Any, labels: Any) -> Any:
        return x[fw.arange(x.shape[0]), labels]

    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(37, 11)).astype(np.float32), rng.integers(-11, 11, 37)
    for specs in (("f32[37,11]", "i64[37]"), ("f32[n,11]", "i64[n]")):
        program = fw.compile(fw.trace(picked, *specs))
        assert len(program.launches) == 1
        run = program.simulate(x, labels)
        assert run.races == [] and np.array_equal(run.outputs[0], x[np.arange(37), labels])


def test_indices_of_a_gather_may_be_moved() -> None:
    """An index is read where the gather is: a view of indices costs no launch."""
    fusion = fw.trace(lambda x, i: fw.take(x, i[::-2, 0], axis=0), "f32[9,5]", "i64[6,2]")
    program = fw.compile(fusion)
    assert len(program.launches) == 1
    rng = np.random.default_rng(1)
    x, i = rng.normal(size=(9, 5)).astype(np.float32), rng.integers(0, 9, (6, 2))
    run = program.simulate(x, i)
    assert run.races == [] and np.array_equal(run.outputs[0], x[i[::-2, 0]])


def test_gradients_go_back_to_where_elements_came_from() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(5, 4, 3)).astype(np.float32)
    i, j, rows = rng.integers(0, 5, 6), rng.integers(0, 4, (2, 1)), rng.integers(0, 4, 5)
    keys = (lambda i, j, rows: (i, j), lambda i, j, rows: (fw.arange(5), rows))
    for key in keys:
        loss = fw.grad(lambda x, *k, key=key: fw.sum(x[key(*k)] ** 2))
        specs = [fw.TensorSpec(a.shape, str(a.dtype)) for a in (x, i, j, rows)]
        (got,) = fw.evaluate(fw.trace(loss, *specs), x, i, j, rows)
        want = np.zeros_like(x)
        where = (i, j) if key is keys[0] else (np.arange(5), rows)
        np.add.at(want, where, 2 * x[where])
        assert np.allclose(got, want, rtol=1e-6)


def test_an_index_outside_is_a_mistake_of_which_kernels_make_nan() -> None:
    fusion = fw.trace(lambda x, i, j: x[i, j], "f32[3,4]", "i32[5]", "i32[5]")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    i, j = (np.array(v, np.int32) for v in ([0, 3, -4, 1, 2], [0, 0, 1, 4, -1]))
    (got,) = fw.compile(fusion).simulate(x, i, j).outputs
    assert np.array_equal(got, [0, np.nan, np.nan, np.nan, 11], equal_nan=True)
    with fw.config(check_indices=True):
        looking = fw.compile(fusion)
    for run in (lambda: fw.evaluate(fusion, x, i, j), lambda: looking.simulate(x, i, j)):
        with pytest.raises(IndexError, match=r"an index is outside axis 0 or axis 1;.*test_sel"):
            run()


def test_a_list_and_a_known_table() -> None:
    table = fw.asarray(np.arange(8.0))
    assert table[[1, -1]].numpy().tolist() == [1.0, 7.0]
    (got,) = fw.evaluate(fw.trace(lambda i: table[i], "i64[2]"), np.array([6, 2]))
    assert got.tolist() == [6.0, 2.0]


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (lambda x: x[x > 0], fw.UserError, r"has no size; .*fw.where, .*fw.compress and a size="),
        (lambda x: x[[0, 7]], IndexError, r"axis 0: index 7 is outside size 4"),
        (lambda x: x[:, np.array([-4])], IndexError, r"axis 1: index -4 is outside size 3"),
        (lambda x: x[x], fw.UserError, r"x\[..., float32 array, ...\] on axis 0: .*fw.astype"),
        (lambda x: x[[0], [1], [2]], IndexError, r"3 axes and 0 Ellipsis"),
        (lambda x: x[[True, False]], IndexError, r"the mask has size 2 where axis 0 has size 4"),
        (lambda x: x[np.array(True)], fw.UserError, r"x\[True\]: a mask has the axes"),
        (lambda x: x[[0, 1], [0, 1, 2]], fw.UserError, r"x\[...\]: axis 0 has sizes 2 and 3"),
        (lambda x: x[[x]], fw.UserError, r"keys are integers, slices, None, Ellipsis, arrays"),
    ],
)
def test_keys_that_select_nothing_sensible(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        fw.trace(key, "f32[4,3]")
    assert isinstance(caught.value, fw.UserError)
