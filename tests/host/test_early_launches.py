"""Programs whose launches begin before those before them have ended: what they wait for, and that
each wait is needed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import UserError
from fusewright.kir import ir
from fusewright.program import Program, program_of
from fusewright.programs import overlap, simulation
from fusewright.report.predicted import timed
from fusewright.runtime.config import config
from fusewright.sim.model import MODEL

Spec = fw.TensorSpec


def scaled(x: Any, w: Any) -> Any:
    """Two scans over different axes: two kernels, of which the second one also reads `w`."""
    return fw.cumulative_sum(fw.cumulative_sum(x * 2.0, axis=0) - w, axis=1)


def four(x: Any) -> Any:
    """Four kernels, of which the third writes where the first one's result lay."""
    for k in range(4):
        x = fw.cumulative_sum(x * 2.0, axis=k % 2)
    return x


def skipping(x: Any, z: Any) -> Any:
    """The third kernel reads what the first one writes, and has nothing to do with the second."""
    a = fw.cumulative_sum(x * 2.0, axis=0)
    b = fw.nn.softmax(z, axis=-1)
    return a, b, fw.cumulative_sum(a, axis=1)


def projected(x: Any, w: Any, g: Any) -> Any:
    """A product and the norm behind it, which has a weight of its own."""
    return fw.nn.layer_norm(fw.matmul(x, w), (w.shape[1],), g)


def stacked(x: Any, w: Any, v: Any) -> Any:
    """Two products, the second of which gets its left operand from the first by the copy engine."""
    return fw.matmul(fw.nn.gelu(fw.matmul(x, w)), v)


def sliced(x: Any, w: Any) -> Any:
    """A product over a long depth, in slices that another kernel sums up."""
    return fw.matmul(x, w)


CASES: dict[str, tuple[Callable[..., Any], tuple[fw.TensorSpec, ...]]] = {
    "scaled": (scaled, (Spec((67, 45), "float32"), Spec((45,), "float32"))),
    "scaled, symbolic": (scaled, (Spec(("n", 45), "float32"), Spec((45,), "float32"))),
    "four": (four, (Spec((66, 40), "float32"),)),
    "skipping": (skipping, (Spec((900, 40), "float32"), Spec((900, 56), "float32"))),
    "stacked": (
        stacked,
        (Spec((130, 96), "bfloat16"), Spec((96, 128), "bfloat16"), Spec((128, 72), "bfloat16")),
    ),
    "sliced": (sliced, (Spec((64, 8192), "bfloat16"), Spec((8192, 64), "bfloat16"))),
    "projected": (
        projected,
        (Spec((130, 96), "bfloat16"), Spec((96, 256), "bfloat16"), Spec((256,), "bfloat16")),
    ),
}


def arrays(specs: Sequence[fw.TensorSpec]) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    shapes = [tuple(n if isinstance(n, int) else 301 for n in s.shape) for s in specs]
    return [
        rng.uniform(0.5, 1.5, shape).astype(s.dtype.numpy)
        for s, shape in zip(specs, shapes, strict=True)
    ]


def compiled(name: str) -> Program:
    fn, specs = CASES[name]
    with config(early_launches=True):
        return fw.compile(fw.trace(fn, *specs))


def changed(p: Program, number: int, f: Callable[[ir.Kernel], ir.Kernel]) -> Program:
    """The program with another kernel in one launch."""
    launches = list(p.launches)
    x = launches[number]
    launches[number] = replace(x, kernel=replace(x.kernel, ir=f(x.kernel.ir), _build=None))
    return program_of(replace(p, launches=tuple(launches)))


def without(cls: type[ir.Statement]) -> Callable[[ir.Kernel], ir.Kernel]:
    return lambda k: replace(k, body=tuple(s for s in k.body if not isinstance(s, cls)))


def moved_to_end(k: ir.Kernel) -> ir.Kernel:
    waits = [s for s in k.body if isinstance(s, ir.LaunchWait)]
    return replace(k, body=(*without(ir.LaunchWait)(k).body, *waits))


@pytest.mark.usefixtures("launched_apart")
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_oracle_without_a_race(name: str) -> None:
    p, xs = compiled(name), arrays(CASES[name][1])
    assert [k.ir.begins_early for k in (x.kernel for x in p.launches)] == [
        k > 0 for k in range(len(p.launches))
    ]
    assert len(p.launches) > 1
    result = p.simulate(*xs, seed=5)
    assert result.races == []
    fn, specs = CASES[name]
    plain = fw.compile(fw.trace(fn, *specs)).simulate(*xs, seed=5).outputs
    assert [a.tobytes() for a in result.outputs] == [a.tobytes() for a in plain]
    for got, want in zip(result.outputs, fw.evaluate(p.fusion, *xs), strict=True):
        if want.dtype.itemsize == 4:  # else a value between the kernels is rounded
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    report = fw.verify(p, *xs)
    assert report.ok
    assert sum(s.kind == "LaunchWait" for s in report.necessary) == len(p.launches) - 1


