"""`python -m bench.zoo_times`: architectures of `bench.zoo.large` beside torch.compile and eager.

Method: random weights and inputs, bfloat16; peers are compiled from copies of one model and run
in turn in one process. A round times every peer once, with enough steps to fill `TARGET_MS` between
two CUDA events; the median over rounds counts. Busy is the sum of the kernels' times in one step
under torch's profiler. Errors, of the loss and of the gradients (the median over parameters), are
relative to eager in float32 of the same weights. With `--warm N`, N processes compile all
architectures first, which fills the caches of all peers, and say how long that took. `--small` is
one short text or one image, where the host takes the time; `--generate` is `bench.zoo.generation`,
and `python -m bench.zoo.page` makes a page of the JSON of `--out`.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from bench.zoo import Architecture, Inputs, generation, in_dtype, loss_of, without_dropout
from bench.zoo.large import MODELS
from fusewright.frontends.torch.dynamo import compiler
from fusewright.frontends.torch.options import options_of

ROUNDS = 5
TARGET_MS = 60.0
PEERS = ("eager", "inductor", "fusewright")
IMAGES_A_TEXT = 8
"""Images of a batch for each text of one."""
SMALL = 64
"""Tokens of the one text of `--small`."""
LONGEST = 40
NAME_LENGTH = 100
"""Kernels of a step that are kept, and letters of their names."""


@dataclass(slots=True)
class Outcome:
    """What an architecture took, by peer: milliseconds a step, those of them that the device is
    busy, kernels, seconds to compile, peak MiB, errors. `longest`: the kernels that take most of a
    step, as name, launches and microseconds in all."""

    name: str
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    busy: dict[str, float] = field(default_factory=dict[str, float])
    kernels: dict[str, int] = field(default_factory=dict[str, int])
    compile_s: dict[str, float] = field(default_factory=dict[str, float])
    peak_mib: dict[str, float] = field(default_factory=dict[str, float])
    loss_error: dict[str, float] = field(default_factory=dict[str, float])
    gradient_error: dict[str, float] = field(default_factory=dict[str, float])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    longest: dict[str, list[tuple[str, int, float]]] = field(
        default_factory=dict[str, list[tuple[str, int, float]]]
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """How models are run: in training or not, by a mode of torch.compile, on so many texts of a
    length, or so many images."""

    train: bool
    mode: str
    batch: int
    length: int
    images: int

    def inputs(self, architecture: Architecture) -> Inputs:
        """Inputs on the device, images in channels-last order."""
        torch.manual_seed(1)
        made = architecture.inputs(self.batch, self.length)
        if "pixel_values" in made and len(made) == 1:
            made = architecture.inputs(self.images, self.length)
        on_device = {k: v.cuda() for k, v in made.items()}
        if "pixel_values" in made:
            pixels = on_device["pixel_values"]
            on_device["pixel_values"] = pixels.contiguous(memory_format=torch.channels_last)
        return on_device


def compiled(model: Any, peer: str, mode: str) -> Any:
    """The model as a peer runs it."""
    if peer == "eager":
        return model
    if peer == "inductor":
        return torch.compile(model, backend=peer, mode=mode)
    return torch.compile(model, backend=compiler(options_of(None, mode)))


def runner(run: Any, model: Any, inputs: Inputs, setting: Setting) -> Callable[[], Any]:
    """One step: a loss, and its gradients in training."""

    def train() -> Any:
        model.zero_grad(set_to_none=True)
        loss = loss_of(run(**inputs)).float()
        loss.backward()
        return loss.detach()

    def infer() -> Any:
        with torch.no_grad():
            return loss_of(run(**inputs)).float()

    return train if setting.train else infer


def built(architecture: Architecture, setting: Setting) -> Any:
    """The model on the device with random weights, convolutions in channels-last order."""
    torch.manual_seed(0)
    model = without_dropout(architecture.build()).cuda()
    if not setting.train:
        model.eval()
    has_images = "pixel_values" in architecture.inputs(1, 16)
    return model.to(memory_format=torch.channels_last) if has_images else model


def measure(architecture: Architecture, setting: Setting, peers: tuple[str, ...]) -> Outcome:
    """One architecture with all peers in turn."""
    reference = built(architecture, setting)
    inputs = setting.inputs(architecture)
    out = Outcome(architecture.name)
    exact = float(runner(reference, reference, inputs, setting)())
    gradients = _gradients(reference)
    reference.zero_grad(set_to_none=True)
    runs: dict[str, Callable[[], Any]] = {}
    given = in_dtype(inputs, torch.bfloat16)
    for peer in peers:
        torch.compiler.reset()
        own = copy.deepcopy(reference).to(torch.bfloat16)
        run = runner(compiled(own, peer, setting.mode), own, given, setting)
        start = time.perf_counter()
        try:
            loss = float(run())
            torch.cuda.synchronize()
            out.compile_s[peer] = time.perf_counter() - start
            out.loss_error[peer] = abs(loss - exact) / abs(exact)
            out.gradient_error[peer] = _error(_gradients(own), gradients)
            for _ in range(3):
                run()
            _look(out, peer, run)
        except Exception as e:
            out.failures[peer] = f"{type(e).__name__}: {e}"[:300]
            continue
        runs[peer] = run
    out.milliseconds = _medians(runs)
    return out


def _gradients(model: Any) -> list[Any]:
    return [p.grad.float() for p in model.parameters() if p.grad is not None]


def _error(found: list[Any], exact: list[Any]) -> float:
    """The median over parameters of the relative distance of their gradients."""
    errors = [
        float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True) if b.any()
    ]
    return statistics.median(errors) if errors else 0.0


def _look(out: Outcome, peer: str, run: Callable[[], Any]) -> None:
    """Memory, kernels and busy time of one step."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    out.peak_mib[peer] = (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    events = [e for e in profile.key_averages() if e.self_device_time_total > 0]
    out.kernels[peer] = sum(e.count for e in events)
    out.busy[peer] = sum(e.self_device_time_total for e in events) / 1000
    events.sort(key=lambda e: -e.self_device_time_total)
    out.longest[peer] = [
        (e.key[:NAME_LENGTH], e.count, round(e.self_device_time_total, 1)) for e in events[:LONGEST]
    ]


