"""`trace`: run a Python function on symbolic arrays and keep what it computed. Never simplifies."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusewright.arguments import FUNCTION, TEXT, shown, takes
from fusewright.core.expr import Expr, as_expr
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import call_numbers, ir, trees
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.constants import with_constants
from fusewright.fusion.ir import Fusion, Shape, Sym, Tensor, TensorSpec
from fusewright.fusion.laps import name_laps
from fusewright.fusion.refused_calls import note_of
from fusewright.fusion.source import raising_line
from fusewright.fusion.spec_text import is_spec_text, parse_spec
from fusewright.fusion.trees import Tree
from fusewright.fusion.value_names import give_names


@dataclass(frozen=True, slots=True)
class Traced:
    """A fusion and the structures of its function's arguments, `(args, kwargs)`, and result."""

    fusion: Fusion
    in_tree: Tree
    out_tree: Tree


@takes(fn=FUNCTION)
def trace(fn: Callable[..., Any], *specs: Any, **kwargs: Any) -> Fusion:
    """What `fn` computes on arguments like `specs`: TensorSpecs, or texts such as "f32[1024,n]",
    nested in tuples, lists and dicts, and None, Python scalars and other strings, which `fn` sees
    as they are. An `fw.Sym` is a number of each call, an integer of at least 0, such as where a
    block begins: the program takes it in its place among the arrays.

    Arrays of known data that `fn` uses (numpy arrays, and what `fw.asarray` made of data) become
    constants: inputs behind those of the arguments, which calls leave out, with the elements that
    they have now.

    Raises UserError when `fn` asks for a value, or returns something that is not an array.
    """
    specs, kwargs = trees.map_static(_spec, (specs, kwargs))
    return trace_call(fn, *specs, **kwargs).fusion


def _spec(value: Any) -> Any:
    return parse_spec(value) if is_spec_text(value) else value


