"""Functions that are written out for a number of arrays."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from fusewright.runtime.specialised_call import address_writer, launch_lines, steady_call


class Tensor:
    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


class Plan:
    """Keeps what it is given, and allocates at 1000, 1001, .."""

    def __init__(self) -> None:
        self.enqueued: list[tuple[tuple[int, ...], int, int, bool]] = []
        self.allocated: list[tuple[object, object, object]] = []

    def enqueue(self, roots: tuple[int, ...], stream: int, device: int, *, graph: bool) -> None:
        self.enqueued.append((roots, stream, device, graph))

    def empty(self, shape: object, strides: object, dtype: object) -> Tensor:
        self.allocated.append((shape, strides, dtype))
        return Tensor(999 + len(self.allocated))


@pytest.mark.parametrize(("is_graph", "captured"), [(False, False), (True, False), (True, True)])
def test_a_steady_call_allocates_enqueues_and_returns_results(
    is_graph: bool, captured: bool
) -> None:
    plan = Plan()
    types = ((2, 3), (3, 1), "f32", (4,), (1,), "f16", (640,), (1,), "u8")
    make = steady_call(2, 3, 2, is_graph)
    call = make(plan.enqueue, 1, lambda index: 70 + index, lambda: captured, *types)
    results = call([Tensor(8), Tensor(16)], plan.empty)
    assert [r.address for r in results] == [1000, 1001]
    assert plan.allocated == [((2, 3), (3, 1), "f32"), ((4,), (1,), "f16"), ((640,), (1,), "u8")]
    assert plan.enqueued == [((8, 16, 1000, 1001, 1002), 71, 1, is_graph and not captured)]


def test_a_steady_call_of_one_tensor_without_results() -> None:
    plan = Plan()
    call = steady_call(1, 0, 0, False)(plan.enqueue, 0, lambda index: 7, lambda: False)
    assert call((Tensor(8),), plan.empty) == []
    assert plan.enqueued == [((8,), 7, 0, False)]


def test_a_steady_call_refuses_another_number_of_tensors() -> None:
    plan = Plan()
    call = steady_call(2, 0, 0, False)(plan.enqueue, 0, lambda index: 7, lambda: False)
    with pytest.raises(ValueError, match="not enough values"):
        call([Tensor(8)], plan.empty)
    assert plan.enqueued == []


def test_addresses_are_those_of_roots_plus_offsets() -> None:
    buffer = bytearray(24)
    write = address_writer((1, 0, 1))(struct.Struct("=3Q").pack_into, buffer, 0, 32, 64)
    write([100, 200])
    assert struct.unpack("=3Q", buffer) == (200, 132, 264)


class Launches:
    """A plan whose launches note the stream and what the buffer holds, or fail."""

    def __init__(self, status: int = 0) -> None:
        self.stream = 0
        self.buffer = bytearray(24)
        self.launched: list[tuple[object, ...]] = []
        self.refused: list[tuple[int, tuple[int, ...]]] = []
        self._status = status

    def move_to(self, stream: int) -> None:
        self.stream = stream

    def launch(self, config: str, kernel: int, table: int, extra: int) -> tuple[int]:
        slots = struct.unpack("=3Q", self.buffer)
        self.launched.append((config, kernel, table, extra, self.stream, *slots))
        return (self._status,)

    def check_launch(self, k: int, status: tuple[int, ...]) -> None:
        self.refused.append((k, status))

    def enqueue(self) -> Callable[..., None]:
        names: dict[str, Any] = {"own_plan": self, "own_buffer": self.buffer}
        names |= {"own_pack": struct.Struct("=3Q").pack_into, "own_launch": self.launch}
        names |= {"own_config0": "first", "own_kernel0": 7, "own_table0": 70}
        names |= {"own_config1": "second", "own_kernel1": 8, "own_table1": 80}
        lines = launch_lines(2, ["b", "a + 32", "b"], lambda word: f"own_{word}", "on")
        exec("\n".join(["def enqueue(a, b, on):", *(f"  {x}" for x in lines)]), names)
        return names["enqueue"]


def test_lines_of_launches_write_slots_and_launches_in_order() -> None:
    plan = Launches()
    enqueue = plan.enqueue()
    enqueue(100, 200, 5)
    enqueue(1, 2, 5)
    assert plan.launched == [
        ("first", 7, 70, 0, 5, 200, 132, 200),
        ("second", 8, 80, 0, 5, 200, 132, 200),
        ("first", 7, 70, 0, 5, 2, 33, 2),
        ("second", 8, 80, 0, 5, 2, 33, 2),
    ]
    assert plan.refused == []


def test_lines_of_launches_say_which_launch_was_refused() -> None:
    plan = Launches(700)
    plan.enqueue()(100, 200, 5)
    assert plan.refused == [(0, (700,)), (1, (700,))]


def test_texts_are_made_once_per_number_of_arrays() -> None:
    assert steady_call(3, 1, 1, False) is steady_call(3, 1, 1, False)
    assert address_writer((0, 1)) is address_writer((0, 1))