def _medians(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    counts = {k: max(1, round(TARGET_MS / _milliseconds(f, 2))) for k, f in runs.items()}
    times: dict[str, list[float]] = {k: [] for k in runs}
    for _ in range(ROUNDS):
        for k, f in runs.items():
            times[k].append(_milliseconds(f, counts[k]))
    return {k: statistics.median(v) for k, v in times.items()}


def _milliseconds(run: Callable[[], Any], count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count


# --- compiling ahead ----------------------------------------------------------------------------


def warm(args: argparse.Namespace, names: list[str]) -> dict[str, float]:
    """Compiles all architectures in processes of their own, as many at a time as asked for."""
    waiting, running = list(names), dict[str, tuple[Any, float]]()
    took: dict[str, float] = {}
    command = [sys.executable, "-m", "bench.zoo_times", "--peers", args.peers, "--compile-only"]
    command += ["--mode", args.mode, "--batch", str(args.batch), "--length", str(args.length)]
    command += [*([] if args.train else ["--infer"]), *(["--small"] if args.small else [])]
    while waiting or running:
        while waiting and len(running) < args.warm:
            name = waiting.pop(0)
            started = subprocess.Popen([*command, "--models", name], stdout=subprocess.DEVNULL)
            running[name] = started, time.perf_counter()
        for name, (process, begun) in list(running.items()):
            if process.poll() is not None:
                took[name] = time.perf_counter() - begun
                del running[name]
        time.sleep(0.05)
    return took


def compile_only(architecture: Architecture, setting: Setting, peers: tuple[str, ...]) -> None:
    """Two steps of each peer that compiles."""
    model = built(architecture, setting).to(torch.bfloat16)
    given = in_dtype(setting.inputs(architecture), torch.bfloat16)
    for peer in peers:
        if peer != "eager":
            torch.compiler.reset()
            run = runner(compiled(model, peer, setting.mode), model, given, setting)
            run()
            run()


# --- results ------------------------------------------------------------------------------------


def row(o: Outcome) -> str:
    """A line of the table."""
    cells = [o.name]
    for peer in PEERS:
        ms, busy = o.milliseconds.get(peer), o.busy.get(peer, math.nan)
        failed = "failed" if peer in o.failures else ""
        cells.append(failed if ms is None else f"{ms:.2f} ({busy:.2f}, {o.kernels[peer]})")
    ours, theirs = o.milliseconds.get("fusewright"), o.milliseconds.get("inductor")
    cells.append(f"{theirs / ours:.2f}" if ours and theirs else "")
    cells.append(" / ".join(f"{o.compile_s.get(p, math.nan):.1f}" for p in PEERS[1:]))
    cells.append(" / ".join(f"{o.gradient_error.get(p, math.nan):.1e}" for p in PEERS))
    return f"| {' | '.join(cells)} |"


HEADER = "| model | eager ms (busy, kernels) | inductor | fusewright | times | compile s | errors |"


def table(outcomes: list[Outcome]) -> str:
    """All outcomes, and the geometric mean of times inductor's speed."""
    lines = [HEADER, "|---" * 7 + "|", *map(row, outcomes)]
    ratios = [
        o.milliseconds["inductor"] / o.milliseconds["fusewright"]
        for o in outcomes
        if {"inductor", "fusewright"} <= o.milliseconds.keys()
    ]
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        lines.append(f"\n{len(ratios)} models, {mean:.3f} times inductor in the geometric mean")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--models", default="", help="comma-separated names")
    made.add_argument("--infer", dest="train", action="store_false")
    made.add_argument("--mode", default="default")
    made.add_argument("--batch", type=int, default=8)
    made.add_argument("--length", type=int, default=512)
    made.add_argument("--small", action="store_true", help="one short text, or one image")
    made.add_argument("--peers", default=",".join(PEERS))
    made.add_argument("--warm", type=int, default=0)
    made.add_argument("--compile-only", action="store_true")
    made.add_argument("--generate", action="store_true", help="tokens a second of generate")
    made.add_argument("--batches", default=",".join(map(str, generation.BATCHES)))
    made.add_argument("--caches", default="static,dynamic")
    made.add_argument("--out", type=Path, default=None)
    return made


def setting_of(args: argparse.Namespace) -> Setting:
    """How models are run by a command line."""
    if args.small:
        return Setting(args.train, args.mode, 1, SMALL, 1)
    return Setting(args.train, args.mode, args.batch, args.length, args.batch * IMAGES_A_TEXT)


def main() -> None:
    args = parser().parse_args()
    names = [n for n in args.models.split(",") if n]
    peers = tuple(args.peers.split(","))
    if args.generate:
        batches = tuple(map(int, args.batches.split(",")))
        caches = tuple(args.caches.split(","))
        wanted = tuple(names) or generation.MODELS
        generation.measure_all(wanted, batches, caches, peers, lambda o: _keep(args, o, {}))
        return
    chosen = [a for a in MODELS if not names or a.name in names]
    setting = setting_of(args)
    if args.compile_only:
        for a in chosen:
            compile_only(a, setting, peers)
        return
    took = warm(args, [a.name for a in chosen]) if args.warm else {}
    outcomes: list[Outcome] = []
    for a in chosen:
        try:
            outcomes.append(measure(a, setting, peers))
        except Exception as e:
            outcomes.append(Outcome(a.name, failures={"all": f"{type(e).__name__}: {e}"[:300]}))
        print(row(outcomes[-1]), outcomes[-1].failures or "", flush=True)
        torch.cuda.empty_cache()
        _keep(args, outcomes, took)
    print(table(outcomes))


def _keep(args: argparse.Namespace, outcomes: Sequence[Any], took: dict[str, float]) -> None:
    """Writes what there is so far, so that a run that is cut short is not lost."""
    if args.out is not None:
        args.out.write_text(json.dumps(_report(args, outcomes, took), indent=1) + "\n")


def _report(
    args: argparse.Namespace, outcomes: Sequence[Any], took: dict[str, float]
) -> dict[str, Any]:
    method = generation.__doc__ if args.generate else __doc__
    return {
        "date": datetime.date.today().isoformat(),
        "method": " ".join((method or "").split()),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "cold_s": {k: round(v, 1) for k, v in took.items()},
        "models": [_entry(o) for o in outcomes],
    }


def _entry(outcome: Any) -> dict[str, Any]:
    """An outcome as JSON has it: figures of four digits."""
    found = asdict(outcome)
    found["model"] = found.pop("name", None) or found["model"]
    return {k: _short(v) for k, v in found.items()}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        return {k: _short(v) for k, v in known.items()}
    return value


if __name__ == "__main__":
    main()
