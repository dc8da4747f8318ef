"""Parts of the memory pipeline switched off: what each buys; the kernel is right without any."""

from __future__ import annotations

import pytest
from sync_kernels import kernel, outline

from fusewright.errors import UserError
from fusewright.kir.analysis.accesses import shared_allocs
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.analysis.ownership import shared_nbytes
from fusewright.kir.ir import Kernel
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.target import target_of

TARGET = target_of("sm_90a")
ALL = """shared a: float32[128] promote
shared b: float32[128]
shared c: float32[128]
shared d: float32[128]
for (i < 2) { store a[tx + 64*i] = r[0] }
for (i < 2) { r[0] = load a[127 - tx - 64*i] }
for (i < 2) { store b[tx + 64*i] = r[0] }
for (i < 2) {
  r[0] = load b[tx + 64*i]
  store c[tx + 64*i] = r[0]
}
block_sync #7
for (i < 2) {
  r[0] = load c[tx + 64*i]
  store d[tx + 64*i] = r[0]
}
for (i < 2) {
  r[0] = load d[tx + 64*i]
  store y[tx + 64*i] = r[0]
}"""


def total(k: Kernel) -> int:
    return max((a.offset or 0) + shared_nbytes(a.buffer) for _, a in shared_allocs(k))


@pytest.mark.parametrize(
    ("without", "nbytes", "order"),
    [
        ("", 512, "(s)B(l)B(s)(ls)(ls)(ls)"),
        ("promotion", 1020, "(s)B(l)(s)(ls)B(ls)(ls)"),
        ("in_place", 1024, "(s)B(l)B(s)(ls)(ls)(ls)"),
        ("pruning", 512, "(s)B(l)B(s)(ls)B(ls)(ls)"),
        ("scopes", 2048, "(s)B(l)(s)(ls)(ls)(ls)"),
        ("promotion,pruning,scopes", 2048, "(s)B(l)(s)(ls)B(ls)(ls)"),
    ],
)
def test_what_each_part_buys(without: str, nbytes: int, order: str) -> None:
    k = run_pipeline(kernel(ALL), TARGET, PipelineOptions(spec=2, without=without))
    assert (total(k), outline(k)) == (nbytes, order)
    assert not unordered(k)


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(
        UserError, match="FUSEWRIGHT_WITHOUT='prune': use scopes, in_place, counting, promo"
    ):
        run_pipeline(kernel(ALL), TARGET, PipelineOptions(without="prune"))


def test_the_switches_are_a_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_WITHOUT", "scopes")
    assert PipelineOptions().without == "scopes"