def _called(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What the function returns. Errors of this package name the line of the program that they
    come from."""
    try:
        return fn(*args, **kwargs)
    except (UserError, UnsupportedError) as e:
        e.source = e.source or raising_line(e)
        raise
    except TypeError as e:
        note = note_of(str(e))
        if note:
            e.__notes__ = [f"{note} [{raising_line(e)}]"]
        raise


def trace_call(fn: Callable[..., Any], *specs: Any, **kwargs: Any) -> Traced:
    """`trace`, together with the structure of arguments and result. A function of numbers runs a
    second time where what it asks of them limits them, so that it then knows the limits."""
    leaves, in_tree = trees.flatten((specs, kwargs))
    names = _argument_names(fn, specs, kwargs)
    sizes = _Sizes(leaves)
    open_numbers = {
        k: call_numbers.TracedNumber(s.name, s.least, s.upper, s.multiple_of)
        for k, s in enumerate(leaves)
        if isinstance(s, Sym) and not sizes.has(s)
    }
    arguments = _Arguments(fn, names, leaves, in_tree, sizes)
    traced = _trace_once(arguments, open_numbers)
    asked = call_numbers.checks_of(tuple(open_numbers.values()))
    if not asked:
        return traced
    new = call_numbers.narrowed(tuple(open_numbers.values()))
    numbers = {k: new[v] for k, v in open_numbers.items()}
    again = _trace_once(arguments, numbers)
    more = call_numbers.checks_of(numbers.values())
    checks = dict.fromkeys((*call_numbers.renamed(asked, new), *more))
    return replace(again, fusion=replace(again.fusion, checks=tuple(checks)))


@dataclass(frozen=True, slots=True)
class _Arguments:
    """A function, and the names, specs and structure of what it is traced with."""

    fn: Callable[..., Any]
    names: Sequence[str]
    leaves: Sequence[Any]
    tree: Tree
    sizes: _Sizes


def _trace_once(given: _Arguments, open_numbers: Mapping[int, call_numbers.TracedNumber]) -> Traced:
    """The function's values. `open_numbers`: the numbers that are no sizes, by place."""
    inputs: list[Tensor] = []
    values: list[Any] = []
    numbers: list[call_numbers.CallNumber] = []
    for k, (label, spec) in enumerate(zip(given.names, given.leaves, strict=True)):
        if isinstance(spec, Sym):
            values.append(open_numbers.get(k, spec))
            numbers.append(call_numbers.CallNumber(values[-1], k))
            continue
        inputs.append(_input(len(inputs), label, spec, given.sizes))
        values.append(Array(inputs[-1]))
    args, kwargs = trees.unflatten(given.tree, values)
    results, out_tree = trees.flatten(_called(given.fn, args, kwargs))
    for n in open_numbers.values():
        n.is_open = False
    label = getattr(given.fn, "__name__", "the traced function")
    outputs = tuple(check_array(f"result of {label}", r).tensor for r in results)
    fusion = _assemble(tuple(inputs), outputs, tuple(numbers))
    return Traced(fusion, given.tree, out_tree)


@takes(text=TEXT)
def name(x: Array, text: str) -> Array:
    """Give the value a name, for schedules and printing. Returns `x`.

    Raises UserError for a text that is not an identifier; `trace` raises for a name given twice.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", text):
        raise UserError(
            f"name {text!r} is not an identifier: use letters, digits and _, not a digit first"
        )
    check_array("name", x).tensor.name = text
    return x


# --- inputs -------------------------------------------------------------------------------------


def _argument_names(fn: Callable[..., Any], specs: Any, kwargs: Any) -> list[str]:
    """A name for every leaf, from the parameters of the function where it has a signature."""
    try:
        signature = inspect.signature(fn)
    except ValueError:
        positional = [(f"x{k}", s) for k, s in enumerate(specs)]
    else:
        try:
            signature.bind(*specs, **kwargs)
        except TypeError as e:
            label = getattr(fn, "__name__", "the function")
            raise UserError(f"trace: the specs do not fit the parameters of {label}: {e}") from None
        positional = list(signature.bind_partial(*specs).arguments.items())
    roots = [*positional, *kwargs.items()]
    found = [p for root, value in roots for p in trees.paths(trees.flatten(value)[1], root)]
    return [re.sub(r"\W", "_", p) for p in found]


def is_reserved(label: str) -> bool:
    """Whether a symbol cannot have this name."""
    is_own = re.fullmatch(r"(i|lap)\d+", label) is not None
    return not label.isidentifier() or keyword.iskeyword(label) or is_own


class _Sizes:
    """The symbols of one trace: one size per name, and at most one `Sym` object per name."""

    def __init__(self, specs: Iterable[object]) -> None:
        self._known: dict[str, Sym] = {}
        self._sizes: set[Sym] = set()
        for spec in specs:
            if isinstance(spec, TensorSpec):
                for s in spec.shape:
                    if isinstance(s, Sym):
                        self._sizes.add(s)
                    if isinstance(s, Sym) and self._known.setdefault(s.name, s) is not s:
                        raise UserError(
                            f"two different sizes are called {s.name!r}; pass one Sym object to "
                            "every axis it sizes, or name them apart"
                        )

    def has(self, s: Sym) -> bool:
        """Whether it is the size of an axis. Raises UserError for another one of that name."""
        found = self._known.setdefault(s.name, s)
        if found is not s:
            raise UserError(
                f"two different symbols are called {s.name!r}; pass one Sym object, or name them "
                "apart"
            )
        return s in self._sizes

    def extent(self, entry: int | str | Sym) -> Expr:
        """The extent that an entry of a spec's shape stands for."""
        label = entry if isinstance(entry, str) else getattr(entry, "name", "n")
        if is_reserved(label):
            raise UserError(
                f"size name {label!r}: use an identifier that is no Python keyword and not one of "
                "i0, i1, ..., which name coordinates, or lap0, lap1, ..., which count iterations"
            )
        if isinstance(entry, str):
            return self._known.setdefault(entry, Sym(entry))
        return as_expr(entry)


def _input(position: int, label: str, spec: object, sizes: _Sizes) -> Tensor:
    if not isinstance(spec, TensorSpec):
        raise UserError(
            f"trace: argument {label} is {type(spec).__name__} {shown(spec)}; give a "
            "fw.TensorSpec(shape, dtype) for every array, an fw.Sym for a number that each call "
            "gives, and plain Python values for the rest"
        )
    shape: Shape = tuple(sizes.extent(s) for s in spec.shape)
    if spec.strides is None:
        strides = ir.contiguous_strides(shape)
    else:
        strides = tuple(as_expr(s) for s in spec.strides)
    return Tensor(label, shape, spec.dtype, ir.Input((), position, strides, spec.alignment))


# --- the result ---------------------------------------------------------------------------------


def _assemble(
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    numbers: tuple[call_numbers.CallNumber, ...],
) -> Fusion:
    inputs, outputs = with_constants(inputs, outputs)
    values = ir.topological(outputs, inputs)
    for t in values:
        if isinstance(t.op, ir.Input) and t not in inputs:
            raise UserError(
                f"the array {t!r} is not an argument of this trace: it was captured from outside, "
                "where it is a value of another trace; pass it as an argument"
            )
        if t.dtype.is_complex:
            raise UnsupportedError(
                f"the value {t!r}: kernels hold no complex numbers; use two real arrays"
            )
    _give_sources(values)
    give_names(values)
    return name_laps(Fusion(inputs, outputs, values, numbers))


def _give_sources(values: tuple[Tensor, ...]) -> None:
    """Values inside of an operation come from the line that called the operation."""
    for t in reversed(values):
        for o in t.op.operands:
            if o.source is None and not isinstance(o.op, ir.Input):
                o.source = t.source