@pytest.mark.usefixtures("launched_apart")
@pytest.mark.parametrize("name", CASES)
def test_without_a_wait_launches_race(name: str) -> None:
    p, xs = compiled(name), arrays(CASES[name][1])
    for k in range(1, len(p.launches)):
        broken = changed(p, k, without(ir.LaunchWait)).simulate(*xs).races
        assert any(f"launch #{j}" in str(r) for r in broken for j in range(k, len(p.launches)))


@pytest.mark.usefixtures("launched_apart")
def test_a_launch_waits_for_those_that_the_one_before_it_did_not_wait_for() -> None:
    """The second one has no hazard with the first; it waits at its end all the same, on which the
    third one relies, which may begin with the first."""
    p, xs = compiled("skipping"), arrays(CASES["skipping"][1])
    early = [x.kernel.ir for x in p.launches]
    assert [b.name for b in early[1].awaited] == []
    assert isinstance(early[1].body[-1], ir.LaunchWait)
    assert [s.why for s in p.launches[2].kernel.syncs if s.kind == "LaunchWait"] == ["RAW t3"]
    assert any("waits at its end" in str(r) for r in p.reasons)
    races = changed(p, 1, without(ir.LaunchWait)).simulate(*xs).races
    told = [str(r) for r in races if r.kind == "race"]
    assert len(told) == 1
    assert "launch #2" in told[0] and "launch #0" in told[0] and "may still run" in told[0]
    assert any("end before the launches before" in str(r) for r in races if r.kind == "rule")
    late = changed(p, 2, moved_to_end).simulate(*xs).races
    assert any("#2" in str(r) and "while launch #0" in str(r) for r in late)
    assert not any("while launch #1" in str(r) for r in late)


def test_memory_that_is_used_again_is_awaited_as_what_is_read() -> None:
    p = compiled("four")
    third = p.launches[2].kernel
    (why,) = [s.why for s in third.syncs if s.kind == "LaunchWait"]
    assert why.startswith("RAW") and "reuse" in why
    assert len(third.ir.awaited) == 2


def test_what_the_device_of_no_launch_writes_may_be_read_before() -> None:
    p = compiled("projected")
    last = p.launches[-1].kernel.ir
    assert [b.name for b in last.params if b not in last.awaited] == ["g", last.params[-1].name]
    assert any("g may be read before" in str(r) for r in p.reasons)


def test_the_first_tiles_of_weights_are_fetched_before_the_wait() -> None:
    p = compiled("stacked")
    k = p.launches[-1].kernel
    order = [type(s) for s in k.ir.body]
    boxes = [s for s in k.ir.body if isinstance(s, ir.PrefetchBox)]
    assert boxes and {s.map.buffer.name for s in boxes} == {"v"}
    assert order.index(ir.PrefetchBox) < order.index(ir.LaunchWait) < order.index(ir.Roles)
    assert any("first tiles of v are fetched before" in str(r) for r in p.reasons)
    lines = [n for n, line in enumerate(k.cuda.splitlines()) if "prefetch.tensor.2d.L2" in line]
    assert len(lines) == len(boxes)


