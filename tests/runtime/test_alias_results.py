"""Results that are views of arguments and of other results, where the caller allows it: nothing is
launched for them, and they are right for every layout of the arguments."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.frontends.bound import BoundProgram, SharedCall
from fusewright.fusion import trees
from fusewright.fusion.ir import Input
from fusewright.runtime.libraries import Interface, Jax

S = fw.TensorSpec
X, W = S((4, 6), "float32"), S((6,), "float32")
RNG = np.random.default_rng(3)


def results(x: Any, w: Any) -> Any:
    y = fw.exp(x) + w
    split = fw.reshape(x, (2, 2, 6))
    return x.T, y, x[1:, ::2], y.T, w, split, x[::-1], fw.broadcast_to(w[None], (3, 6))


IS_VIEW = [True, False, True, True, True, True, False, True]
"""Rows in reverse are no view: steps of torch's tensors lead forwards."""


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(4, 6)).astype(np.float32), RNG.normal(size=6).astype(np.float32)


def assert_shared(made: list[Any], x: Any, w: Any) -> None:
    plain = [np.asarray(a) for a in made]
    wanted = fw.evaluate(fw.trace(results, X, W), np.asarray(x), np.asarray(w))
    for got, want in zip(plain, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    owners = [np.asarray(x), np.asarray(w)]
    shared = [any(np.shares_memory(a, o) for o in owners) for a in plain]
    shared[3] = np.shares_memory(plain[3], plain[1])
    assert shared == IS_VIEW


def test_views_cost_no_launch() -> None:
    fusion = fw.trace(results, X, W)
    program, copied = fw.compile(fusion, alias_results=True), fw.compile(fusion)
    assert len(program.launches) < len(copied.launches)
    assert len(program.fusion.outputs) == IS_VIEW.count(False)
    assert {r.tensor for r in program.reasons} >= {"w", fusion.outputs[0].name}


@pytest.mark.parametrize("device", ["auto", "sim"])
def test_views_of_arrays_in_any_layout(device: str) -> None:
    program = fw.compile(fw.trace(results, X, W), alias_results=True)
    x, w = arrays()
    steps = np.zeros((8, 12), np.float32)[::-2, 1::2]
    for given in (x, np.asfortranarray(x), steps):
        given[...] = x
        assert_shared(program(given, w, device=device), given, w)


def test_the_simulator_and_kept_programs_share_too(tmp_path: Path) -> None:
    program = fw.compile(fw.trace(results, X, W), alias_results=True)
    x, w = arrays()
    result = program.simulate(x, w)
    assert result.races == []
    assert_shared(result.outputs, x, w)
    kept = pickle.loads(pickle.dumps(program))
    assert_shared(kept(x, w), x, w)
    assert len(kept.launches) == len(program.launches)


def test_a_changed_argument_is_seen_through_its_view() -> None:
    shared = fw.fuse(lambda x: (x.T, x + 1), alias_results=True)
    x, _ = arrays()
    turned, more = shared(x)
    turned[0, 0] = 7
    assert x[0, 0] == 7 and more[0, 0] != 8
    copied, _ = fw.fuse(lambda x: (x.T, x + 1))(x)
    copied[0, 0] = 9
    assert x[0, 0] == 7


def test_repeated_elements_are_not_writable() -> None:
    _, w = arrays()
    made = fw.fuse(lambda w: fw.broadcast_to(w, (3, 6)), alias_results=True)(w)
    assert made.strides[0] == 0 and not made.flags.writeable


def test_symbols_and_numbers_of_calls() -> None:
    program = fw.compile(
        fw.trace(lambda x: (x.T, x[1:], x * 2), S(("n", 6), "float32")), alias_results=True
    )
    window = fw.fuse(lambda x, at: x[at : at + 2], alias_results=True, dynamic={"at": ()})
    for n in (3, 5):
        x = RNG.normal(size=(n, 6)).astype(np.float32)
        turned, rest, _ = program(x)
        np.testing.assert_array_equal(turned, x.T)
        np.testing.assert_array_equal(rest, x[1:])
        np.testing.assert_array_equal(window(x, n - 2), x[n - 2 :])
        assert np.shares_memory(turned, x) and np.shares_memory(window(x, n - 2), x)
        with pytest.raises(fw.UserError, match="must lie inside"):
            window(x, n - 1)


def test_all_results_are_views() -> None:
    program = fw.compile(fw.trace(lambda x: (x[3:3], x[0, 0], x), X), alias_results=True)
    x, _ = arrays()
    empty, one, same = program(x)
    assert len(program.launches) == 0
    assert empty.shape == (0, 6) and one == x[0, 0] and np.shares_memory(same, x)
    assert [a.shape for a in program.simulate(x).outputs] == [(0, 6), (), (4, 6)]


def test_what_a_call_writes_to_is_not_shown() -> None:
    """A result in the memory of a donated argument would change what its view shows."""
    program = fw.compile(
        fw.trace(lambda x, v: (x[:2], fw.insert(x, v, (0, 0))), X, S((1, 6), "float32")),
        donate=["x"],
        alias_results=True,
    )
    x, w = arrays()
    before = x.copy()
    first, _ = program(x, w[None])
    np.testing.assert_array_equal(first, before[:2])
    assert not any(isinstance(t.op, Input) for t in program.fusion.outputs)


def test_captured_data_is_not_shown() -> None:
    data = np.arange(6, dtype=np.float32)
    shared = fw.fuse(lambda x: (fw.asarray(data), x.T), alias_results=True)
    x, _ = arrays()
    for _ in range(2):
        constant, turned = shared(x)
        np.testing.assert_array_equal(constant, data)
        assert np.shares_memory(turned, x)
        constant[...] = 0


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x, w = (torch.from_numpy(a) for a in arrays())
    assert_shared(list(fw.fuse(results, alias_results=True)(x, w)), x, w)
    wider = torch.zeros(5, 12)[1:, ::2]
    wider.copy_(x)
    assert_shared(list(fw.fuse(results, alias_results=True)(wider, w)), wider, w)


def test_torch_keeps_records_of_copies() -> None:
    torch = pytest.importorskip("torch")
    shared = fw.fuse(lambda x: (x.T, x * 2), alias_results=True)
    x = torch.ones(4, 6, requires_grad=True)
    turned, _ = shared(x)
    turned.sum().backward()
    assert turned.data_ptr() != x.data_ptr() and torch.equal(x.grad, torch.ones(4, 6))


def test_out_takes_what_is_computed() -> None:
    program = fw.compile(fw.trace(results, X, W), alias_results=True)
    x, w = arrays()
    out = np.empty((4, 6), np.float32)
    made = program(x, w, out=[None, out, *[None] * 6])
    assert made[1] is out and np.shares_memory(made[3], out)
    assert_shared(made, x, w)
    with pytest.raises(fw.UserError, match=r"out= 0 is an array for a result that is a view of x"):
        program(x, w, out=[np.empty((6, 4), np.float32), *[None] * 7])
    with pytest.raises(fw.UserError, match="out= has 3 arrays, the program has 8 outputs"):
        program(x, w, out=[None] * 3)
    with pytest.raises(fw.UserError, match=r"out= 0 is an array for a result that is a view of x"):
        fw.fuse(lambda x: x.T, alias_results=True)(x, out=np.empty((6, 4), np.float32))


def test_orders_of_results_are_no_views() -> None:
    fusion = fw.trace(results, X, W)
    with pytest.raises(fw.UserError, match="a view lies as its array does"):
        fw.compile(fusion, alias_results=True, out_layouts=[None] * 8)
    with pytest.raises(fw.UserError, match="leave one of the two out"):
        fw.fuse(results, alias_results=True, out_layouts=[None] * 8)


def test_schedules_by_hand_write_their_results() -> None:
    schedule = fw.Schedule(fw.trace(lambda x: x * 2, X))
    with pytest.raises(fw.UserError, match="alias_results=True: a schedule by hand"):
        fw.compile(schedule, alias_results=True)


def test_calls_that_are_bound_show_views_of_what_they_are_given() -> None:
    """Tensors on a GPU take such calls; here the program's own calls stand in for its launches."""
    program = fw.compile(fw.trace(results, X, W), alias_results=True)
    given: list[Any] = []

    class Launches:
        def run(self, values: Any, out: Any, numbers: Any) -> list[Any]:
            given.append(list(out))
            y = np.exp(values[0]) + values[1]
            return [y if not out else out[0], values[0][::-1].copy()]

    x, w = arrays()
    compiled = BoundProgram(program, trees.flatten([x] * 8)[1])
    call = SharedCall(Launches(), (0, 2), False, (0, 1), compiled, False)  # type: ignore[arg-type]
    assert_shared(call.run((x, "a flag", w), {}, None), x, w)
    out = np.exp(x) + w
    made = call.run((x, "a flag", w), {}, [None, out, *[None] * 6])
    assert made[1] is out and given[-1][0] is out
    assert call.alike is None and call.steps() is None


@pytest.mark.parametrize(
    ("library", "words"),
    [(Interface(), "no library is known that makes views of"), (Jax.__new__(Jax), "never share")],
)
def test_libraries_without_views(library: Any, words: str) -> None:
    with pytest.raises(fw.UserError, match=words):
        library.view(object(), (0,), (2,), (1,))


def test_a_flag_is_a_bool() -> None:
    with pytest.raises(fw.UserError, match="alias_results"):
        fw.compile(fw.trace(lambda x: x.T, X), alias_results="yes")  # type: ignore[arg-type]


def test_results_that_are_views_have_no_order_of_their_own() -> None:
    with pytest.raises(fw.UserError, match="alias_results=True beside out_layouts"):
        fw.fuse(lambda x: x.T, alias_results=True, out_layouts=[(1, 0)])
