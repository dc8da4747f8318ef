"""The short way for torch tensors: a key of what a program depends on, and calls bound to it.

A steady call costs one dictionary look-up, one `data_ptr` per argument, one allocation per result
that has no memory yet (and one for the arena), and one launch per kernel or one graph replay.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeVar, cast

from fusewright.core.expr import Var
from fusewright.dtypes import scalar_text, uint8
from fusewright.errors import UserError
from fusewright.runtime.arrays import ArrayInfo, Device
from fusewright.runtime.config import Config, active
from fusewright.runtime.device import adopt, current
from fusewright.runtime.executor import MAX_PLANS, Executor
from fusewright.runtime.libraries import Torch
from fusewright.runtime.overwriting import Overwriting
from fusewright.runtime.plan import CallPlan, PlainLaunches
from fusewright.runtime.specialised_call import Allocator, Steady, steady_call
from fusewright.runtime.workspace import check_address, check_apart, check_room

F = TypeVar("F", bound=Callable[..., Any])
VECTOR_MASK = 15
"""The bits of an address that a choice of kernels may depend on."""


def _tensor_key(x: Any) -> Hashable:
    """All that the choice of a program and its plan depends on."""
    where = x.data_ptr() & VECTOR_MASK
    is_recorded = x.requires_grad and sys.modules["torch"].is_grad_enabled()
    return x.shape, x.stride(), x.dtype, x.device, where, is_recorded, x.is_neg()


def _float_key(x: float) -> Hashable:
    return float, x.hex() if x == x else scalar_text(x)


def _plain_key(x: object) -> Hashable:
    return type(x), x


def _sequence_key(x: Sequence[Any]) -> Hashable:
    return type(x), *[_KEYS[type(item)](item) for item in x]


def _dict_key(x: dict[Any, Any]) -> Hashable:
    return dict, *map(_name_key, x), *[_KEYS[type(item)](item) for item in x.values()]


def _name_key(x: object) -> Hashable:
    return x if isinstance(x, str) else (type(x), repr(x), x)  # 1 is not True


class _Number:
    """What stands in a key for an integer that calls with one key may differ in."""


NUMBER = _Number()
_KEYS: dict[type, Callable[[Any], Hashable]] = {
    _Number: id,
    int: _plain_key,
    bool: _plain_key,
    str: _plain_key,
    type(None): _plain_key,
    float: _float_key,
}
_PLAIN = frozenset(_KEYS)
_KEYS.update({tuple: _sequence_key, list: _sequence_key, dict: _dict_key})
_OUT = object()
_SEQUENCES = (tuple, list)
_CONTAINERS = frozenset((tuple, list, dict))


def _learn(kind: type) -> bool:
    """Makes torch's own tensor types known to `call_key` once one of them is met."""
    torch: Any = sys.modules.get("torch")
    if kind in _KEYS or torch is None or kind not in (torch.Tensor, torch.nn.Parameter):
        return False
    _KEYS[torch.Tensor] = _KEYS[torch.nn.Parameter] = _tensor_key
    return True


def call_key(
    args: Sequence[object], kwargs: Mapping[str, object], out: object = None
) -> Hashable | None:
    """A key for a call whose arguments, and arrays of `out=`, are torch tensors and plain values,
    also in tuples, lists and dicts; None for others, and for `out=` beside such structures."""
    try:
        parts: list[Hashable] = [_KEYS[type(a)](a) for a in args]
        parts.append(active())
        if kwargs:
            parts.append(tuple(kwargs))
            parts += [_KEYS[type(a)](a) for a in kwargs.values()]
        if out is not None:
            values: Any = (*args, *kwargs.values()) if kwargs else args
            starts = [None if type(a) in _PLAIN else _address(a) for a in values]
            parts += _OUT, _out_key(out, starts)
    except KeyError as e:
        return call_key(args, kwargs, out) if _learn(e.args[0]) else None
    except RuntimeError:  # a tensor without memory, inside of a transform
        return None
    return tuple(parts)


def _address(x: Any) -> int:
    """Where a tensor begins. Raises KeyError for a structure."""
    kind = cast("type[object]", type(x))
    if kind in _CONTAINERS:
        raise KeyError(kind)
    return x.data_ptr()


def _out_key(x: Any, starts: Sequence[int | None]) -> Hashable:
    """What `out=` adds: its structure, the types of its tensors, and for each which of the
    arguments begin where it does. Raises KeyError for what is no tensor."""
    if _KEYS.get(cast("type[object]", type(x))) is _tensor_key:
        at = x.data_ptr()
        same = [k for k, start in enumerate(starts) if start == at] if at in starts else ()
        return _tensor_key(x), tuple(same)
    if x is None:
        return None
    if isinstance(x, _SEQUENCES):
        items = cast("Sequence[Any]", x)
        return tuple, *[_out_key(item, starts) for item in items]
    if isinstance(x, dict):
        table = cast("dict[Any, Any]", x)
        return dict, tuple(table), *[_out_key(item, starts) for item in table.values()]
    raise KeyError(cast("type[object]", type(x)))


