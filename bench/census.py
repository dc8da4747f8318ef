"""`python -m bench.census`: what the torch backend takes of many architectures, and what it leaves.

Method: each architecture of `bench.zoo` is built in a tiny size with fixed random weights and run
on host tensors, whose regions the numpy oracle computes. Training is three steps of SGD, beside
eager in the same dtype; both are compared with eager in float64. An error is the norm of the
difference over the norm of the reference: of the losses of all steps, and of all gradients of one,
of which the median counts. Steps start from the reference's weights.
`dynamic` trains at two sizes under `dynamic=True`; `inference` compares results, `generate` the
tokens of greedy decoding. Seconds are of CPU time, from a call to its result. With `--kernels` each
region is also compiled for a GPU, without running it, and its launches are counted.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.zoo import Architecture, Inputs, architectures, first_real, in_dtype, loss_of
from fusewright.driver import compile
from fusewright.frontends.torch.calls import hint
from fusewright.frontends.torch.dynamo import compiler
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.report import GraphReport
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.trace import trace

MODES = ("train", "dynamic", "inference", "generate")
RATIO = 1.2
"""The greatest error in units of eager's own that counts as good."""
FLOOR = 2.0**-22
"""An error that is never too large: two units in the last place of float32."""
_SIZES = ((2, 16), (3, 24))


@dataclass(slots=True)
class Outcome:
    """What one architecture did in one mode. `errors`: per quantity our error and eager's."""

    name: str
    mode: str
    errors: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    graphs: int = 0
    regions: int = 0
    structures: int = 0
    taken: int = 0
    launches: int | None = None
    left: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[str] = field(default_factory=list[str])

    @property
    def is_good(self) -> bool:
        """Whether nothing failed, and no error is much larger than eager's."""
        near = all(own <= max(RATIO * eager, FLOOR) for own, eager in self.errors.values())
        return near and not self.failures

    def line(self) -> str:
        """The outcome for a reader of the terminal."""
        ratios = (
            f"{k} {own:.2g} ({own / eager:.2f} of eager's)" if eager else f"{k} {own:.2g} (0)"
            for k, (own, eager) in self.errors.items()
        )
        counts = f"{self.taken} taken in {self.regions} regions ({self.structures} different)"
        left = f"{sum(self.left.values())} left, {self.graphs} graphs"
        spent = ", ".join(f"{k} {s:.1f} s" for k, s in self.seconds.items())
        word = "good" if self.is_good else "BAD"
        head = f"{word:4} {self.name} {self.mode}: {counts}, {left}; {', '.join(ratios)}; {spent}"
        return "\n     ".join([head, *(f[:300] for f in self.failures)])


class _Heard(logging.Handler):
    """The warnings of the backend."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def census(
    architecture: Architecture, mode: str, options: Options, target: str | None = None
) -> Outcome:
    """One architecture in one mode. What goes wrong is said in the outcome."""
    out = Outcome(architecture.name, mode)
    reports: list[GraphReport] = []
    torch.compiler.reset()
    heard, log = _Heard(), logging.getLogger("fusewright.torch")
    log.addHandler(heard)
    try:
        run = {"train": _train, "dynamic": _train, "inference": _infer, "generate": _generate}[mode]
        run(architecture, compiler(options, reports.append), out)
    except Exception as e:
        place = traceback.extract_tb(e.__traceback__)[-1]
        out.failures.append(f"{type(e).__name__}: {e} ({place.filename}:{place.lineno})"[:1000])
    finally:
        log.removeHandler(heard)
    out.failures += heard.found
    _count(out, reports)
    if target is not None:
        _count_launches(out, reports, target)
    return out


def _count(out: Outcome, reports: list[GraphReport]) -> None:
    regions = [r for g in reports for r in g.regions]
    out.graphs, out.regions = len(reports), len(regions)
    out.structures = len({r.part.structure() for r in regions})
    out.taken = sum(len(g.taken) for g in reports)
    left = collections.Counter(f"{op}: {why}" for g in reports for op, why in g.left)
    out.left = dict(left.most_common())


# --- modes --------------------------------------------------------------------------------------


def _train(architecture: Architecture, backend: Any, out: Outcome) -> None:
    exact, eager, ours = _copies(architecture)
    sizes = (*_SIZES, _SIZES[0]) if out.mode == "dynamic" else _SIZES[:1] * 3
    optimisers = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (exact, eager, ours)]

    def step(model: Any, inputs: Inputs) -> Any:
        return loss_of(model(**inputs))

    run = torch.compile(step, backend=backend, dynamic=out.mode == "dynamic")
    losses: list[list[Any]] = []
    gradients: list[list[Any]] = []
    for k, size in enumerate(sizes):
        inputs = architecture.inputs(*size)
        found = [step(exact, in_dtype(inputs, torch.float64)), step(eager, inputs)]
        start = time.process_time()
        found.append(run(ours, inputs))
        out.seconds[f"forward {k}"] = time.process_time() - start
        start = time.process_time()
        found[-1].backward()
        out.seconds[f"backward {k}"] = time.process_time() - start
        for loss in found[:-1]:
            loss.backward()
        losses.append([loss.detach().double().reshape(1) for loss in found])
        gradients.append(list(map(_gradients, (exact, eager, ours))))
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        for model in (eager, ours):
            model.load_state_dict(exact.state_dict())
    out.errors["loss"] = _errors(*map(torch.cat, zip(*losses, strict=True)))
    # The median: an input within rounding of the kink of a relu may change sides in a step.
    errors = [_errors(*found) for found in gradients]
    out.errors["gradients"] = sorted(errors)[len(errors) // 2]


def _infer(architecture: Architecture, backend: Any, out: Outcome) -> None:
    exact, eager, ours = (m.eval() for m in _copies(architecture))
    inputs = architecture.inputs(*_SIZES[0])
    run = torch.compile(ours, backend=backend)
    with torch.no_grad():
        wide = first_real(exact(**in_dtype(inputs, torch.float64)))
        plain = first_real(eager(**inputs))
        start = time.process_time()
        own = first_real(run(**inputs))
        out.seconds["inference"] = time.process_time() - start
    out.errors["result"] = _errors(wide, plain, own)


def _generate(architecture: Architecture, backend: Any, out: Outcome) -> None:
    _, eager, ours = (m.eval() for m in _copies(architecture))
    inputs = architecture.inputs(*_SIZES[0])
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "use_cache": True}
    want = eager.generate(**inputs, **how)
    ours.forward = torch.compile(ours.forward, backend=backend)
    start = time.process_time()
    got = ours.generate(**inputs, **how)
    out.seconds["generate"] = time.process_time() - start
    out.errors["tokens"] = (float((want != got).float().mean()), 0.0)


def _copies(architecture: Architecture) -> tuple[Any, Any, Any]:
    """The model in float64, and twice in float32, of equal weights."""
    model = architecture.model().float()
    exact = copy.deepcopy(model).double()
    if hasattr(exact, "set_experts_implementation"):
        exact.set_experts_implementation("eager")  # grouped products have no float64
    return exact, copy.deepcopy(model), model


def _gradients(model: Any) -> Any:
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


def _errors(exact: Any, eager: Any, ours: Any) -> tuple[float, float]:
    """Our error and eager's, relative to the exact result."""
    wide = exact.detach().double()
    norm = wide.norm().item() or 1.0
    own, eagers = ((x.detach().double() - wide).norm().item() / norm for x in (ours, eager))
    return own, eagers


