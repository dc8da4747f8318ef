"""Calls of a program with arrays of the caller's library: checked, bound, and run.

Device arrays run on the GPU without a copy; host arrays in the simulator, on a GPU through copies,
or, without one, in the numpy oracle.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy.typing as npt

from fusewright.core.compiled import Evaluator, compiled
from fusewright.core.expr import Var, as_expr
from fusewright.dtypes import DType, dtype_of
from fusewright.errors import UserError
from fusewright.fusion.call_numbers import (
    check_numbers,
    check_size_number,
    gaps_of,
    with_numbers,
    without_numbers,
)
from fusewright.fusion.constants import completed, constants_of
from fusewright.fusion.evaluate import evaluate
from fusewright.kernel import Kernel, TensorInfo, flatten, shaped_view, size_of, without_races
from fusewright.programs.model import ProgramModel, as_shown
from fusewright.programs.simulation import simulate_program
from fusewright.progress import told
from fusewright.runtime.arrays import (
    CPU,
    ArrayInfo,
    describe,
    describe_target,
    host_view,
)
from fusewright.runtime.bound import BoundCall
from fusewright.runtime.config import active
from fusewright.runtime.constants import Constants
from fusewright.runtime.control import Loaded, LoadedRegion
from fusewright.runtime.device import has_gpu
from fusewright.runtime.executor import Executor, check_out
from fusewright.runtime.launch import LoadedKernel
from fusewright.runtime.libraries import Library, common, library_of
from fusewright.runtime.torch_calls import NumberedCall, TorchCall, call_key, check_gradients
from fusewright.runtime.workspace import check_workspace

Array = npt.NDArray[Any]

_said = threading.Event()


class Calls:
    """The calls of one program: what was bound for arrays of one kind, the loaded kernels, and the
    constants on each device."""

    def __init__(self, program: ProgramModel) -> None:
        self._program = program
        self._bound: dict[Any, TorchCall | NumberedCall] = {}
        self.when_loaded: Callable[[], None] | None = None
        """What to do once the kernels' machine code has been made and loaded."""

    @cached_property
    def constants(self) -> Constants:
        """What the traced function captured: the last inputs, which calls leave out."""
        return Constants(constants_of(self._program.fusion.inputs))

    @cached_property
    def executor(self) -> Executor:
        """What launches the kernels; they are compiled and loaded at its first call."""
        p = self._program
        return Executor(p.host, p.inputs, p.results, p.holders, self._load, p.numbers)

    def _load(self) -> list[Loaded]:
        kernels = self._program.kernels
        made = told(kernels, len(kernels), "waiting for machine code")
        loaded = {k: LoadedKernel(k.cubin(), k.ir) for k in made}
        if self.when_loaded is not None:
            self.when_loaded()
        return _loaded(self._program, loaded)

    def call(
        self, arrays: Sequence[Any], device: str, out: Sequence[Any], workspace: Any = None
    ) -> list[Any]:
        """Runs on arrays of any library; torch tensors on a GPU take the call that was bound for
        others like them."""
        arrays, values = without_numbers(self._program.fusion, arrays)
        numbers = tuple(values.values())
        out = self.computed(out)
        beside = () if workspace is None else (workspace,)
        key = None if device == "sim" else call_key((*arrays, *beside), {}, out or None)
        call = self._bound.get(key)
        if call is None:
            infos = [describe(a) for a in arrays]
            given = [None if o is None else describe_target(o) for o in out]
            room = None if workspace is None else describe(workspace)
            call = None if key is None else self.bind_torch(infos, given, numbers, room)
            if call is None:
                made = self._run(infos, device, given, numbers, room)
                return self.with_views(infos, made, numbers)
            self._bound[key] = call
        made = call.run(arrays, out, numbers, workspace)
        return self.with_views(arrays, [made[p] for p in self._program.places], numbers)

    def computed(self, out: Sequence[Any]) -> Sequence[Any]:
        """Of the arrays of `out=` those for results that are computed. Raises UserError for one in
        the place of a view."""
        shared = self._program.shared
        return out if shared is None else shared.given(out)

    def with_views(
        self, arrays: Sequence[Any], made: list[Any], numbers: Sequence[int] = ()
    ) -> list[Any]:
        """The results of a call on these arrays, or on what describes them: what was made, and the
        views beside it."""
        p = self._program
        if p.shared is None:
            return made
        inputs = p.fusion.inputs
        given = completed(inputs, arrays, constants_of(inputs))
        return p.shared.results(arrays, made, p.symbol_values(given, self._named(numbers)))

    def bind_torch(
        self,
        infos: Sequence[ArrayInfo],
        out: Sequence[ArrayInfo | None] = (),
        numbers: Sequence[int] = (),
        workspace: ArrayInfo | None = None,
    ) -> TorchCall | NumberedCall | None:
        """A call bound to torch tensors on a GPU of exactly these shapes, strides and alignment,
        and to arrays of `out=` likewise; None for other arrays, for tensors that must be copied
        first, for `out=` where two outputs are one result, and where nothing is computed."""
        if (
            len(self.constants)
            or not infos
            or infos[0].kind != "torch"
            or infos[0].device.kind == "cpu"
            or not self._program.fusion.outputs
        ):
            return None
        kind, device = common(infos)
        sizes = self._program.check_arguments(infos, self._named(numbers))
        given = self._given(out, sizes, f"{kind} on {device}")
        if (out and len(out) != len(given)) or not self.executor.fits(infos, sizes):
            return None
        if workspace is not None:
            self._check_workspace(workspace, sizes, infos, given)
        call = TorchCall(self.executor, sizes, active(), infos, given, workspace)
        if not numbers:
            return call
        return NumberedCall(call, sizes, tuple(numbers), self._checked, self._rebound)

    def _checked(self, sizes: Mapping[Var, int], numbers: Sequence[int]) -> dict[Var, int]:
        """The values of the symbols of a call where others are given to its numbers. Raises
        UserError for numbers that the program's checks exclude."""
        p = self._program
        values = {**sizes, **dict(zip(p.numbers, numbers, strict=True))}
        gaps = self._gaps(*values.values())
        if min(gaps) < 0:
            check_numbers(p.fusion, values)
        for v in self._sized_numbers:
            check_size_number("the program", v, values[v], sizes[v])
        return values

    @cached_property
    def _gaps(self) -> Evaluator:
        p = self._program
        return compiled(gaps_of(p.fusion), p.symbols)

    @cached_property
    def _sized_numbers(self) -> tuple[Var, ...]:
        """The numbers that are also the size of an axis."""
        p = self._program
        sizes = {e for i in p.inputs for e in i.shape}
        return tuple(v for v in p.numbers if v in sizes)

    def _rebound(
        self, tensors: Sequence[Any], out: Sequence[Any], numbers: tuple[int, ...], workspace: Any
    ) -> TorchCall:
        """A call bound to tensors that others like them were bound to with other numbers."""
        infos = [describe(x) for x in tensors]
        sizes = self._program.check_arguments(infos, self._named(numbers))
        given = [None if o is None else describe_target(o) for o in out]
        types = [shape_of(r, sizes) for r in self._program.results]
        given = given or [None] * len(types)
        check_out(given, types, f"{infos[0].kind} on {infos[0].device}")
        room = None if workspace is None else describe(workspace)
        return TorchCall(self.executor, sizes, active(), infos, given, room)

    def _named(self, numbers: Sequence[int]) -> dict[Var, int]:
        """The values of the numbers of a call, by symbol."""
        return dict(zip(self._program.numbers, numbers, strict=True)) if numbers else {}

    def run(
        self,
        infos: Sequence[ArrayInfo],
        device: str,
        out: Sequence[ArrayInfo | None] = (),
        numbers: Sequence[int] = (),
    ) -> list[Any]:
        """Runs on described arrays, all of one library and on one device; `out`: for results that
        are computed."""
        return self.with_views(infos, self._run(infos, device, out, numbers), numbers)

    def _run(
        self,
        infos: Sequence[ArrayInfo],
        device: str,
        out: Sequence[ArrayInfo | None] = (),
        numbers: Sequence[int] = (),
        workspace: ArrayInfo | None = None,
    ) -> list[Any]:
        kind, where = common(infos) if infos else ("numpy", CPU)
        library = library_of(kind, where)
        if kind == "torch":
            check_gradients([x.owner for x in infos])
            check_gradients([o.owner for o in out if o is not None], "arrays of out=")
        if kind == "jax" and where.kind == "cuda" and self.executor.writes_arguments:
            raise UserError(
                "the program was compiled with donate=, and arrays of jax never change; compile it "
                "without"
            )
        infos, sizes = self._completed(infos, numbers)
        given = self._given(out, sizes, f"{kind} on {where}")
        if workspace is not None:
            self._check_workspace(workspace, sizes, infos, given)
        places = self._program.places
        if not places:  # all results are views
            return []
        if where.kind == "cuda":
            if device == "sim":
                raise UserError("device='sim' takes host arrays; copy these to the host first")
            made = self.executor.on_device(infos, library, sizes, where, given, workspace)
            made = [library.shown(x) for x in made]
            return [made[p] for p in places]
        results = self._on_host([host_view(x) for x in infos], device, sizes)
        made = [results[places.index(k)] for k in range(len(self._program.results))]
        strides = [t[1] for t in self.executor.result_types(sizes)]
        shown = [_shown(*x, library) for x in zip(made, given, strides, strict=True)]
        return [shown[p] for p in places]

    def bind_memory(self, infos: Sequence[ArrayInfo], numbers: Sequence[int] = ()) -> BoundCall:
        """A call on the legacy default stream with memory of its own for results, scratch, and
        arguments that are not on a device as its kernels want them. For measuring."""
        _, where = common(infos)
        infos, sizes = self._completed(infos, numbers)
        if where.kind == "cuda":
            fitted = self.executor.fitted(infos, library_of(infos[0].kind, where), sizes)
            return BoundCall(self.executor, fitted, sizes, where.index)
        return BoundCall(self.executor, self._flat([host_view(x) for x in infos], sizes), sizes, 0)

    def _completed(
        self, infos: Sequence[ArrayInfo], numbers: Sequence[int]
    ) -> tuple[Sequence[ArrayInfo], dict[Var, int]]:
        """The arrays with the program's constants beside them, and the values of the symbols."""
        _, where = common(infos) if infos else ("numpy", CPU)
        infos = completed(self._program.fusion.inputs, infos, self.constants.on(where))
        return infos, self._program.check_arguments(infos, self._named(numbers))

    def _flat(self, arrays: Sequence[Array], sizes: dict[Var, int]) -> list[Array]:
        return [flatten(a, i, sizes) for a, i in zip(arrays, self._program.inputs, strict=True)]

    def _on_host(self, arrays: list[Array], device: str, sizes: dict[Var, int]) -> list[Array]:
        p = self._program
        if device == "sim":
            given = with_numbers(p.fusion, arrays, sizes)
            result = simulate_program(p, given, check_races=True, seed=0)
            return without_races(result, "the program")
        if device == "auto" and not has_gpu():
            say_once()
            return as_shown(p, evaluate(p.fusion, *with_numbers(p.fusion, arrays, sizes)))
        results = self.executor.on_host(self._flat(arrays, sizes), sizes)
        shaped = [shaped_view(a, i, sizes) for a, i in zip(results, p.results, strict=True)]
        return [shaped[k] for k in p.places]

    def _check_workspace(
        self,
        workspace: ArrayInfo,
        sizes: dict[Var, int],
        infos: Sequence[ArrayInfo],
        out: Sequence[ArrayInfo | None],
    ) -> None:
        """Raises UserError for a workspace that a call on these arrays cannot use."""
        kind, device = common(infos) if infos else (workspace.kind, workspace.device)
        needed = size_of(as_expr(self._program.workspace_nbytes), sizes)
        check_workspace(workspace, needed, f"{kind} on {device}", infos, out)

    def _given(
        self, out: Sequence[ArrayInfo | None], sizes: dict[Var, int], like: str
    ) -> list[ArrayInfo | None]:
        """The arrays of `out=`, one per different result. Raises UserError for unfit ones."""
        places, results = self._program.places, self._program.results
        if not out:
            return [None] * len(results)
        if len(out) != len(places):
            raise UserError(f"out= has {len(out)} arrays, the program has {len(places)} outputs")
        given = [out[places.index(k)] for k in range(len(results))]
        for k, (o, p) in enumerate(zip(out, places, strict=True)):
            if o is not None and o.owner is not getattr(given[p], "owner", None):
                raise UserError(
                    f"out= {k} and {places.index(p)} take one and the same result; pass one "
                    "array, or None, for both"
                )
        check_out(given, [shape_of(r, sizes) for r in results], like)
        return given


