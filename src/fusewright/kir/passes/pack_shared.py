"""Give every shared buffer its offset."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.node import Node, rewrite
from fusewright.kir.analysis.accesses import shared_allocs
from fusewright.kir.analysis.ownership import shared_nbytes
from fusewright.kir.ir import Alloc, Buffer, Kernel
from fusewright.target import Target


def pack_shared(kernel: Kernel, target: Target) -> Kernel:
    """Place shared buffers."""
    offsets: dict[Buffer, int] = {}
    top = 0
    for _, alloc in shared_allocs(kernel):
        step = alloc.buffer.alignment
        top = -(-top // step) * step
        offsets[alloc.buffer] = top
        top += shared_nbytes(alloc.buffer)
    return with_offsets(kernel, offsets)


def with_offsets(kernel: Kernel, offsets: dict[Buffer, int]) -> Kernel:
    """The kernel with the given byte offsets."""

    def place(node: Node) -> Node:
        if isinstance(node, Alloc) and node.buffer in offsets:
            offset = offsets[node.buffer]
            return node if node.offset == offset else replace(node, offset=offset)
        return node

    return rewrite(kernel, place) if offsets else kernel
