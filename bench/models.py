"""`python -m bench.models`: whole models, forward and backward, beside torch.compile and eager.

Method: random weights and inputs; peers are compiled from copies of one model and run in turn in
one process. A round times every peer once, with enough steps to fill a tenth of a second between
two CUDA events; the median over rounds counts. Peak memory is the allocator's, over one step after
warming up. Errors are relative to eager in float32 of the same weights.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fusewright.frontends.torch.dynamo import compiler
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.report import GraphReport

ROUNDS = 5
TARGET_MS = 100.0
OURS = {
    "fusewright": "auto",
    "fusewright, products left": "never",
    "fusewright, products taken": "always",
}
"""Ours by what is done with products: `options={"products": ...}` of the backend."""
PEERS = ("eager", "inductor", *OURS)


@dataclass(frozen=True, slots=True)
class Model:
    """A model by name: how to build it, and its inputs for a batch and a length."""

    name: str
    build: Callable[[], Any]
    vocabulary: int
    decoder: bool = False

    def inputs(self, batch: int, length: int, device: str) -> dict[str, Any]:
        """Random tokens, and labels where the model has its own loss."""
        shape = (batch, length)
        tokens = torch.randint(0, self.vocabulary, shape, device=device)
        out = {"input_ids": tokens}
        if self.decoder:
            out["decoder_input_ids"] = torch.randint(0, self.vocabulary, shape, device=device)
        return out


def models(size: str) -> list[Model]:
    """The models at a size: "small" for tests, "large" for measuring."""
    import transformers as t

    width, heads, layers, vocabulary = (64, 4, 2, 128) if size == "small" else (1024, 16, 4, 32000)
    llama = t.LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        use_cache=False,
    )
    gpt2 = t.GPT2Config(
        n_embd=width,
        n_head=heads,
        n_layer=layers,
        vocab_size=vocabulary,
        bos_token_id=1,
        eos_token_id=2,
        n_positions=2048,
        use_cache=False,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )
    bert = t.BertConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    t5 = t.T5Config(
        d_model=width,
        d_ff=4 * width,
        d_kv=width // heads,
        num_heads=heads,
        num_layers=layers,
        vocab_size=vocabulary,
        dropout_rate=0.0,
        use_cache=False,
    )
    return [
        Model("llama", lambda: t.LlamaForCausalLM(llama), vocabulary),
        Model("gpt2", lambda: t.GPT2LMHeadModel(gpt2), vocabulary),
        Model("bert", lambda: t.BertForMaskedLM(bert), vocabulary),
        Model("t5", lambda: t.T5ForConditionalGeneration(t5), vocabulary, decoder=True),
    ]


def step(model: Any, inputs: dict[str, Any]) -> Any:
    """One forward and backward pass: the loss of the next token, or of every token."""
    logits = model(**inputs).logits
    targets = inputs.get("decoder_input_ids", inputs["input_ids"])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    loss.backward()
    return loss.detach()


def compiled(model: Any, peer: str, reports: list[GraphReport]) -> Any:
    """The model as a peer runs it; what is fused here is added to `reports`."""
    if peer == "eager":
        return model
    if peer == "inductor":
        return torch.compile(model, backend=peer)
    keep = reports.append if peer == "fusewright" else None
    return torch.compile(model, backend=compiler(Options(products=OURS[peer]), keep))


# --- measuring ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """What one model took: milliseconds a step, peak MiB, seconds to compile, error of the loss;
    and how many operators were fused, in how many regions, and how many were left."""

    name: str
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    peak_mib: dict[str, float] = field(default_factory=dict[str, float])
    compile_s: dict[str, float] = field(default_factory=dict[str, float])
    loss_error: dict[str, float] = field(default_factory=dict[str, float])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    fused: dict[str, int] = field(default_factory=dict[str, int])


def measure(
    model: Model, batch: int, length: int, dtype: Any, peers: Sequence[str] = PEERS, seed: int = 0
) -> Outcome:
    """One model with some peers in turn."""
    torch.manual_seed(seed)
    reference = model.build().to("cuda")
    inputs = model.inputs(batch, length, "cuda")
    exact = float(step(reference, inputs))
    reference.zero_grad(set_to_none=True)
    out = Outcome(model.name)
    runs: dict[str, Callable[[], Any]] = {}
    reports: list[GraphReport] = []
    for peer in peers:
        torch.compiler.reset()
        own = copy.deepcopy(reference).to(dtype)
        run = _runner(compiled(own, peer, reports), own, inputs)
        start = time.perf_counter()
        try:
            loss = float(run())
            torch.cuda.synchronize()
        except Exception as e:
            out.failures[peer] = f"{type(e).__name__}: {e}"[:300]
            continue
        out.compile_s[peer] = time.perf_counter() - start
        out.loss_error[peer] = abs(loss - exact) / abs(exact)
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        out.peak_mib[peer] = (torch.cuda.max_memory_allocated() - before) / 2**20
        runs[peer] = run
    out.milliseconds = _medians(runs)
    out.fused = {
        "operators": sum(len(g.taken) for g in reports),
        "regions": sum(len(g.regions) for g in reports),
        "left": sum(len(g.left) for g in reports),
        "failed": sum(len(r.failures) for g in reports for r in g.regions),
    }
    return out


def _runner(model: Any, parameters: Any, inputs: dict[str, Any]) -> Callable[[], Any]:
    def run() -> Any:
        parameters.zero_grad(set_to_none=True)
        return step(model, inputs)

    return run


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


def chosen(names: str, size: str) -> Iterator[Model]:
    """The models whose names were asked for; all for none."""
    wanted = [n for n in names.split(",") if n]
    for m in models(size):
        if not wanted or m.name in wanted:
            yield m


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="", help="comma-separated names")
    parser.add_argument("--size", default="large", choices=("small", "large"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--peers", default="", help=f"numbers of some of {', '.join(PEERS)}")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    peers = [PEERS[int(n)] for n in args.peers.split(",") if n] or PEERS
    outcomes: list[Outcome] = []
    for model in chosen(args.models, args.size):
        dtype = getattr(torch, args.dtype)
        outcomes.append(measure(model, args.batch, args.length, dtype, peers))
        print(json.dumps(_json(outcomes[-1])), flush=True)
        if args.out is not None:  # after each model, so that a run that is cut short is not lost
            args.out.write_text(json.dumps(_report(args, outcomes), indent=1) + "\n")


def _report(args: argparse.Namespace, outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "method": " ".join((__doc__ or "").split()),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "models": [_json(o) for o in outcomes],
    }


def _json(outcome: Outcome) -> dict[str, Any]:
    def rounded(values: dict[str, float]) -> dict[str, float]:
        return {k: float(f"{v:.4g}") for k, v in values.items()}

    ours = outcome.milliseconds.get("fusewright")
    return {
        "model": outcome.name,
        "milliseconds": rounded(outcome.milliseconds),
        "speedup": rounded({k: v / ours for k, v in outcome.milliseconds.items()}) if ours else {},
        "peak_mib": rounded(outcome.peak_mib),
        "compile_s": rounded(outcome.compile_s),
        "loss_error": rounded(outcome.loss_error),
        "failures": outcome.failures,
        "fused": outcome.fused,
    }


if __name__ == "__main__":
    main()
