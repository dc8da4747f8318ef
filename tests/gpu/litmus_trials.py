"""A million trials of every litmus kernel: `python tests/gpu/litmus_trials.py --out FILE.json`.

Method: one trial is a block, or a cluster of blocks, with its own elements of x and y, drawn anew
for each launch so that no stale byte looks right; all its warps spin for random times before the
access in question. With its syncs a kernel must give the elements of x that the machine model
gives, in every trial; without those that the row names it is recorded how often it does not. What
may hang the device without them runs with them only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from litmus_kernels import (
    ELEMENTS,
    LITMUS,
    Litmus,
    Loose,
    sources,
    trial_kernel,
    trial_text,
)

from fusewright.cuda.compile import compile_cubin
from fusewright.errors import UnsupportedError
from fusewright.runtime import device
from fusewright.runtime.launch import LoadedKernel, launch_of
from fusewright.target import target_of

SIDE_BY_SIDE = 1024
"""Trials of one launch."""


def failures(litmus: Litmus, trials: int, *, whole: bool) -> int:
    """How many trials give a wrong element. A kernel that may hang is not to be run but whole."""
    assert whole or litmus.loose is not Loose.MAY_HANG
    target = target_of(device.architecture())
    kernel = trial_kernel(litmus, SIDE_BY_SIDE, whole=whole)
    text = trial_text(litmus, kernel, target)
    loaded = LoadedKernel(compile_cubin(text, target, name=kernel.name).cubin, kernel)
    launch = launch_of(kernel, {})
    found = torch.from_numpy(sources(litmus)).cuda()
    written = torch.nonzero(found >= 0)[:, 0]
    wanted = found[written]
    y = torch.zeros((SIDE_BY_SIDE, ELEMENTS), device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(-(-trials // SIDE_BY_SIDE)):
        x = torch.rand((SIDE_BY_SIDE, ELEMENTS), device="cuda")
        y.fill_(-1)
        stream = torch.cuda.current_stream().cuda_stream
        loaded.launch([x.data_ptr(), y.data_ptr()], launch, stream=stream)
        wrong += (y[:, written] != x[:, wanted]).any(dim=1).sum()
    return int(wrong)


def run(trials: int, only: str) -> list[dict[str, object]]:
    """One row for each litmus kernel that the device has the instructions for."""
    rows: list[dict[str, object]] = []
    for litmus in LITMUS:
        if only not in litmus.name:
            continue
        start = time.perf_counter()
        row: dict[str, object] = {"sync": litmus.name, "dropped": litmus.drop}
        try:
            row["with"] = failures(litmus, trials, whole=True)
            if litmus.loose is Loose.MAY_HANG:
                row["without"] = litmus.loose.value
            else:
                row["without"] = failures(litmus, trials, whole=False)
        except UnsupportedError as error:
            row["unsupported"] = str(error)
        row["seconds"] = round(time.perf_counter() - start, 2)
        print(row, flush=True)
        rows.append(row)
    return rows


def main(arguments: Sequence[str]) -> int:
    """Returns 1 when a kernel with all its syncs failed a trial."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    rows = run(given.trials, given.only)
    if given.out is not None:
        report = {
            "date": datetime.date.today().isoformat(),
            "method": " ".join((__doc__ or "").split()),
            "gpu": torch.cuda.get_device_name(),
            "trials": given.trials,
            "rows": rows,
        }
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(row.get("with") for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
