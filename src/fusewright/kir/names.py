"""Printed names: unique where two symbols could be mistaken for each other, and not a keyword."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import chain, count
from typing import TypeVar

from fusewright.core.expr import Var
from fusewright.core.node import Node
from fusewright.kir.ir import Alloc, Argument, Buffer, For, Kernel, Statement, TensorMap
from fusewright.kir.substitute import Substitution
from fusewright.kir.syntax import TEMPLATES
from fusewright.kir.tiles import Major
from fusewright.kir.tokens import EXPRESSION_WORDS
from fusewright.kir.traverse import gathered, own_buffers, positions

N = TypeVar("N", bound=Node)

KEYWORDS = frozenset(
    (
        *EXPRESSION_WORDS, "kernel", "symbol", "param", "argument", "grid", "block", "cluster",
        "stored_once", "stored_in_turns", "semaphores", "zeroed", "scratch", "awaited",
        "begins_early", "attribute", "in",
        "inf", "nan", "none", "align",
        "multiple_of", "given", "index", "store", "load", "map",
        *(m.value for m in Major), *(word for t in TEMPLATES.values() for word in t.lead),
    )
)  # fmt: skip


def with_unique_names(kernel: Kernel) -> Kernel:
    """The kernel with symbols renamed by a suffix where two share a name, or one that has a meaning
    in texts. Loops that are not nested in each other may share one. The same object when all
    names are fine."""
    return _Naming(renames_sizes=True).kernel(kernel)


def name_symbols(kernel: Kernel) -> Kernel:
    """As `with_unique_names`, but for the sizes: those are symbols of the program, by which its
    launches know them, so they stay as they are and only texts rename them."""
    return _Naming(renames_sizes=False).kernel(kernel)


class _Naming(Substitution):
    """One walk that claims a name for every symbol where it comes into scope."""

    def __init__(self, *, renames_sizes: bool) -> None:
        super().__init__()
        self._renames_sizes = renames_sizes
        self._global: set[str] = set(KEYWORDS)
        self._loops: list[str] = []
        self._past_loops: set[str] = set()

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel under its new names."""
        dims = [d.var for d in (*kernel.grid, *kernel.block, *kernel.cluster)]
        names = [self._claim_name(v.name) for v in dims]
        for v in kernel.symbols:
            name = self._claim_name(v.name)
            if self._renames_sizes:
                self._claim_variable(v, name)
        for v, name in zip(dims, names, strict=True):  # their limits mention sizes
            self._claim_variable(v, name)
        for b in kernel.params:
            self._claim_buffer(b)
        for m in kernel.maps:
            self._claim_map(m)
        for a in kernel.arguments:
            name = self._claim_name(a.name)
            if name != a.name:
                self.arguments[a] = Argument(name, a.dtype)
        return super().node(kernel)

    def node(self, node: N) -> N:
        """The node under its new names; loops and allocations claim theirs first."""
        match node:
            case For():
                name = self._unused(node.var.name, self._global, self._loops)
                self._claim_variable(node.var, name)
                self._loops.append(name)
                self._past_loops.add(name)
                new = super().node(node)
                self._loops.pop()
                return new
            case Alloc():
                self._claim_buffer(node.buffer)
            case Statement():
                self._merge_positions(node)
            case _:
                pass
        return super().node(node) if self._concerns(node) else node

    def _concerns(self, node: Node) -> bool:
        """Whether anything that a node may mention has another name. Statements between registers
        are most of a kernel, and are asked for their buffers alone where nothing else has one."""
        if not isinstance(node, Statement) or not node.is_private:
            return True
        if self.variables or self.arguments:
            return True
        return not self.buffers.keys().isdisjoint(own_buffers(node))

    def _unused(self, name: str, *taken: Collection[str]) -> str:
        clean = name if name.isidentifier() else re.sub(r"\W", "_", name) or "_"
        clean = f"_{clean}" if clean[0].isdigit() else clean
        if not any(clean in names for names in taken):
            return clean
        tried = chain((clean,), (f"{clean}_{k}" for k in count(1)))
        return next(s for s in tried if not any(s in names for names in taken))

    def _claim_name(self, name: str) -> str:
        """A name for the whole kernel, which nothing else gets."""
        claimed = self._unused(name, self._global)
        self._global.add(claimed)
        return claimed

    def _claim_variable(self, v: Var, name: str) -> None:
        lower = self.expr(v.lower)
        upper = None if v.upper is None else self.expr(v.upper)
        if name != v.name or lower is not v.lower or upper is not v.upper:
            self.replace(v, Var(name, lower, upper, v.multiple_of))
        elif v in self.variables:
            self.replace(v, v)

    def _claim_buffer(self, b: Buffer) -> None:
        name = self._unused(b.name, self._global, self._past_loops)
        self._global.add(name)
        size = self.expr(b.size)
        if name != b.name or size is not b.size:
            self.buffers[b] = Buffer(name, b.dtype, size, b.memory, b.alignment, b.tile)

    def _claim_map(self, m: TensorMap) -> None:
        name = self._unused(m.name, self._global)
        self._global.add(name)
        self.rename_map(m, name)

    def _merge_positions(self, statement: Statement) -> None:
        """One object per gathered register of a statement, so that equal indices are equal."""
        found = positions(statement)
        if not found:
            return
        first = {(v.reg.buffer, v.reg.index): v for v in gathered(statement)}
        for v in found:
            one = first[v.reg.buffer, v.reg.index]
            if one is not v:
                self.replace(v, one)
