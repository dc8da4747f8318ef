"""What each step of the host program buys is counted as the steps are defined."""

from __future__ import annotations

from bench.host_steps import rows_of


def test_joins_along_columns_need_boxes() -> None:
    """Pieces side by side share a root, and their hulls meet; their bytes do not."""
    rows = rows_of("four softmaxes, columns")
    assert [r.step for r in rows] == ["b1", "b2", "b3", "b4", "b5", "b6", "b7"]
    assert [r.copies for r in rows] == [1, 0, 0, 0, 0, 0, 0]
    assert [r.edges for r in rows] == [1, 3, 0, 3, 0, 0, 0]
    assert [r.path for r in rows] == [2, 4, 1, 4, 1, 1, 1]
    assert 1.99 < rows[0].mb / rows[1].mb < 2.01


def test_a_branch_beside_a_long_launch_needs_a_graph_and_no_waves() -> None:
    rows = {r.step: r for r in rows_of("three launches beside one")}
    assert rows["b5"].path == rows["b6"].path == 3
    assert rows["b6"].us < 0.7 * rows["b5"].us


def test_branches_need_memory_of_their_own() -> None:
    rows = {r.step: r for r in rows_of("four branches")}
    assert rows["b7"].path < rows["b6"].path
    assert rows["b7"].launches == rows["b6"].launches
