"""An argument that is returned is copied: no result shares memory with an argument."""

from __future__ import annotations

import numpy as np

import fusewright as fw
from fusewright.fusion.ir import Input
from fusewright.fusion.passes.own_outputs import own_outputs


def test_returned_arguments_are_copied_once() -> None:
    fusion = fw.trace(lambda x: (x * 2, x, x), fw.TensorSpec((5,), "float32"))
    owned = own_outputs(fusion)
    assert not any(isinstance(t.op, Input) for t in owned.outputs)
    assert owned.outputs[1] is owned.outputs[2]
    assert own_outputs(owned) is owned


def test_no_result_lies_in_an_argument() -> None:
    program = fw.compile(fw.trace(lambda x: (x * 2, fw.sum(x)), fw.TensorSpec((), "float32")))
    x = np.float32(3.0) * np.ones((), np.float32)
    doubled, total = program.simulate(x).outputs
    assert (doubled, total) == (6.0, 3.0)
    written = {b.root for x in program.host.launches for b in x.bindings if "W" in b.access.name}
    assert all(r.kind.name != "INPUT" for r in written)
