"""`Array`: a value of a program being written, with the array API's operators.

An `Array` wraps an `ir.Tensor`; operators and functions make new ones and compute nothing. An array
whose leaves are all literals or known data can be asked for its value; one that depends on an
argument of a trace cannot, and says so.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import reduce
from types import ModuleType
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fusewright import dtypes
from fusewright.arguments import shown
from fusewright.core.expr import Expr
from fusewright.dtypes import DType
from fusewright.errors import AxisError, NoAttributeError, UserError
from fusewright.fusion import build, indexing, ir
from fusewright.fusion.advice import (
    INSTEAD_OF_TRUTH,
    INSTEAD_OF_VALUE,
    instead_of,
    instead_of_asking,
    instead_of_attribute,
    instead_of_function,
)
from fusewright.fusion.counts import MAX_RANK, check_rank
from fusewright.fusion.evaluate import carried, evaluate, pointwise, rounded
from fusewright.fusion.ir import Tensor
from fusewright.fusion.known import Known, held, is_known, is_of_jax, without_jax
from fusewright.fusion.methods import Methods, public_names
from fusewright.fusion.operands import (
    DEVICE,
    NUMPY_OPERATORS,
    OF_COMPLEX,
    Category,
    check_category,
    check_device,
    check_factors,
    check_no_stream,
    check_scalar,
    check_size,
    check_version,
    is_scalar,
)
from fusewright.fusion.positions import expression_of
from fusewright.fusion.selection import Selector, listed, select
from fusewright.fusion.source import calling_line

_SMALL = 1 << 16  # elements that are computed for the sake of one of them

Operand: TypeAlias = "Array | bool | int | float | complex | Expr"


# --- operands -----------------------------------------------------------------------------------


def check_array(op: str, x: object) -> Array:
    """`x`, which must be an Array, or an array of numpy or jax, whose elements are copied.
    UserError saying what came instead."""
    if isinstance(x, Array):
        return x
    if isinstance(x := without_jax(op, x), np.ndarray):
        return Array(Known(held(op, cast("npt.NDArray[Any]", x))))
    raise UserError(f"{op}: expected an array, got {type(x).__name__} {shown(x)}; {instead_of(x)}")


def as_number(op: str, x: object) -> Operand:
    """`as_operand`, or a size or number of the call, which counts as a Python integer."""
    return x if isinstance(x, Expr) else as_operand(op, x)


def as_operand(op: str, x: object) -> Array | bool | int | float | complex:
    """An Array or a Python scalar; numpy scalars count as Python's."""
    value: object = cast("object", x.item()) if isinstance(x, np.generic) else x
    return value if is_scalar(value) else check_array(op, value)


def common_dtype(op: str, operands: tuple[Operand, ...]) -> DType:
    """The promoted dtype of the arrays, which every scalar can take: float32 for integers and bools
    beside a Python float, int64 for bools beside an integer."""
    found = [x.dtype for x in operands if isinstance(x, Array)]
    if not found:
        own = f", as math.{op} does" if hasattr(math, op) else ""
        raise UserError(
            f"{op}: no operand is an array; compute with Python scalars in Python{own}, or make an "
            "array of one with fw.asarray"
        )
    try:
        dtype = reduce(dtypes.promote, found)
    except UserError as e:
        raise UserError(f"{op}: {e}") from None
    if dtype.is_float and any(isinstance(x, complex) for x in operands):
        if not all(x.is_known for x in operands if isinstance(x, Array)):
            raise UserError(f"{op}: complex numbers are not supported; use two real arrays")
        dtype = dtypes.promote(dtype, dtypes.complex64)
    if dtype.kind == "bool" and any(isinstance(x, Expr) or type(x) is int for x in operands):
        dtype = dtypes.int64
    if not dtype.is_float and any(isinstance(x, float) for x in operands):
        dtype = dtype if dtype.is_complex else dtypes.float32
    for x in operands:
        if isinstance(x, Expr):
            check_size(op, x, dtype)
        elif not isinstance(x, Array):
            check_scalar(op, x, dtype)
    return dtype


def as_tensor(x: Operand, dtype: DType) -> Tensor:
    """The operand as a value of a dtype; a complex scalar becomes known data."""
    if isinstance(x, Array):
        return build.cast(x.tensor, dtype)
    if isinstance(x, Expr):
        return build.size(x, dtype)
    if isinstance(x, complex):
        return Known(np.asarray(x, dtype.numpy))
    return build.constant(x, dtype)


