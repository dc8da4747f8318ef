"""Options of the backend: `torch.compile(model, backend="fusewright", options={...})`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from fusewright.errors import UserError

_log = logging.getLogger("fusewright.torch")

_ALLOWED: dict[str, tuple[object, ...]] = {
    "cpu": ("oracle", "sim", "torch"),
    "products": ("auto", "always", "never"),
    "cudagraphs": (False, True),
    "tune": (False, True),
}
_MODES: dict[str | None, dict[str, bool]] = {
    None: {},
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"cudagraphs": True, "tune": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}
"""torch.compile's modes, which mean what they mean for inductor."""

_INDUCTORS = {"triton.cudagraphs": "cudagraphs", "max_autotune": "tune"}
"""Options of inductor that mean the same as one of ours."""


@dataclass(frozen=True, slots=True)
class Options:
    """`cpu`: who computes on host tensors: the numpy "oracle", the simulator ("sim"), or "torch".
    `min_ops`: regions with fewer operators that compute something are left to torch. `target`: what
    code is made for; None: the device at hand. `products`: which matrix products are taken; "auto":
    those that are faster in one kernel with what follows them. `cudagraphs`: whole graphs are
    recorded as CUDA graphs and replayed. `tune`: the candidates of each region are measured in its
    first call, as by `fw.tune`, and the fastest are kept."""

    cpu: Literal["oracle", "sim", "torch"] = "oracle"
    min_ops: int = 2
    target: str | None = None
    products: Literal["auto", "always", "never"] = "auto"
    cudagraphs: bool = False
    tune: bool = False


def options_of(given: Mapping[str, Any] | None, mode: str | None = None) -> Options:
    """Options from a mapping, and from a mode, which the mapping may change. Options of inductor
    mean what they mean there, or nothing. Raises UserError for modes, names and values that do not
    exist."""
    if mode not in _MODES:
        names = [m for m in _MODES if m]
        raise UserError(f"mode={mode!r} of the fusewright backend: use one of {names}")
    names = [f.name for f in fields(Options)]
    wanted: dict[str, Any] = dict(_MODES[mode])
    for name, value in (given or {}).items():
        own = _INDUCTORS.get(name, name)
        if own in names:
            if own in _ALLOWED and value not in _ALLOWED[own]:
                raise UserError(f"option {name}={value!r}: use one of {_ALLOWED[own]}")
            wanted[own] = value
        elif name.replace("-", "_") in importlib.import_module("torch._inductor").list_options():
            _log.info("option %s is inductor's, and means nothing to kernels of fusewright", name)
        else:
            raise UserError(f"option {name!r} of the fusewright backend: use one of {names}")
    return Options(**wanted)
