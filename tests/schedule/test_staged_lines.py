"""Lines that are gathered along, or stand across, through shared memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.fusion.ir import Input
from fusewright.kernel import Kernel
from fusewright.schedule.edits import calls_of
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate, Refused
from fusewright.schedule.heuristics.passes import PassedSchedule
from fusewright.target import target_of

T = fw.TensorSpec
TARGET = target_of("sm_90a")
SMALL = replace(TARGET, multiprocessors=1)
"""A chip that few lines fill."""

CASES: dict[str, tuple[Callable[..., Any], tuple[fw.TensorSpec, ...]]] = {
    "columns": (
        lambda x, i: fw.take(x, i, axis=1, mode="fill") * 2,
        (T((32, 4096), "bfloat16"), T((4096,), "int64")),
    ),
    "columns of odd rows": (
        lambda x, i: fw.take(x, i, axis=1, mode="fill"),
        (T((61, 821), "float32"), T((333,), "int32")),
    ),
    "short axis behind": (
        lambda x, i: fw.take(x, i, axis=1, mode="fill") + 1,
        (T((61, 121, 3), "float16"), T((77,), "int32")),
    ),
    "places that no vector divides": (
        lambda x, i: fw.abs(fw.take(x, i, axis=1, mode="fill")),
        (T((7, 3001), "float32"), T((2713,), "int32")),
    ),
    "lines that fill a multiprocessor": (
        lambda x, i: fw.take(x, i, axis=1, mode="fill") * 2,
        (T((3, 33001), "float32"), T((5000,), "int32")),
    ),
    "long lines in vectors": (
        lambda x, i: fw.take(x, i, axis=1, mode="fill"),
        (T((3, 65536), "float16"), T((4096,), "int64")),
    ),
    "elements": (
        lambda x, i: fw.take_along_axis(x, i, axis=1),
        (T((64, 541), "bfloat16"), T((64, 135), "int64")),
    ),
    "turned": (
        lambda x: fw.exp(fw.permute_dims(x, (1, 0)) * 0.01),
        (T((243, 1024), "bfloat16"),),
    ),
    "turned planes beside others": (
        lambda x, y: fw.permute_dims(x, (0, 2, 1)) + y,
        (T((6, 77, 512), "float32"), T((6, 512, 77), "float32")),
    ),
    "turned and copied": (lambda x: fw.permute_dims(x, (1, 0)), (T((11, 8192), "int16"),)),
    "turned by its strides": (
        lambda x: fw.exp(x * 0.01),
        (T((1024, 243), "bfloat16", strides=(1, 1024)),),
    ),
    "turned and flipped": (
        lambda x: fw.flip(x, axis=0) * 2,
        (T((1024, 243), "float16", strides=(1, 1024)),),
    ),
    "turned and flipped along lines": (
        lambda x: abs(fw.flip(x, axis=1)),
        (T((512, 77), "float32", strides=(1, 512)),),
    ),
    "odd columns, flipped and stored": (
        lambda x: fw.flip(x, axis=0),
        (T((1023, 11), "bfloat16", strides=(1, 1023)),),
    ),
    "two tables": (
        lambda x, y, i: fw.take(x, i, axis=1, mode="fill") - fw.take(y, i, axis=1, mode="fill"),
        (T((64, 300), "float32"), T((64, 200), "float32"), T((256,), "int32")),
    ),
}


def fusion_of(name: str) -> fw.Fusion:
    f, specs = CASES[name]
    return prepare(fw.trace(f, *specs), TARGET)


def listed(fusion: fw.Fusion) -> list[Candidate[Any] | Refused]:
    found = candidates_of(Dataflow(fusion), SMALL)
    return [c for c in found if re.search("lines? through shared memory", c.what)]


def kernels_of(fusion: fw.Fusion) -> list[Kernel]:
    """The kernels by all candidates that stage lines."""
    made: list[Kernel] = []
    for c in listed(fusion):
        assert isinstance(c, Candidate)
        flow = Dataflow(fusion)
        schedule_group(flow, SMALL, c.params)
        made.append(finish(flow, "k", TARGET, c.params))
    return made


def arrays_of(fusion: fw.Fusion) -> list[Any]:
    """Integers, of which those that are places are also negative, and also none of the axis."""
    rng = np.random.default_rng(0)
    made: list[Any] = []
    for t in fusion.inputs:
        low = -400 if t.dtype.name.startswith("int") else 0
        x = rng.integers(low, 400, [int(str(n)) for n in t.shape]).astype(t.dtype.numpy)
        assert isinstance(t.op, Input)
        is_turned = len(x.shape) > 1 and str(t.op.strides[0]) == "1"
        made.append(np.asfortranarray(x) if is_turned else x)
    return made


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    fusion = fusion_of(name)
    arrays = arrays_of(fusion)
    wanted = fw.evaluate(fusion, *arrays)
    kernels = kernels_of(fusion)
    assert kernels
    for k in kernels:
        found = k.simulate(*arrays)
        assert not found.races
        for got, want in zip(found.outputs, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(want, np.float64))


def test_lines_come_in_vectors_and_once() -> None:
    """Of columns at random places each sector is asked for once, by vectors of 16 bytes."""
    fusion = fusion_of("columns")
    for k in kernels_of(fusion):
        loads = [x for x in str(k.ir).splitlines() if " load " in x and " x[" in x]
        assert loads and all("8" in x for x in loads)


def test_threads_with_a_place_of_several_lines_load_its_index_once() -> None:
    across = [
        k
        for k in kernels_of(fusion_of("columns"))
        if k.heuristic is not None and "across" in dict(k.heuristic.values)
    ]
    assert across
    for k in across:
        text = str(k.ir)
        assert text.count(" = load i[") == 4  # 8 indices of 8 bytes
        assert text.count("store t3[") == dict(k.heuristic.values)["lines"]


def test_lines_that_stand_across_are_moved_in_vectors_of_both_sides() -> None:
    names = ("turned", "turned by its strides", "turned and flipped")
    for k in (k for name in names for k in kernels_of(fusion_of(name))):
        text = str(k.ir)
        assert 0 < text.count("[0..8] = load x[") == text.count(" = load x[")
        stores = [x for x in text.splitlines() if " store t" in x and "_s[" not in x]
        assert stores and all("[0..8]" in x for x in stores)


def test_logs_replay() -> None:
    for name in ("columns", "elements", "turned", "turned and flipped"):
        fusion = fusion_of(name)
        for c in listed(fusion):
            assert isinstance(c, Candidate)
            flow = Dataflow(fusion)
            schedule_group(flow, SMALL, c.params)
            s = PassedSchedule.of(Dataflow(fusion))
            s.replay(calls_of(flow))
            made = finish(flow, "k", TARGET, c.params)
            assert str(finish(s.flow, "k", TARGET, c.params).ir) == str(made.ir)


def test_lines_that_no_block_holds_are_refused() -> None:
    spec = T((64, 60000), "float32")
    f = fw.trace(lambda x, i: fw.take(x, i, axis=1), spec, T((64,), "int32"))
    (found,) = listed(prepare(f, TARGET))
    assert isinstance(found, Refused) and "240000 bytes" in found.why


@pytest.mark.parametrize(("length", "threads"), [(5000, 256), (20000, 512), (40000, 1024)])
def test_fewer_blocks_on_a_multiprocessor_have_more_threads(length: int, threads: int) -> None:
    """The loads of all of them are under way together, each thread's in groups of 16."""
    spec = T((64, length), "float32")
    f = fw.trace(lambda x, i: fw.take(x, i, axis=1), spec, T((length + 1,), "int32"))
    kernel = kernels_of(prepare(f, TARGET))[-1]
    assert dict(kernel.heuristic.values)["threads"] == threads if kernel.heuristic else False
    found = kernel.resources()
    assert found.stack_nbytes == found.spill_stores == 0 and found.registers <= 65536 // threads


