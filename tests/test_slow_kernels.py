"""No kernel of models in plain torch, at sizes whose bytes count, is predicted to take a multiple
of the time of its bytes; and one that does is named."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bench import slow_kernels as room  # noqa: E402
from bench.slow_kernels import Slow, found_in, report  # noqa: E402
from bench.zoo import architectures  # noqa: E402

PLAIN = {a.name: a for a in architectures(packages="plain")}
QUICK = ("plain-decoder", "plain-experts")
OTHERS = ("plain-residual", "plain-windows")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)]
)
def test_no_kernel_takes_a_multiple_of_its_bytes(name: str) -> None:
    found = found_in(PLAIN[name], (4, 256), train=True, target="sm_90a")
    assert [s.line() for s in found] == []


def test_what_takes_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("TIMES", "REGION_TIMES", "LAUNCH_US"):
        monkeypatch.setattr(room, limit, 0.25)
    found = found_in(PLAIN["plain-windows"], (1, 16), train=False, target="sm_90a")
    assert {s.side for s in found} == {"inference"}
    kernels = [s for s in found if "launches" not in s.what]
    assert kernels and all(s.us > 0.25 * s.bytes_us for s in kernels)
    assert any(", 1 launches" in s.what for s in found)
    assert all(s.operators for s in found)


def test_what_loses_most_comes_first() -> None:
    once, often = (Slow("fw_x", "forward", n, 9.0, 4.0, "add") for n in (1, 12))
    lines: list[str] = []
    report([once, often], lines.append)
    assert lines == [
        "  forward fw_x: 9.0 us for 4.0 of bytes, 12 times: add",
        "  forward fw_x: 9.0 us for 4.0 of bytes, 1 times: add",
    ]
