"""Fused functions as operators of torch, so that whatever records operators keeps a call as one:
torch.compile, torch.export, make_fx, fake tensors."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fusewright.core.expr import Expr
from fusewright.dtypes import dtype_of
from fusewright.errors import FusewrightError, UserError
from fusewright.frontends.fuse import Fused
from fusewright.frontends.natural_layouts import pattern_of
from fusewright.frontends.torch import exported
from fusewright.frontends.torch.calls import hint
from fusewright.frontends.torch.layouts import dense_strides
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.promotion import torch_dtype
from fusewright.frontends.torch.training import differentiated
from fusewright.fusion import trees
from fusewright.fusion.evaluate import values_of
from fusewright.fusion.ir import Sym, Tensor, TensorSpec
from fusewright.fusion.orders import Order, c_order
from fusewright.fusion.trace import Traced
from fusewright.fusion.trees import LEAF, Branch, Tree
from fusewright.runtime.torch_calls import loses_gradients

ResultType = tuple[tuple[Any, ...], tuple[Any, ...], Any]
"""Shape, strides and torch dtype; sizes are integers or symbolic integers of torch."""
_SCHEMA = "(Tensor[] tensors) -> Tensor[]"


def custom_op(fused: Fused, name: str) -> Callable[..., Any]:
    """Registers a fused function of tensors as the torch operator `name` ("library::name"); returns
    a function that calls it: one tensor for one result, else a list.

    The call works under torch.compile and on fake tensors. Where an argument requires a gradient,
    operators of the function's forward and backward pass take its place. Registering a name twice
    raises torch's own error.
    """

    def positional(count: int) -> Tree:
        args = Branch(tuple, (), (LEAF,) * count)
        return Branch(tuple, (), (args, Branch(dict, (), ())))

    operator = _registered(fused, name, positional)

    def call(*tensors: Any) -> Any:
        if loses_gradients(tensors):
            made = trees.leaves(differentiated(fused, tensors, positional(len(tensors))))
        else:
            made = operator(list(tensors))
        return made[0] if len(made) == 1 else made

    return call


def node(fused: Fused) -> Any:
    """A function that torch.compile puts into its graphs as it is: a call of the fused function as
    an operator, with the results in one list. `structure()` of it is the structure of the last
    result in this thread."""
    operators: dict[Tree, Any] = {}
    last = threading.local()

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        tensors, tree = _flattened(fused, args, kwargs)
        if loses_gradients(tensors):
            made, last.structure = trees.flatten(differentiated(fused, tensors, tree))
            return made
        if torch.compiler.is_exporting() and tensors:
            found = _fusion_of(fused, tensors, tree)
            if found is not None:
                last.structure = found[0].out_tree
                text = exported.written(found[0].fusion, found[1], fused.device)
                return exported.operator(tensors, text)
        last.structure = _results(fused, tensors, tree)[1]
        operator = operators.get(tree)
        if operator is None:
            name = _free_name(fused, tree)
            operator = operators[tree] = _registered(fused, name, lambda _: tree)
        return operator(tensors)

    call.structure = lambda: last.structure  # type: ignore[attr-defined]
    return torch.compiler.allow_in_graph(call)


def _flattened(fused: Fused, args: Any, kwargs: Any) -> tuple[list[Any], Tree]:
    """The tensors of a call and its structure; symbolic scalars become numbers.

    Raises UserError for arrays of other libraries among the tensors.
    """
    leaves, tree = trees.flatten((args, kwargs))
    tensors, tree = trees.flatten(trees.unflatten(tree, list(map(_plain, leaves))))
    for k, x in enumerate(tensors):
        if not isinstance(x, torch.Tensor):
            raise UserError(
                f"{fused.name}: argument {k} is a {type(x).__name__} among torch tensors that "
                "are traced; a call takes arrays of one library (Python scalars anywhere)"
            )
    return tensors, tree


def _plain(x: Any) -> Any:
    symbolic = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    number = symbolic.get(type(x))
    return x if number is None else number(x)


def _free_name(fused: Fused, tree: Tree) -> str:
    """A name for an operator, which does not change from run to run."""
    code = getattr(fused.fn, "__code__", None)
    text = f"{fused.fn.__module__} {fused.fn.__qualname__} {getattr(code, 'co_code', b'')} {tree}"
    own = "".join(c if c.isalnum() else "_" for c in fused.name)
    stem = f"{own}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    for k in itertools.count():
        name = f"{stem}_{k}"
        if not hasattr(torch.ops.fusewright, name):
            return f"fusewright::{name}"
    raise AssertionError("counting ends")


def _registered(fused: Fused, name: str, tree_of: Callable[[int], Tree]) -> Any:
    """The operator `name`, which calls the function on tensors in a structure by their number. To
    torch it changes none of them."""

    def compute(tensors: list[Any]) -> list[Any]:
        args, kwargs = trees.unflatten(tree_of(len(tensors)), tensors)
        made = trees.flatten(fused.undonated.run(args, kwargs))[0]
        seen: dict[int, None] = {}
        own: list[Any] = []
        for x in made:  # an operator's results share no memory
            memory = x.untyped_storage().data_ptr()
            own.append(x.clone() if memory in seen else x)
            seen[memory] = None
        return own

    def like(tensors: list[Any]) -> list[Any]:
        types, _ = _results(fused, tensors, tree_of(len(tensors)))
        device = tensors[0].device
        return [torch.empty_strided(s, t, dtype=d, device=device) for s, t, d in types]

    operator = torch.library.custom_op(name, compute, mutates_args=(), schema=_SCHEMA)
    operator.register_fake(like)
    return operator


# --- types of results ---------------------------------------------------------------------------


def _results(fused: Fused, tensors: Sequence[Any], tree: Tree) -> tuple[list[ResultType], Tree]:
    """The types of the results of a call and their structure. Symbolic sizes stay symbolic where
    the function does not depend on their value; else they become numbers."""
    try:
        return _traced(fused, tensors, [tuple(t.shape) for t in tensors], tree)
    except (FusewrightError, TypeError):
        return _traced(fused, tensors, [tuple(map(int, t.shape)) for t in tensors], tree)


def _fusion_of(
    fused: Fused, tensors: Sequence[Any], tree: Tree
) -> tuple[Traced, Sequence[Order | None]] | None:
    """What a call computes, over symbolic sizes where the function does not depend on their value,
    and the orders of its results. None where it cannot be written down: with numbers of the call,
    and where results share memory with each other or with arguments, which no operator's may."""
    try:
        traced, orders = _trace(fused, tensors, [tuple(t.shape) for t in tensors], tree, _Symbols())
    except (FusewrightError, TypeError):
        sizes = [tuple(map(int, t.shape)) for t in tensors]
        traced, orders = _trace(fused, tensors, sizes, tree, _Symbols())
    results = traced.fusion.outputs
    is_plain = len({*results}) == len(results) and not {*results} & {*traced.fusion.inputs}
    return (traced, orders) if is_plain and not traced.fusion.numbers else None