def is_recorded() -> bool:
    """Whether torch records operators now, beside or instead of running them: torch.compile,
    torch.export, make_fx, fake tensors, any dispatch mode. What it does not see is lost."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and (
        torch.compiler.is_compiling()  # first: torch.compile follows no further
        or torch._C._len_torch_dispatch_stack() > 0
    )


def constant_to_compilers(fn: F) -> F:
    """Marks a function that torch.compile runs when it meets a call, and whose result it takes for
    constant: what `torch.compiler.assume_constant_result` does, without loading torch."""
    vars(fn)["_dynamo_marked_constant"] = True
    return fn


def is_dispatched(x: object) -> bool:
    """Whether an array is a torch tensor that takes operators itself: of a class such as a fake or
    a distributed one, or inside of `torch.func.functionalize`."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return False
    kind: Any = type(x)
    own = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return own or torch._is_functional_tensor(x)


def loses_gradients(tensors: Iterable[Any]) -> bool:
    """Whether torch would record a gradient for these tensors here and now."""
    found = list(tensors)
    return records_gradients(found) or has_tangents(found)


def records_gradients(arrays: Iterable[Any]) -> bool:
    """Whether one of the arrays is a torch tensor that requires a gradient here and now."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and any(
        isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled() for x in arrays
    )


def has_tangents(tensors: Iterable[Any]) -> bool:
    """Whether one of the torch tensors carries a tangent of forward mode."""
    forward: Any = sys.modules["torch"].autograd.forward_ad
    if getattr(forward, "_current_level", -1) < 0:
        return False
    return any(forward.unpack_dual(x).tangent is not None for x in tensors)


def check_gradients(tensors: Sequence[Any], what: str = "tensor arguments") -> None:
    """Raises UserError where the result of a call would silently have no gradient."""
    if loses_gradients(tensors):
        which = [k for k, x in enumerate(tensors) if x.requires_grad]
        raise UserError(
            f"{what} {which} require gradients, which a program does not record; call the function "
            "that fw.fuse made, which does, or call under torch.no_grad(), or detach() them"
        )


def may_require_grad(x: Any) -> bool:
    """Whether a tensor requires gradients, or would where they are recorded: a view that is made
    under `no_grad` says no."""
    return x.requires_grad or (x._base is not None and x._base.requires_grad)


class TorchApi:
    """The functions of torch that a call needs, in the cheapest form that this torch has."""

    def __init__(self, torch: Any) -> None:
        core = torch._C
        self.forward_ad = torch.autograd.forward_ad
        self.is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self.current_device: Callable[[], int] = getattr(
            core, "_cuda_getDevice", torch.cuda.current_device
        )
        self.stream: Callable[[int], int] = getattr(
            core,
            "_cuda_getCurrentRawStream",
            lambda index: torch.cuda.current_stream(index).cuda_stream,
        )
        self.capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        guards = getattr(getattr(core, "_dynamo", None), "guards", None)
        self.empty_on_current: Any = getattr(guards, "_empty_strided_cuda", None)
        self.empty_strided: Any = torch.empty_strided
        self.modes: Callable[[], int] = getattr(core, "_len_torch_dispatch_stack", lambda: 0)
        self.changed: Callable[[Any], None] = torch.autograd.graph.increment_version

    def allocator(self, device: Device) -> Allocator:
        """A function (shape, strides, dtype) -> new tensor on `device`."""
        there = Torch().device(device)

        def empty(shape: Any, strides: Any, dtype: Any) -> Any:
            return self.empty_strided(shape, strides, dtype=dtype, device=there)

        return empty


@cache
def torch_api(torch: Any) -> TorchApi:
    """The functions of a torch."""
    return TorchApi(torch)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What `TorchCall.run_alike` does, for functions that have it written out among other steps.

    `made`: shape, strides and dtype of each new result by its number; `held`: which argument every
    other result is; `scratch`: of a tensor that is needed meanwhile. `low`: of the address of each
    argument, the bits that every call has. `launch` takes the addresses of arguments, new results
    and scratch, and a stream, or is written out with these. The rest is what every call asks first:
    `config` is active, `device` is torch's current one, `ready` is an attribute of `threads`; where
    `requires_grad`, nobody records gradients."""

    config: Config
    device: int
    threads: Any
    requires_grad: bool
    low: tuple[int, ...]
    made: Mapping[int, tuple[Any, Any, Any]]
    held: Mapping[int, int]
    scratch: tuple[tuple[Any, Any, Any], ...]
    launch: PlainLaunches | Callable[..., None]


