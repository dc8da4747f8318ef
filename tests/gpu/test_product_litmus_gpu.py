"""Litmus kernels of products and of blocks that hand over, on a device, warps delayed at random.

With its syncs a kernel gives every element in every trial. Broken as its row says, it gives wrong
ones where hardware can show that. What may hang runs with its syncs only.
"""

from __future__ import annotations

import numpy as np
import pytest
from product_litmus import LITMUS, Litmus, Loose, operands

from fusewright.cuda.compile import compile_cubin
from fusewright.runtime import device
from fusewright.runtime.launch import LoadedKernel, launch_of
from fusewright.runtime.tensor_maps import encoded, shape_of
from fusewright.target import target_of

torch = pytest.importorskip("torch")

SIDE_BY_SIDE = 256
"""Trials of one launch."""
PASSES = 2
"""Launches on the same semaphores: what one leaves in them, the next begins with."""


def _on_device(array: np.ndarray) -> torch.Tensor:
    raw = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
    return raw.cuda()


def failures(litmus: Litmus, trials: int, *, whole: bool) -> int:
    """How many trials give a wrong element. A kernel that may hang is not to be run but whole."""
    assert whole or litmus.loose is not Loose.MAY_HANG
    target = target_of(device.architecture())
    kernel = litmus.kernel(SIDE_BY_SIDE, whole=whole)
    code = compile_cubin(litmus.cuda(kernel, target), target, name=kernel.name).cubin
    loaded, launch = LoadedKernel(code, kernel), launch_of(kernel, {})
    (y_of,) = (p for p in kernel.arrays if p.name == "y")
    others = [p for p in kernel.arrays if p is not y_of]
    own = (*kernel.semaphores, *kernel.scratch)
    memory = {b: _on_device(np.zeros(int(str(b.size)), b.dtype.numpy)) for b in own}
    memory[y_of] = torch.empty(int(str(y_of.size)) * 4, dtype=torch.uint8, device="cuda")
    wrong = 0
    for seed in range(-(-trials // (PASSES * SIDE_BY_SIDE))):
        x, *w = arrays = operands(kernel, seed)
        memory |= {p: _on_device(a) for p, a in zip(others, arrays, strict=True)}
        wanted = torch.from_numpy(litmus.wanted(x, w[0] if w else x)).float().cuda()
        for b in kernel.semaphores:
            memory[b].zero_()
        for _ in range(PASSES):
            memory[y_of].view(torch.float32).fill_(-1)
            for b in kernel.scratch:
                memory[b].fill_(0xFF)
            address = {b: t.data_ptr() for b, t in memory.items()}
            values = [address[b] for b in kernel.params]
            values += [encoded(address[m.buffer], shape_of(m, {})) for m in kernel.maps]
            loaded.launch(values, launch, stream=torch.cuda.current_stream().cuda_stream)
            found = memory[y_of].view(torch.float32)
            found = found.reshape(SIDE_BY_SIDE, -1)
            wrong += int((found != wanted.reshape(-1, found.shape[1])).any(dim=1).sum())
    return wrong


@pytest.mark.parametrize("litmus", LITMUS, ids=lambda c: c.name)
def test_with_its_syncs_every_trial_is_right(litmus: Litmus) -> None:
    assert failures(litmus, 8 * PASSES * SIDE_BY_SIDE, whole=True) == 0


FAILING = [c for c in LITMUS if c.loose is Loose.FAILS]


@pytest.mark.parametrize("litmus", FAILING, ids=lambda c: c.name)
def test_broken_as_the_row_says_some_trial_is_wrong(litmus: Litmus) -> None:
    assert failures(litmus, 16 * PASSES * SIDE_BY_SIDE, whole=False) > 0


MAYBE = [c for c in LITMUS if c.loose is Loose.MAY_FAIL]


@pytest.mark.parametrize("litmus", MAYBE, ids=lambda c: c.name)
def test_what_hardware_may_hide_is_counted(litmus: Litmus, record_property) -> None:
    """It comes to an end; how often it was wrong is on record, and says nothing either way."""
    trials = 16 * PASSES * SIDE_BY_SIDE
    count = failures(litmus, trials, whole=False)
    record_property("wrong", count)
    print(f"{litmus.name}: wrong in {count} of {trials}")
    if litmus.injected:
        assert count == 0, "ptxas put the missing instruction in"
