"""Products with late warps, without a device: they build, and the delays change nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

from delayed_products import DELAYED_PROGRAMS, DelayedProgram
from litmus_kernels import RANDOM_SPIN, with_spins_at_syncs

from fusewright.cuda.emit import emit

QUICK = (
    "TN", "gated", "3 stages, 2 blocks", "slices", "column sum, tma, 3", "product, slices, 3",
    "column sum, arrival, 3",
)  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=() if str(c) in QUICK else pytest.mark.slow, id=str(c))
        for c in DELAYED_PROGRAMS
    ],
)
def test_late_warps_change_no_product(case: DelayedProgram) -> None:
    """No message of ptxas says that products are taken one by one, which would hide a fault."""
    for k in case.delayed("sm_90a").kernels:
        plain = emit(k.ir, k.target)
        late = with_spins_at_syncs(plain)
        assert late.replace(f"{RANDOM_SPIN}\n", "") == plain
        waits = len(re.findall("mbarrier.try_wait|ld.acquire", plain))
        assert late.count(RANDOM_SPIN) >= waits
        assert ("mma_" in k.cuda) <= (waits > 0)
        compiled = k.compiled()
        assert compiled.cubin and not re.findall(r"C75\d\d", compiled.log)


def test_the_corpus_has_every_kind_of_product() -> None:
    names = {str(c) for c in DELAYED_PROGRAMS}
    assert {*QUICK, "NN", "odd sizes", "halves", "batched", "column sum, vector, 3"} <= names
