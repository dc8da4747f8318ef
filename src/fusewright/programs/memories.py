"""The memory of a program while it is simulated: what lies where, and what nobody has written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import Var
from fusewright.fusion.ir import Tensor, contiguous_strides
from fusewright.host.subspans import Subspan
from fusewright.kernel import TensorInfo, flatten, shaped_view, size_of
from fusewright.sim.report import Race

Array = npt.NDArray[Any]


class Memories:
    """The memory of every root as shaped arrays, and masks of what has been written of those that
    are not complete; what nobody has written holds the bytes 0xFF."""

    def __init__(self, sizes: Mapping[Var, int], arrays: Mapping[Tensor, Array]) -> None:
        self.sizes = sizes
        self._arrays = dict(arrays)
        self._written: dict[Tensor, Array] = {}

    def read(self, s: Subspan) -> Array:
        """What lies in a site."""
        self._make(s.root)
        return self._part(s, self._arrays[s.root])

    def write(self, s: Subspan, array: Array, written: Array) -> None:
        """Puts into a site what a launch wrote of an array of its shape."""
        complete = bool(written.all())
        if s.is_whole and complete:
            self._arrays[s.root] = array
            self._written.pop(s.root, None)
            return
        self._make(s.root)
        part = self._part(s, self._arrays[s.root])
        part[...] = array if complete else np.where(written, array, part)
        if s.root in self._written:
            self._part(s, self._written[s.root])[written] = True

    def unwritten(self, sites: Sequence[Subspan], who: str, seed: int) -> Iterator[Race]:
        """Findings about sites that are read before all of them is written."""
        for s in sites:
            self._make(s.root)
            if s.root not in self._written:
                continue
            mask = self._part(s, self._written[s.root])
            if not mask.all():
                first = tuple(int(k) for k in np.argwhere(~mask)[0])
                count = mask.size - int(np.count_nonzero(mask))
                what = f"{s.tensor.name}, in the memory of {s.root.name}"
                where = f"the first at {first} of shape {mask.shape}"
                message = f"{who} {count} elements of {what}, that nobody wrote; {where}"
                yield Race("uninitialised", message, count=count, seed=seed)

    def _make(self, root: Tensor) -> None:
        """Gives memory to a root that has none yet."""
        if root not in self._arrays:
            shape = [size_of(e, self.sizes) for e in root.shape]
            empty = np.empty(shape, root.dtype.numpy)
            empty.reshape(-1).view(np.uint8)[...] = 0xFF
            self._arrays[root] = empty
            self._written[root] = np.zeros(shape, bool)

    def _part(self, s: Subspan, array: Array) -> Array:
        if s.is_whole:
            return array
        whole = TensorInfo.of(s.root)
        is_flat = whole.strides == contiguous_strides(s.root.shape) and array.flags.c_contiguous
        flat = array.reshape(-1) if is_flat else flatten(array, whole, self.sizes)
        part = TensorInfo(s.tensor.name, s.shape, s.root.dtype, s.strides)
        return shaped_view(flat[size_of(s.offset, self.sizes) :], part, self.sizes)
