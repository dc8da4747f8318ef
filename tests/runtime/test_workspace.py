"""Memory of callers: what kernels store for each other lies in a workspace that a call brings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch
from fake_torch import FakeTorch, Tensor, tensor
from test_torch_calls import normal

import fusewright as fw
from fusewright.errors import UserError
from fusewright.runtime.workspace import check_apart

__all__ = ["gpu", "torch"]  # fixtures


def chain(x: Any) -> Any:
    h = fw.cumulative_sum(x * x, axis=1)
    return fw.sum(h, axis=0), fw.cumulative_sum(h, axis=0)


def expected(x: Any) -> list[Any]:
    h = np.cumsum(x * x, 1)
    return [h.sum(0), np.cumsum(h, 0)]


def compiled(*shape: Any) -> fw.Program:
    program = fw.compile(fw.trace(chain, fw.TensorSpec(shape, "float32")))
    assert len(program.launches) > 1
    return program


def memory(nbytes: int, behind: int = 0) -> Tensor:
    """So many bytes that begin `behind` a multiple of 256."""
    room = np.zeros(nbytes + 512, np.uint8)
    first = -room.__array_interface__["data"][0] % 256 + behind
    return Tensor(room[first : first + nbytes])


def check(program: fw.Program, x: Tensor, **beside: Any) -> list[Any]:
    made = program(x, **beside)
    for a, b in zip(made, expected(x.array), strict=True):
        np.testing.assert_allclose(a.array, b, rtol=2e-5)
    return made


def test_a_steady_call_allocates_its_results_only(gpu: FakeDriver, torch: FakeTorch) -> None:
    program = compiled(8, 40)
    nbytes = program.workspace_nbytes
    assert isinstance(nbytes, int) and nbytes == program.host.stats["peak_bytes"] > 0
    room = memory(nbytes)
    for k in range(3):
        room.array[...] = 0xFF
        torch.allocations.clear()
        check(program, tensor(normal(8, 40) + k), workspace=room)
        assert torch.allocations == [(40,), (8, 40)]
        assert not (room.array == 0xFF).all(), "kernels store there"
        check(program, tensor(normal(8, 40) - k))
        assert (nbytes,) in torch.allocations


def test_with_out_a_call_allocates_nothing(gpu: FakeDriver, torch: FakeTorch) -> None:
    program = compiled(8, 40)
    out = [tensor(np.zeros(40, np.float32)), tensor(np.zeros((8, 40), np.float32))]
    room = memory(program.host.stats["peak_bytes"])
    for k in range(2):
        x = tensor(normal(8, 40) + k)
        torch.allocations.clear()
        assert check(program, x, out=out, workspace=room) == out
        assert torch.allocations == []


def test_bytes_are_an_expression_in_symbolic_sizes(gpu: FakeDriver, torch: FakeTorch) -> None:
    program = compiled("n", 40)
    assert "n" in str(program.workspace_nbytes)
    room = memory(8 * 40 * 4 + 4096)
    for n in (5, 8):
        check(program, tensor(normal(n, 40)), workspace=room)
    with pytest.raises(UserError, match=r"workspace= has 5376 bytes, this call needs \d{6}"):
        program(tensor(normal(800, 40)), workspace=room)


def test_numbers_of_calls_share_a_workspace(gpu: FakeDriver, torch: FakeTorch) -> None:
    def fn(x: Any, at: Any) -> Any:
        return fw.cumulative_sum(fw.nn.softmax(x[at : at + 8], axis=-1), axis=0)

    fusion = fw.trace(fn, fw.TensorSpec((32, 40), "float32"), fw.Sym("at", max=24))
    program = fw.compile(fusion)
    x, room = normal(32, 40), memory(1 << 14)
    for at in (0, 3, 24):
        (made,) = program(tensor(x), at, workspace=room)
        h = np.exp(x[at : at + 8])
        np.testing.assert_allclose(
            made.array, np.cumsum(h / h.sum(-1, keepdims=True), 0), rtol=2e-5
        )


def test_room_is_asked_for_again_where_numbers_change(gpu: FakeDriver, torch: FakeTorch) -> None:
    def fn(x: Any, n: Any) -> Any:
        return fw.sum(fw.cumulative_sum(fw.nn.softmax(x[:n], axis=-1), axis=0), axis=1)

    fusion = fw.trace(fn, fw.TensorSpec((512, 40), "float32"), fw.Sym("n", max=512))
    program = fw.compile(fusion)
    x, room = tensor(normal(512, 40)), memory(8192)
    program(x, 8, workspace=room)
    with pytest.raises(UserError, match=r"workspace= has 8192 bytes, this call needs \d{5}"):
        program(x, 500, workspace=room)


def test_a_program_that_stores_nothing_between_needs_none(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    program = fw.compile(fw.trace(fw.exp, fw.TensorSpec((8, 4), "float32")))
    assert program.workspace_nbytes == 0
    for room in (memory(0), memory(64)):
        (made,) = program(tensor(normal(8, 4)), workspace=room)
        np.testing.assert_allclose(made.array, np.exp(normal(8, 4)), rtol=1e-5)


def test_loops_keep_their_scratch_in_it(gpu: FakeDriver, torch: FakeTorch) -> None:
    def turned(x: Any) -> Any:
        return fw.fori_loop(0, 3, lambda i, c: fw.nn.softmax(c, axis=-1) + fw.sum(c, axis=0), x)

    program = fw.compile(fw.trace(turned, fw.TensorSpec((48, 70), "float32")))
    nbytes = program.host.stats["peak_bytes"]
    room, wanted = memory(nbytes), program.simulate(normal(48, 70)).outputs[0]
    assert nbytes > 0
    for _ in range(4):  # from the second on a recorded graph
        x = tensor(normal(48, 70))
        torch.allocations.clear()
        (made,) = program(x, workspace=room)
        np.testing.assert_array_equal(made.array, wanted)
        assert torch.allocations == [(48, 70)]


def test_memory_may_end_where_an_argument_begins_and_begin_where_it_ends() -> None:
    check_apart(0, 64, "x", (64, 128))
    check_apart(128, 192, "x", (64, 128))
    with pytest.raises(UserError, match="shares 1 bytes with x"):
        check_apart(0, 65, "x", (64, 128))
    with pytest.raises(UserError, match="shares 1 bytes with x"):
        check_apart(127, 192, "x", (64, 128))


def test_loaded_programs_and_host_arrays_take_one(tmp_path: Path) -> None:
    program = compiled(8, 40)
    loaded = fw.load(program.save(tmp_path / "p.fw"))
    assert loaded.workspace_nbytes == program.workspace_nbytes
    room = np.zeros(loaded.host.stats["peak_bytes"], np.uint8)
    made = loaded(normal(8, 40), device="sim", workspace=room)
    np.testing.assert_allclose(made[1], expected(normal(8, 40))[1], rtol=2e-5)


@pytest.mark.parametrize("bound", [False, True])
def test_a_workspace_that_cannot_be_used(gpu: FakeDriver, torch: FakeTorch, bound: bool) -> None:
    """Also where an earlier call on arrays of these types was fine."""
    program = compiled(8, 40)
    n = program.host.stats["peak_bytes"]
    whole = memory(n + 8 * 40 * 4)
    inside = Tensor(whole.array[n - 256 : n - 256 + 8 * 40 * 4].view(np.float32).reshape(8, 40))
    out = [None, tensor(np.zeros((8, 40), np.float32))]
    over_out = Tensor(out[1].array.reshape(-1).view(np.uint8))
    x = tensor(normal(8, 40))
    cases: list[tuple[str, Tensor, Tensor, list[Any]]] = [
        (f"workspace= has {n - 1} bytes, this call needs {n}", x, memory(n - 1), []),
        ("workspace= begins 16 bytes behind a multiple of 256", x, memory(n, behind=16), []),
        ("workspace= shares 256 bytes with argument 0", inside, Tensor(whole.array[:n]), []),
    ]
    if over_out.array.nbytes >= n:
        cases.append(("workspace= shares", x, Tensor(over_out.array[:n]), out))
    for message, given, room, results in cases:
        if bound:
            check(program, tensor(normal(8, 40)), workspace=memory(max(n, room.shape[0])))
        with pytest.raises(UserError, match=re.escape(message)):
            program(given, workspace=room, out=results)


def test_a_workspace_of_another_kind(gpu: FakeDriver, torch: FakeTorch) -> None:
    program = compiled(8, 40)
    n = program.host.stats["peak_bytes"]
    x = tensor(normal(8, 40))
    with pytest.raises(UserError, match=r"workspace= is float32\[\d+\].*an array of uint8"):
        program(x, workspace=tensor(np.zeros(n, np.float32)))
    with pytest.raises(UserError, match=r"workspace= is numpy on cpu, the arguments are torch on"):
        program(x, workspace=np.zeros(n, np.uint8))
    with pytest.raises(UserError, match="workspace= is read-only"):
        room = np.zeros(n, np.uint8)
        room.flags.writeable = False
        program(normal(8, 40), workspace=room, device="sim")


# --- arguments that are given away ---------------------------------------------------------------


def narrowed(x: Any, y: Any) -> Any:
    h = fw.cumulative_sum(fw.cumulative_sum(x * x * 0.01, axis=1), axis=0)
    return fw.astype(fw.cumulative_sum(h, axis=1) + y, "float16")


def narrow(x: Any, y: Any) -> Any:
    return np.cumsum(np.cumsum(np.cumsum(x * x * 0.01, 1), 0), 1) + y


def lending() -> fw.Program:
    specs = [fw.TensorSpec((64, 96), "float32")] * 2
    program = fw.compile(fw.trace(narrowed, *specs), donate=("x",))
    assert program.host.stats["lent"]
    return program


def test_kernels_use_the_memory_of_an_argument_that_is_lent(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    program = lending()
    for k in range(3):
        x, y = normal(64, 96) + k, normal(64, 96) * 2
        given, other = tensor(x.copy()), tensor(y.copy())
        torch.changed.clear()
        (made,) = program(given, other)
        np.testing.assert_allclose(made.array, narrow(x, y), rtol=2e-3)
        assert not np.array_equal(given.array, x) and torch.changed == [given]
        np.testing.assert_array_equal(other.array, y)
    assert program.copies == 0


def test_a_lent_argument_that_another_one_shares_is_copied(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    program = lending()
    x = normal(64, 96)
    for k in range(2):
        given = tensor(x.copy())
        (made,) = program(given, given)
        np.testing.assert_allclose(made.array, narrow(x, x), rtol=2e-3)
        np.testing.assert_array_equal(given.array, x)
        assert program.copies == k + 1
    program(tensor(x.copy()), tensor(x.copy()))  # bound for tensors that lie apart
    given = tensor(x.copy())
    (made,) = program(given, given)
    np.testing.assert_allclose(made.array, narrow(x, x), rtol=2e-3)


def test_host_arrays_that_are_given_away_stay_as_they_are(gpu: FakeDriver) -> None:
    program, x = lending(), normal(64, 96)
    given = x.copy()
    (made,) = program(given, x)
    np.testing.assert_allclose(made, narrow(x, x), rtol=2e-3)
    np.testing.assert_array_equal(given, x)
