"""The bench without a GPU: which rows a run has, its budget, its table and its page."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from bench import peers, product_suite
from bench.cases import CASES, Case
from bench.neighbours import neighbours
from bench.outcome import Outcome, from_json, kept_share, said_plan, table
from bench.page import write_page
from bench.products import PRODUCTS, line_of, plans_in_clusters
from bench.sanitize import LONG_ROWS
from bench.session import Session

import fusewright as fw
from fusewright.kir.ir import RemoteStore
from fusewright.kir.traverse import walk_statements


class FakeTimer:
    """A clock that measuring moves on, a second a case; ours is at the floor on round sizes."""

    def __init__(self, refused: str = "no such case") -> None:
        self.now, self.measured, self.refused = 0.0, list[str](), refused

    def __call__(self) -> float:
        return self.now

    def measure(self, case: Case) -> Outcome:
        self.now += 1
        if self.refused in case.name:
            raise MemoryError("too large")
        self.measured.append(case.name)
        odd = any(shape[-1] % 8 for shape, _ in case.inputs if shape[-1] > 1)
        times = {"fusewright": 20.0 if odd else 10.0, "eager": 40.0}
        return Outcome(case.name, 1 << 20, 10.0, times, {"fusewright": 1e-3}, [], {})


def _run(session: Session, timer: FakeTimer) -> tuple[list[Outcome], list[str], list[int]]:
    shown: list[str] = []
    kept: list[int] = []
    outcomes = session.run(CASES, timer.measure, timer, lambda o: kept.append(len(o)), shown.append)
    return outcomes, shown, kept


def test_a_part_of_the_cases() -> None:
    outcomes, shown, kept = _run(Session(("softmax", "pad")), FakeTimer())
    assert outcomes and all("softmax" in o.name or "pad" in o.name for o in outcomes)
    assert len(shown) == len(outcomes) == kept[-1]
    with pytest.raises(ValueError, match="no case has fft in its name; there are bias_gelu"):
        _run(Session(("fft",)), FakeTimer())


def test_neighbours_come_last_and_stand_behind_their_case() -> None:
    timer = FakeTimer()
    outcomes, _, _ = _run(Session(("softmax_8192x4096", "bias_gelu"), neighbours=True), timer)
    cases = [o.name for o in outcomes if not o.of]
    assert timer.measured[: len(cases)] == cases
    names = [o.name for o in outcomes]
    for c in cases:
        at = names.index(c)
        own = [f"{c}, {s}" for s in ("one vector longer", "one row more", "odd rows")]
        assert names[at + 1 : at + 4] == own
    kept = {o.name.split(", ")[1]: kept_share(o, outcomes, "fusewright") for o in outcomes if o.of}
    assert kept == {"one vector longer": 1.0, "one row more": 1.0, "odd rows": 0.5}
    assert "neighbours keep 79.4%, worst 50.0%" in table(outcomes)


def test_the_budget_ends_a_run_before_it_is_spent() -> None:
    timer = FakeTimer()
    outcomes, shown, _ = _run(Session(budget_seconds=4.5), timer)
    assert len(outcomes) == 4 and timer.now <= 4.5
    assert shown[-1] == f"out of time: {len(CASES) - 4} of {len(CASES)} not measured"


def test_a_case_that_cannot_be_measured_is_told() -> None:
    outcomes, shown, _ = _run(Session(), FakeTimer(refused="pad"))
    assert len(outcomes) == len(CASES) - sum("pad" in c.name for c in CASES)
    assert any(re.fullmatch(r"\S*pad\S*: MemoryError: too large", line) for line in shown)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_neighbours_can_be_traced(case: Case) -> None:
    found = neighbours(case)
    assert len({c.inputs for c in (case, *found)}) == 4
    for c in found:
        fusion = fw.trace(c.ours, *(fw.TensorSpec(shape, dtype) for shape, dtype in c.inputs))
        assert fusion.outputs


def test_sizes_change_together() -> None:
    case = Case(
        "c", lambda torch, x: x, lambda x: x, (((64, 128), "bfloat16"), ((128,), "float32"))
    )
    shapes = [[shape for shape, _ in c.inputs] for c in neighbours(case)]
    assert shapes == [[(64, 136), (136,)], [(65, 128), (128,)], [(64, 129), (129,)]]


def test_peers_that_are_not_there() -> None:
    softmax = next(c for c in CASES if peers.is_kind(c.name, "softmax"))
    for peer in peers.PEERS:
        with pytest.raises(peers.Absent, match=f"{peer} is not installed"):
            peers.make(peer, softmax, [])
    pad = next(c for c in CASES if "pad" in c.name)
    with pytest.raises(peers.Absent, match="quack has no kernel for"):
        peers.make("quack", pad, [])
    with pytest.raises(peers.Absent, match="there is no peer 'apex'; use"):
        peers.make("apex", pad, [])


@pytest.mark.parametrize(
    ("name", "kind", "is_one"),
    [
        ("softmax_8192x4096", "softmax", True),
        ("softmax_backward_8192x4096", "softmax", False),
        ("rms_norm_16384x4096", "softmax", False),
    ],
)
def test_kinds(name: str, kind: str, is_one: bool) -> None:
    assert peers.is_kind(name, kind) is is_one


@pytest.mark.parametrize(("fn", "dtype", "shapes"), LONG_ROWS)
def test_the_sanitizer_sees_clusters(fn, dtype: str, shapes) -> None:
    fusion = fw.trace(fn, *(fw.TensorSpec(s, dtype) for s in shapes))
    (kernel,) = fw.compile(fusion, target="sm_90a").kernels
    assert kernel.launch.cluster > 1
    assert any(isinstance(s, RemoteStore) for s in walk_statements(kernel.ir))


def test_the_page_shows_every_case(tmp_path: Path) -> None:
    outcomes, _, _ = _run(Session(neighbours=True), FakeTimer())
    source = tmp_path / "run.json"
    report = {
        "date": "2026-01-02",
        "method": "a < b & c",
        "environment": {"gpu": "none"},
        "cases": [o.as_json() for o in outcomes],
    }
    source.write_text(json.dumps(report))
    text = write_page(source, tmp_path / "run.html").read_text()
    assert "a &lt; b &amp; c" in text and "http" not in text
    (svg,) = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    drawn = ElementTree.fromstring(svg)
    labels = [t.text for t in drawn.iter("text")]
    assert all(o.name in labels for o in outcomes if not o.of)
    assert labels.count("100%") + labels.count("50%") == len(CASES)
    assert [from_json(c).name for c in report["cases"]] == [o.name for o in outcomes]


def test_a_run_without_cases_has_no_page(tmp_path: Path) -> None:
    source = tmp_path / "run.json"
    source.write_text('{"cases": []}')
    with pytest.raises(ValueError, match="has no cases; measure some with"):
        write_page(source, tmp_path / "run.html")


def test_plans_in_clusters_beside_a_product() -> None:
    """Those that are predicted fastest, each as a program of its own."""
    (p,) = (p for p in PRODUCTS if p.name == "TN 256x4096x4096")
    program = fw.compile(p.fusion())
    (plan, made), *others = plans_in_clusters(p.fusion(), program, 2)
    assert "cluster=" in plan and len(others) <= 1
    assert {k.launch.cluster for k in program.kernels} == {1}
    assert 2 in {k.launch.cluster for k in made.kernels}


def test_plans_in_clusters_are_no_peers() -> None:
    times = {"fusewright": 10.0, "torch": 12.0, "matmul(cluster=2x1)": 8.0}
    row = {
        "name": "TN",
        "us": times,
        "tflops": dict.fromkeys(times, 1.0),
        "errors": {},
        "failures": {},
        "clusters": ["matmul(cluster=2x1)"],
    }
    first, second = line_of(row).splitlines()
    assert "1.200x the best peer" in first and "cluster" not in first
    assert second.strip() == "matmul(cluster=2x1): 8.0 us 1 TF  1.250x ours"


def test_the_suite_of_products() -> None:
    assert len(product_suite.TEN) == 10
    names = [e.name for e in product_suite.entries((), neighbours=True)]
    assert len(set(names)) == len(names) == 3 * len(product_suite.SUITE)
    fp8, longer, deeper = product_suite.entries(("fp8",), neighbours=True)
    assert (longer.m, longer.of) == (fp8.m + 1, fp8.name)
    assert (deeper.k, deeper.product.shapes[0]) == (fp8.k + 16, (fp8.m, fp8.k + 16))
    with pytest.raises(ValueError, match="no product has fft in its name; there are TN 4096"):
        product_suite.entries(("fft",), neighbours=False)


@pytest.mark.parametrize(
    ("entry", "pattern"),
    [
        ((512, 1024, 32768), r"\d parts by two kernels, matmul \d+x\d+x64, \d stages"),
        ((16, 4096, 4096), r"operands exchanged, matmul \d+x16x64, \d+ stages"),
        ((4096, 4096, 4104), r"matmul 128x256x64, 4 stages, cluster 2x1"),
        ((4096, 4096, 4100), r"operand 0 copied, operand 1 copied, matmul 128x256x64, 4 stages"),
        ((520, 332, 1028), r"warp_matmul \d+x\d+x64, 3 stages"),
        ((1, 4096, 4096), r"no matrix instructions"),
    ],
)
def test_the_suite_tells_of_each_product_how_it_was_planned(
    entry: tuple[int, int, int], pattern: str, tmp_path: Path
) -> None:
    e = product_suite.Entry(product_suite.TN, *entry)
    program = fw.compile(e.product.fusion(), target="sm_90a")
    known = product_suite.known_of(e.product, program)
    said = said_plan(known["plan"])
    assert re.fullmatch(pattern, said)
    times = [float(x.kernel.predicted.us) for x in program.launches if x.kernel.predicted]
    assert known["predicted_us"] == sum(times) > 0
    o = Outcome(e.name, 1, 7.0, {"fusewright": 10.0}, {}, [], {}, facts=known)
    assert product_suite.said(o).splitlines()[1].strip() == said
    kept = json.loads(json.dumps(o.as_json()))["facts"]["plan"]
    assert kept.keys() == {"copied", "exchanged", "mode", "factor", "kernels"}
    source = tmp_path / "run.json"
    report = {"date": "2026-01-02", "method": "", "environment": {}, "cases": [o.as_json()]}
    source.write_text(json.dumps(report))
    text = write_page(source, tmp_path / "run.html").read_text()
    cells = ("<th>plan</th>", f"<td>{said}</td>", f"<td>{known['predicted_us']:.1f}</td>")
    assert all(cell in text for cell in cells)


def test_the_plan_of_blocks_that_share_a_depth_is_told() -> None:
    alone = {"copied": [], "exchanged": False, "mode": "slices", "factor": 33}
    kernel = {"scheduler": "matmul", "tile": "64x64x64", "stages": 4, "splits": 33}
    said = said_plan({**alone, "kernels": [{**kernel, "mode": "slices"}]})
    assert said == "33 parts by slices, matmul 64x64x64, 4 stages"


def test_the_ten_products_count_apart() -> None:
    first, other = product_suite.TEN[0].name, product_suite.LONGER[0].name
    times = {"fusewright": 100.0, "torch": 90.0, "compile": 80.0}
    outcomes = [
        Outcome(first, 1, 70.0, times, {}, [], {}),
        Outcome(other, 1, 70.0, {**times, "fusewright": 40.0}, {}, [], {}),
        Outcome("x", 1, 70.0, {"fusewright": 40.0}, {}, [], {}, of=first),
    ]
    said = product_suite.summary(outcomes).splitlines()
    assert said == [
        f"the ten: 0.800 of the best peer, worst 0.800 ({first})",
        f"the longer list: 2.000 of the best peer, worst 2.000 ({other})",
        "neighbours keep 2.500 of the floor, worst 2.500 (x)",
    ]
