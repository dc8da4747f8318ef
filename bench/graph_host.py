"""Host time of a whole graph of torch.compile: `python -m bench.graph_host`.

Prints one line for each graph as soon as it is measured; `--out` writes all figures as JSON.

Without a GPU, host tensors stand for those of a device, and a driver that does nothing for CUDA's
(bench/stand_in.py): what is left of a call is the interpreter, torch's dispatch, and torch's own
small operators on the host. On a GPU (`--device cuda`) the real driver is called; sizes are such
that kernels are shorter than what the host does.

Method: layers of a small decoder, forward and, with `--backward`, the step back. The clock of the
thread around batches of calls of the graph's function on the tensors that torch gave it; the least
of several batches. Beside it the same graph as torch writes its calls out, node by node, and the
operators that are left to torch, called one after the other on the same tensors as overloads of
`torch.ops`, with and without views. What the graph takes beyond those that compute is ours, and
what operators take longer in a graph, where their results live on, than one after the other.
`us_ours_a_launch` is ours alone: the function with the results of torch's operators played back,
less what playing back takes. Last, what the function itself calls, of each kind alone: launches,
what writes their parameters, allocations (each with its release), views, and operators of torch by
the functions that it takes for them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from bench.stand_in import IdleDriver, stand_in
from fusewright.frontends.torch import dynamo
from fusewright.frontends.torch.decompositions import decompositions
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.report import GraphReport
from fusewright.frontends.torch.saving import cut
from fusewright.frontends.torch.shared import Shared
from fusewright.frontends.torch.table import VIEWS

Calls = Sequence[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
"""Functions with their arguments, one call after the other."""

ASKED = (
    "active", "config", "current_device", "is_grad_enabled", "modes", "otherwise", "changed",
    "stream_of", "call", "steps",
)  # fmt: skip
"""Functions of a graph's function that compute nothing."""
KINDS = ("launches", "parameters", "allocations", "views", "operators")
ROUNDS = 15
LAYERS, WIDTH, HEADS, LENGTH = 8, 64, 4, 8
WORDS = 1024
"""So many that logits are what takes the most memory, as in decoders of any size."""


class Layer(nn.Module):
    """Attention and a gated network, with norms and rotated positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """One layer on (batch, length, width)."""
        n, t, w = x.shape
        parts = self.qkv(self.norms[0](x)).view(n, t, 3, HEADS, w // HEADS).unbind(2)
        q, k, v = (p.transpose(1, 2) for p in parts)
        q, k = (p * cos + torch.cat([-p[..., 8:], p[..., :8]], -1) * sin for p in (q, k))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, w))
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Layers over tokens."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        angles = torch.arange(LENGTH)[:, None] / 10 ** torch.arange(WIDTH // HEADS)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Any) -> Any:
        """Numbers of tokens to logits."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x @ self.tokens.weight.T


@dataclass
class Seen:
    """A graph's function, the last arguments it was called with, and its report."""

    run: Callable[[list[Any]], Any]
    report: GraphReport
    module: Any
    args: Sequence[Any] = ()


def graphs_of(model: Any, tokens: Any, *, backward: bool, target: str | None) -> list[Seen]:
    """The graphs of a model, called four times."""
    seen: list[Seen] = []
    shared = Shared()

    def side(name: str) -> Callable[[Any, Any], Any]:
        def compile_graph(module: Any, example_inputs: Any) -> Any:
            reports: list[GraphReport] = []
            kept: list[Any] = []
            rewrite = dynamo.rewrite
            dynamo.rewrite = lambda *a: kept.append(rewrite(*a)) or kept[-1]
            try:
                options = Options(cpu="sim", target=target)
                run = dynamo.fuse_graph(module, options, name, reports.append, shared)
            finally:
                dynamo.rewrite = rewrite
            one = Seen(run, reports[0], kept[-1])
            seen.append(one)

            def noted(args: list[Any]) -> Any:
                one.args = tuple(args)
                return run(args)

            noted._boxed_call = True  # type: ignore[attr-defined]
            return noted

        return compile_graph

    aot = importlib.import_module("torch._dynamo.backends.common").aot_autograd
    own = aot(
        fw_compiler=side("forward"),
        bw_compiler=side("backward"),
        inference_compiler=side("inference"),
        decompositions=decompositions(),
        partition_fn=cut,
        keep_inference_input_mutations=True,
    )
    called = torch.compile(model, backend=own)
    for _ in range(4):
        if backward:
            called(tokens).float().square().sum().backward()
        else:
            with torch.no_grad():
                called(tokens)
    return seen


