"""Graphs of a model that torch keeps on disk, so that another process does not trace them again.

torch keeps what AOTAutograd makes of a function, views, mutations and the cut between forward and
backward, where each compiler returns an `OutputCode` that can be stored. Ours stores the graph as
AOTAutograd gave it, as text; its programs have a cache of their own (`stored_programs`), so that
they are found again when the graph comes back. A backward graph is fused in its first call, as
torch would do: it must exist when the forward graph is stored, and may never be called.

Kept are graphs of plain sizes that call operators only; others are traced in every process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias, cast

from fusewright import knobs
from fusewright.frontends.stored_programs import package_digest
from fusewright.frontends.torch.library import fx, torch

OutputCode: Any = importlib.import_module("torch._inductor.output_code").OutputCode
_schemas: Any = importlib.import_module("torch._functorch._aot_autograd.schemas")
_cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
_fake: Any = importlib.import_module("torch._subclasses.fake_tensor")
_guards: Any = importlib.import_module("torch._guards")
_settings: Any = importlib.import_module("torch._functorch.config")

Compile: TypeAlias = Callable[[str, Any], Callable[[list[Any]], Any]]
"""What makes a boxed function of a graph that is a "forward", "backward" or "inference" one."""

_CHOICES = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
"""What torch is asked for while it looks for graphs: entries that hold graphs instead of keys of
inductor's cache, and backward graphs at once, which an entry holds, too."""

_compile: ContextVar[Compile] = ContextVar("compile")
"""What compiles graphs that torch finds meanwhile."""


class KeptGraph(OutputCode):  # type: ignore[misc]
    """A graph as a boxed function that torch can keep."""

    def __init__(self, name: str, module: Any, compile_graph: Compile) -> None:
        self._boxed_call = True  # of the object, since torch's wrappers copy what it has
        self._name = name
        try:
            self._content: str | None = packed(module.graph)
            self._why = ""
        except Exception as e:
            self._content, self._why = None, f"{type(e).__name__}: {e}"
        self._use(module, compile_graph)

    def _use(self, module: Any, compile_graph: Compile) -> None:
        """Has calls compute a module, which is compiled now, or in the first call backward."""

        def first(args: list[Any]) -> Any:
            self._run = compile_graph(self._name, module)
            return self._run(args)

        self._run = first if self._name == "backward" else compile_graph(self._name, module)

    def __call__(self, inputs: list[Any]) -> Any:
        """The graph's results for a list of arguments, which is emptied."""
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Drops what cannot be stored. Raises torch's own exception for a graph that is not."""
        if self._content is None:
            raise _cache.BypassAOTAutogradCache(self._why)
        del self._run

    def post_compile(
        self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any
    ) -> None:
        """Compiles the graph, which torch has found."""
        assert self._content is not None
        mode = _guards.detect_fake_mode(example_inputs)
        self._use(unpacked(self._content, mode), _compile.get())

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


def compilers(compile_graph: Compile) -> dict[str, Any]:
    """The compilers that AOTAutograd is given, by the names of its arguments."""

    def side(name: str) -> Any:
        def compiled(module: Any, example_inputs: Sequence[Any]) -> KeptGraph:
            return KeptGraph(name, module, compile_graph)

        return _schemas.SerializableAOTDispatchCompiler(KeptGraph, compiled)

    return {
        "fw_compiler": side("forward"),
        "bw_compiler": side("backward"),
        "inference_compiler": side("inference"),
    }


@contextlib.contextmanager
def finding(compile_graph: Compile) -> Generator[None]:
    """Has torch find graphs meanwhile: by the function that it starts from, its own version and
    choices, and the sources of this package. `compile_graph` compiles those that it finds."""
    compiler_settings: Any = importlib.import_module("torch.compiler.config")
    tag = f"{compiler_settings.cache_key_tag} fusewright {package_digest()}"
    token = _compile.set(compile_graph)
    try:
        with (
            compiler_settings.patch(cache_key_tag=tag),
            _settings.patch(_CHOICES),
        ):
            yield
    finally:
        _compile.reset(token)


def are_kept() -> bool:
    """Whether graphs are kept on disk, as programs are, by a torch that can keep them."""
    known = all(hasattr(_settings, name) for name in _CHOICES)
    return known and knobs.CACHE.get() and _settings.enable_autograd_cache


# --- text ---------------------------------------------------------------------------------------


