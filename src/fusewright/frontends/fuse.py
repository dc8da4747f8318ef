"""`fw.fuse`: a Python function on arrays becomes a fused program on its first call."""

from __future__ import annotations

import copy
import functools
import importlib
import logging
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any, TypeAlias

import numpy as np

from fusewright import knobs, logs
from fusewright.arguments import FLAG, FUNCTION, NAMES, check_device_choice, optional, takes
from fusewright.driver import Kernels, compile_in_place
from fusewright.errors import UserError
from fusewright.frontends.bound import BoundProgram, TensorCall, bound
from fusewright.frontends.donation import Wishes, donated_roots, orders_for, wishes_of
from fusewright.frontends.marks import DYNAMIC, Dynamic, marks_of, number_names
from fusewright.frontends.natural_layouts import Strides, natural_layouts
from fusewright.frontends.recompiles import reason
from fusewright.frontends.signature import Signature, signature_of
from fusewright.frontends.stored_programs import Wanted, stored_or_made
from fusewright.fusion import trees
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Fusion, Sym, TensorSpec
from fusewright.fusion.objects import MethodOwner, is_structure
from fusewright.fusion.orders import Order
from fusewright.fusion.passes.check_indices import check_indices
from fusewright.fusion.passes.store_in_orders import check_orders
from fusewright.fusion.rules import ORDERS
from fusewright.fusion.trace import Traced, trace_call
from fusewright.fusion.trees import Tree
from fusewright.program import Program
from fusewright.report.explain import Report
from fusewright.runtime.arrays import ArrayInfo, describe, describe_target
from fusewright.runtime.config import Float32Matmul, active, config
from fusewright.runtime.device import architecture, has_gpu
from fusewright.runtime.libraries import common
from fusewright.runtime.locks import fork_safe_lock
from fusewright.runtime.torch_calls import (
    NUMBER,
    call_key,
    constant_to_compilers,
    is_dispatched,
    is_recorded,
    records_gradients,
)
from fusewright.target import Target, target_of

MAX_PROGRAMS = 256
MAX_CALLS = 4096
_log = logging.getLogger("fusewright.recompiles")


Layouts: TypeAlias = "Sequence[Sequence[int] | None]"
"""Per output the axes from slow to fast in memory; None for C order."""
Orders: TypeAlias = Sequence[Order | None]
ProgramKey: TypeAlias = tuple[Signature, Wishes, Orders, Float32Matmul, tuple[bool, ...]]
Maker: TypeAlias = Callable[[Fusion, Orders, Target, Sequence[ArrayInfo], Sequence[int]], Program]
"""Makes the program of a fusion whose results lie in given orders, for a target and a call's arrays
and numbers."""


