"""Generation: `python -m bench.zoo_times --generate`, tokens a second of `model.generate`.

Method: greedy, a prompt of `PROMPT` tokens and `TOKENS` new ones, random weights in bfloat16. With
a static cache peers are compiled as transformers does it (`CompileConfig`), which leaves the prompt
to eager; with a dynamic one their forward is compiled, so that sizes change from token to token.
Peers take turns, `ROUNDS` of them; the median counts. The same of the prompt and one token is taken
off, so that what is left are the other tokens.A profile of one more call counts launches, kernels
and replays of graphs for each token. Behind the warm-up nothing may be compiled: `compiled_late`.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.zoo import Architecture, imported, large
from fusewright.frontends.torch.dynamo import compiler
from fusewright.frontends.torch.options import options_of
from fusewright.frontends.torch.report import GraphReport

PROMPT, TOKENS, ROUNDS = 128, 64, 3
MODELS = ("llama", "qwen3", "gemma3", "phi3", "gpt2", "mixtral")
"""Those of `bench.zoo.large` that are asked for by default."""
BATCHES = (1, 16, 64)
REPLAY = "reduce-overhead"


@dataclass(frozen=True, slots=True)
class Peer:
    """Who runs the model: eager, or a backend in a mode."""

    backend: str
    mode: str = "default"

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.backend if self.mode == "default" else f"{self.backend} {self.mode}"


@dataclass(frozen=True, slots=True)
class Case:
    """A model's name, how many texts at once, and the cache: "static" or "dynamic"."""

    model: str
    batch: int
    cache: str
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    prompt: int = PROMPT
    tokens: int = TOKENS

    def peers(self, backends: tuple[str, ...]) -> Iterator[Peer]:
        """The peers of a case: replays only where sizes stay."""
        for backend in backends:
            yield Peer(backend)
            if backend != "eager" and self.cache == "static" and self.device == "cuda":
                yield Peer(backend, REPLAY)


@dataclass(slots=True)
class Outcome:
    """What a case took, by the peer's name. `same`: the share of eager's tokens; counts are for one
    token; `not_recorded`: why graphs of fusewright were not captured; `late`: graphs that were
    compiled behind the warm-up."""

    model: str
    batch: int
    cache: str
    tokens_per_s: dict[str, float] = field(default_factory=dict[str, float])
    compile_s: dict[str, float] = field(default_factory=dict[str, float])
    same: dict[str, float] = field(default_factory=dict[str, float])
    kernels: dict[str, float] = field(default_factory=dict[str, float])
    launches: dict[str, float] = field(default_factory=dict[str, float])
    replays: dict[str, float] = field(default_factory=dict[str, float])
    late: dict[str, int] = field(default_factory=dict[str, int])
    not_recorded: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def line(self) -> str:
        """The outcome for a reader of the terminal."""
        cells = [
            f"{name} {rate:.0f}/s ({self.launches.get(name, 0):.1f} launches, "
            f"{self.replays.get(name, 0):.1f} replays)"
            for name, rate in self.tokens_per_s.items()
        ]
        why = [f"{k}: {w}" for k, ws in self.not_recorded.items() for w in ws]
        head = f"{self.model} x{self.batch} {self.cache}: {'; '.join(cells)}"
        return "\n  ".join([head, *why, *(f"{k}: {v}" for k, v in self.failures.items())])


class _Run:
    """A model that a peer generates with."""

    def __init__(self, model: Any, peer: Peer, case: Case) -> None:
        self.graphs = 0
        self.reports: list[GraphReport] = []
        self._model = model
        self._how: dict[str, Any] = {"do_sample": False, "use_cache": True, "pad_token_id": 0}
        if case.cache == "static":
            self._how["cache_implementation"] = "static"
        if peer.backend == "eager":
            self._how["disable_compile"] = True
            return
        torch.compiler.reset()
        backend = self._counted(peer)
        if case.cache == "static":
            config = imported("transformers").CompileConfig(backend=backend, mode=None)
            config._compile_all_devices = True
            self._how["compile_config"] = config
        else:
            self._how["disable_compile"] = True
            model.forward = torch.compile(model.forward, backend=backend)

    def _counted(self, peer: Peer) -> Callable[..., Any]:
        """The peer's backend, which counts what it compiles."""
        if peer.backend == "fusewright":
            plain = compiler(options_of(None, peer.mode), self.reports.append)
        else:
            inner = torch._inductor.compile_fx.compile_fx
            patches = torch._inductor.list_mode_options(peer.mode) if peer.mode == REPLAY else None

            def plain(module: Any, example_inputs: Any) -> Any:
                return inner(module, example_inputs, config_patches=patches)

        def backend(module: Any, example_inputs: Any) -> Any:
            self.graphs += 1
            return plain(module, example_inputs)

        return backend

    def __call__(self, prompt: Any, tokens: int) -> Any:
        """The tokens behind a prompt. transformers keeps a static cache of the longest call."""
        how = {**self._how, "max_new_tokens": tokens, "min_new_tokens": tokens}
        with torch.no_grad():
            return self._model.generate(prompt, **how)[:, prompt.shape[1] :]