def promoted(
    op: str, category: Category, *operands: object, of_complex: bool = False
) -> tuple[Tensor, ...]:
    """The operands in their common dtype and shape; integers where floats are asked for as
    float32."""
    checked = tuple(as_number(op, x) for x in operands)
    dtype = common_dtype(op, checked)
    if category == "float" and dtype.is_integer:
        dtype = dtypes.float32
    check_category(op, dtype, category, of_complex=of_complex)
    return build.broadcast_all(op, *(as_tensor(x, dtype) for x in checked))


def elementwise(op: str, fn: str, category: Category, *operands: object) -> Array:
    """`fn` (a name in core.functions) of the operands, promoted and broadcast."""
    tensors = promoted(op, category, *operands, of_complex=fn in OF_COMPLEX)
    out = build.pointwise(fn, *tensors)
    at_hand = [_number(x) for x in operands]
    if any(x is None for x in at_hand):
        return Array(out)
    dtype = tensors[0].dtype
    args = [carried(np.asarray(x, dtype.numpy), dtype) for x in at_hand]
    return Array(out, rounded(pointwise(out.dtype, fn, args), out.dtype))


def _number(x: object) -> object:
    """The value of a Python scalar, or of an array of rank 0 whose element is at hand: what is
    computed of such is computed at once. None for other arrays."""
    if not isinstance(x, Array):
        return None if isinstance(x, Expr) else x
    return None if x.ndim else x.at_hand


def of_complex(x: Array, fn: Callable[..., Any]) -> Array:
    """A numpy function of complex numbers, which are known data, computed at once."""
    return Array(Known(np.asarray(fn(x.numpy()))))


def magnitude(x: Array) -> Array:
    """|x|."""
    if x.dtype.is_complex:
        return of_complex(x, np.abs)
    return elementwise("abs", "abs", "numeric", x)


_OF_BOOLS = {
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_not": "logical_not",
}


def bitwise(op: str, fn: str, *operands: object) -> Array:
    """A bitwise function; of bools it is the logical one."""
    tensors = promoted(op, "integer or bool", *operands)
    is_bool = tensors[0].dtype.kind == "bool"
    return Array(build.pointwise(_OF_BOOLS[fn] if is_bool else fn, *tensors))


def matrix_product(op: str, a: object, b: object) -> Array:
    """The array API's matmul."""
    pair = (check_array(op, a), check_array(op, b))
    check_factors(op, [x.dtype for x in pair])
    dtype = common_dtype(op, pair)
    check_category(op, dtype, "numeric", of_complex=True)
    return Array(build.matmul(op, *(as_tensor(x, dtype) for x in pair)))


# --- operators ----------------------------------------------------------------------------------


def _binary(op: str, fn: str, category: Category) -> Callable[[Array, object], Array]:
    takes = _is_comparable if fn in ("eq", "ne") else _is_operand

    def operator(self: Array, other: object) -> Array:
        return elementwise(op, fn, category, self, other) if takes(other) else NotImplemented

    return operator


def _reflected(op: str, fn: str, category: Category) -> Callable[[Array, object], Array]:
    def operator(self: Array, other: object) -> Array:
        return elementwise(op, fn, category, other, self) if _is_operand(other) else NotImplemented

    return operator


def _bitwise(op: str, fn: str, *, reflect: bool = False) -> Callable[[Array, object], Array]:
    def operator(self: Array, other: object) -> Array:
        if not _is_operand(other):
            return NotImplemented
        return bitwise(op, fn, *((other, self) if reflect else (self, other)))

    return operator


def _is_comparable(x: object) -> bool:
    kinds = Array | bool | int | float | complex | Expr | np.generic | np.ndarray
    return isinstance(x, kinds) or is_of_jax(x)


def _is_operand(x: object) -> bool:
    """Whether an operator answers for an operand: with an error for what can never be one, by
    `NotImplemented` for what may know itself how to combine with an array."""
    return _is_comparable(x) or isinstance(x, str | bytes | list | tuple | dict | set | None)


def _in_place(
    symbol: str, operator: Callable[[Array, object], Array]
) -> Callable[[Array, object], Array]:
    def update(self: Array, other: object) -> Array:
        out = operator(self, other)
        if out is not NotImplemented and not _is_alike(out, self):
            raise UserError(
                f"x {symbol}= y would turn {self!r} into {out!r}: an in-place operator keeps dtype "
                f"and shape; write x = x {symbol} y"
            )
        return out

    return update


