"""`fw.fuse`: a Python function on arrays becomes a fused program on its first call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewright import knobs
from fusewright.driver import compile
from fusewright.errors import UserError
from fusewright.frontends.out_layouts import Order, OutLayouts
from fusewright.frontends.signature import Dynamic, Signature, marks_of, signature_of
from fusewright.fusion import trees
from fusewright.fusion.trace import trace_call
from fusewright.fusion.trees import Leaf, Tree
from fusewright.program import Program
from fusewright.report.explain import Report
from fusewright.runtime.arrays import ArrayInfo, describe
from fusewright.runtime.device import architecture, has_gpu
from fusewright.runtime.locks import fork_safe_lock
from fusewright.runtime.torch_calls import call_key

MAX_PROGRAMS = 256
MAX_CALLS = 4096
_log = logging.getLogger("fusewright.recompiles")


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A program and the structure of the function's result over its outputs."""

    program: Program
    out_tree: Tree
    layouts: OutLayouts

    def result(self, made: Sequence[Any]) -> Any:
        """The function's own structure."""
        shown = self.layouts.shown(made)
        return (
            shown[0] if isinstance(self.out_tree, Leaf) else trees.unflatten(self.out_tree, shown)
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A program bound to the exact types of torch tensors, and where they stand in a call."""

    run: Callable[[Sequence[Any]], list[Any]]
    positions: tuple[int, ...] | None
    places: tuple[int, ...]
    compiled: _Compiled
    single: bool

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        values = (*args, *kwargs.values()) if kwargs else args
        if self.positions is not None:
            values = [values[p] for p in self.positions]
        made = self.run(values)
        if self.single:
            return made[0]
        return self.compiled.result([made[p] for p in self.places])


class Fused:
    """A function that compiles itself for every structure, dtype and size it is called with."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        target: str | None = None,
        device: str = "auto",
        out_layouts: Order | None = None,
        dynamic: Dynamic = None,
    ) -> None:
        if device not in ("auto", "cuda", "sim"):
            raise UserError(f"fuse(device={device!r}): use 'auto', 'cuda' or 'sim'")
        functools.update_wrapper(self, fn)
        self.fn = fn
        self._name: str = getattr(fn, "__name__", type(fn).__name__)
        self.target = target
        self.device = device
        self._layouts = OutLayouts(out_layouts)
        self._marks = marks_of(fn, dynamic)
        self._programs: dict[Signature, _Compiled] = {}
        self._calls: dict[Hashable, _Call] = {}
        self._lock = fork_safe_lock()

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """The function's own structure, with arrays of the caller's kind; with `out=` (the same
        structure, None where a new array is wanted) those arrays."""
        key = None
        if out is None and self.device != "sim":
            key = call_key(args, kwargs)
            found = self._calls.get(key)
            if found is not None:
                return found(args, kwargs)
        return self._first(args, kwargs, out, key)

    def _first(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, key: Hashable | None
    ) -> Any:
        """A call that is not bound yet, or cannot be."""
        infos, tree = _flattened(args, kwargs)
        compiled = self._compiled(infos, tree)
        program = compiled.program
        call = None if key is None else program.bind_torch(infos)
        if call is None:
            given = self._given(out, compiled)
            return compiled.result(program.run(infos, self.device, given))
        values = (*args, *kwargs.values())
        leaves = {id(x.owner) for x in infos}
        positions = tuple(p for p, v in enumerate(values) if id(v) in leaves)
        every = len(positions) == len(values)
        places = tuple(program.places)
        single = isinstance(compiled.out_tree, Leaf) and not compiled.layouts
        bound = _Call(call, None if every else positions, places, compiled, single)
        if len(self._calls) >= MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[key] = bound
        return bound(args, kwargs)

    def _given(self, out: Any, compiled: _Compiled) -> list[ArrayInfo | None]:
        """The arrays of `out=` in the order of the outputs. Raises UserError for another shape of
        structure."""
        if out is None:
            return []
        given = trees.leaves_like(compiled.out_tree, out)
        if given is None:
            raise UserError(
                "out= does not have the structure of the result; pass arrays in the structure "
                f"that {self._name} returns, None where a new one is wanted"
            )
        return compiled.layouts.stored([None if o is None else describe(o) for o in given])

    # --- programs -------------------------------------------------------------------------------

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program that a call with these arguments runs."""
        return self._compiled(*_flattened(args, kwargs)).program

    def explain(self, *args: Any, **kwargs: Any) -> Report:
        """What a call with these arguments becomes and why."""
        return Report(self.program(*args, **kwargs), title=self._name)

    def _compiled(self, infos: list[ArrayInfo], tree: Tree) -> _Compiled:
        signature = signature_of(infos, tree, self._marks)
        found = self._programs.get(signature)
        if found is not None:
            return found
        with self._lock:
            found = self._programs.get(signature)
            if found is None:
                self._say(signature)
                if len(self._programs) >= MAX_PROGRAMS:
                    del self._programs[next(iter(self._programs))]
                found = self._programs[signature] = self._compile(signature, tree)
            return found

    def _compile(self, signature: Signature, tree: Tree) -> _Compiled:
        args, kwargs = trees.unflatten(tree, list(signature.specs))
        traced = trace_call(self._layouts.wrapped(self.fn), *args, **kwargs)
        target = self.target
        if target is None and self.device != "sim" and has_gpu():
            target = architecture()
        program = compile(traced.fusion, target, dynamic=self._marks.everything)
        return _Compiled(program, traced.out_tree, self._layouts)

    def _say(self, signature: Signature) -> None:
        """Logs a compile that is not the first; as a warning where the user asked for that."""
        if not self._programs:
            return
        level = logging.WARNING if knobs.LOG.get() == "recompiles" else logging.INFO
        shapes = ", ".join(str(s) for s in signature.specs)
        number = len(self._programs) + 1
        _log.log(level, "%s: compile %d, for %s", self._name, number, shapes)


def _flattened(args: Any, kwargs: Mapping[str, Any]) -> tuple[list[ArrayInfo], Tree]:
    """The arrays of a call, described, and its structure. numpy scalars among arrays of another
    library are Python scalars."""
    leaves, tree = trees.flatten((args, dict(kwargs)))
    scalars = [isinstance(x, np.generic) for x in leaves]
    if any(scalars):
        mixed = any(not isinstance(x, np.ndarray | np.generic) for x in leaves)
        plain = [
            (x.item() if mixed else np.asarray(x)) if s else x
            for x, s in zip(leaves, scalars, strict=True)
        ]
        leaves, tree = trees.flatten(trees.unflatten(tree, plain))
    return [describe(x) for x in leaves], tree


def fuse(
    fn: Callable[..., Any] | None = None,
    *,
    target: str | None = None,
    device: str = "auto",
    out_layouts: Order | None = None,
    dynamic: Dynamic = None,
) -> Any:
    """Decorates a function on arrays so that its calls run as fused kernels.

    `target` is what code is made for (default: the GPU that is there, else sm_90a). `device` is
    where it runs: "cuda", "sim" (the simulator), or "auto" (where device arrays are, else a GPU if
    there is one, else the oracle, which is said once). `out_layouts`: the order of axes in memory,
    slowest first, per output. `dynamic`: sizes that may change without a compile: True for all, or
    a mapping from parameters to axes.
    """

    def decorate(f: Callable[..., Any]) -> Fused:
        return Fused(f, target=target, device=device, out_layouts=out_layouts, dynamic=dynamic)

    return decorate if fn is None else decorate(fn)