def test_launches_that_are_let_begin_know_nothing_of_what_was_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With that rule of the model off nothing is found between launches."""
    p, xs = compiled("scaled"), arrays(CASES["scaled"][1])
    broken = changed(p, 1, without(ir.LaunchWait))
    assert any("while launch #0" in str(r) for r in broken.simulate(*xs).races)
    loose = replace(MODEL, triggers_order_nothing=False)
    monkeypatch.setattr(
        simulation, "Overlap", lambda sizes, seed: overlap.Overlap(sizes, seed, loose)
    )
    assert not any("while launch #0" in str(r) for r in broken.simulate(*xs).races)


def test_a_launch_that_nobody_lets_begin_is_told() -> None:
    p, xs = compiled("scaled"), arrays(CASES["scaled"][1])
    races = changed(p, 0, without(ir.LaunchDependents)).simulate(*xs).races
    assert ["no launch before it lets it begin" in str(r) for r in races] == [True]


def test_programs_are_as_they_were_unless_asked() -> None:
    fn, specs = CASES["scaled"]
    p = fw.compile(fw.trace(fn, *specs))
    syncs = [s.kind for k in p.kernels for s in k.syncs]
    assert not {"LaunchWait", "LaunchDependents"}.intersection(syncs)
    assert not any(k.ir.begins_early for k in p.kernels)


def test_one_launch_waits_for_nobody() -> None:
    with config(early_launches=True):
        p = fw.compile(fw.trace(lambda x: x * 2.0, Spec((64,), "float32")))
    (k,) = p.kernels
    assert not k.ir.begins_early and k.syncs == []


def test_a_launch_beside_a_region_begins_late() -> None:
    def looped(x: Any) -> Any:
        y = fw.fori_loop(0, 3, lambda i, c: fw.cumulative_sum(fw.sort(c, axis=0), axis=1), x)
        return fw.cumulative_sum(fw.sort(y, axis=1), axis=0)

    with config(early_launches=True):
        p = fw.compile(fw.trace(looped, Spec((40, 36), "float32")))
    at = next(k for k, x in enumerate(p.launches) if x.region is not None)
    assert not any(x.kernel.ir.begins_early for x in p.launches[: at + 2])
    assert p.launches[-1].kernel.ir.begins_early == (len(p.launches) > at + 2)


def test_other_targets_refuse_with_the_way_out() -> None:
    fn, specs = CASES["scaled"]
    with config(early_launches=True), pytest.raises(UserError, match=r"sm_89.*9\.0 or later"):
        fw.compile(fw.trace(fn, *specs), target="sm_89")


def test_kernels_in_several_places_become_one_for_each_way() -> None:
    """A kernel that is first, in the middle and last."""

    def thrice(x: Any) -> Any:
        for _ in range(3):
            x = fw.cumulative_sum(fw.sort(x, axis=0), axis=1)
        return x

    specs = (Spec((48, 36), "float32"),)
    with config(early_launches=True):
        p = fw.compile(fw.trace(thrice, *specs))
    names = [x.kernel.name for x in p.launches]
    assert len(set(names)) == len({(x.kernel.name) for x in p.launches}) > 2
    assert len({k.name for k in p.kernels}) == len(p.kernels)
    xs = arrays(specs)
    assert p.simulate(*xs).races == []
    kept = {id(c) for c in p.kernels[0].companions}
    assert kept == {id(k) for k in p.kernels}, "nothing else is compiled with them"


def test_a_program_on_disk_begins_as_early() -> None:
    p = compiled("scaled")
    again = pickle.loads(pickle.dumps(p))
    assert [str(k.ir) for k in again.kernels] == [str(k.ir) for k in p.kernels]
    assert again.launches[1].kernel.ir.begins_early


def test_verify_of_a_program_reports_what_overlaps() -> None:
    p, xs = compiled("scaled"), arrays(CASES["scaled"][1])
    assert fw.verify(p, *xs).missing == []
    missing = fw.verify(changed(p, 1, without(ir.LaunchWait)), *xs).missing
    told = [str(r) for r in missing]
    assert any("while launch #0" in r for r in told) and len(set(told)) == len(told)


def test_explain_says_what_begins_early_and_what_that_saves() -> None:
    p = compiled("projected")
    fn, specs = CASES["projected"]
    plain = fw.compile(fw.trace(fn, *specs))
    report, saved = fw.Report(p), p.target.calibration.launch_us
    text = str(report)
    assert "launch #1 may begin before #0 has ended, waits for RAW t0" in text
    assert f"{saved:.1f} us less, as launches begin early" in text
    assert "after #0 RAW: t0; may begin before it has ended" in report.show("host")
    assert "LaunchWait: RAW t0" in report.show("syncs")
    times = [fw.Report(x).to_dict() for x in (p, plain)]
    assert times[1]["predicted_us"] - times[0]["predicted_us"] == pytest.approx(saved)
    before, after = times[0]["host"]["launches"]
    assert after["begin_us"] == pytest.approx(before["us"] - saved)
    assert "begin early" not in str(fw.Report(plain))


@pytest.mark.usefixtures("launched_apart")
def test_nothing_is_predicted_to_be_saved_where_several_launches_meet() -> None:
    """As a graph such a launch waits for whole launches."""

    def joined(x: Any, z: Any) -> Any:
        a, b = fw.cumulative_sum(x * 2.0, axis=0), fw.sort(z, axis=0)
        return fw.nn.softmax(fw.concat([a, b], axis=0), axis=0)

    specs = Spec((900, 40), "float32"), Spec((700, 40), "float32")
    with config(early_launches=True):
        p = fw.compile(fw.trace(joined, *specs))
    joins = {c for c in range(3) if sum(e.consumer == c for e in p.host.edges) == 2}
    times = timed(p)
    assert joins == {2} and times[2].early_us == 0.0 < times[1].early_us
    text = fw.Report(p).show("host")
    assert "may begin before" not in text.split("#2 ")[1].split("arena over")[0]