class TorchCall:
    """A program bound to shapes, strides and a device of torch tensors; run on tensors of exactly
    these."""

    def __init__(
        self,
        executor: Executor,
        sizes: Mapping[Var, int],
        config: Config,
        infos: Sequence[ArrayInfo],
        given: Sequence[ArrayInfo | None],
        workspace: ArrayInfo | None = None,
    ) -> None:
        """`infos` and `given` (one per result) describe the tensors and those of `out=`."""
        library = Torch()
        plan = executor.plan(sizes)
        types = executor.result_types(sizes)
        owners: list[Any] = [x.owner for x in (*infos, *given) if x is not None]
        self._api = torch_api(sys.modules["torch"])
        self._executor = executor
        self._types = types
        self._count = len(infos)
        self._device = infos[0].device
        self._index = self._device.index
        self._empty = self._api.empty_on_current or self._api.allocator(self._device)
        self._results = [(shape, strides, library.dtype(dtype)) for shape, strides, dtype in types]
        self._own = [k for k, h in enumerate(executor.holders) if h is None]
        self._config = config
        self._low = tuple([x.pointer & VECTOR_MASK for x in infos])
        self._requires_grad = any(may_require_grad(x) for x in owners)
        self._threads = executor.threads(self._index)
        self._nbytes = [x.hull_nbytes for x in infos]
        self._given_nbytes = [0 if o is None else o.hull_nbytes for o in given]
        self._room = None if workspace is None else workspace.shape[0]
        self._overwriting = None
        if len(self._own) < len(types) or any(given) or executor.lent:
            self._overwriting = Overwriting(executor, infos, given, types, self._api.changed)
        self._use(plan)

    def _use(self, plan: CallPlan) -> None:
        """Makes a plan the one that is run. Raises UserError for one that needs more memory than
        the workspace has."""
        self._plan = plan
        arena = plan.arena_nbytes
        if self._room is not None:
            check_room(self._room, arena)
        self._behind = 1 if arena and self._room is not None else 0
        is_own = arena and not self._behind
        self._scratch = [((arena,), (1,), Torch().dtype(uint8))] if is_own else []
        self._graph = plan.replays(self._config.execution)
        self._steady = self._written_out(self._count + self._behind, 0)
        self._checked = self._written_out(self._count + self._behind, VECTOR_MASK)

    def for_sizes(self, sizes: Mapping[Var, int]) -> TorchCall | None:
        """The call on the same tensors where symbols have other values; None where results then
        have other types."""
        if self._executor.result_types(sizes) != self._types:
            return None
        made = copy(self)
        made._use(self._executor.plan(sizes))
        return made

    def _written_out(self, tensors: int, mask: int) -> Steady:
        """The call that returns the results that are new tensors."""
        news = (*(self._results[k] for k in self._own), *self._scratch)
        api = self._api
        counts = tensors, len(news), len(self._own)
        make = steady_call(*counts, self._graph, mask, self._behind)
        types = chain.from_iterable(news)
        return make(self._plan.enqueue, self._index, api.stream, api.capturing, *types)

    def run(
        self,
        tensors: Sequence[Any],
        out: Sequence[Any] = (),
        numbers: tuple[int, ...] = (),
        workspace: Any = None,
    ) -> list[Any]:
        """Enqueues the program on the current stream of the tensors' device. `out` has a tensor or
        None per result. The results stand in the program's order; those made in the memory of an
        argument are that tensor, those that `out` names that array.

        Raises UserError where gradients would be lost, and for a workspace that begins elsewhere
        than kernels expect one, or lies in another tensor.
        """
        api = self._api
        behind = [self._reserved(workspace, tensors, out)] if self._behind else ()
        if (self._requires_grad and api.is_grad_enabled()) or api.forward_ad._current_level >= 0:
            check_gradients(tensors)
            check_gradients([o for o in out if o is not None], "arrays of out=")
        if api.current_device() == self._index and hasattr(self._threads, "ready"):
            if self._overwriting is None:
                given = [*tensors, *behind] if behind else tensors
                return cast("list[Any]", self._steady(given, self._empty))
            return self._overwritten(self._overwriting, tensors, (out, behind), self._empty)
        return self._elsewhere(tensors, out, behind)

    def _reserved(self, workspace: Any, tensors: Sequence[Any], out: Sequence[Any]) -> Any:
        """The workspace of a call, which lies apart from its tensors."""
        start = workspace.data_ptr()
        end = start + self._plan.arena_nbytes
        check_address(start)
        for k, (x, n) in enumerate(zip(tensors, self._nbytes, strict=True)):
            first = x.data_ptr()
            check_apart(start, end, f"argument {k}", (first, first + n))
        for k, (x, n) in enumerate(zip(out, self._given_nbytes, strict=False)):
            if x is not None:
                check_apart(start, end, f"out= {k}", (x.data_ptr(), x.data_ptr() + n))
        return workspace

    def run_alike(self, tensors: Sequence[Any]) -> list[Any] | None:
        """`run` on tensors that the caller knows to have the types of those that the call is bound
        to, and to share memory as these do; None, and nothing enqueued, where addresses, choices of
        the caller, gradients, the thread or the device ask for more than that."""
        api = self._api
        if (
            active() is not self._config
            or (self._requires_grad and api.is_grad_enabled())
            or api.forward_ad._current_level >= 0
            or api.modes() > 0
            or api.current_device() != self._index
            or not hasattr(self._threads, "ready")
        ):
            return None
        made = self._checked(tensors, self._empty)
        if made is None or self._overwriting is None:
            return made
        return self._overwriting.inside(tensors, made)

    @property
    def is_alike(self) -> bool:
        """Whether `run_alike` is all of a call: what it overwrites, if anything, are arguments."""
        return self._overwriting is None or self._overwriting.is_inside

    def steps(self) -> Steps:
        """What a call that has been run is made of, as long as it `is_alike`."""
        news = dict(zip(self._own, (self._results[k] for k in self._own), strict=True))
        return Steps(
            self._config,
            self._index,
            self._threads,
            self._requires_grad,
            self._low,
            news,
            {k: h for k, h in enumerate(self._executor.holders) if h is not None},
            tuple(self._scratch),
            self._plan.steady(self._index, graph=self._graph),
        )

    def _elsewhere(
        self, tensors: Sequence[Any], out: Sequence[Any], behind: Sequence[Any]
    ) -> list[Any]:
        """The call of a thread that has not called on this device yet, or works on another."""
        index = self._index
        adopt(index)
        self._threads.ready = True
        empty = self._api.allocator(self._device)
        with current(index):
            if self._overwriting is None:
                return cast("list[Any]", self._steady([*tensors, *behind], empty))
            return self._overwritten(self._overwriting, tensors, (out, behind), empty)

    def _overwritten(
        self,
        overwriting: Overwriting,
        tensors: Sequence[Any],
        beside: tuple[Sequence[Any], Sequence[Any]],
        empty: Allocator,
    ) -> list[Any]:
        """`beside`: the tensors of `out=`, and the workspace, if one is used."""
        out, behind = beside
        roots, there, kept = overwriting.memory(tensors, out)
        results = [empty(*self._results[k]) if x is None else x for k, x in enumerate(there)]
        scratch = [empty(*t) for t in self._scratch]  # returned to the allocator in stream order
        roots += [results[k].data_ptr() for k in self._own]
        roots += [x.data_ptr() for x in (*scratch, *behind)]
        api = self._api
        index = self._index
        graph = self._graph and not api.capturing()
        self._plan.enqueue(roots, api.stream(index), index, graph=graph)
        del kept  # whose memory the allocator gives on in the order of the stream
        overwriting.finish(results, out)
        return results


