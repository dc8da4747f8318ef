"""A host program that breaks an invariant is refused, simulated with findings, and verified as
missing something: each invariant with a program that breaks that one alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import Int
from fusewright.errors import InternalError
from fusewright.host.assemble import HostProgram
from fusewright.host.invariants import check_host, problems
from fusewright.host.ir import Binding, RootKind

S = fw.TensorSpec
X = S((24, 40), "float32")


def soft(x):
    return fw.nn.softmax(x, axis=-1)


def joined(x, y):
    """Two kernels write a join, others read its halves."""
    c = fw.concat([soft(x), soft(y)], axis=1)
    return c, fw.cumulative_sum(c[:, :40], axis=0), fw.cumulative_prod(c[:, 40:], axis=0)


def compiled(fn=joined, *specs: fw.TensorSpec) -> fw.Program:
    return fw.compile(fw.trace(fn, *(specs or (X, X))))


def arrays(p: fw.Program) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((24, 40)).astype(np.float32) for _ in p.fusion.inputs]


def without_launch(p: fw.Program, k: int) -> fw.Program:
    return replace(p, launches=tuple(x for i, x in enumerate(p.launches) if i != k))


def kinds(host: HostProgram) -> set[str]:
    return {p.kind for p in problems(host)}


def test_compiled_programs_hold_them() -> None:
    assert problems(compiled().host) == []


@pytest.mark.parametrize("k", range(2))
def test_a_piece_that_nobody_writes(k: int) -> None:
    whole = compiled()
    p = without_launch(whole, k)
    with pytest.raises(InternalError, match="write all but 3840 bytes of"):
        _ = p.host
    report = fw.verify(p)
    assert {r.kind for r in report.missing} == {"uninitialised"} and not report.ok
    found = p.simulate(*arrays(p)).races
    assert {r.kind for r in found} == {"uninitialised"}
    assert "reads 960 elements of" in found[0].message and "that nobody wrote" in found[0].message
    assert "the first at (0, 0) of shape (24, 40)" in found[0].message
    assert fw.verify(whole).ok and whole.simulate(*arrays(whole)).races == []


def test_a_result_that_nobody_writes() -> None:
    p = compiled(lambda x, y: fw.concat([soft(x), soft(y)], axis=0))
    p = without_launch(p, 0)
    found = p.simulate(*arrays(p))
    assert [r.message.split(",")[0] for r in found.races] == [
        f"the program returns 960 elements of {p.fusion.outputs[0].name}"
    ]
    assert np.isnan(found.outputs[0][:24]).all() and not np.isnan(found.outputs[0][24:]).any()
    assert kinds(p.assembled) == {"unwritten"}


def test_a_piece_that_is_written_twice() -> None:
    p = compiled()
    again = replace(p, launches=(p.launches[0], *p.launches))
    with pytest.raises(InternalError, match=r"writes bytes of .* that #0 .* writes"):
        _ = again.host
    assert next(r.kind for r in fw.verify(again).missing) == "race"


def test_two_results_of_a_launch_in_one_place() -> None:
    host = compiled(lambda x, y: (soft(x), x - fw.max(x, axis=-1, keepdims=True))).host
    (x,) = host.launches
    first, second = [b for b in x.bindings if b.access.writes]
    bindings = tuple(first if b is second else b for b in x.bindings)
    wrong = replace(host, launches=(replace(x, bindings=bindings),))
    assert any("by two of its results" in p.message for p in problems(wrong))


def test_a_reader_before_its_writer() -> None:
    p = compiled()
    turned = replace(p, launches=(*p.launches[2:], *p.launches[:2]))
    with pytest.raises(InternalError, match=r"bytes of t.* that hold nothing yet"):
        _ = turned.host
    assert {r.kind for r in turned.simulate(*arrays(p)).races} == {"uninitialised"}


def test_a_missing_edge() -> None:
    p = compiled()
    host = p.host
    assert host.edges
    for e in host.edges:
        rest = replace(host, edges=tuple(x for x in host.edges if x is not e))
        assert "order" in kinds(rest)
        with pytest.raises(InternalError, match="does not wait for"):
            check_host(rest)


def test_values_that_share_bytes_of_the_arena_while_in_use() -> None:
    """All of the arena moved to its beginning: the joins of two pairs lie in each other."""

    def whole(x, y):
        return fw.cumulative_sum(fw.concat([soft(x), soft(y)], axis=1), axis=0)

    def two(x, y):
        return whole(x, y), whole(x * 2.0, y * 2.0)

    host = compiled(two).host

    def moved(b: Binding) -> Binding:
        return replace(b, offset=Int(0)) if b.root.kind is RootKind.ARENA else b

    launches = tuple(replace(x, bindings=tuple(map(moved, x.bindings))) for x in host.launches)
    found = problems(replace(host, launches=launches))
    assert any("share bytes of the arena while both are in use" in p.message for p in found)


def test_symbolic_programs_are_checked_as_far_as_sizes_tell() -> None:
    p = compiled(joined, S(("n", 40), "float32"), S(("n", 40), "float32"))
    assert problems(p.host) == []
    assert "order" in kinds(replace(p.host, edges=()))


def test_columns_of_symbolic_rows_are_apart_also_in_a_flat_result() -> None:
    """One value written into each half of every row, whose number nobody knows."""
    p = compiled(
        lambda x: fw.reshape(fw.concat([soft(x)] * 2, axis=1), (-1,)), S(("n", 40), "float32")
    )
    assert problems(p.host) == []
    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    (out,), want = p(x, device="sim"), fw.evaluate(p.fusion, x)[0]
    np.testing.assert_allclose(out, want, rtol=1e-5)


def test_results_in_the_memory_of_arguments_keep_what_nobody_writes() -> None:
    fusion = fw.trace(lambda x, y: fw.insert(x, soft(y), (0, 0)), X, S((8, 40), "float32"))
    p = fw.compile(fusion, donate=(fusion.inputs[0].name,))
    assert problems(p.host) == []
    given = [np.zeros((24, 40), np.float32), np.zeros((8, 40), np.float32)]
    assert p.simulate(*given).races == []


def test_a_kernel_that_leaves_a_part_of_its_result_unwritten() -> None:
    """The simulator counts what threads store, not what kernels are said to write."""
    p = compiled(lambda x, y: x + y)
    (launch,) = p.launches
    result = launch.kernel.simulate(*arrays(p), blocks=[0])
    assert not result.written[0].all() and result.written[0].any()
    assert launch.kernel.simulate(*arrays(p)).written[0].all()


def test_schedules_by_hand_store_each_output_by_itself() -> None:
    """A value that is returned twice, and an argument that is: memory of their own for all."""
    fusion = fw.trace(lambda x: [e := fw.exp(x), e, x, x], X)
    p = fw.compile(fw.Schedule(fusion))
    names = [v.name for v in p.host.values]
    assert len(set(names)) == 4 and problems(p.host) == []
    reads = [b.root.kind for x in p.host.launches for b in x.bindings if b.access.reads]
    assert reads == [RootKind.INPUT]
    (x, _) = arrays(compiled())
    for got, want in zip(p.simulate(x).outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_result_of_rank_zero_has_a_box_of_no_axes() -> None:
    def fn(x):
        m = fw.mean(x, axis=0, keepdims=True)
        pieces = fw.pad(fw.repeat(m, 3)[:2], ((1, 0),))
        return pieces, fw.max(m, axis=0, keepdims=True)

    x = np.arange(12, dtype=np.float32)
    fusion = fw.trace(fn, fw.TensorSpec((12,), "float32"))
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_array_equal(got, want)
