"""Reports on a hand-made program: text, HTML, pictures, the cut, the memory map."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_fakes import FakeProgram, Launch, argument, program, row_scale, value

from fusewright.core.expr import as_expr, constant_value
from fusewright.dtypes import float32
from fusewright.errors import UserError
from fusewright.fusion.ir import Fusion, Input, Permute, Pointwise, Sym, Tensor
from fusewright.host.groups import Reason
from fusewright.report.cut import Cut, cut, op_text
from fusewright.report.explain import Report
from fusewright.report.facts import gather
from fusewright.report.flow import FlowBox, flow_html
from fusewright.report.graph import FAR, graph_boxes
from fusewright.report.html import report_html
from fusewright.report.memory_map import memory_map_svg, memory_map_text
from fusewright.report.svg import text_width
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


def _all_boxes(boxes: Iterable[FlowBox]) -> Iterator[FlowBox]:
    for b in boxes:
        yield b
        yield from _all_boxes(b.parts)


def _arrow_names(boxes: Sequence[FlowBox]) -> list[str]:
    """The arrows of one list, as `from -> to`, by the first lines of its boxes."""
    first = {b.key: b.lines[0].partition(" = ")[0] for b in boxes}
    return [f"{first[a.source]} -> {first[b.key]}" for b in boxes for a in b.arrows]


def test_kernels_are_boxes_with_their_values_in_them() -> None:
    fusion, found = _row_scale_cut()
    boxes = graph_boxes(found, fusion)
    assert [b.lines for b in boxes] == [
        ("x = input", "float32[32, 32]"), ("rows",), ("scale",)
    ]  # fmt: skip
    assert [len(b.parts) for b in boxes] == [0, 2, 6]  # the kernels name what they read
    assert _arrow_names(boxes) == ["x -> rows", "rows -> scale", "x -> scale"]
    assert [a.label for b in boxes for a in b.arrows] == ["", "m", ""]
    assert _arrow_names(boxes[1].parts) == ["x -> m"]
    assert _arrow_names(boxes[2].parts) == [
        "m -> wide", "x -> less", "wide -> less", "less -> e", "e -> y"
    ]  # fmt: skip
    assert [b.kind for b in boxes[2].parts] == ["node name"] * 2 + ["node"] * 3 + ["node result"]
    assert [b.end for b in _all_boxes(boxes) if b.end] == ["result"]


def test_what_one_kernel_reads_stands_in_it() -> None:
    x, w = argument("x", (8, 8)), argument("w", (8, 8), 1)
    view = value("view", (8, 8), Permute((w,), (1, 0)))
    y = value("y", (8, 8), Pointwise((x, view), "mul"))
    fusion = Fusion((x, w), (y,), (x, w, view, y))
    found = cut(fusion, [Launch(program().kernels[1], (x, view), (y,))])
    assert [b.label for b in found.bands] == ["inputs", "scale", "no kernel"]
    (kernel,) = graph_boxes(found, fusion)
    kinds = {b.lines[0].partition(" = ")[0]: b.kind for b in kernel.parts}
    assert kinds == {"x": "node input", "w": "node input", "view": "node view", "y": "node result"}
    assert _arrow_names(kernel.parts) == ["w -> view", "x -> y", "view -> y"]


def test_keys_of_a_list_are_its_own_and_arrows_come_from_the_same_list() -> None:
    fusion, found = _row_scale_cut()
    boxes = graph_boxes(found, fusion)
    every = [b.key for b in _all_boxes(boxes)]
    assert len(set(every)) == len(every)
    for same in (boxes, *(b.parts for b in boxes)):
        keys = {b.key for b in same}
        assert all(a.source in keys for b in same for a in b.arrows)


def test_several_results_are_numbered() -> None:
    x = argument("x", (8,))
    y = value("y", (8,), Pointwise((x,), "exp"))
    z = value("z", (8,), Pointwise((y,), "exp"))
    fusion = Fusion((x,), (y, z, y), (x, y, z))
    found = cut(fusion, [Launch(program().kernels[1], (x,), (y, z))])
    ends = [b.end for b in _all_boxes(graph_boxes(found, fusion))]
    assert [e for e in ends if e] == ["result 0, 2", "result 1"]


def test_arrows_over_many_rows_are_names() -> None:
    x = argument("x", (8, 8))
    values = [x]
    for k in range(2 * FAR):
        values.append(value(f"v{k}", (8, 8), Pointwise((values[-1],), "exp")))
    total = value("total", (8, 8), Pointwise((values[-1], x), "add"))
    fusion = Fusion((x,), (total,), (*values, total))
    found = cut(fusion, [Launch(program().kernels[1], (x,), (total,))])
    (kernel,) = graph_boxes(found, fusion)
    (far,) = (b for b in kernel.parts if b.lines == ("x, far above",))
    last = kernel.parts[-1]
    assert [a.source for a in last.arrows if a.name == "x"] == [far.key] and far.arrows == ()


def test_the_list_says_the_graph_in_words() -> None:
    fusion, found = _row_scale_cut()
    text = flow_html(graph_boxes(found, fusion))
    root = ElementTree.fromstring(text)
    lines = [" ".join("".join(e.itertext()) for e in li if e.tag != "ul") for li in root.iter("li")]
    assert "less = sub float32[32, 32] from x, wide" in lines
    assert "scale from m, x" in lines and "y = mul float32[32, 32] result from e" in lines
    assert not any("data-arrows" in li.attrib for li in root.iter("li") if li[-1].tag == "span")


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
    # The map of the one kernel with shared memory; launches over time, the arena. The graph and the
    # launches that wait are lists, which the browser draws.
    assert text.count("<svg") == 3 and text.count('class="picture flow"') == 2
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