def _traced(
    fused: Fused, tensors: Sequence[Any], shapes: Sequence[Sequence[Any]], tree: Tree
) -> tuple[list[ResultType], Tree]:
    symbols = _Symbols()
    traced, orders = _trace(fused, tensors, shapes, tree, symbols)
    pairs = zip(traced.fusion.outputs, orders, strict=True)
    types = [_type(t, order or c_order(t.ndim), symbols) for t, order in pairs]
    return types, traced.out_tree


def _trace(
    fused: Fused,
    tensors: Sequence[Any],
    shapes: Sequence[Sequence[Any]],
    tree: Tree,
    symbols: _Symbols,
) -> tuple[Traced, Sequence[Order | None]]:
    specs = tuple(
        TensorSpec(tuple(map(symbols.entry, s)), dtype_of(t.dtype))
        for s, t in zip(shapes, tensors, strict=True)
    )
    patterns = tuple(pattern_of(tuple(map(hint, t.stride()))) for t in tensors)
    examples = [tuple(map(hint, s)) for s in shapes]
    return fused.trace(specs, patterns, examples, tree)


class _Symbols:
    """Symbols for torch's symbolic sizes, one for each formula."""

    def __init__(self) -> None:
        self._known: dict[str, Sym] = {}
        self._values: dict[Any, Any] = {}

    def entry(self, size: Any) -> int | Sym:
        """What a spec has for a size; 0 and 1 are numbers."""
        if isinstance(size, int) or size.node.expr.is_number or hint(size) < 2:
            return int(size)
        found = self._known.setdefault(str(size.node.expr), Sym(f"n{len(self._known)}"))
        self._values[found] = size
        return found

    def size(self, e: Expr) -> Any:
        """torch's size for an expression. Raises TypeError where it has none."""
        found: Any = values_of(e, self._values)
        if not isinstance(found, int | torch.SymInt):
            raise TypeError(f"{e} as a size of torch")
        return found


def _type(t: Tensor, order: Order, symbols: _Symbols) -> ResultType:
    """The type of a result whose axes lie in an order."""
    shape = tuple(map(symbols.size, t.shape))
    return shape, dense_strides(shape, order), torch_dtype(t.dtype)
