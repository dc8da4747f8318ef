"""Graphs of a model that torch keeps on disk, so that another process does not trace them again.

torch keeps what AOTAutograd makes of a function, views, mutations and the cut between forward and
backward, where each compiler returns an `OutputCode` that can be stored. Ours stores the graph as
AOTAutograd gave it; its programs have a cache of their own (`stored_programs`), so that they are
found again when the graph comes back. A backward graph is fused in its first call, as torch would
do: it must exist when the forward graph is stored, and may never be called.

Kept are graphs of plain sizes that call operators only; others are traced in every process.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

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
            self._content: bytes | None = packed(module.graph)
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


# --- bytes --------------------------------------------------------------------------------------


def packed(graph: Any) -> bytes:
    """A graph with its example values as bytes. Raises ValueError, or what pickle raises, for one
    that is more than calls of operators on tensors of plain sizes."""
    nodes = list(graph.nodes)
    file = io.BytesIO()
    packer = _Packer(file, {n: k for k, n in enumerate(nodes)})
    packer.dump(
        [(n.op, n.name, n.target, n.args, n.kwargs, n.meta.get("val")) for n in nodes],
    )
    return file.getvalue()


def unpacked(content: bytes, mode: Any) -> Any:
    """The module of a graph, whose example values are fake tensors of a mode."""
    graph = fx.Graph()
    nodes: list[Any] = []
    for op, name, target, args, kwargs, value in _Unpacker(io.BytesIO(content), mode).load():

        def known(x: Any) -> Any:
            return nodes[x] if isinstance(x, _Number) else x

        args, kwargs = fx.node.map_aggregate((args, kwargs), known)
        node = graph.create_node(op, target, args, kwargs, name=name)
        if value is not None:
            node.meta["val"] = value
        nodes.append(node)
    return fx.GraphModule(torch.nn.Module(), graph)


class _Number(int):
    """The number of a node, in place of the node."""


class _Packer(pickle.Pickler):
    """Writes nodes by their numbers, operators by their names, and tensors by their types."""

    def __init__(self, file: Any, numbers: Mapping[Any, int]) -> None:
        super().__init__(file)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> Any:
        """What stands for an object; None for one that pickle knows."""
        if isinstance(obj, fx.Node):
            return "node", self._numbers[obj]
        if isinstance(obj, torch._ops.OpOverload):
            return "operator", obj.name()
        if isinstance(obj, torch.Tensor):
            return "tensor", *_type_of(obj)
        if isinstance(obj, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise ValueError("sizes are symbols")
        if isinstance(obj, torch._ops.HigherOrderOperator):
            raise ValueError(f"{obj} calls graphs")
        return None


def _type_of(value: Any) -> tuple[Any, ...]:
    if type(value) is not _fake.FakeTensor or value.layout is not torch.strided:
        raise ValueError(f"an example is a {type(value).__name__}")
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    if not all(isinstance(n, int) for n in sizes):
        raise ValueError("sizes are symbols")
    return tuple(value.shape), value.stride(), sizes[-1], value.dtype, value.device


class _Unpacker(pickle.Unpickler):
    """Reads what `_Packer` writes."""

    def __init__(self, file: Any, mode: Any) -> None:
        super().__init__(file)
        self._mode = mode

    def persistent_load(self, pid: Any) -> Any:
        """The object that something stands for."""
        kind, *what = pid
        if kind == "node":
            return _Number(what[0])
        if kind == "operator":
            space, name = what[0].split("::")
            packet, _, overload = name.partition(".")
            found = getattr(getattr(torch.ops, space), packet)
            return getattr(found, overload or "default")
        shape, strides, offset, dtype, device = what
        length = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        with torch.no_grad():
            memory = torch.empty(max(length, 0), dtype=dtype, device="meta")
            return _fake.FakeTensor(self._mode, memory.as_strided(shape, strides, offset), device)
