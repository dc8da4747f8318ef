"""Which threads touch which cells."""

from __future__ import annotations

import numpy as np
import pytest
from sync_kernels import kernel

from fusewright.core.expr import Var
from fusewright.dtypes import float32
from fusewright.errors import InternalError
from fusewright.kir.analysis.ownership import contested, shared_nbytes, spaces
from fusewright.kir.ir import Buffer
from fusewright.memory import Memory


def test_cells_are_the_largest_pieces_no_access_splits() -> None:
    wide = "shared s: float32[256]\nstore s[4*tx] = r[0..4]\nr[0..4] = load s[4*tx]"
    assert spaces(kernel(wide))[0].cell_nbytes == 16
    assert spaces(kernel(wide + "\nt[0] = load s[tx]"))[0].cell_nbytes == 4


def test_rows_hold_the_smallest_and_the_largest_thread() -> None:
    k = kernel("shared s: float32[64]\nr[0] = load s[tx // 4]")
    rows = spaces(k)[0].footprints[0]
    assert rows.cells is not None and rows.cells.tolist() == list(range(16))
    assert rows.first.tolist() == list(range(0, 64, 4))
    assert rows.last.tolist() == list(range(3, 64, 4))


def test_rows_name_only_loops_they_depend_on() -> None:
    k = kernel(
        "shared s: float32[128]\nfor (i < 3) {\nfor (j < 2) {\nstore s[64*j + tx] = r[0]\n}\n}"
    )
    rows = spaces(k)[0].footprints[0]
    assert rows.loops == (1,)
    assert sorted(set(rows.coords[0].tolist())) == [0, 1]


def test_private_cells_are_not_contested() -> None:
    k = kernel(
        "shared s: float32[64]\nstore s[tx] = r[0]\nr[0] = load s[tx]\nt[0] = load s[tx // 32]"
    )
    left = contested(spaces(k)[0].footprints)
    touched = [f.cells.tolist() for f in left if f.cells is not None]
    assert touched == [[0, 1], [0, 1], [0, 1]]


def test_nothing_is_contested_that_nobody_writes() -> None:
    k = kernel("shared s: float32[64]\nr[0] = load s[tx]\nr[0] = load s[0]")
    assert contested(spaces(k)[0].footprints) == ()


def test_packed_buffers_share_a_space_and_others_do_not() -> None:
    body = "store s[tx] = r[0]\nstore u[tx] = r[0]"
    packed = "shared s: float32[64] offset 0\nshared u: float32[64] offset 256\n"
    loose = "shared s: float32[64]\nshared u: float32[64]\n"
    assert [s.name for s in spaces(kernel(packed + body))] == ["shared memory"]
    assert [s.name for s in spaces(kernel(loose + body))] == ["s", "u"]


def test_an_unknown_address_is_the_whole_buffer() -> None:
    k = kernel("shared s: float32[64]\nstore s[g[0]] = r[0]")
    space = spaces(k)[0]
    rows = space.footprints[0]
    assert rows.cells is not None and space.edges.tolist() == [0, 256]
    assert np.array_equal(rows.cells, [0])
    assert not rows.is_exact and set(rows.last.tolist()) == {63}


def test_the_size_of_shared_memory_must_be_constant() -> None:
    b = Buffer("s", float32, Var("n", 1, 64), Memory.SHARED)
    with pytest.raises(InternalError, match="shared buffer s has n elements, which is not const"):
        shared_nbytes(b)