class Noting(torch.fx.Interpreter):
    """Notes the calls of torch's operators."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The call, noted if it is of an operator."""
        if isinstance(target, torch._ops.OpOverload):
            self.calls.append((target, args, kwargs))
        return super().call_function(target, args, kwargs)


def _all(calls: Calls) -> None:
    for target, args, kwargs in calls:
        target(*args, **kwargs)


@dataclass
class Pieces:
    """What the function of a graph calls, by kind, and all that it makes meanwhile: launches are
    given addresses of that, which must stay. `operators`: the results of torch's operators in the
    order of calls."""

    call: Callable[[list[Any]], Any] | None = None
    names: dict[str, Any] = field(default_factory=dict)
    by_kind: dict[str, Calls] = field(default_factory=dict)
    operators: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    @contextlib.contextmanager
    def played_back(self) -> Any:
        """Has the function take the results of one call for what torch's operators compute; gives a
        function that takes all of them, as the function does."""
        results = itertools.cycle(self.operators)

        def play(*_: Any, **__: Any) -> Any:
            return next(results)

        def play_all() -> None:
            for _ in self.operators:
                play(None, None)

        played = {n: play for n, value in self.names.items() if _is_operator(n, value)}
        with mock.patch.dict(self.names, played):
            yield play_all


def pieces(one: Seen) -> Pieces:
    """The pieces of a graph's function. None where no function is written."""
    written = one.report.call and one.report.call.written
    if not written:
        return Pieces()
    names: dict[str, Any] = written.call.__globals__
    by_kind: dict[str, list[Any]] = {k: [] for k in KINDS}
    found = Pieces(written.call, names, by_kind)

    def noting(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            by_kind[kind].append((function, args, kwargs))
            found.kept.append(function(*args, **kwargs))
            if kind == "operators":
                found.operators.append(found.kept[-1])
            return found.kept[-1]

        return noted

    wrapped = {
        name: noting(kind, value)
        for name, value in names.items()
        if callable(value) and (kind := _kind(name)) is not None
    }
    with torch.no_grad():
        one.run(list(one.args))  # a thread's first call is another one; backward has one of its own
        with mock.patch.dict(names, wrapped):
            found.kept.append(written.call(list(one.args)))
    return found


def _is_operator(name: str, value: Any) -> bool:
    """Whether a global name of a graph's function stands for an operator of torch."""
    return callable(value) and _kind(name) == "operators"


def _kind(name: str) -> str | None:
    """What a global name of a graph's function stands for; None for what it asks."""
    if name.startswith(("launch_", "pack_")):
        return {"launch": "launches", "pack": "parameters"}[name.split("_")[0]]
    if name in ("empty", "reinterpret"):
        return {"empty": "allocations", "reinterpret": "views"}[name]
    asked = name in ASKED or name.startswith(("call_", "after_", "__"))
    return None if asked else "operators"


def batch_us(call: Callable[[], object], count: int, wait: Callable[[], None]) -> float:
    """Microseconds of this thread per call of one batch; a device works behind the host."""
    wait()
    start = time.thread_time()
    for _ in range(count):
        call()
    spent = time.thread_time() - start
    wait()
    return spent / count * 1e6


def measured(one: Seen, wait: Callable[[], None], rounds: int) -> dict[str, Any]:
    """The figures of one graph."""
    noting = Noting(one.module)
    with torch.no_grad():
        noting.run(*one.args)
    calls = noting.calls
    working = [c for c in calls if c[0] not in VIEWS]
    own = pieces(one)
    ways = {
        "graph": lambda: one.run(list(one.args)),
        "nodes": lambda: one.module.forward(list(one.args)),
        "torch": lambda: _all(calls),
        "working": lambda: _all(working),
        **{k: functools.partial(_all, called) for k, called in own.by_kind.items()},
    }
    best = dict.fromkeys((*ways, "ours", "playing"), float("inf"))

    def take(name: str, way: Callable[[], object]) -> None:
        best[name] = min(best[name], batch_us(way, 20, wait))

    with torch.no_grad():
        for _ in range(rounds):
            for name, way in ways.items():
                take(name, way)
            if own.call is not None:
                with own.played_back() as playing:
                    take("ours", ways["graph"])
                    take("playing", playing)
    launches = sum(
        len(r.fused.program(*_of(r, noting)).launches) for r in one.report.regions if r.fused
    )
    is_written = own.call is not None
    return {
        "graph": one.report.name,
        "regions": len(one.report.regions),
        "launches": launches,
        "us_ours_a_launch": _a_launch(best["ours"] - best["playing"], launches, is_written),
        "torch_operators": len(calls),
        "us": round(best["graph"], 1),
        "us_node_by_node": round(best["nodes"], 1),
        "views_among_them": len(calls) - len(working),
        "us_of_torch_operators_alone": round(best["torch"], 1),
        "us_of_those_without_views": round(best["working"], 1),
        "us_beyond_these_a_launch": _a_launch(best["graph"] - best["working"], launches),
        "pieces": {k: {"calls": len(c), "us": round(best[k], 1)} for k, c in own.by_kind.items()},
    }


def _a_launch(us: float, launches: int, is_known: bool = True) -> float | None:
    """Microseconds a launch; None where nothing was launched, or it is not known."""
    return round(us / launches, 2) if launches and is_known else None


def line(figures: Mapping[str, Any]) -> str:
    """The figures of one graph in a line."""
    parts = "; ".join(f"{k} {p['calls']} in {p['us']}" for k, p in figures["pieces"].items())
    return (
        f"{figures['graph']}: {figures['us_ours_a_launch']} us a launch are ours, "
        f"{figures['us_beyond_these_a_launch']} beyond torch's computing operators; "
        f"{figures['launches']} launches, {figures['us']} us in all, "
        f"{figures['us_node_by_node']} node by node; {parts}"
    )


def _of(region: Any, noting: Noting) -> list[Any]:
    """Tensors like those of a region."""
    values = [n.meta["val"] for n in region.part.inputs]
    return [
        torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--backward", action="store_true", help="a step of training")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="a file for all figures, as JSON")
    arguments = parser.parse_args()
    on_host = arguments.device == "host"
    os.environ["FUSEWRIGHT_CACHE"] = "0"
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # an idle driver leaves results as they are
    torch.manual_seed(0)
    place = "cpu" if on_host else "cuda"
    model = Decoder(arguments.layers).to(place)
    tokens = torch.randint(0, WORDS, (2, LENGTH), device=place)
    found: list[dict[str, Any]] = []
    with stand_in(IdleDriver()) if on_host else contextlib.nullcontext():
        target = "sm_90a" if on_host else None
        wait = (lambda: None) if on_host else torch.cuda.synchronize
        for one in graphs_of(model, tokens, backward=arguments.backward, target=target):
            found.append(measured(one, wait, arguments.rounds))
            print(line(found[-1]), flush=True)
    figures = {
        "graphs": found,
        "layers": arguments.layers,
        "device": torch.cuda.get_device_name() if not on_host else "a driver that is idle",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
