"""`fw.fuse`: a Python function on arrays becomes a fused program on its first call."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from fusewright.driver import compile
from fusewright.dtypes import dtype_of
from fusewright.errors import UserError
from fusewright.fusion import trees
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.trace import trace_call
from fusewright.fusion.trees import Tree
from fusewright.program import Program
from fusewright.runtime.device import has_gpu

_said = threading.Event()


class Fused:
    """A function that compiles itself for every structure, shape and dtype it is called with."""

    def __init__(self, fn: Callable[..., Any], target: str | None, device: str) -> None:
        if device not in ("auto", "cuda", "sim"):
            raise UserError(f"fuse(device={device!r}): use 'auto', 'cuda' or 'sim'")
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.target = target
        self.device = device
        self._programs: dict[object, tuple[Program, Tree]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's own structure, with arrays of the caller's kind."""
        leaves, tree = trees.flatten((args, kwargs))
        arrays = [_as_numpy(x, k) for k, x in enumerate(leaves)]
        program, out_tree = self._program(arrays, tree)
        if self.device == "auto" and not has_gpu() and not _said.is_set():
            _said.set()
            warnings.warn(
                "no GPU: fusewright computes with its numpy oracle; device='sim' simulates the "
                "kernels",
                stacklevel=2,
            )
        return trees.unflatten(out_tree, list(program(*arrays, device=self.device)))

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program that a call with these arguments runs."""
        leaves, tree = trees.flatten((args, kwargs))
        return self._program([_as_numpy(x, k) for k, x in enumerate(leaves)], tree)[0]

    def _program(self, arrays: list[np.ndarray[Any, Any]], tree: Tree) -> tuple[Program, Tree]:
        key = (tree, tuple((a.shape, a.dtype.name) for a in arrays))
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                specs = [TensorSpec(a.shape, dtype_of(a.dtype)) for a in arrays]
                args, kwargs = trees.unflatten(tree, list(specs))
                traced = trace_call(self.fn, *args, **kwargs)
                found = (compile(traced.fusion, self.target), traced.out_tree)
                self._programs[key] = found
            return found


def _as_numpy(x: object, position: int) -> np.ndarray[Any, Any]:
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    raise UserError(
        f"argument {position} is a {type(x).__name__}; pass numpy arrays or Python scalars"
    )


def fuse(
    fn: Callable[..., Any] | None = None, *, target: str | None = None, device: str = "auto"
) -> Any:
    """Decorates a function on arrays so that its calls run as fused kernels.

    `target` is what code is made for (default sm_90a), `device` where it runs: "cuda", "sim" (the
    simulator), or "auto" (a GPU if there is one, else the oracle, which is said once).
    """
    if fn is None:
        return lambda f: Fused(f, target, device)
    return Fused(fn, target, device)