def measure_all(
    names: tuple[str, ...],
    batches: tuple[int, ...],
    caches: tuple[str, ...],
    backends: tuple[str, ...],
    keep: Callable[[list[Outcome]], None],
) -> None:
    """All cases on a GPU; `keep` is given the outcomes so far after each."""
    outcomes: list[Outcome] = []
    for a in (a for a in large.MODELS if a.name in names):
        for case in (Case(a.name, b, c) for c in caches for b in batches):
            outcomes.append(measure(a, case, backends))
            print(outcomes[-1].line(), flush=True)
            torch.cuda.empty_cache()
            keep(outcomes)


def measure(architecture: Architecture, case: Case, backends: tuple[str, ...]) -> Outcome:
    """One case with all peers in turn. What goes wrong is said in the outcome."""
    out = Outcome(case.model, case.batch, case.cache)
    torch.manual_seed(0)
    model = architecture.model().to(case.device, case.dtype).eval()
    vocabulary = model.config.get_text_config().vocab_size
    prompt = torch.randint(3, vocabulary, (case.batch, case.prompt), device=case.device)
    runs: dict[str, _Run] = {}
    want: Any = None
    for peer in case.peers(backends):
        name = peer.name
        try:
            run = _Run(copy.deepcopy(model), peer, case)
            start = time.perf_counter()
            for _ in range(3):  # the first one compiles, the second records
                made = run(prompt, case.tokens)
            _wait(case)
            out.compile_s[name] = time.perf_counter() - start
            want = made if want is None else want
            out.same[name] = float((made == want).float().mean())
            runs[name] = run
        except Exception as e:
            out.failures[name] = f"{type(e).__name__}: {e}"[:300]
    before = {name: run.graphs for name, run in runs.items()}
    _rates(out, runs, prompt, case)
    for name, run in runs.items():
        _count(out, name, run, prompt, case)
        out.late[name] = run.graphs - before[name]
        reasons = dict.fromkeys(r.not_recorded for r in run.reports if r.not_recorded)
        if reasons:
            out.not_recorded[name] = [str(r) for r in reasons]
    return out


def _wait(case: Case) -> None:
    if case.device == "cuda":
        torch.cuda.synchronize()


def _rates(out: Outcome, runs: dict[str, _Run], prompt: Any, case: Case) -> None:
    """Tokens a second of all texts together, behind the first token."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            spent = [_seconds(run, prompt, n, case) for n in (case.tokens, 1)]
            times[name].append(spent[0] - spent[1])
    for name, found in times.items():
        out.tokens_per_s[name] = case.batch * (case.tokens - 1) / statistics.median(found)


def _seconds(run: _Run, prompt: Any, tokens: int, case: Case) -> float:
    _wait(case)
    start = time.perf_counter()
    run(prompt, tokens)
    _wait(case)
    return time.perf_counter() - start


def _count(out: Outcome, name: str, run: _Run, prompt: Any, case: Case) -> None:
    """Launches, kernels and replays for each token but the first."""
    if case.device != "cuda":
        return
    counts: list[tuple[int, int, int]] = []
    for tokens in (case.tokens, 1):
        kinds = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
            run(prompt, tokens)
            _wait(case)
        counts.append(_counts(profile.key_averages()))
    more = [(a - b) / (case.tokens - 1) for a, b in zip(*counts, strict=True)]
    out.launches[name], out.replays[name], out.kernels[name] = more


def _counts(events: Any) -> tuple[int, int, int]:
    """Calls that launch kernels, calls that launch graphs, and what ran on the device."""
    found = [0, 0, 0]
    for e in events:
        if "LaunchKernel" in e.key:
            found[0] += e.count
        elif "GraphLaunch" in e.key:
            found[1] += e.count
        elif e.self_device_time_total > 0 and e.self_cpu_time_total == 0:
            found[2] += e.count
    return found[0], found[1], found[2]