def packed(graph: Any) -> str:
    """A graph with its example values as text. Raises ValueError for one that is more than calls of
    operators on tensors of plain sizes."""
    numbers = {n: k for k, n in enumerate(graph.nodes)}
    rows = (
        (n.op, n.name, n.target, list(n.args), dict(n.kwargs), n.meta.get("val"))
        for n in graph.nodes
    )
    return json.dumps([_told(list(row), numbers) for row in rows])


def unpacked(content: str, mode: Any) -> Any:
    """The module of a graph, whose example values are fake tensors of a mode."""
    graph = fx.Graph()
    nodes: list[Any] = []
    for row in json.loads(content):
        op, name, target, args, kwargs, value = _read(row, nodes, mode)
        node = graph.create_node(op, target, tuple(args), kwargs, name=name)
        if value is not None:
            node.meta["val"] = value
        nodes.append(node)
    return fx.GraphModule(torch.nn.Module(), graph)


_FUNCTIONS = {"getitem": operator.getitem}
"""What graphs call beside operators."""


def _told(x: Any, numbers: Mapping[Any, int]) -> Any:
    """What JSON has of a value: itself, or a list of its kind and what it is made of."""
    kind = cast(type[Any], type(x))
    if x is None or kind in (bool, int, str):
        return x
    if kind in (float, complex):
        return [kind.__name__, *(part.hex() for part in (x.real, x.imag))]
    if issubclass(kind, fx.Node):
        return ["node", numbers[x]]
    if issubclass(kind, tuple | list | slice):
        parts = (x.start, x.stop, x.step) if kind is slice else x
        name = next(n for n, of in _OF_PARTS.items() if issubclass(kind, of))
        return [name, *(_told(v, numbers) for v in parts)]
    if issubclass(kind, dict):
        return ["dict", {str(k): _told(v, numbers) for k, v in x.items()}]
    if issubclass(kind, torch._ops.OpOverload):
        return ["operator", x.name()]
    if issubclass(kind, torch.Tensor):
        return ["tensor", *(_told(v, numbers) for v in _type_of(x))]
    if issubclass(kind, torch.device):
        return ["device", str(x)]
    if issubclass(kind, torch.dtype | torch.layout | torch.memory_format):
        return ["torch", str(x).removeprefix("torch.")]
    if x in _FUNCTIONS.values():
        return ["function", x.__name__]
    raise ValueError(f"a graph has {x}, a {kind.__name__}")


def _read(x: Any, nodes: Sequence[Any], mode: Any) -> Any:
    """The value of what `_told` says; tensors are fake ones of a mode."""
    if not isinstance(x, list):
        return x
    what = cast(list[Any], x)
    kind, rest = what[0], what[1:]
    match kind:
        case "float" | "complex":
            real, imag = map(float.fromhex, rest)
            return real if kind == "float" else complex(real, imag)
        case "node":
            return nodes[rest[0]]
        case "dict":
            return {k: _read(v, nodes, mode) for k, v in rest[0].items()}
        case "operator":
            space, name = rest[0].split("::")
            packet, _, overload = name.partition(".")
            return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        case "device":
            return torch.device(rest[0])
        case "torch":
            return getattr(torch, rest[0])
        case "function":
            return _FUNCTIONS[rest[0]]
        case _:
            parts = [_read(v, nodes, mode) for v in rest]
            return _fake_tensor(parts, mode) if kind == "tensor" else _made_of(kind, parts)


_OF_PARTS: Mapping[str, type] = {"list": list, "tuple": tuple, "slice": slice}


def _made_of(kind: str, parts: list[Any]) -> Any:
    return slice(*parts) if kind == "slice" else _OF_PARTS[kind](parts)


def _type_of(value: Any) -> tuple[Any, ...]:
    if type(value) is not _fake.FakeTensor or value.layout is not torch.strided:
        raise ValueError(f"an example is a {type(value).__name__}")
    sizes = tuple(value.shape), value.stride(), value.storage_offset()
    return *sizes, value.dtype, value.device


def _fake_tensor(parts: Sequence[Any], mode: Any) -> Any:
    shape, strides, offset, dtype, device = parts
    length = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    with torch.no_grad():
        memory = torch.empty(max(length, 0), dtype=dtype, device="meta")
        return _fake.FakeTensor(mode, memory.as_strided(shape, strides, offset), device)