def _plain(item: object) -> object:
    """A key with Python integers where numpy's, or arrays of known data, stand for them."""
    match item:
        case np.integer():
            return int(item)
        case list():
            return listed(cast("list[object]", item))
        case Array() if item.ndim == 0 and item.dtype.is_integer and item.is_known:
            return item.__index__()
        case Array():
            return item if (found := expression_of(item.tensor)) is None else found
        case slice():
            limits = cast("slice[object, object, object]", item)
            return slice(_plain(limits.start), _plain(limits.stop), _plain(limits.step))
        case _:
            return without_jax("x[...]", item)


def _selector(item: object) -> object:
    """An array in a key, with its elements where they are known."""
    if isinstance(item, np.ndarray):
        item = Array(Known(held("x[...]", cast("npt.NDArray[Any]", item))))
    if not isinstance(item, Array):
        return item
    return Selector(item.tensor, item.numpy() if item.is_known else None)


def _is_alike(a: Array, b: Array) -> bool:
    return a.dtype is b.dtype and a.tensor.shape == b.tensor.shape


class Array(Methods):
    """A value of a program. `tensor` is the value in the fusion being built."""

    __slots__ = ("_elements", "tensor")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Tensor, elements: npt.NDArray[Any] | None = None) -> None:
        """`elements` are the value's, where they are at hand already. Raises UserError for more
        axes than arrays have."""
        if len(tensor.shape) > MAX_RANK:
            check_rank("an array", len(tensor.shape))
        if tensor.source is None and not isinstance(tensor.op, ir.Input):
            tensor.source = calling_line()
        self.tensor = tensor
        self._elements = elements

    @property
    def at_hand(self) -> npt.NDArray[Any] | None:
        """The elements, where nothing is left to compute; not to be written to."""
        return self.tensor.data if isinstance(self.tensor, Known) else self._elements

    # what it is

    @property
    def shape(self) -> tuple[int | Expr, ...]:
        """Sizes: integers, and expressions where they depend on symbols."""
        return build.known_shape(self.tensor.shape)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.tensor.ndim

    @property
    def size(self) -> int | Expr:
        """The number of elements."""
        return build.known_shape((build.element_count(self.tensor.shape),))[0]

    @property
    def device(self) -> str:
        """The one device of the array namespace: a value of a program has none."""
        return DEVICE

    def to_device(self, device: object, /, *, stream: object = None) -> Array:
        """The array itself; UserError for another device, and for a stream."""
        check_device("to_device", device)
        check_no_stream("to_device", stream)
        return self

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """The package, an array namespace. UserError for a version that it does not follow."""
        check_version(api_version)
        return sys.modules[__name__.partition(".")[0]]

    @property
    def T(self) -> Array:
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise UserError(
                f"T of an array of rank {self.ndim}: T is the transpose of a matrix; use .mT for "
                "the last two axes, or fw.permute_dims"
            )
        return self.mT

    @property
    def mT(self) -> Array:
        """The last two axes exchanged."""
        if self.ndim < 2:
            raise UserError(f"mT of an array of rank {self.ndim}: at least two axes are needed")
        return Array(build.swap_last(self.tensor))

    def __repr__(self) -> str:
        name = f"{self.tensor.name}: " if self.tensor.name else ""
        return f"Array({name}{self.dtype}[{', '.join(map(str, self.tensor.shape))}])"

    # operators

    __add__ = _binary("add", "add", "numeric")
    __radd__ = _reflected("add", "add", "numeric")
    __sub__ = _binary("subtract", "sub", "numeric")
    __rsub__ = _reflected("subtract", "sub", "numeric")
    __mul__ = _binary("multiply", "mul", "numeric")
    __rmul__ = _reflected("multiply", "mul", "numeric")
    __truediv__ = _binary("divide", "div", "float")
    __rtruediv__ = _reflected("divide", "div", "float")
    __floordiv__ = _binary("floor_divide", "floordiv", "numeric")
    __rfloordiv__ = _reflected("floor_divide", "floordiv", "numeric")
    __mod__ = _binary("remainder", "rem", "numeric")
    __rmod__ = _reflected("remainder", "rem", "numeric")
    __pow__ = _binary("pow", "pow", "numeric")
    __rpow__ = _reflected("pow", "pow", "numeric")
    __and__ = _bitwise("bitwise_and", "bitwise_and")
    __rand__ = _bitwise("bitwise_and", "bitwise_and", reflect=True)
    __or__ = _bitwise("bitwise_or", "bitwise_or")
    __ror__ = _bitwise("bitwise_or", "bitwise_or", reflect=True)
    __xor__ = _bitwise("bitwise_xor", "bitwise_xor")
    __rxor__ = _bitwise("bitwise_xor", "bitwise_xor", reflect=True)
    __lshift__ = _binary("bitwise_left_shift", "shl", "integer")
    __rlshift__ = _reflected("bitwise_left_shift", "shl", "integer")
    __rshift__ = _binary("bitwise_right_shift", "shr", "integer")
    __rrshift__ = _reflected("bitwise_right_shift", "shr", "integer")
    __eq__ = _binary("equal", "eq", "any")  # type: ignore[assignment]
    __ne__ = _binary("not_equal", "ne", "any")  # type: ignore[assignment]
    __lt__ = _binary("less", "lt", "numeric")
    __le__ = _binary("less_equal", "le", "numeric")
    __gt__ = _binary("greater", "gt", "numeric")
    __ge__ = _binary("greater_equal", "ge", "numeric")

    __iadd__ = _in_place("+", __add__)
    __isub__ = _in_place("-", __sub__)
    __imul__ = _in_place("*", __mul__)
    __itruediv__ = _in_place("/", __truediv__)
    __ifloordiv__ = _in_place("//", __floordiv__)
    __imod__ = _in_place("%", __mod__)
    __ipow__ = _in_place("**", __pow__)
    __iand__ = _in_place("&", __and__)
    __ior__ = _in_place("|", __or__)
    __ixor__ = _in_place("^", __xor__)
    __ilshift__ = _in_place("<<", __lshift__)
    __irshift__ = _in_place(">>", __rshift__)

    def __matmul__(self, other: object) -> Array:
        return matrix_product("matmul", self, other)

    def __rmatmul__(self, other: object) -> Array:
        return matrix_product("matmul", other, self)

    __imatmul__ = _in_place("@", __matmul__)

    def __neg__(self) -> Array:
        return elementwise("negative", "neg", "numeric", self)

    def __pos__(self) -> Array:
        check_category("positive", self.dtype, "numeric", of_complex=True)
        return self

    def __abs__(self) -> Array:
        return magnitude(self)

    def __invert__(self) -> Array:
        return bitwise("bitwise_invert", "bitwise_not", self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Array:
        """An operator between a numpy value and an array; UserError for numpy's functions."""
        name = ufunc.__name__
        is_operator = method == "__call__" and not options and not isinstance(inputs[0], Array)
        if is_operator and name in NUMPY_OPERATORS:
            left = inputs[0][()]  # numpy may pass its scalars as arrays of rank 0
            return getattr(inputs[1], NUMPY_OPERATORS[name])(left)
        called = name if method == "__call__" else f"{name}.{method}"
        raise UserError(
            f"numpy.{called} of the traced array {self!r}: numpy computes with values, which are "
            f"not known here; {instead_of_function(name, *public_names())}, or numpy.asarray(x) of "
            "known data"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # numpy asks each array for several protocols
            raise NoAttributeError(f"an array has no attribute {name!r}")
        raise NoAttributeError(
            f"an array has no attribute {name!r}; {instead_of_attribute(name, *public_names())}"
        )

    def __getitem__(self, key: object) -> Array:
        items = cast("tuple[object, ...]", key) if isinstance(key, tuple) else (key,)
        plain = tuple(_plain(item) for item in items)
        if not any(isinstance(item, Array | np.ndarray) for item in plain):
            return self._basic(plain)
        if self.is_known and all(x.is_known for x in plain if isinstance(x, Array)):
            return Array(Known(self._selected(plain)))
        return Array(select(self.tensor, tuple(_selector(item) for item in plain)))

    def _basic(self, key: tuple[object, ...]) -> Array:
        """The elements at integers, slices, None and Ellipsis. A known value that is not large is
        computed first, so that its elements can be asked for one after the other; one element of
        an array of literals is a literal, where no kernel would hold more of it."""
        if self.at_hand is None and self.is_known and self._is_small():
            self.numpy()
        elements = self.at_hand
        if elements is None or not all(indexing.is_basic(item) for item in key):
            return Array(indexing.index(self.tensor, key))
        try:
            found = np.asarray(elements[cast("Any", key)])
        except (IndexError, ValueError):
            return Array(indexing.index(self.tensor, key))  # refuses
        if isinstance(self.tensor, Known):
            return Array(Known(found))
        if not found.ndim and self.dtype is self.dtype.compute and not self.dtype.is_complex:
            return Array(build.constant(found.item(), self.dtype), found)
        return Array(indexing.index(self.tensor, key), found)

    def _is_small(self) -> bool:
        count = self.size
        return isinstance(count, int) and count <= _SMALL

    def _selected(self, key: tuple[object, ...]) -> npt.NDArray[Any]:
        """The elements at arrays of integers or bools, by numpy's rules."""
        arrays = tuple(x.numpy("x[..., key, ...]") if isinstance(x, Array) else x for x in key)
        try:
            return np.asarray(self.numpy()[cast("Any", arrays)])
        except IndexError as e:
            raise AxisError(f"x[{indexing.key_text(key)}] of {self!r}: {e}") from None

    def __setitem__(self, key: object, value: object) -> None:
        """Assign to elements of an array of known data, which no other array shares."""
        if not self.is_known:
            raise UserError(
                f"x[{key!r}] = ... on the traced array {self!r}: values of a program never change; "
                "use fw.insert(x, value, start) for a block, or fw.where(condition, value, x)"
            )
        items = cast("tuple[object, ...]", key) if isinstance(key, tuple) else (key,)
        plain = tuple(_plain(item) for item in items)
        at = tuple(x.numpy() if isinstance(x, Array) else x for x in plain)
        new = as_operand("x[...] = value", value)
        common = common_dtype("x[...] = value", (self, new))
        if common is not self.dtype:
            raise UserError(
                f"x[...] = value on {self!r}: {new!r} would make it {common}; cast it with "
                "fw.astype first"
            )
        elements = self.numpy()
        try:
            elements[cast("Any", at)] = np.asarray(new)
        except IndexError as e:
            raise AxisError(f"x[{indexing.key_text(plain)}] = value of {self!r}: {e}") from None
        except ValueError as e:
            raise UserError(f"x[{indexing.key_text(plain)}] = value of {self!r}: {e}") from None
        self.tensor, self._elements = Known(elements), None

    # values

    @property
    def is_known(self) -> bool:
        """Whether the value depends on literals and known data only."""
        return is_known(self.tensor)

    @property
    def is_literal(self) -> bool:
        """Whether the value depends on literals only, which a trace can use."""
        return self._known_leaves() == ()

    def _known_leaves(self) -> tuple[Known, ...] | None:
        """The data that the value depends on; None when it depends on an argument of a trace, or
        on the symbolic sizes of one."""
        if not is_known(self.tensor):
            return None
        found: list[Known] = []
        seen: set[Tensor] = set()
        stack = [self.tensor]
        while stack:
            t = stack.pop()
            if isinstance(t, Known):
                found.append(t)
            fresh = [o for o in dict.fromkeys(t.op.operands) if o not in seen]
            stack.extend(fresh)
            seen.update(fresh)
        return tuple(found)

    def numpy(self, asked: str = "numpy()") -> npt.NDArray[Any]:
        """The value, computed by the oracle, when it depends on known data only.

        Raises UserError when it depends on an argument of a trace, and AxisError for an index
        outside its axis.
        """
        if self.at_hand is not None:
            return self.at_hand.copy()
        known = self._known_leaves()
        if known is None:
            raise UserError(
                f"{asked} of the traced array {self!r}: its value is not known while tracing, "
                f"{instead_of_asking(asked)}"
            )
        fusion = ir.Fusion(known, (self.tensor,), ir.topological((self.tensor,), known))
        (out,) = evaluate(fusion, *(t.data for t in known))
        if known:  # computed once: from here on the array is data
            self.tensor = Known(out)
        else:  # an array of literals stays one, so that a trace can use it
            self._elements = out
        return out.copy()

    def _item(self, asked: str) -> Any:
        if self.at_hand is None or self.at_hand.size != 1:
            self._check_one(asked)
        return self.numpy(asked).reshape(()).item()

    def _check_one(self, asked: str) -> None:
        if self.size != 1:
            is_truth = asked == "bool()"
            reductions = "fw.any or fw.all" if is_truth else "fw.sum or fw.max"
            raise UserError(
                f"{asked} of {self!r}: it needs exactly one element; reduce it first, for example "
                f"with {reductions}; {INSTEAD_OF_TRUTH if is_truth else INSTEAD_OF_VALUE}"
            )

    def __bool__(self) -> bool:
        return bool(self._item("bool()"))

    def __int__(self) -> int:
        return int(self._item("int()"))

    def __float__(self) -> float:
        return float(self._item("float()"))

    def __complex__(self) -> complex:
        return complex(self._item("complex()"))

    def __index__(self) -> int:
        check_category("__index__", self.dtype, "integer")
        return int(self._item("__index__()"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        out = self.numpy("__array__()")
        return out if dtype is None else out.astype(dtype)