def _loaded(program: ProgramModel, kernels: Mapping[Kernel, LoadedKernel]) -> list[Loaded]:
    """What each launch of a program launches."""
    out: list[Loaded] = []
    for x in program.launches:
        if x.region is None:
            out.append(kernels[x.kernel])
            continue
        bodies = tuple((b.host, _loaded(b, kernels)) for b in x.region.bodies)
        out.append(LoadedRegion(x.region.host, x.region.call, program.target, bodies))
    return out


def shape_of(r: TensorInfo, sizes: dict[Var, int]) -> tuple[tuple[int, ...], DType]:
    """A result's shape and dtype."""
    return tuple(size_of(e, sizes) for e in r.shape), r.dtype


def _shown(result: Array, out: ArrayInfo | None, strides: tuple[int, ...], library: Library) -> Any:
    """A host result as an array of the caller's library with these strides, or in the array of
    `out=`."""
    if out is None:
        out = describe(library.empty(result.shape, strides, dtype_of(result.dtype), CPU))
    if result.size:
        host_view(out)[...] = result
    return library.shown(out.owner)


def say_once() -> None:
    """Says, once per process, that the oracle computes."""
    if not _said.is_set():
        _said.set()
        warnings.warn(
            "no GPU: fusewright computes with its numpy oracle; device='sim' simulates the kernels",
            stacklevel=3,
        )
