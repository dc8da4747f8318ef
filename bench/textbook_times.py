"""`python -m bench.textbook_times WORD...`: microseconds of programs of the textbook, on a GPU.

The median of graph replays, beside the predicted time, of the programs whose names contain one of
the words.
"""

from __future__ import annotations

import sys

import torch

from bench.predicted import measured_us, predicted_us
from bench.textbook import PROGRAMS


def main(words: list[str]) -> None:
    """Prints the table."""
    print("| program | launches | predicted us | measured us |")
    print("|---|---|---|---|")
    for name, case in PROGRAMS.items():
        if not any(w in name for w in words):
            continue
        program = case.compiled()
        arrays = [_random(t) for t in program.fusion.inputs]
        times = f"{predicted_us(program):.1f} | {measured_us(program, arrays):.1f}"
        print(f"| {name} | {len(program.launches)} | {times} |", flush=True)


def _random(t: object) -> torch.Tensor:
    shape = [int(str(n)) for n in t.shape]
    dtype = getattr(torch, str(t.dtype))
    if dtype.is_floating_point:
        return torch.rand(shape, device="cuda").to(dtype)
    return torch.randint(0, 2, shape, device="cuda").to(dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
