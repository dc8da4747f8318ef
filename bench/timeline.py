"""`python -m bench.timeline --seeds 9098 [--params TEXT] [--save DIR | --load DIR]`

When the blocks of a kernel begin, come to each synchronisation outside of loops, leave it, and end.

Method: the first thread of every block notes the global clock (of 32 ns) at these places; the
costliest kernel of a draw is compiled with the notes, run several times behind a write of 256 MiB,
and the last run is read. Times are microseconds from the first block's beginning. The notes cost
some tens of nanoseconds each. `--params` asks for other candidates, by a part of their text.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fusewright as fw
from bench.lot.draws import seeds_of
from bench.lot.families import draw
from bench.lot.variants import HIGH, LOW, Variant, variants
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.names import identifier
from fusewright.kernel import Kernel
from fusewright.program import Program

BLOCKS = 1 << 16
SLOTS = 24
RUNS = 5
QUANTILES = (0, 10, 50, 90, 100)
NOTE = f"""
__device__ unsigned long long fw_stamps[{BLOCKS * SLOTS}];
static __device__ __forceinline__ void fw_stamp(int slot) {{
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {{
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (block < {BLOCKS}) fw_stamps[block * {SLOTS} + slot] = now;
  }}
}}
"""


def stamped(source: str) -> tuple[str, list[str]]:
    """The text of a kernel with notes of the clock, and what they stand at."""
    head, entry, body = source.partition('extern "C" __global__')
    signature, opening, rest = body.partition(") {\n")
    places = ["begin"]
    out = ["  fw_stamp(0);"]
    for line in rest.rstrip().splitlines()[:-1]:
        is_outside = line.startswith("  ") and not line.startswith("   ")
        if is_outside and "fw-sync" in line and len(places) < SLOTS - 2:
            name = line.split("//")[-1].split("->")[0].strip(' "').split(":")[0][:24]
            out += [f"  fw_stamp({len(places)});", line, f"  fw_stamp({len(places) + 1});"]
            places += [f"at {name}", "behind"]
        else:
            out.append(line)
    out += [f"  fw_stamp({len(places)});", "}"]
    return head + NOTE + entry + signature + opening + "\n".join(out), [*places, "end"]


def prepare(p: Program) -> tuple[str, list[str]]:
    """Puts notes into the costliest kernel of a program; its name, and the places."""
    kernel = costliest(p)
    source, places = stamped(kernel.cuda)
    name = identifier(kernel.name)
    kernel.adopt(replace(kernel.compiled(), cubin=compile_cubin(source, p.target, name=name).cubin))
    return name, places


def costliest(p: Program) -> Kernel:
    """The kernel that is predicted to take the longest."""
    return max(p.kernels, key=lambda k: k.predicted.us if k.predicted else 0.0)


def run(p: Program, name: str, arrays: list[Any]) -> np.ndarray:
    """The notes of the last of several runs, a row for each block."""
    import torch

    from fusewright.runtime.device import check, driver
    from fusewright.runtime.launch import _library

    dirt = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for _ in range(RUNS):
        dirt.fill_(1)
        p(*arrays)
    torch.cuda.synchronize()
    kernel = next(k for k in p.kernels if identifier(k.name) == name)
    found = driver().cuLibraryGetGlobal(_library(kernel.cubin()), b"fw_stamps")
    address, nbytes = check(found, "cuLibraryGetGlobal")
    host = np.empty(nbytes // 8, np.uint64)
    check(driver().cuMemcpyDtoH(host.ctypes.data, address, nbytes), "cuMemcpyDtoH")
    rows = host.reshape(BLOCKS, SLOTS)
    return rows[rows[:, 0] > 0].astype(np.int64)


def table(notes: np.ndarray, places: list[str]) -> str:
    """Quantiles over the blocks of when they were where, and for how long."""
    at = (notes[:, : len(places)] - notes[:, 0].min()) / 1e3
    took = np.diff(at, axis=1, prepend=at[:, :1])
    head = f"  {len(notes)} blocks" + " " * 20 + "at us: " + " ".join(f"{q:>7}%" for q in QUANTILES)
    lines = [head + "    since: " + " ".join(f"{q:>6}%" for q in QUANTILES)]
    for k, place in enumerate(places):
        when = " ".join(f"{x:8.2f}" for x in np.percentile(at[:, k], QUANTILES))
        long = " ".join(f"{x:7.2f}" for x in np.percentile(took[:, k], QUANTILES))
        lines.append(f"    {place:34s} {when}         {long}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="9098")
    parser.add_argument("--params", default="", help="candidates whose text has this; | between")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    args = parser.parse_args()
    if args.load:
        for row in json.loads((args.load / "index.json").read_text()):
            measure(fw.load(args.load / row["file"]), row)
        return
    rows: list[dict[str, Any]] = []
    for seed in seeds_of(args.seeds):
        for k, (v, p) in enumerate(variants(draw(seed, LOW, HIGH))):
            if (
                v.is_chosen
                if not args.params
                else any(x in v.params for x in args.params.split("|"))
            ):
                row = described(v, p, f"{seed}_{k}.fw")
                rows.append(row)
                if args.save:
                    args.save.mkdir(parents=True, exist_ok=True)
                    p.save(args.save / row["file"])
                else:
                    measure(p, row)
    if args.save:
        (args.save / "index.json").write_text(json.dumps(rows))


def described(v: Variant, p: Program, file: str) -> dict[str, Any]:
    """What is kept of a program beside its file."""
    name, places = prepare(p)
    return {"file": file, "seed": v.seed, "params": v.params, "name": name, "places": places}


def measure(p: Program, row: dict[str, Any]) -> None:
    """Prints the table of one program."""
    from bench.lot.measure import make_arrays

    notes = run(p, row["name"], list(make_arrays(draw(row["seed"], LOW, HIGH), "cuda")))
    print(row["seed"], row["params"])
    print(table(notes, row["places"]), flush=True)


if __name__ == "__main__":
    main()
