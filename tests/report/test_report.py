"""Reports on a hand-made program: text, HTML, pictures, the cut, the memory map."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
from report_fakes import FakeProgram, Launch, argument, program, row_scale, value

from fusewright.core.expr import as_expr, constant_value
from fusewright.dtypes import float32
from fusewright.errors import UserError
from fusewright.fusion.ir import Fusion, Input, Pointwise, Sym, Tensor
from fusewright.host.groups import Reason
from fusewright.report.cut import Cut, cut, op_text
from fusewright.report.explain import Report
from fusewright.report.facts import gather
from fusewright.report.graph import FAR, Drawing, graph_svg, layers, place
from fusewright.report.html import report_html
from fusewright.report.memory_map import memory_map_svg, memory_map_text
from fusewright.report.svg import colour, text_width
from fusewright.report.table import nbytes_text, plural, table
from fusewright.report.text import report_text
from fusewright.report.timeline import LifetimeBox, Ordered, SyncMark, Timeline, timeline
from fusewright.report.traffic import traffic

_SVG = "{http://www.w3.org/2000/svg}"


# --- tables -------------------------------------------------------------------------------------


def test_a_table_pads_columns_and_puts_numbers_right() -> None:
    assert table(("name", "n"), [("a", 1), ("long name", 100)]) == (
        "name         n\n---------  ---\na            1\nlong name  100"
    )


def test_a_table_refuses_a_row_of_another_length() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells under a header of 2"):
        table(("a", "b"), [("x",)])


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (65536, "64.0 KiB"), (3 << 30, "3.00 GiB")],
)
def test_bytes_have_units(n: int, text: str) -> None:
    assert nbytes_text(n) == text


def test_plural() -> None:
    assert (plural(1, "kernel"), plural(0, "sync")) == ("1 kernel", "0 syncs")


# --- the cut ------------------------------------------------------------------------------------


def _row_scale_cut() -> tuple[Fusion, Cut]:
    made = program()
    return made.fusion, cut(made.fusion, made.launches)


def test_every_value_belongs_to_the_first_kernel_that_computes_it() -> None:
    _, found = _row_scale_cut()
    assert [(b.label, [t.name for t in b.values]) for b in found.bands] == [
        ("inputs", ["x"]),
        ("rows", ["m"]),
        ("scale", ["wide", "less", "e", "y"]),
    ]


def test_values_of_no_kernel_are_shown_as_such() -> None:
    made = program()
    found = cut(made.fusion, made.launches[:1])
    assert found.bands[-1].label == "no kernel"
    assert "y" in [t.name for t in found.bands[-1].values]


def test_literals_are_left_out() -> None:
    _, found = _row_scale_cut()
    assert not {"two", "twos"} & {t.name for b in found.bands for t in b.values}


def test_op_text_names_op_and_axes() -> None:
    texts = {t.name: op_text(t) for t in row_scale().values}
    assert (texts["m"], texts["less"], texts["wide"]) == ("max over 1", "sub", "broadcast")


# --- the graph ----------------------------------------------------------------------------------


def test_layers_put_operands_above_users() -> None:
    fusion, found = _row_scale_cut()
    for band in found.bands:
        row_of = {t: i for i, row in enumerate(layers(band)) for t in row}
        assert all(row_of[o] < row_of[t] for t in row_of for o in t.op.operands if o in row_of)
    assert [len(layers(b)) for b in found.bands] == [1, 1, 4]
    assert len(fusion.values) == 8


def test_nodes_do_not_overlap_and_lie_in_their_band() -> None:
    x = argument("x", (8, 8))
    wide = [value(f"v{i}", (8, 8), Pointwise((x,), "exp")) for i in range(7)]
    total = value("total", (8, 8), Pointwise(tuple(wide), "add"))
    fusion = Fusion((x,), (total,), (x, *wide, total))
    found = cut(fusion, [Launch(program().kernels[1], (x,), (total,))])
    drawing = place(found)
    places = drawing.places
    for band, (top, height) in zip(found.bands, drawing.bands, strict=True):
        assert all(top < places[t].y < places[t].y + 42 <= top + height for t in band.values)
    row = sorted((places[t] for t in wide), key=lambda p: p.x)
    assert all(a.x + a.width < b.x for a, b in pairwise(row))


def test_the_graph_is_well_formed_svg_with_every_value_and_edge() -> None:
    fusion, found = _row_scale_cut()
    root = ElementTree.fromstring(graph_svg(found, fusion))
    titles = {t.text: t.attrib["class"] for t in root.iter(f"{_SVG}text") if "class" in t.attrib}
    assert titles == {b.label: f"on-{colour(i)}" for i, b in enumerate(found.bands)}
    texts = [t.text or "" for t in root.iter(f"{_SVG}text")]
    assert {"rows", "scale", "m = max over 1", "float32[32, 32]"} <= set(texts)
    edges = [p.findtext(f"{_SVG}title") for p in root.iter(f"{_SVG}path")]
    assert edges == ["x -> m", "m -> wide", "x -> less", "wide -> less", "less -> e", "e -> y"]
    assert len(list(root.iter(f"{_SVG}polygon"))) == 6  # each with a head
    (result,) = (r for r in root.iter(f"{_SVG}rect") if "result" in r.attrib["class"])
    assert "y" in (result.findtext(f"{_SVG}title") or "") and "result" in texts


def _crossed(drawing: Drawing) -> list[tuple[str, str, str]]:
    """Edges that have a point, every two pixels, inside of a box that is no end of theirs."""
    found: list[tuple[str, str, str]] = []
    for (a, b), points in drawing.edges.items():
        for t, at in drawing.places.items():
            if t in (a, b):
                continue
            for (x1, y1), (x2, y2) in pairwise(points):
                n = 1 + int(abs(y2 - y1) / 2)
                xs = [(x1 + (x2 - x1) * k / n, y1 + (y2 - y1) * k / n) for k in range(n + 1)]
                if any(at.x < x < at.x + at.width and at.y < y < at.y + 42 for x, y in xs):
                    found.append((a.name, b.name, t.name))
                    break
    return found


def test_no_edge_runs_behind_a_box() -> None:
    _, found = _row_scale_cut()
    assert _crossed(place(found)) == []


def test_edges_over_many_rows_are_names() -> None:
    x = argument("x", (8, 8))
    values = [x]
    for k in range(2 * FAR):
        values.append(value(f"v{k}", (8, 8), Pointwise((values[-1],), "exp")))
    total = value("total", (8, 8), Pointwise((values[-1], x), "add"))
    fusion = Fusion((x,), (total,), (*values, total))
    found = cut(fusion, [Launch(program().kernels[1], (x,), (total,))])
    drawing = place(found)
    assert list(drawing.far) == [total] and (x, total) not in drawing.edges
    assert "from x, far above" in graph_svg(found, fusion)


@pytest.mark.parametrize("seed", range(6))
def test_no_edge_of_a_random_graph_runs_behind_a_box(seed: int) -> None:
    rng = Random(seed)
    x = argument("x", (8, 8))
    values = [x]
    for k in range(30):
        operands = tuple(rng.choices(values, k=rng.randint(1, 3)))
        values.append(value(f"v{k}", (8, 8), Pointwise(operands, "add")))
    used = {o for t in values for o in t.op.operands}
    ends = tuple(t for t in values if t not in used)
    found = cut(
        Fusion((x,), ends, tuple(values)), [Launch(program().kernels[1], (x,), (values[15],))]
    )
    assert _crossed(place(found)) == []


# --- shared memory over time --------------------------------------------------------------------


def _timeline() -> Timeline:
    rows = program().kernels[0]
    return timeline(rows.ir, rows.smem, rows.syncs)


def test_a_box_spans_the_steps_between_write_and_last_read() -> None:
    # steps: 0 store a, 1 sync, 2 load a, 3 store b, 4 sync, 5 load b, 6 store c, 7 load c
    assert _timeline() == Timeline(
        nsteps=8,
        nbytes=256,
        boxes=(
            LifetimeBox("a", 0, 128, 0, 2),
            LifetimeBox("b", 128, 128, 3, 5),
            LifetimeBox("c", 0, 128, 6, 7),
        ),
        marks=(
            SyncMark(1, 1, "block", "RAW a: the store of a row before its reads"),
            SyncMark(4, 2, "block", "RAW b, WAR a & c"),
        ),
    )


def test_the_memory_map_as_text() -> None:
    assert memory_map_text(_timeline()) == (
        "   bytes  program order ->\n"
        "128..255  .|.#|#..  b\n"
        "  0..127  #|#.|...  a\n"
        "  0..127  .|..|.##  c"
    )


def test_a_long_kernel_is_squeezed_into_the_page() -> None:
    long = Timeline(
        1000, 64, (LifetimeBox("a", 0, 64, 0, 999),), (SyncMark(500, 1, "block", "RAW"),)
    )
    lines = memory_map_text(long).splitlines()
    assert lines[1].count("#") == 71 and lines[1].count("|") == 1


def test_no_shared_memory_says_so() -> None:
    scale = program().kernels[1]
    assert memory_map_text(timeline(scale.ir, (), ())) == "no shared memory"


def test_the_memory_map_is_well_formed_svg_and_escapes_reasons() -> None:
    root = ElementTree.fromstring(memory_map_svg(_timeline()))
    assert [t.text for t in root.iter(f"{_SVG}title")] == [
        "a: bytes 0..127 (128 B)",
        "b: bytes 128..255 (128 B)",
        "c: bytes 0..127 (128 B)",
        "#1 block: RAW a: the store of a row before its reads",
        "#2 block: RAW b, WAR a & c",
    ]
    boxes = [
        {k: float(r.attrib[k]) for k in ("x", "y", "height")} for r in root.iter(f"{_SVG}rect")
    ]
    a, b, c = boxes
    assert a["y"] == c["y"] > b["y"]  # bytes up
    assert a["x"] < b["x"] < c["x"]  # time across


def test_texts_of_the_memory_map_stand_apart_from_each_other_and_from_arcs() -> None:
    orders = (Ordered(0, 5, "a pair"),)
    marks = tuple(SyncMark(k, k, "block", "RAW", orders) for k in (1, 2, 3))
    thin = tuple(LifetimeBox(f"barrier{k}", 8 * k, 8, k, k + 1) for k in range(4))
    side = tuple(LifetimeBox(f"workspace{k}", 512, 512, k, k) for k in range(4))
    root = ElementTree.fromstring(memory_map_svg(Timeline(6, 1024, (*thin, *side), marks)))
    texts = [(float(t.attrib["x"]), float(t.attrib["y"]), t) for t in root.iter(f"{_SVG}text")]
    spans = [
        (x, y, x + text_width(str(t.text))) for x, y, t in texts if "text-anchor" not in t.attrib
    ]
    for k, (x, y, end) in enumerate(spans):
        assert all(end <= a or b <= x or abs(y - v) >= 10 for a, v, b in spans[k + 1 :])
    arcs = [p.attrib["d"] for p in root.iter(f"{_SVG}path")]
    (peak,) = {(float(p.split()[1]) + float(p.split()[3])) / 2 for p in arcs}  # of a parabola
    assert max(y for _, y, t in texts if str(t.text).startswith("#") and y < 60) < peak
    assert "without room for a name: barrier0, barrier1" in str(texts[-1][2].text)
    assert {t.attrib.get("class") for *_, t in texts if t.text == "workspace0"} == {"on-c4"}


# --- the report ---------------------------------------------------------------------------------


def test_text_has_numbers_reasons_syncs_and_sources() -> None:
    reasons = (Reason("m", "the row does not fit"),)
    text = Report(program(reasons=reasons), title="softmax").show("all")
    for part in (
        "softmax: 2 kernels, 2 syncs",
        "bytes moved     12.2 KiB",
        "least possible  8.00 KiB",
        "moved / least   1.53",
        "- m: the row does not fit",
        "#2 block: RAW b, WAR a & c",
        "for i in 32:",
        "block_sync #1  // RAW a",
        "__syncthreads();  // RAW b, WAR a & c",
        "none: no thread reads from shared memory what another one wrote",
    ):
        assert part in text
    assert "FW_PRELUDE" not in text


def test_without_a_compiler_the_report_says_what_to_install() -> None:
    text = report_text(gather(program(compiled=False), "softmax"))
    assert "compiling kernels needs NVRTC; install fusewright[cuda]" in text


def test_compiler_warnings_are_shown() -> None:
    noisy = program()
    assert noisy.kernels[0].found is not None
    noisy.kernels[0].found.warnings = ("warning: variable declared but never used",)
    assert "never used" in Report(noisy).show("registers")


def test_traffic_counts_every_launch_and_the_least_only_the_borders() -> None:
    found = traffic(program())
    tile, row = 32 * 32 * 4, 32 * 4
    assert constant_value(found.moved) == (tile + row) + (tile + row + tile)
    assert constant_value(found.least) == 2 * tile
    assert found.ratio == pytest.approx(1 + (tile + 2 * row) / (2 * tile))


def test_traffic_of_symbolic_sizes_is_an_expression() -> None:
    n = Sym("n")
    x = Tensor("x", (n,), float32, Input((), 0, (as_expr(1),), 16))
    y = Tensor("y", (n,), float32, Pointwise((x,), "exp"))
    kernel = program().kernels[1]
    made = FakeProgram(Fusion((x,), (y,), (x, y)), (kernel,), (Launch(kernel, (x,), (y,)),))
    found = traffic(made)
    assert (str(found.moved), found.ratio) == ("8*n", None)
    assert "bytes moved     8*n B" in str(Report(made))


def test_an_argument_that_nothing_reads_need_not_be_moved() -> None:
    x, unused = argument("x", (4,)), argument("unused", (4,), 1)
    y = value("y", (4,), Pointwise((x,), "exp"))
    fusion = Fusion((x, unused), (y,), (x, unused, y))
    assert constant_value(traffic(FakeProgram(fusion, (), ())).least) == 32


class _Page(HTMLParser):
    """Checks nesting and collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = [v or "" for k, v in attrs if k in ("src", "href")]
        self.fetched += [v for v in named if not v.startswith("#")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_one_well_nested_page_that_fetches_nothing(tmp_path: Path) -> None:
    path = Report(program(), title="a < b").to_html(tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == [] and page.fetched == [] and "url(" not in text
    # The graph, the map of the one kernel with shared memory; launches over time, edges, arena.
    assert text.count("<svg") == 5
    assert "<h1>a &lt; b</h1>" in text
    assert re.search(
        '<span class="sync-line"[^>]*>  __syncthreads\\(\\);  // RAW b, WAR a &amp; c</span>', text
    )


def test_a_report_is_deterministic() -> None:
    assert report_html(gather(program(), "x")) == report_html(gather(program(), "x"))


def test_to_html_names_the_path_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*missing.*No such file.*name a file in a"):
        Report(program()).to_html(tmp_path / "missing" / "report.html")


def test_a_program_without_kernels_is_reported() -> None:
    empty = FakeProgram(row_scale(), (), ())
    assert "fusion: 0 kernels, 0 syncs" in str(Report(empty))
