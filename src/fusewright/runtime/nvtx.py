"""NVTX ranges around launches, for profilers; switched on by FUSEWRIGHT_NVTX."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusewright import knobs
from fusewright.errors import UserError


@dataclass(frozen=True, slots=True)
class Ranges:
    """The functions that open and close a named range."""

    push: Callable[[str], Any]
    pop: Callable[[], Any]


def ranges() -> Ranges | None:
    """How to mark ranges; None when the knob is off.

    Raises UserError when it is on and neither torch nor the nvtx package is there to do it.
    """
    if not knobs.NVTX.get():
        return None
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        return Ranges(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError as e:
        raise UserError(
            f"{knobs.NVTX.name}=1 needs torch or the nvtx package ({e}); pip install nvtx, or "
            "unset it"
        ) from e
    return Ranges(nvtx.push_range, nvtx.pop_range)
