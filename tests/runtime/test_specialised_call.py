"""Functions that are written out for a number of arrays."""

from __future__ import annotations

import struct

import pytest

from fusewright.runtime.specialised_call import address_writer, steady_call


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


def test_texts_are_made_once_per_number_of_arrays() -> None:
    assert steady_call(3, 1, 1, False) is steady_call(3, 1, 1, False)
    assert address_writer((0, 1)) is address_writer((0, 1))