def test_few_places_of_a_line_are_read_alone() -> None:
    f = fw.trace(lambda x, i: fw.take(x, i, axis=1), T((4096, 512), "float32"), T((9,), "int32"))
    (found,) = listed(prepare(f, TARGET))
    assert isinstance(found, Refused) and found.why.startswith("9 places of a line")


@pytest.mark.parametrize("axes", [("n", "m"), (3, "n"), ("n", "n"), ("n", "m", 3)])
def test_lines_of_an_unknown_length_are_no_tile(axes: tuple[int | str, ...]) -> None:
    f = fw.trace(lambda x: fw.take(x, fw.arange(x.shape[1]) // 2, axis=1), T(axes, "bfloat16"))
    (found,) = listed(prepare(f, TARGET))
    assert isinstance(found, Refused) and "a tile has a known size" in found.why
    for n, m in ((2, 2), (7, 33), (33, 70)):
        shape = [{"n": n, "m": m}.get(str(e), e) for e in axes]
        x = np.random.default_rng(n).integers(0, 99, shape).astype(T((), "bfloat16").dtype.numpy)
        result = fw.compile(f).simulate(x)
        assert result.races == []
        want = x[:, np.arange(x.shape[1]) // 2]
        np.testing.assert_array_equal(result.outputs[0].astype("f4"), want.astype("f4"))
