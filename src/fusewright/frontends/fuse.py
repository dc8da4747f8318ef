"""`fw.fuse`: a Python function on arrays becomes a fused program on its first call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fusewright.driver import compile
from fusewright.errors import UserError
from fusewright.fusion import trees
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.trace import trace_call
from fusewright.fusion.trees import Tree
from fusewright.program import Program
from fusewright.runtime.arrays import ArrayInfo, describe


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
        leaves = [np.asarray(x) if isinstance(x, np.generic) else x for x in leaves]
        infos = [describe(x) for x in leaves]
        program, out_tree = self._program(infos, tree)
        return trees.unflatten(out_tree, list(program(*leaves, device=self.device)))

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program that a call with these arguments runs."""
        leaves, tree = trees.flatten((args, kwargs))
        return self._program(
            [describe(np.asarray(x) if isinstance(x, np.generic) else x) for x in leaves], tree
        )[0]

    def _program(self, infos: list[ArrayInfo], tree: Tree) -> tuple[Program, Tree]:
        layouts = [_layout(x) for x in infos]
        key = (tree, tuple((x.shape, x.dtype, s) for x, s in zip(infos, layouts, strict=True)))
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                specs = [
                    TensorSpec(x.shape, x.dtype, strides=s[0], alignment=s[1])
                    for x, s in zip(infos, layouts, strict=True)
                ]
                args, kwargs = trees.unflatten(tree, list(specs))
                traced = trace_call(self.fn, *args, **kwargs)
                found = (compile(traced.fusion, self.target), traced.out_tree)
                self._programs[key] = found
            return found


def _layout(x: ArrayInfo) -> tuple[tuple[int, ...] | None, int]:
    """Strides (None for C order) and alignment as a kernel is specialised on them. Host arrays
    are copied, so that theirs do not matter."""
    if x.device.kind == "cpu":
        return None, 16
    step, contiguous = 1, True
    for n, s in zip(reversed(x.shape), reversed(x.strides), strict=True):
        contiguous = contiguous and (n == 1 or s == step)
        step *= n
    return None if contiguous else x.strides, min(x.alignment, 16)


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
