"""Host time of a call in steady state, as JSON: `python -m bench.host_overhead`.

Method: tensors of a few kilobytes, so that kernels are shorter than calls; the host clock around
batches of calls, with one synchronisation before and after each batch, far fewer calls in a batch
than the launch queue holds; the least of several batches. The peers run in the same process, ours
and theirs batch by batch in turn. Microseconds per call.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import fusewright as fw
from fusewright.runtime.config import config

BATCH = 200
ROUNDS = 15


def one(x: Any) -> Any:
    """One kernel."""
    return fw.exp(x) * 0.5 + x


def one_torch(x: Any) -> Any:
    return torch.exp(x) * 0.5 + x


def both(x: Any, y: Any) -> Any:
    """One kernel with two results, the second of which may be made in the memory of `y`."""
    return x + y, y * 0.5


def eight(x: Any) -> Any:
    """Eight kernels: each needs all sums of the last one."""
    for k in range(8):
        x = x - fw.sum(x, axis=k % 2, keepdims=True) * 0.25
    return x


def eight_torch(x: Any) -> Any:
    for k in range(8):
        x = x - x.sum(k % 2, keepdim=True) * 0.25
    return x


def batch_us(call: Callable[[], object]) -> float:
    """Microseconds per call of one batch; the device works behind the host."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(BATCH):
        call()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / BATCH * 1e6


def measure(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least time of each call; batches of all take turns."""
    for call in calls.values():
        for _ in range(20):
            call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            best[name] = min(best[name], batch_us(call))
    return {name: round(us, 2) for name, us in best.items()}


def moving(f: Callable[[Any], Any], x: Any) -> Callable[[], object]:
    """Calls whose results stay alive for a while, so that no two have the same addresses."""
    kept: list[Any] = []

    def call() -> None:
        if len(kept) >= 64:
            del kept[:32]
        kept.append(f(x))

    return call


def new_size_us(f: Callable[[Any], Any]) -> dict[str, float]:
    """Microseconds of the first call of a size that a symbolic program serves: the median and the
    worst of a hundred sizes. The worst holds what comes now and then, such as a full collection of
    the interpreter's garbage."""
    xs = [torch.randn(64, 64 + k, device="cuda") for k in range(1, 101)]
    f(torch.randn(64, 400, device="cuda"))
    torch.cuda.synchronize()
    spent: list[float] = []
    for x in xs:
        start = time.perf_counter()
        f(x)
        spent.append((time.perf_counter() - start) * 1e6)
    torch.cuda.synchronize()
    return {"median": round(statistics.median(spent), 2), "worst": round(max(spent), 2)}


def results(with_compile: bool) -> dict[str, Any]:
    """All figures of this machine."""
    x = torch.randn(64, 64, device="cuda")
    ours_one, ours_eight = fw.fuse(one, device="cuda"), fw.fuse(eight, device="cuda")
    program = fw.compile(fw.trace(one, fw.TensorSpec((64, 64), "float32")))
    y, into = torch.empty_like(x), torch.empty_like(x)
    given, donated = fw.fuse(both, device="cuda"), fw.fuse(both, device="cuda", donate=("y",))
    calls: dict[str, Callable[[], object]] = {
        "one_kernel": lambda: ours_one(x),
        "one_kernel_program": lambda: program(x),
        "one_kernel_out": lambda: ours_one(x, out=into),
        "one_kernel_out_program": lambda: program(x, out=(into,)),
        "two_outs": lambda: given(x, y, out=(into, y)),
        "donated": lambda: donated(x, y),
        "graph_repeating": lambda: ours_eight(x),
        "graph_moving": moving(ours_eight, x),
        "torch_empty": lambda: torch.empty_strided((64, 64), (64, 1), device="cuda"),
        "torch_eager_exp": lambda: torch.exp(x),
    }
    if with_compile:
        theirs_one, theirs_eight = torch.compile(one_torch), torch.compile(eight_torch)
        calls |= {
            "torch_compile_one": lambda: theirs_one(x),
            "torch_compile_eight": lambda: theirs_eight(x),
        }
    with torch.no_grad():
        times = measure(calls)
        with config(execution="stream"):
            times |= measure({"eight_as_launches": lambda: ours_eight(x)})
        new_size = new_size_us(fw.fuse(one, device="cuda", dynamic=True))
    return {
        "us_per_call": times,
        "us_of_a_new_size": new_size,
        "kernels": {
            "one": len(ours_one.program(x).launches),
            "eight": len(ours_eight.program(x).launches),
        },
        "method": {"batch": BATCH, "rounds": ROUNDS, "statistic": "least batch mean"},
        "machine": {
            "gpu": torch.cuda.get_device_name(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    print(json.dumps(results(not arguments.no_compile), indent=1))


if __name__ == "__main__":
    main()
