"""Replacing symbols in KIR: variables by expressions, buffers and arguments by others.

Works on every node alike, from the kinds of values in its fields. Unchanged in, same object out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, TypeAlias, TypeVar

from fusewright.core.conditions import Cond, Truth, substitute_condition
from fusewright.core.expr import Expr, Int, IntLike, Var, variables
from fusewright.core.node import Node, fields_of, values_of, with_values
from fusewright.core.substitution import substitute
from fusewright.kir.ir import Argument, Body, Buffer, For, Reg, RegVar, Statement, TensorMap
from fusewright.kir.traverse import walk_statements

N = TypeVar("N", bound=Node)


class Substitution:
    """A renaming of symbols, applied to nodes. Loop variables whose limits mention a replaced
    variable are replaced too, so that what is known of them stays as sharp as the loop."""

    def __init__(
        self,
        variables: Mapping[Var, IntLike] | None = None,
        buffers: Mapping[Buffer, Buffer] | None = None,
        arguments: Mapping[Argument, Argument] | None = None,
    ) -> None:
        self.variables: dict[Var, IntLike] = dict(variables or {})
        self.buffers: dict[Buffer, Buffer] = dict(buffers or {})
        self.arguments: dict[Argument, Argument] = dict(arguments or {})
        self._maps: dict[TensorMap, TensorMap] = {}
        self._exprs: dict[Expr, Expr | None] = {}
        self._conditions: dict[Cond, Cond | None] = {}

    def expr(self, e: Expr) -> Expr:
        """The expression with its variables and gathered registers replaced."""
        if isinstance(e, Int):
            return e
        try:
            new = self._exprs[e]
        except KeyError:
            new = substitute(e, self.variables) if self._touches(e) else None
            self._exprs[e] = new
        return e if new is None else new

    def condition(self, c: Cond) -> Cond:
        """The condition with its variables and gathered registers replaced."""
        if isinstance(c, Truth):
            return c
        if c not in self._conditions:
            new = substitute_condition(c, self.variables) if self._touches(c) else None
            self._conditions[c] = new
        found = self._conditions[c]
        return c if found is None else found

    def body(self, body: Body) -> Body:
        """The statements, in order."""
        new = tuple([self.node(s) for s in body])
        return body if all(map(is_, new, body)) else new

    def node(self, node: N) -> N:
        """The node with every symbol in it replaced."""
        if type(node) is For:
            self._rebind(node)
        old = values_of(node, fields_of(type(node)))
        new = self.items(old)
        return node if new is old else with_values(node, new)

    def _touches(self, e: Expr | Cond) -> bool:
        touched = False
        for v in variables(e):
            if type(v) is RegVar:
                touched |= self._replace_register(v)
            touched |= v in self.variables
        return touched

    def _replace_register(self, v: RegVar) -> bool:
        if v not in self.variables:
            reg = self.node(v.reg)
            if reg is v.reg:
                return False
            upper = None if v.upper is None else self.expr(v.upper)
            self.variables[v] = RegVar(reg, self.expr(v.lower), upper)
        return True

    def replace(self, v: Var, new: IntLike) -> None:
        """From now on replace `v` by `new`."""
        self.variables[v] = new
        self._exprs.clear()
        self._conditions.clear()

    def _rebind(self, loop: For) -> None:
        v = loop.var
        lower = self.expr(v.lower)
        upper = None if v.upper is None else self.expr(v.upper)
        if v not in self.variables and (lower is not v.lower or upper is not v.upper):
            self.replace(v, Var(v.name, lower, upper, v.multiple_of))

    def rename_map(self, m: TensorMap, name: str) -> TensorMap:
        """The tensor map with the symbols in it replaced, under a name, from now on."""
        buffer = self.buffers.get(m.buffer, m.buffer)
        sizes = tuple(self.expr(e) for e in m.sizes)
        strides = tuple(self.expr(e) for e in m.strides)
        same = all(a is b for a, b in zip((*sizes, *strides), (*m.sizes, *m.strides), strict=True))
        if not same or buffer is not m.buffer or name != m.name:
            self._maps[m] = TensorMap(name, buffer, sizes, strides, m.box, m.swizzle, m.rounding)
        else:
            self._maps[m] = m
        return self._maps[m]

    def buffer(self, b: Buffer) -> Buffer:
        """What stands for a buffer."""
        return self.buffers.get(b, b)

    def register(self, r: Reg) -> Reg:
        """The register with its buffer and the symbols in its place replaced."""
        buffer, index = self.buffers.get(r.buffer, r.buffer), self.expr(r.index)
        return r if buffer is r.buffer and index is r.index else Reg(buffer, index)

    def argument(self, a: Argument) -> Argument:
        """What stands for an argument."""
        return self.arguments.get(a, a)

    def map(self, m: TensorMap) -> TensorMap:
        """The tensor map with the symbols in it replaced."""
        return self._maps.get(m) or self.rename_map(m, m.name)

    def items(self, values: tuple[object, ...]) -> tuple[object, ...]:
        """The values with every symbol in them replaced."""
        new = tuple([v if (f := _REPLACING[type(v)]) is None else f(self, v) for v in values])
        return values if all(map(is_, new, values)) else new


_Replacing: TypeAlias = Callable[[Substitution, Any], object]
_BY_KIND: tuple[tuple[type, _Replacing | None], ...] = (
    (Int, None),
    (Truth, None),
    (Expr, Substitution.expr),
    (Cond, Substitution.condition),
    (Reg, Substitution.register),
    (Node, lambda s, n: s.node(n)),
    (Buffer, Substitution.buffer),
    (TensorMap, Substitution.map),
    (Argument, Substitution.argument),
    (tuple, Substitution.items),
)


class _ByClass(dict[type, "_Replacing | None"]):
    """What is done with the values of a class; None where they stay."""

    def __missing__(self, cls: type) -> _Replacing | None:
        self[cls] = next((f for kind, f in _BY_KIND if issubclass(cls, kind)), None)
        return self[cls]


_REPLACING = _ByClass()


def with_fresh_loops(body: Sequence[Statement], values: dict[Var, Expr]) -> Body:
    """The statements with values for variables, and inner loop variables of their own."""
    loops = [x for s in body for x in (s, *walk_statements(s)) if isinstance(x, For)]
    renamed: dict[Var, Expr] = {}
    for x in loops:
        renamed[x.var] = Var(x.var.name, x.var.lower, x.var.upper, x.var.multiple_of)
    return Substitution({**values, **renamed}).body(tuple(body))