class Fused:
    """A function that compiles itself for every structure, dtype and size it is called with."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        target: str | None = None,
        device: str = "auto",
        out_layouts: Layouts | None = None,
        dynamic: Dynamic = None,
        donate: Sequence[str] = (),
        kernels: Kernels | None = None,
        float32_matmul: Float32Matmul | None = None,
        stored: bool = False,
        alias_results: bool = False,
    ) -> None:
        """`kernels`: a table to share kernels by with other functions. `float32_matmul`: what holds
        instead of the caller's `fw.config`. `stored`: whether programs are kept on disk, without
        what `explain` says of their schedules."""
        check_device_choice(device)
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        self.target = target
        self.device = device
        self._marks = marks_of(fn, dynamic)
        self._dynamic = dynamic
        self.out_layouts = _orders(out_layouts)
        self._donated = donated_roots(fn, donate)
        self._donate = tuple(donate)
        self._aliases = alias_results
        self._kernels = kernels
        self._stored = stored
        self.float32_matmul: Float32Matmul | None = float32_matmul
        self._traces: dict[Signature, tuple[Traced, Orders]] = {}
        self._programs: dict[ProgramKey, BoundProgram] = {}
        self._calls: dict[Hashable, TensorCall] = {}
        self._needing_values: set[Hashable] = set()
        """Keys of calls, and signatures, of which the values of all integers are a part."""
        self.trainings: dict[Hashable, Any] = {}
        """Forward and backward programs, by what they were made for (frontends/torch/training)."""
        self._node: Any = None
        self._kinds: list[type] = []
        self._lock = fork_safe_lock()

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """The function's own structure, with arrays of the caller's kind; with `out=` (the same
        structure, None where a new array is wanted) those arrays."""
        if is_recorded():
            return self._record(args, kwargs, out)
        return self.run(args, kwargs, out)

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any = None) -> Any:
        """A call that torch need not see."""
        key = None
        if self.device != "sim":
            key = self._key(args, kwargs, out)
            found = self._calls.get(key)
            if found is not None:
                return found.run(args, kwargs, out)
        return self._first(args, kwargs, out, key)

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any = None) -> Hashable:
        """What calls share that run alike: not the values of their numbers, but for a function that
        needs them."""
        places = self._number_places(args, kwargs) if self._marks.any else ()
        if not places:
            return call_key(args, kwargs, out)
        values = [*args, *kwargs.values()]
        for p in places:
            values[p] = NUMBER
        count = len(args)
        named = dict(zip(kwargs, values[count:], strict=True))
        key = call_key(values[:count], named, out)
        return call_key(args, kwargs, out) if key in self._needing_values else key

    def _number_places(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """The numbers that stand by themselves among the values of a call."""
        roots = (*range(len(args)), *kwargs)
        values = (*args, *kwargs.values())
        return tuple(
            [
                p
                for p, (root, value) in enumerate(zip(roots, values, strict=True))
                if type(value) is int and value >= 0 and self._marks.has_number(root)
            ]
        )

    def _signed(
        self, infos: Sequence[ArrayInfo], tree: Tree
    ) -> tuple[Tree, tuple[int, ...], Signature]:
        """The structure of a call with its numbers apart, and what it is specialised on. Where all
        integers are marked, those of a function that needs their values belong to it."""
        split, numbers = self._marks.split(tree)
        signature = signature_of(infos, split, self._marks)
        if numbers and self._marks.everything and not self._is_traceable(signature, infos, split):
            return tree, (), signature_of(infos, tree, self._marks)
        return split, tuple(numbers), signature

    def _is_traceable(self, signature: Signature, infos: Sequence[ArrayInfo], tree: Tree) -> bool:
        """Whether the function can be traced with its integers as numbers of the call."""
        if signature in self._needing_values:
            return False
        try:
            self._traced(signature, infos, tree)
        except Exception:  # whatever a function does with a symbol that it takes for an int
            self._needing_values.add(signature)
            return False
        return True

    def bound(self, tensors: tuple[Any, ...], out: Any = None) -> TensorCall | None:
        """What is bound for tensors of the same shapes, strides, dtypes and device as these, on
        which the function was called before with such `out=`, if anything is. What `out` names are
        arguments, in every call the same ones."""
        return self._calls.get(self._key(tensors, {}, out))

    def _first(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, key: Hashable | None
    ) -> Any:
        """A call that is not bound yet, or cannot be."""
        leaves, tree = trees.flatten((args, kwargs))
        if any(is_dispatched(x) for x in leaves):
            return self._record(args, kwargs, out)
        if _is_traced(leaves):
            return self._inlined(args, kwargs, out)
        if records_gradients(leaves):
            return self._differentiated(leaves, tree, out)
        infos, tree = _described(leaves, tree)
        tree, numbers, signature = self._signed(infos, tree)
        given: list[ArrayInfo | None] = []
        if out is not None:
            given = self._given(out, self._traced(signature, infos, tree)[0])
        compiled = self._compiled(signature, infos, tree, given)
        program = compiled.program
        given = list(program.calls.computed(given))
        places = self._number_places(args, kwargs)
        if key is not None and places and not numbers:
            self._needing_values.add(key)
            key, places = call_key(args, kwargs, out), ()
        is_bindable = key is not None and len(places) == len(numbers)
        call = program.calls.bind_torch(infos, given, numbers) if is_bindable else None
        if call is None or any(map(is_not, leaves, [x.owner for x in infos])):  # one was copied
            return compiled.result(program.calls.run(infos, self.device, given, numbers))
        made = bound(call, compiled, leaves, (*args, *kwargs.values()), places)
        if len(self._calls) >= MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[key] = made
        return made.run(args, kwargs, out)

    def _inlined(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Any:
        """A call inside of what is traced: the function's operations join the caller's."""
        if out is not None:
            raise UserError(
                f"{self.name}: out= inside of a traced function: values of a program have no "
                "memory; use the result, and give out= to the outer call"
            )
        return self.fn(*instances(args), **kwargs)

    def _differentiated(self, leaves: list[Any], tree: Tree, out: Any) -> Any:
        """A call that torch keeps a record of, because an argument requires a gradient."""
        if out is not None:
            raise UserError(
                f"{self.name}: out= with arguments that require gradients: torch records results, "
                "not writes; use the result, or call under torch.no_grad()"
            )
        module = importlib.import_module("fusewright.frontends.torch.training")
        infos, tree = _described(leaves, tree)
        common(infos)
        return module.differentiated(self, [x.owner for x in infos], tree)

    def derived(
        self,
        fn: Callable[..., Any],
        out_layouts: Layouts | None = None,
        *,
        precision: Float32Matmul | None = None,
    ) -> Fused:
        """A function that belongs to this one, such as its backward pass: for the same target and
        device, keeping all its arguments. `precision` holds for its products of float32 instead of
        the caller's `fw.config`."""
        options: dict[str, Any] = self._options()
        options.update(donate=(), dynamic=None, out_layouts=out_layouts, float32_matmul=precision)
        options.update(alias_results=False)
        return Fused(fn, kernels=self._kernels, **options)

    def _given(self, out: Any, traced: Traced) -> list[ArrayInfo | None]:
        """The arrays of `out=` in the order of the outputs. Raises UserError for another
        structure."""
        arrays = trees.leaves_like(traced.out_tree, out)
        if arrays is None:
            raise UserError(
                "out= does not have the structure of the result; pass arrays in the structure "
                f"that {self.name} returns, None where a new one is wanted"
            )
        return [None if o is None else describe_target(o) for o in arrays]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method of an object, whose arrays are arguments of every call."""
        if instance is None:
            return self
        return Method(self, instance if is_structure(instance) else MethodOwner(instance))

    def __repr__(self) -> str:
        target = "" if self.target is None else f" for {self.target}"
        count = len(self._programs)
        programs = "1 program" if count == 1 else f"{count} programs"
        return f"<fused {self.name}{target} on {self.device}: {programs}>"

    # --- copies ---------------------------------------------------------------------------------

    def __copy__(self) -> Fused:
        return self._like(self.fn)

    def __deepcopy__(self, memo: dict[int, Any]) -> Fused:
        """A function of its own that shares what is compiled; of an object's method, the method of
        the object's copy."""
        return self._like(copy.deepcopy(self.fn, memo))

    def __reduce__(self) -> str | tuple[Any, ...]:
        """A pickle holds the function and the options, by name where the function's name means
        this object; programs are compiled again, from the disk cache where it has their code."""
        name: str = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (_fused, (self.fn, self._options()))

    def _options(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "device": self.device,
            "out_layouts": self.out_layouts,
            "dynamic": self._dynamic,
            "donate": self._donate,
            "float32_matmul": self.float32_matmul,
            "alias_results": self._aliases,
        }

    def _like(self, fn: Callable[..., Any]) -> Fused:
        """The same options for a function, and what was compiled if it is the same function."""
        made = Fused(fn, kernels=self._kernels, **self._options())
        if fn is self.fn:
            with self._lock:
                made._traces.update(self._traces)
                made._programs.update(self._programs)
        return made

    # --- torch's records ------------------------------------------------------------------------

    def _record(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Any:
        """The call as one operator of torch. Written so that torch.compile can follow it."""
        if out is not None:
            raise UserError(
                f"{self.name}: out= writes to an array that torch keeps a record of; use the "
                "result, and copy_ it where it should go"
            )
        self._enter_record()
        made = self._node(*args, **kwargs)
        return trees.decoded(self._record_structure(), made, self._kinds)

    @constant_to_compilers
    def _enter_record(self) -> bool:
        """Sees to it that `_node` is known to torch."""
        if self._node is None:
            module = importlib.import_module("fusewright.frontends.torch.operators")
            self._node = module.node(self)
        return True

    @constant_to_compilers
    def _record_structure(self) -> Any:
        """The structure of the last result of `_node`, encoded."""
        return trees.encoded(self._node.structure(), self._kinds)

    # --- programs -------------------------------------------------------------------------------

    @functools.cached_property
    def undonated(self) -> Fused:
        """The same function as one that keeps all its arguments, and shares memory with none."""
        if not self._donated and not self._aliases:
            return self
        options: dict[str, Any] = self._options() | {"donate": (), "alias_results": False}
        return Fused(self.fn, kernels=self._kernels, **options)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program that a call with these arguments runs."""
        infos, tree = _described(*trees.flatten((args, kwargs)))
        tree, _, signature = self._signed(infos, tree)
        return self._compiled(signature, infos, tree, []).program

    def program_and_arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Program, list[ArrayInfo], tuple[int, ...]]:
        """The program of a call, and the arrays and numbers that it gives it."""
        infos, tree = _described(*trees.flatten((args, kwargs)))
        tree, numbers, signature = self._signed(infos, tree)
        return self._compiled(signature, infos, tree, []).program, infos, numbers

    def compile_for(
        self, infos: Sequence[ArrayInfo], tree: Tree, given: Sequence[ArrayInfo | None] = ()
    ) -> Program:
        """The program of calls with arrays of these types in the structure of `(args, kwargs)`, and
        of `out=`, ahead of them: on a machine with a GPU its machine code is made in the
        background."""
        tree, _, signature = self._signed(infos, tree)
        return self._compiled(signature, infos, tree, given).program

    def wanted_for(
        self, infos: Sequence[ArrayInfo], tree: Tree, given: Sequence[ArrayInfo | None] = ()
    ) -> Wanted | None:
        """What `compile_for` looks for on disk, if it does."""
        if not self._stored:
            return None
        tree, _, signature = self._signed(infos, tree)
        traced, orders = self._traced(signature, infos, tree)
        orders = orders_for(given, orders)
        donated = dict(wishes_of(infos, tree, given, self._donated))
        return Wanted(traced.fusion, self._target(), donated, orders, self.precision)

    def explain(self, *args: Any, **kwargs: Any) -> Report:
        """What a call with these arguments becomes and why."""
        return Report(self.program(*args, **kwargs), title=self.name)

    def _compiled(
        self,
        signature: Signature,
        infos: Sequence[ArrayInfo],
        tree: Tree,
        given: Sequence[ArrayInfo | None],
    ) -> BoundProgram:
        precision = self.precision
        traced, orders = self._traced(signature, infos, tree)
        orders = orders_for(given, orders)
        wishes, chosen = wishes_of(infos, tree, given, self._donated), active()
        key = signature, wishes, orders, precision, chosen.of_kernels
        found = self._programs.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                self._say(signature, tree)
                if len(self._programs) >= MAX_PROGRAMS:
                    del self._programs[next(iter(self._programs))]
                fusion = check_indices(traced.fusion) if chosen.check_indices else traced.fusion
                asked = fusion, self._target(), dict(key[1])
                named = {"out_layouts": orders, "alias_results": self._aliases}
                make = functools.partial(compile_in_place, *asked, kernels=self._kernels, **named)
                with config(float32_matmul=precision):
                    wanted = Wanted(*asked, orders, precision)
                    program = stored_or_made(wanted, make) if self._stored else make()
                found = self._programs[key] = BoundProgram(program, traced.out_tree)
            return found

    @property
    def precision(self) -> Float32Matmul:
        """What products of float32 round in a call that is made now."""
        return self.float32_matmul or active().float32_matmul

    def _target(self) -> Target:
        """What code is made for."""
        if self.target is None and self.device != "sim" and has_gpu():
            return target_of(architecture())
        return target_of(self.target)

    def _traced(
        self, signature: Signature, infos: Sequence[ArrayInfo], tree: Tree
    ) -> tuple[Traced, Orders]:
        """The function traced for a signature, once, and the orders of its results in memory."""
        with self._lock:
            found = self._traces.get(signature)
            if found is None:
                if len(self._traces) >= MAX_PROGRAMS:
                    del self._traces[next(iter(self._traces))]
                shapes = [x.shape for x in infos]
                found = self.trace(signature.specs, signature.patterns, shapes, tree)
                self._traces[signature] = found
            return found

    def recompile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], make: Maker) -> None:
        """Has the program of a call made by `make`. Later calls with such arguments run it; those
        that may write over some are compiled anew."""
        infos, tree = _described(*trees.flatten((args, kwargs)))
        tree, numbers, signature = self._signed(infos, tree)
        traced, orders = self._traced(signature, infos, tree)
        program = make(traced.fusion, orders, self._target(), infos, numbers)
        with self._lock:
            for key in [k for k in self._programs if k[0] == signature]:
                del self._programs[key]
            key = signature, (), tuple(orders), self.precision, active().of_kernels
            self._programs[key] = BoundProgram(program, traced.out_tree)
            self._calls.clear()

    def trace(
        self,
        specs: Sequence[TensorSpec],
        patterns: Sequence[Strides],
        shapes: Sequence[Sequence[int]],
        tree: Tree,
    ) -> tuple[Traced, Orders]:
        """The function on arrays of these specs and example sizes, and the orders in which its
        results lie in memory. Raises UserError where `out_layouts` does not fit these."""

        @functools.wraps(self.fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            return self.fn(*instances(args), **kwargs)

        numbers = [Sym(name) for name in number_names(tree, self._marks.parameters)]
        args, kwargs = trees.unflatten(tree, list(specs), numbers)
        traced = trace_call(called, *args, **kwargs)
        if self.out_layouts is None:
            return traced, natural_layouts(traced.fusion, patterns, shapes)
        check_orders(traced.fusion, self.out_layouts)
        return traced, self.out_layouts

    def _say(self, signature: Signature, tree: Tree) -> None:
        """Logs a compile that is not the first, and its reason; as a warning where the user asked
        for that."""
        logs.start()
        level = logging.WARNING if knobs.LOG.get() == "recompiles" else logging.INFO
        if not self._programs or not _log.isEnabledFor(level):
            return
        shapes = ", ".join(str(s) for s in signature.specs)
        number = len(self._programs) + 1
        why = reason(signature, [known for known, *_ in self._programs], tree, self._marks)
        _log.log(level, "%s: compile %d, for %s: %s", self.name, number, shapes, why)


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A fused function of a class, on one of its objects."""

    fused: Fused
    owner: Any

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """As the function."""
        return self.fused(self.owner, *args, out=out, **kwargs)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program that a call with these arguments runs."""
        return self.fused.program(self.owner, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Report:
        """What a call with these arguments becomes and why."""
        return self.fused.explain(self.owner, *args, **kwargs)

    def __repr__(self) -> str:
        return f"{repr(self.fused)[:-1]}, of an object>"


def instances(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as the function sees them: owners of methods are objects."""
    return tuple(a.instance if isinstance(a, MethodOwner) else a for a in args)


def _orders(layouts: Layouts | None) -> tuple[Order | None, ...] | None:
    return None if layouts is None else tuple(None if o is None else tuple(o) for o in layouts)


def _is_traced(leaves: Sequence[Any]) -> bool:
    """Whether values are those of a program being written: one is no data at all, or all are
    literals."""
    arrays = [x for x in leaves if isinstance(x, Array)]
    if any(not x.is_known for x in arrays):
        return True
    return bool(arrays) and len(arrays) == len(leaves) and all(x.is_literal for x in arrays)


def _described(leaves: list[Any], tree: Tree) -> tuple[list[ArrayInfo], Tree]:
    """The arrays of a call, described, and its structure. numpy scalars among arrays of another
    library are Python scalars."""
    scalars = [isinstance(x, np.generic) for x in leaves]
    if any(scalars):
        mixed = any(not isinstance(x, np.ndarray | np.generic) for x in leaves)
        plain = [
            (x.item() if mixed else np.asarray(x)) if s else x
            for x, s in zip(leaves, scalars, strict=True)
        ]
        leaves, tree = trees.flatten(trees.unflatten(tree, plain))
    return [describe(x) for x in leaves], tree


def _fused(fn: Callable[..., Any], options: Mapping[str, Any]) -> Fused:
    """The function of a pickle."""
    return Fused(fn, **options)


@takes(
    fn=optional(FUNCTION),
    dynamic=DYNAMIC,
    out_layouts=optional(ORDERS),
    donate=NAMES,
    alias_results=FLAG,
)
def fuse(
    fn: Callable[..., Any] | None = None,
    *,
    target: str | None = None,
    device: str = "auto",
    out_layouts: Layouts | None = None,
    dynamic: Dynamic = None,
    donate: Sequence[str] = (),
    alias_results: bool = False,
) -> Any:
    """Decorates a function on arrays so that its calls run as fused kernels.

    `target` is what code is made for (default: the GPU that is there, else sm_90a). `device` is
    where it runs: "cuda", "sim" (the simulator), or "auto" (where device arrays are, else a GPU if
    there is one, else the oracle, which is said once). `out_layouts`: the order of axes in memory,
    slowest first, per output, None for C order; without it results are laid out as the arrays'
    library would do. `dynamic`: sizes that may change without a compile: True for all, or
    a mapping from parameters to axes. Python integers of at least 0 are numbers of each call then,
    such as positions: those of parameters that a mapping names (`{"at": ()}`), and with True all
    that the function does not need the values of. `donate`: names of parameters whose arrays the
    caller gives away: a result of the same shape, dtype and C order may be made in their memory,
    so that `fw.insert` writes its block only. A donated array is undefined after the call, unless
    it is what the call returns; a call with `out=` donates the array that it names.
    `alias_results`: results may share memory with arguments and with each other, so that those that
    are views of them cost nothing; where torch keeps a record they are copies. Raises UserError
    beside `out_layouts`, as a view lies as its array does.
    """
    if alias_results and out_layouts is not None:
        raise UserError("fuse: alias_results=True beside out_layouts; leave one of the two out")

    named: dict[str, Any] = {"out_layouts": out_layouts, "dynamic": dynamic, "donate": donate}
    named.update(target=target, device=device, alias_results=alias_results)

    def decorate(f: Callable[..., Any]) -> Fused:
        return Fused(f, **named)

    return decorate if fn is None else decorate(fn)
