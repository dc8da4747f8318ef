"""What a trip of the loop over k takes in machine code, besides its matrix instructions."""

from __future__ import annotations

import pytest

import fusewright as fw
from fusewright.cuda.listing import instructions

pytest.importorskip("cuda.bindings.nvrtc")


def _operations(m: int, n: int, k: int) -> tuple[list[str], list[tuple[int, int]]]:
    """The operations of a product's kernel, and from where to where its loops go."""
    specs = [fw.TensorSpec((m, k), "bfloat16"), fw.TensorSpec((n, k), "bfloat16")]
    kernel = fw.compile(fw.trace(lambda x, w: fw.matmul(x, w.T), *specs)).kernels[0]
    code = instructions(kernel.sass())
    places = {label: i for i, x in enumerate(code) for label in x.labels}
    jumps = [(places.get(x.target, i + 1), i) for i, x in enumerate(code) if x.operation == "BRA"]
    return [x.operation for x in code], [(head, i) for head, i in jumps if head <= i]


def _per(of: str, without: str, found: tuple[list[str], list[tuple[int, int]]]) -> float:
    """Instructions of a loop for each one of a kind: of those without another kind the loop with
    the most, and of these the shortest."""
    operations, loops = found
    bodies = [operations[head : i + 1] for head, i in loops]
    counts = [(-b.count(of), len(b)) for b in bodies if of in b and without not in b]
    most, length = min(counts)
    return length / -most


@pytest.mark.parametrize(
    ("sizes", "math", "load"),
    [
        pytest.param((16, 4096, 4096), 7.5, 10.8, id="8 stages"),
        pytest.param((256, 256, 131072), 13.1, 19.3, id="7 stages"),
        pytest.param((4096, 4096, 4096), 10.9, 11.4, id="4 stages"),
    ],
)
def test_slots_of_a_ring_are_literals(
    sizes: tuple[int, int, int], math: float, load: float
) -> None:
    """Four trips written out of rings of 8 and 7 stages took 14.3 and 20.1 instructions for each
    matrix instruction, and 19.0 and 23.3 for each box: a remainder for every slot."""
    found = _operations(*sizes)
    assert _per("HGMMA", "UTMALDG", found) <= 1.05 * math
    assert _per("UTMALDG", "HGMMA", found) <= 1.05 * load
