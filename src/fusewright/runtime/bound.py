"""A call of a program bound to memory: arguments, results and scratch stay where they are."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

from fusewright.core.expr import Var
from fusewright.runtime.arrays import ArrayInfo
from fusewright.runtime.device import check, current, driver
from fusewright.runtime.executor import Executor, HostArray, span
from fusewright.runtime.memory import allocate, free


class BoundCall:
    """Enqueues a program on the legacy default stream of a device, as often as it is called.

    Arguments on the device are read where they are, host arrays (flat, in their layouts) from a
    copy that is made once. Results go to memory of its own, at the addresses `results`, and are
    nobody's: it is for measuring.
    """

    def __init__(
        self,
        executor: Executor,
        arguments: Sequence[ArrayInfo] | Sequence[HostArray],
        sizes: Mapping[Var, int],
        device: int,
    ) -> None:
        self._plan = executor.plan(sizes)
        self._device = device
        self._arguments = arguments  # they keep their memory
        self._owned: list[int] = []
        weakref.finalize(self, _free, self._owned, device)
        places = [x.pointer if isinstance(x, ArrayInfo) else self._upload(x) for x in arguments]
        self.results = [
            self._own(span(shape, strides) * dtype.nbytes)
            for shape, strides, dtype in executor.result_types(sizes)
        ]
        self._roots = [*places, *self.results]
        if self._plan.arena_nbytes:
            self._roots.append(self._own(self._plan.arena_nbytes))

    def __call__(self) -> None:
        """Enqueues all launches, one by one."""
        with current(self._device):
            self._plan.enqueue(self._roots, 0, self._device, graph=False)

    def marked(self, mark: Callable[[int], None]) -> None:
        """The same, with a call of `mark` behind each launch, of its number in the program."""
        with current(self._device):
            self._plan.enqueue_marked(self._roots, 0, self._device, mark)

    def _own(self, nbytes: int) -> int:
        if not nbytes:
            return 0
        self._owned.append(allocate(nbytes, self._device))
        return self._owned[-1]

    def _upload(self, array: HostArray) -> int:
        place = self._own(array.nbytes)
        if place:
            with current(self._device):
                copied = driver().cuMemcpyHtoD(place, array.ctypes.data, array.nbytes)
                check(copied, "copy to the device")
        return place


def _free(owned: Sequence[int], device: int) -> None:
    for pointer in owned:
        free(pointer, device)
