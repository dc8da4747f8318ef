"""What the regions of several graphs share: kernels, and what computes regions of one structure.

Graphs are forward and backward, those of every layer that is compiled by itself, and those between
breaks. A structure is forgotten with the last region that it computes.
"""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from fusewright.driver import Kernels
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.products import float32_matmul
from fusewright.frontends.torch.region import FallbackCalls, GraphPart, has_fixed_types


@dataclass(frozen=True, slots=True)
class Shared:
    """One table for graphs that are compiled with one set of options."""

    kernels: Kernels = field(default_factory=lambda: Kernels())
    _ways: MutableMapping[Hashable, FallbackCalls] = field(
        default_factory=lambda: WeakValueDictionary[Hashable, FallbackCalls]()
    )

    def ways(
        self, part: GraphPart, options: Options, own: MutableMapping[Hashable, FallbackCalls]
    ) -> FallbackCalls:
        """What computes a part. Symbols mean something in one graph alone, whose parts with
        symbolic sizes share their ways in a table of its `own`."""
        table = self._ways if has_fixed_types(part) else own
        key = options, float32_matmul(), part.structure()
        found = table.get(key)
        if found is None:
            found = table[key] = FallbackCalls(part, options, self.kernels)
        return found
