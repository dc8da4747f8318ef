"""Operations as methods, under the names that numpy's arrays have: `x.sum(axis=0)` is
`fw.sum(x, axis=0)`. Which operations there are, and what they do, is said by the functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

from fusewright.arguments import POSITIONAL
from fusewright.core.expr import constant_value
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.advice import instead_of_function
from fusewright.fusion.operands import check_no_stream


def _functions() -> ModuleType:
    """The package, whose functions these are."""
    return sys.modules[__name__.partition(".")[0]]


def public_names() -> tuple[list[str], list[str]]:
    """The names of the package, and those of its `nn`."""
    functions = _functions()
    return dir(functions), list(functions.nn.__all__)


def call_of(name: str, positional: int | None = None) -> str:
    """How a public function, or a method such as `Methods.sum`, is called: `fw.sum(x, axis=None)`.
    "" for a name that is not here, and for one whose number of arguments by position is another."""
    owner, _, last = name.rpartition(".")
    functions = _functions()
    layer = getattr(functions.nn, last, None) if last in functions.nn.__all__ else None
    drawn = getattr(functions.random, last, None)
    plain = functions.__dict__.get(last, layer or drawn)
    found = getattr(Methods, last, None) if owner else plain
    if owner not in ("", Methods.__name__) or not inspect.isfunction(found):
        return ""
    taken = list(inspect.signature(found).parameters.values())
    if positional not in (None, sum(p.kind in POSITIONAL for p in taken)):
        return ""
    shown = [p.replace(annotation=p.empty) for p in (taken[1:] if owner else taken)]
    where = "x" if owner else "fw.nn" if found is layer else "fw.random" if found is drawn else "fw"
    return f"{where}.{last}{inspect.Signature(shown)}"


def _listed(op: str, sizes: tuple[Any, ...]) -> Any:
    """`(2, 3)` for the arguments `2, 3` and for the argument `(2, 3)`."""
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        return cast("tuple[Any, ...]", sizes[0])
    if any(isinstance(s, tuple | list) for s in sizes):
        raise UserError(f"{op}{sizes}: give sizes or axes one by one, or in one tuple")
    return sizes


def _values(x: Any, asked: str) -> Any:
    """A structure with the elements of known data in the place of arrays."""
    if isinstance(x, Methods):
        array: Any = x
        if array.is_known:
            return array.numpy()
        ways = instead_of_function(asked.removeprefix("numpy."), *public_names())
        raise UserError(
            f"{asked} of the traced array {array!r}: numpy computes with values, which are not "
            f"known here; {ways}, or numpy.asarray(x) of known data"
        )
    if isinstance(x, dict):
        table = cast("dict[Any, Any]", x)
        return {k: _values(v, asked) for k, v in table.items()}
    if isinstance(x, tuple | list):
        items = [_values(v, asked) for v in cast("tuple[Any, ...]", x)]
        return items if isinstance(x, list) else tuple(items)
    return x


class Methods:
    """The methods of arrays."""

    __slots__ = ()

    # reductions

    def sum(self, axis: Any = None, *, dtype: object = None, keepdims: bool = False) -> Any:
        """`fw.sum`."""
        return _functions().sum(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def prod(self, axis: Any = None, *, dtype: object = None, keepdims: bool = False) -> Any:
        """`fw.prod`."""
        return _functions().prod(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """`fw.mean`."""
        return _functions().mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """`fw.max`."""
        return _functions().max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """`fw.min`."""
        return _functions().min(self, axis=axis, keepdims=keepdims)

    def var(self, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
        """`fw.var`."""
        return _functions().var(self, axis=axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
        """`fw.std`."""
        return _functions().std(self, axis=axis, correction=correction, keepdims=keepdims)

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """`fw.any`."""
        return _functions().any(self, axis=axis, keepdims=keepdims)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """`fw.all`."""
        return _functions().all(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """`fw.argmax`."""
        return _functions().argmax(self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """`fw.argmin`."""
        return _functions().argmin(self, axis=axis, keepdims=keepdims)

    def cumsum(self, axis: Any = None, *, dtype: object = None) -> Any:
        """`fw.cumulative_sum`."""
        return _functions().cumulative_sum(self, axis=axis, dtype=dtype)

    def cumprod(self, axis: Any = None, *, dtype: object = None) -> Any:
        """`fw.cumulative_prod`."""
        return _functions().cumulative_prod(self, axis=axis, dtype=dtype)

    # shapes

    def reshape(self, *shape: Any) -> Any:
        """`fw.reshape`; sizes one by one or in a tuple."""
        return _functions().reshape(self, _listed("reshape", shape))

    def flatten(self) -> Any:
        """`fw.reshape` to one axis."""
        return _functions().reshape(self, (-1,))

    def ravel(self) -> Any:
        """`fw.reshape` to one axis."""
        return self.flatten()

    def transpose(self, *axes: Any) -> Any:
        """`fw.permute_dims`; axes one by one or in a tuple, backwards without any."""
        order = _listed("transpose", axes) or tuple(range(self._rank))[::-1]
        return _functions().permute_dims(self, order)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """`fw.permute_dims` with two axes exchanged."""
        rank = self._rank
        i, j = (build.axis_of("swapaxes", a, rank) for a in (axis1, axis2))
        named = {i: j, j: i}
        return _functions().permute_dims(self, tuple(named.get(k, k) for k in range(rank)))

    def squeeze(self, axis: Any = None) -> Any:
        """`fw.squeeze`; all axes of size 1 without one."""
        sizes: Any = getattr(self, "shape")  # noqa: B009
        chosen = tuple(k for k, n in enumerate(sizes) if n == 1) if axis is None else axis
        return _functions().squeeze(self, chosen)

    def repeat(self, repeats: Any, axis: Any = None) -> Any:
        """`fw.repeat`."""
        return _functions().repeat(self, repeats, axis=axis)

    def take(self, indices: Any, axis: Any = None, *, mode: str = "raise") -> Any:
        """`fw.take`."""
        return _functions().take(self, indices, axis=axis, mode=mode)

    # elements

    def astype(self, dtype: object, *, copy: bool = True) -> Any:
        """`fw.astype`."""
        return _functions().astype(self, dtype, copy=copy)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """`fw.clip`."""
        return _functions().clip(self, min, max)

    def round(self) -> Any:
        """`fw.round`, to integers."""
        return _functions().round(self)

    def abs(self) -> Any:
        """`fw.abs`."""
        return _functions().abs(self)

    def conj(self) -> Any:
        """`fw.conj`."""
        return _functions().conj(self)

    def copy(self) -> Any:
        """`fw.copy`."""
        return _functions().copy(self)

    def argsort(self, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
        """`fw.argsort`."""
        return _functions().argsort(self, axis, descending=descending, stable=stable)

    def diagonal(self, offset: int = 0) -> Any:
        """`fw.diagonal`."""
        return _functions().diagonal(self, offset)

    def dot(self, other: Any) -> Any:
        """The product of matrices, `fw.matmul`."""
        return _functions().matmul(self, other)

    def __divmod__(self, other: Any) -> Any:
        """`x // other` and `x % other`."""
        return self // other, self % other  # pyright: ignore[reportOperatorIssue]

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    # numpy's functions

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A function of numpy on known data; UserError for arrays that are traced."""
        asked = f"numpy.{func.__name__}"
        return func(*(_values(a, asked) for a in args), **_values(kwargs, asked))

    # iteration

    def __iter__(self) -> Iterator[Any]:
        x: Any = self
        if not x.ndim:
            raise UserError(
                "iteration over an array of rank 0, which has no axis; use the array itself"
            )
        extent = constant_value(x.tensor.shape[0])
        if extent is None:
            raise UserError(
                f"iteration over axis 0 of symbolic size {x.shape[0]}: a trace unrolls Python "
                "loops, so the size must be an integer; use array operations on the whole axis"
            )
        return (x[k] for k in range(extent))

    def __len__(self) -> int:
        x: Any = self
        extent = constant_value(x.tensor.shape[0]) if x.ndim else None
        if extent is None:
            raise UserError(
                f"len() of {x!r}: it needs a first axis of integer size; use x.shape[0]"
            )
        return extent

    # torch's functions

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Functions of torch, and operators between an array and a tensor: UserError."""
        name = str(getattr(func, "__name__", func))
        if any(type(a).__module__.partition(".")[0] == "torch" for a in args):
            raise UserError(
                f"{name} of an array of a program and a tensor of torch: pass the tensor as an "
                "argument of the function, or make it a constant with fw.asarray"
            )
        raise UserError(
            f"torch.{name} of an array of a program: torch computes with tensors, which have "
            f"values; {instead_of_function(name, *public_names())}"
        )

    # values

    def __str__(self) -> str:
        """The elements of known data, as numpy prints them; of a traced array what it is."""
        x: Any = self
        return str(x.numpy()) if x.is_known else repr(x)

    def __format__(self, text: str) -> str:
        """`str`, or with a text such as `.3f` the only element so, where the value is known."""
        numbers: Any = self
        return format(numbers._item(f"a text {text!r}"), text) if text else str(self)

    def item(self) -> Any:
        """The only element as a Python scalar, where the value is known."""
        numbers: Any = self
        return numbers._item("item()")

    def tolist(self) -> Any:
        """The elements as nested lists, where the value is known."""
        numbers: Any = self
        return numbers.numpy("tolist()").tolist()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The value for another library, which gets elements of its own."""
        if dl_device not in (None, self.__dlpack_device__()):
            raise UserError(
                f"__dlpack__(dl_device={dl_device}): the value is on the host, {(1, 0)}; move it "
                "with the other library"
            )
        check_no_stream("__dlpack__", stream)
        numbers: Any = self
        return numbers.numpy("__dlpack__()").__dlpack__(max_version=max_version, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU: the value is computed on the host

    @property
    def _rank(self) -> int:
        return getattr(self, "ndim")  # noqa: B009
