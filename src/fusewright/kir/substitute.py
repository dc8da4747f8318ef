"""Replacing symbols in KIR: variables by expressions, buffers and arguments by others.

Works on every node alike, from the kinds of values in its fields. Unchanged in, same object out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

from fusewright.core.conditions import Cond, substitute_condition
from fusewright.core.expr import Expr, IntLike, Var, variables
from fusewright.core.node import Node, symbolic_fields, with_fields
from fusewright.core.substitution import substitute
from fusewright.kir.ir import Argument, Body, Buffer, For, RegVar, TensorMap

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
        if e not in self._exprs:
            self._exprs[e] = substitute(e, self.variables) if self._touches(e) else None
        new = self._exprs[e]
        return e if new is None else new

    def condition(self, c: Cond) -> Cond:
        """The condition with its variables and gathered registers replaced."""
        if c not in self._conditions:
            new = substitute_condition(c, self.variables) if self._touches(c) else None
            self._conditions[c] = new
        found = self._conditions[c]
        return c if found is None else found

    def body(self, body: Body) -> Body:
        """The statements, in order."""
        new = tuple(self.node(s) for s in body)
        return body if all(a is b for a, b in zip(new, body, strict=True)) else new

    def node(self, node: N) -> N:
        """The node with every symbol in it replaced."""
        if isinstance(node, For):
            self._rebind(node)
        changed: dict[str, object] = {}
        for name in symbolic_fields(type(node)):
            old: object = getattr(node, name)
            new = self._value(old)
            if new is not old:
                changed[name] = new
        return with_fields(node, changed) if changed else node

    def _touches(self, e: Expr | Cond) -> bool:
        touched = False
        for v in variables(e):
            if isinstance(v, RegVar):
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
            self._maps[m] = TensorMap(name, buffer, sizes, strides, m.box, m.swizzle)
        else:
            self._maps[m] = m
        return self._maps[m]

    def _value(self, value: object) -> object:
        match value:
            case Expr():
                return self.expr(value)
            case Cond():
                return self.condition(value)
            case Node():
                return self.node(value)
            case Buffer():
                return self.buffers.get(value, value)
            case TensorMap():
                return self._maps.get(value) or self.rename_map(value, value.name)
            case Argument():
                return self.arguments.get(value, value)
            case tuple():
                items = cast("tuple[object, ...]", value)
                new = tuple(self._value(item) for item in items)
                return items if all(a is b for a, b in zip(new, items, strict=True)) else new
            case _:
                return value