# --- kernels ------------------------------------------------------------------------------------


def _count_launches(out: Outcome, reports: list[GraphReport], target: str) -> None:
    """Compiles each different region for a GPU as a call on its example sizes would."""
    known: dict[Any, int] = {}
    out.launches = 0
    start = time.process_time()
    for region in (r for g in reports for r in g.regions):
        part = region.part
        key = part.structure()
        if key not in known:
            known[key] = 0
            values = [n.meta["val"] for n in part.inputs]
            specs = [
                TensorSpec(tuple(map(hint, v.shape)), v.dtype)
                if isinstance(v, torch.Tensor)
                else hint(v)
                for v in values
            ]
            try:
                known[key] = _launches(part, specs, target)
            except Exception as e:
                out.failures.append(f"{part.name} for {target}: {type(e).__name__}: {e}"[:1000])
        out.launches += known[key]
    out.seconds["kernels"] = time.process_time() - start


def _launches(part: Any, specs: list[Any], target: str) -> int:
    arrays = [s for s in specs if not isinstance(s, int)]

    def traced(*given: Any) -> Any:
        left = iter(given)
        values = [s if isinstance(s, int) else next(left) for s in specs]
        return part.trace(dict(zip(part.inputs, values, strict=True)))

    return len(compile(trace(traced, *arrays), target=target).host.launches)


# --- the page -----------------------------------------------------------------------------------


def page(outcomes: list[Outcome]) -> str:
    """What is left to torch, and in how many architectures, as a table in Markdown."""
    calls: collections.Counter[str] = collections.Counter()
    models: dict[str, set[str]] = collections.defaultdict(set)
    for o in outcomes:
        for what, count in o.left.items():
            calls[what] += count
            models[what].add(o.name)
    rows = sorted(calls, key=lambda what: (-len(models[what]), -calls[what], what))
    lines = ["| architectures | calls | operator | why |", "|---|---|---|---|"]
    for what in rows:
        op, why = what.split(": ", 1)
        lines.append(f"| {len(models[what])} | {calls[what]} | `{op}` | {why} |")
    return "\n".join(lines)


def run(
    chosen: Iterator[Architecture],
    modes: list[str],
    options: Options,
    target: str | None,
    keep: Callable[[list[Outcome]], None],
) -> list[Outcome]:
    """The outcomes of architectures in modes; `keep` is given all so far after each."""
    outcomes: list[Outcome] = []
    for architecture in chosen:
        for mode in modes:
            if mode == "generate" and not architecture.generates:
                continue
            outcomes.append(census(architecture, mode, options, target))
            print(outcomes[-1].line(), flush=True)
            keep(outcomes)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="", help="comma-separated names")
    parser.add_argument("--packages", default="", help="comma-separated names of packages")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--cpu", default="oracle", choices=("oracle", "sim", "torch"))
    parser.add_argument("--kernels", default=None, metavar="TARGET", help="such as sm_90a")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()

    def keep(outcomes: list[Outcome]) -> None:
        if args.out is not None:
            found = {"torch": torch.__version__, "outcomes": [asdict(o) for o in outcomes]}
            args.out.write_text(json.dumps(found, indent=1) + "\n")

    chosen = architectures(args.models, args.packages)
    outcomes = run(chosen, args.modes.split(","), Options(cpu=args.cpu), args.kernels, keep)
    good = sum(o.is_good for o in outcomes)
    print(f"\n{good} of {len(outcomes)} good\n\n{page(outcomes)}")


if __name__ == "__main__":
    main()