class NumberedCall:
    """A call whose numbers change from run to run, such as the position in a cache: one bound call
    for each of the last thousand values, made from the first one in microseconds."""

    def __init__(
        self,
        first: TorchCall,
        sizes: Mapping[Var, int],
        numbers: tuple[int, ...],
        checked: Callable[[Mapping[Var, int], Sequence[int]], Mapping[Var, int]],
        rebound: Callable[[Sequence[Any], Sequence[Any], tuple[int, ...], Any], TorchCall],
    ) -> None:
        """`sizes` are the values of the symbols in the call that `first` was bound for, with these
        `numbers`; `checked` gives those for other numbers; `rebound` binds a call whose results
        have other types than those of `first`."""
        self._first = first
        self._sizes = dict(sizes)
        self._checked = checked
        self._rebound = rebound
        self._known = OrderedDict({numbers: first})

    alike = None
    """Lists of tensors alone do not say what a call is."""

    def run(
        self,
        tensors: Sequence[Any],
        out: Sequence[Any],
        numbers: tuple[int, ...],
        workspace: Any = None,
    ) -> list[Any]:
        """`TorchCall.run` for these numbers. Raises UserError for numbers that do not fit."""
        found = self._known.get(numbers)
        if found is None:
            made = self._first.for_sizes(self._checked(self._sizes, numbers))
            found = made or self._rebound(tensors, out, numbers, workspace)
            if len(self._known) >= MAX_PLANS:
                self._known.popitem(last=False)
            self._known[numbers] = found
        return found.run(tensors, out, (), workspace)
