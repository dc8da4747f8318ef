"""A pytest plugin: what an array of known data is asked for is computed by simulated kernels.

    pytest -p tools.array_api_kernels ...

Without it the array namespace computes with the oracle. Complex numbers, sorts and sets, which no
kernel computes, still go there. A race in a kernel, or a read of what nobody wrote, is an error.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import array, ir
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.printing import print_fusion

MAX_PROGRAMS = 4096
_programs: OrderedDict[str, fw.Program] = OrderedDict()
counts = {"simulated": 0, "compiled": 0, "oracle": 0}


def computed(
    fusion: ir.Fusion, *data: np.ndarray[Any, Any], checked: bool = False
) -> list[np.ndarray[Any, Any]]:
    """The outputs as the simulated kernels of the compiled fusion make them, where no index is
    checked."""
    if any(t.dtype.is_complex for t in fusion.values):
        counts["oracle"] += 1
        return evaluate(fusion, *data)
    program = _compiled(as_program(fusion))
    counts["simulated"] += 1
    result = program.simulate(*data)
    if result.races:
        raise AssertionError(f"{len(result.races)} races, the first: {result.races[0]}")
    return [np.array(a) for a in result.outputs]


def as_program(fusion: ir.Fusion) -> ir.Fusion:
    """The fusion with named values, and arguments in the place of known data."""
    made: dict[ir.Tensor, ir.Tensor] = {}
    for k, t in enumerate(fusion.values):
        op = ir.with_operands(t.op, tuple(made[o] for o in t.op.operands))
        if isinstance(t, array.Known):
            op = replace(op, position=fusion.inputs.index(t))
        made[t] = ir.Tensor(f"v{k}", t.shape, t.dtype, op)
    inputs, outputs, values = (
        tuple(made[t] for t in of) for of in (fusion.inputs, fusion.outputs, fusion.values)
    )
    return ir.Fusion(inputs, outputs, values)


def _compiled(fusion: ir.Fusion) -> fw.Program:
    text = print_fusion(fusion)
    if text not in _programs:
        counts["compiled"] += 1
        _programs[text] = fw.compile(fusion)
        if len(_programs) > MAX_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(text)
    return _programs[text]


def install(patch: pytest.MonkeyPatch) -> None:
    """Has every value that is not at hand computed by kernels, rank 0 included."""
    patch.setattr(array, "evaluate", computed)
    patch.setattr(array, "_number", lambda x: None if isinstance(x, array.Array) else x)


def pytest_configure(config: pytest.Config) -> None:
    patch = pytest.MonkeyPatch()
    install(patch)
    config.add_cleanup(patch.undo)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(", ".join(f"{k} {n}" for k, n in counts.items()))
