"""The short way for torch tensors: a key of what a program depends on, and calls bound to it.

A steady call costs one dictionary look-up, one `data_ptr` per argument, one allocation per result
(and one for the arena), and one launch per kernel or one graph replay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from fusewright.core.expr import Var
from fusewright.dtypes import uint8
from fusewright.errors import UserError
from fusewright.runtime.arrays import Device
from fusewright.runtime.config import Config, active
from fusewright.runtime.device import adopt, current
from fusewright.runtime.executor import Executor
from fusewright.runtime.libraries import Torch
from fusewright.runtime.plan import uses_graph

F = TypeVar("F", bound=Callable[..., Any])
_VECTOR_MASK = 15


def _tensor_key(x: Any) -> Hashable:
    """All that the choice of a program and its plan depends on."""
    where = x.data_ptr() & _VECTOR_MASK
    return x.shape, x.stride(), x.dtype, x.device, where, x.requires_grad, x.is_neg()


def _float_key(x: float) -> Hashable:
    return float, x.hex()


def _plain_key(x: object) -> Hashable:
    return type(x), x


_KEYS: dict[type, Callable[[Any], Hashable]] = {
    int: _plain_key,
    bool: _plain_key,
    str: _plain_key,
    type(None): _plain_key,
    float: _float_key,
}


def _learn(kind: type) -> bool:
    """Makes torch's own tensor types known to `call_key` once one of them is met."""
    torch: Any = sys.modules.get("torch")
    if kind in _KEYS or torch is None or kind not in (torch.Tensor, torch.nn.Parameter):
        return False
    _KEYS[torch.Tensor] = _KEYS[torch.nn.Parameter] = _tensor_key
    return True


def call_key(args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable | None:
    """A key for a call whose arguments are torch tensors and plain values; None for others."""
    try:
        parts: list[Hashable] = [_KEYS[type(a)](a) for a in args]
        parts.append(active())
        if kwargs:
            parts.append(tuple(kwargs))
            parts += [_KEYS[type(a)](a) for a in kwargs.values()]
    except KeyError as e:
        return call_key(args, kwargs) if _learn(e.args[0]) else None
    except RuntimeError:  # a tensor without memory, inside of a transform
        return None
    return tuple(parts)


def is_recorded() -> bool:
    """Whether torch records operators now, beside or instead of running them: torch.compile,
    torch.export, make_fx, fake tensors, any dispatch mode. What it does not see is lost."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


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
    torch: Any = sys.modules["torch"]
    found = list(tensors)
    if torch.is_grad_enabled() and any(x.requires_grad for x in found):
        return True
    forward = torch.autograd.forward_ad
    if getattr(forward, "_current_level", -1) < 0:
        return False
    return any(forward.unpack_dual(x).tangent is not None for x in found)


def check_gradients(tensors: Sequence[Any], what: str = "tensor arguments") -> None:
    """Raises UserError where the result of a call would silently have no gradient."""
    if loses_gradients(tensors):
        which = [k for k, x in enumerate(tensors) if x.requires_grad]
        raise UserError(
            f"{what} {which} require gradients, which a fused kernel does not record; "
            "call under torch.no_grad(), detach() them, or compile with "
            "torch.compile(backend='fusewright'), which differentiates"
        )


class _TorchApi:
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
        self.changed: Callable[[Any], None] = torch.autograd.graph.increment_version

    def allocator(self, device: Any) -> Callable[[Any, Any, Any], Any]:
        """A function (shape, strides, dtype) -> new tensor on `device`."""

        def empty(shape: Any, strides: Any, dtype: Any) -> Any:
            return self.empty_strided(shape, strides, dtype=dtype, device=device)

        return empty


@cache
def _torch_api(torch: Any) -> _TorchApi:
    return _TorchApi(torch)


def _meet(a: Any, b: Any) -> bool:
    """Whether the memory of two tensors, from first to last byte, has a byte in common."""
    (p, q), (r, s) = ((x.data_ptr(), x.data_ptr() + _nbytes(x)) for x in (a, b))
    return p < s and r < q


def _nbytes(x: Any) -> int:
    """Bytes from the first to behind the last element; torch's strides are not negative."""
    if x.numel() == 0:
        return 0
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return span * x.element_size()


class TorchCall:
    """A program bound to shapes, strides and a device of torch tensors; called with tensors of
    exactly these. Results stand in the program's order; those made in the memory of an argument
    are that tensor."""

    def __init__(
        self,
        executor: Executor,
        sizes: Mapping[Var, int],
        device: Device,
        config: Config,
        *,
        requires_grad: bool,
    ) -> None:
        library = Torch()
        plan = executor.plan(sizes)
        types = zip(executor.result_types(sizes), executor.holders, strict=True)
        self._api = _torch_api(sys.modules["torch"])
        self._empty_there = self._api.allocator(library.device(device))
        self._empty = self._api.empty_on_current or self._empty_there
        self._plan = plan
        self._index = device.index
        self._results = [(s, t, library.dtype(dtype)) for (s, t, dtype), h in types if h is None]
        self._held = {k: h for k, h in enumerate(executor.holders) if h is not None}
        self._scratch = ((plan.arena_nbytes,), (1,), library.dtype(uint8))
        self._has_arena = plan.arena_nbytes > 0
        self._graph = uses_graph(len(plan.launches), config.execution)
        self._requires_grad = requires_grad
        self._threads = executor.threads(device.index)
        self._executor = executor

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Enqueues the program on the current stream of the tensors' device.

        Raises UserError where gradients would be lost.
        """
        api = self._api
        if (self._requires_grad and api.is_grad_enabled()) or api.forward_ad._current_level >= 0:
            check_gradients(tensors)
        if self._held:
            tensors = self._apart(tensors)
        index = self._index
        if api.current_device() == index and hasattr(self._threads, "ready"):
            return self._run(tensors, self._empty)
        adopt(index)
        self._threads.ready = True
        with current(index):
            return self._run(tensors, self._empty_there)

    def _run(self, tensors: Sequence[Any], empty: Callable[[Any, Any, Any], Any]) -> list[Any]:
        results = [empty(shape, strides, dtype) for shape, strides, dtype in self._results]
        roots = [x.data_ptr() for x in tensors]
        roots += [r.data_ptr() for r in results]
        if self._has_arena:
            scratch = empty(*self._scratch)  # returned to the allocator in stream order
            roots.append(scratch.data_ptr())
        api = self._api
        index = self._index
        graph = self._graph and not api.capturing()
        self._plan.enqueue(roots, api.stream(index), index, graph=graph)
        for k, h in self._held.items():
            results.insert(k, tensors[h])
        return results

    def _apart(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors, those that results are written over copied where they share memory with
        another one; torch is told of the others that they change."""
        out = list(tensors)
        for h in self._held.values():
            x = out[h]
            if any(k != h and _meet(x, y) for k, y in enumerate(out)):
                out[h] = x.clone()
                self._executor.copies += 1
            else:
                self._api.changed(x)
        return out
