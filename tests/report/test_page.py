"""The page of a compiled program: what lights up together, steps, the host program, browsers."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html import escape, unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pages import BROWSER, seen

import fusewright as fw
from fusewright.kir.pipeline import PIPELINE
from fusewright.report.facts import gather
from fusewright.report.host_facts import arena_text, host_facts, host_text
from fusewright.report.html import report_html
from fusewright.report.links import Names
from fusewright.report.memory_map import memory_map_svg
from fusewright.report.predicted import timed
from fusewright.report.steps import steps

SPEC = fw.TensorSpec((64, 1024), "float32")


def softmax(x: Any) -> Any:
    m = fw.name(fw.max(x, axis=-1), "m")
    e = fw.name(fw.exp(x - fw.expand_dims(m, axis=-1)), "e")
    return e / fw.sum(e, axis=-1, keepdims=True)


def joined(x: Any, y: Any) -> Any:
    a = fw.concat([fw.nn.softmax(x, axis=-1), fw.nn.softmax(y, axis=0)], axis=0)
    return a, fw.sum(fw.cumulative_sum(x, axis=0), axis=1), y.T + 1.0


@cache
def page(fn: Any = softmax, inputs: int = 1) -> str:
    return report_html(gather(fw.compile(fw.trace(fn, *[SPEC] * inputs)), "page"))


class _Marked(HTMLParser):
    """The texts of elements that carry a mark, by the tag around them."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark
        self.inside: list[bool] = []
        self.texts: list[str] = []
        self.made: list[str] = []
        self.is_made = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "meta":
            return
        named = dict(attrs)
        self.inside.append(self.mark in (named.get("data-t") or "").split())
        self.is_made = named.get("data-d") == self.mark

    def handle_endtag(self, tag: str) -> None:
        self.inside.pop()

    def handle_data(self, data: str) -> None:
        if any(self.inside) and data.strip():
            self.texts.append(data.strip())
            if self.is_made:
                self.made.append(data.strip())


def _marked(text: str, mark: str) -> _Marked:
    parser = _Marked(mark)
    parser.feed(text)
    return parser


def test_a_value_its_source_its_loops_and_its_lines_share_a_mark() -> None:
    found = _marked(page(), "k0.e")
    everything = "\n".join(found.texts)
    for part in (
        "e = exp",  # the box in the graph
        'e = fw.name(fw.exp(x - fw.expand_dims(m, axis=-1)), "e")',  # the user's line
        "expf(",  # CUDA
    ):
        assert part in everything, part
    assert re.search(r"^e = exp\(\w+\)   \[", everything, re.MULTILINE)  # the loops
    assert any(line.startswith("e[0] = exp(") for line in found.made)
    assert any(re.match(r"e\[0\] = expf\(", line) for line in found.made)
    assert not any(line.startswith("t3[0] =") for line in found.texts if "e" not in line)


def test_memory_boxes_share_the_mark_of_their_buffer() -> None:
    text = page()
    assert re.search(r'<rect [^>]*data-t="k0\.workspace1[ "]', text)
    lines = _marked(text, "k0.workspace1").texts
    assert any(line.startswith("store workspace1[") for line in lines)
    boxes = [t for t in _marked(text, "k0.m").texts if t.startswith("workspace1: bytes")]
    assert boxes and "m = max over 1" in _marked(text, "k0.m").texts


def test_lines_of_temporaries_belong_to_the_value_they_are_for() -> None:
    (kernel,) = fw.compile(fw.trace(softmax, SPEC)).kernels
    result = kernel.outputs[0].name
    made = [x.strip() for x in str(kernel.ir).splitlines() if " = div(" in x]
    assert made and all(x.startswith(f"{result}_v") for x in made)


def test_a_word_belongs_to_the_longest_name_that_it_begins_with() -> None:
    names = Names(3, ["t4", "t4_rf", "x"])
    words = ("t4", "t4_1_2", "t4_rf_v7", "t41", "tx", "x_c")
    assert [names.of(w) for w in words] == ["k3.t4", "k3.t4", "k3.t4_rf", "", "", "k3.x"]
    assert names.in_line("t4[0] = add(x[1], x[2])") == ["k3.t4", "k3.x"]
    assert names.made_in("  store t4[bx] = x_c[0]") == "k3.t4"
    assert names.made_in("  const fw_vec<float, 4> x_word = fw_load<4>(x + 1);") == "k3.x"
    assert names.made_in("  block_sync #0  // RAW x: t4") == ""


def test_launches_of_one_kernel_light_up_its_one_text() -> None:
    def two(x: Any, y: Any) -> Any:
        return fw.nn.softmax(x, axis=-1), fw.nn.softmax(fw.nn.softmax(y, axis=0), axis=-1)

    program = fw.compile(fw.trace(two, SPEC, SPEC))
    facts = gather(program, "two")
    shared = [k for k in program.kernels if sum(x.kernel is k for x in program.launches) > 1]
    for k in shared:
        launches = [x for x in program.launches if x.kernel is k]
        first, *rest = [facts.marks[x.outputs[0]].split() for x in launches]
        assert all(set(first) & set(other) for other in rest)


# --- steps --------------------------------------------------------------------------------------


def test_every_pass_is_a_step_and_the_last_gives_the_kernel() -> None:
    (kernel,) = fw.compile(fw.trace(softmax, SPEC)).kernels
    assert kernel.lowered is not None
    found = steps(kernel.lowered, kernel.target)
    assert [s.name for s in found] == [p.name for p in PIPELINE]
    placed = next(s for s in found if s.name == "place_syncs")
    assert placed.counts[0] >= 2 and any("+" in x and "block_sync" in x for x in placed.changes)
    idle = next(s for s in found if s.name == "place_fences")
    assert idle.changes == () and "<code>place_fences</code> changes nothing" in page()


def test_steps_as_text() -> None:
    shown = fw.Report(fw.compile(fw.trace(softmax, SPEC))).show("passes")
    assert "place_syncs: orders every" in shown and "place_fences: (unchanged)" in shown
    assert re.search(r"^\+ +block_sync", shown, re.MULTILINE)


def test_schedules_by_hand_have_steps_too(tmp_path: Path) -> None:
    fusion = fw.trace(lambda x: fw.sum(x, axis=0), fw.TensorSpec((64,), "float32"))
    program = fw.compile(fw.Schedule(fusion))
    assert "expand_reductions:" in fw.Report(program).show("passes")
    pytest.importorskip("cuda.bindings.nvrtc")
    loaded = fw.load(program.save(tmp_path / "saved.fw"))
    assert "is not kept in a file" in fw.Report(loaded).show("passes")


# --- the host program ---------------------------------------------------------------------------


def test_the_host_program_as_text() -> None:
    program = fw.compile(fw.trace(joined, SPEC, SPEC))
    text = fw.Report(program).show("host")
    ends = [x for x in program.launches if x.outputs[0].name in text]
    assert len(ends) == len(program.launches)
    for part in ("RAW: ", "made where it ends up", "required", "preferred", "actual", "# branch"):
        assert part in text.replace(": branch", " # branch")
    assert "box of (64, 1024) at (64, 0)" in text
    assert "stored by" in text and "given by the caller's spec" in text


def test_branches_begin_when_what_they_wait_for_has_ended() -> None:
    program = fw.compile(fw.trace(joined, SPEC, SPEC))
    found = timed(program)
    for e in program.host.edges:
        assert found[e.consumer].begin >= found[e.producer].end
    assert len({t.branch for t in found}) > 1
    together = [t for t in found if t.branch == 0]
    assert all(a.end <= b.begin for a, b in pairwise(together))


def test_the_arena_over_launches() -> None:
    facts = host_facts(fw.compile(fw.trace(joined, SPEC, SPEC)))
    assert facts.arena is not None and facts.arena.boxes
    for b in facts.arena.boxes:
        assert b.offset >= 0 and b.offset + b.nbytes <= facts.arena.nbytes
        row = "." * b.first + "#" * (b.last - b.first + 1)
        assert row in arena_text(facts.arena)


def test_symbolic_arenas_say_why_there_is_no_picture() -> None:
    spec = fw.TensorSpec(("n", 1024), "float32")
    facts = host_facts(fw.compile(fw.trace(joined, spec, spec)))
    assert facts.arena is None and "sizes are symbols" in host_text(facts)


def test_the_page_says_what_symbols_count_as() -> None:
    spec = fw.TensorSpec(("n", 1024), "float32")
    text = report_html(gather(fw.compile(fw.trace(softmax, spec)), "x"))
    assert "predicted, in a row, for n = 4096" in text and "predicted, in a row<" in page()


def test_what_is_not_placed_says_why() -> None:
    program = fw.compile(fw.trace(softmax, SPEC), donate=())
    facts = replace(host_facts(program), not_placed=(("t8", "it is read by two"),))
    assert "  t8: it is read by two" in host_text(facts)
    assert "not made where it ends up\n  nothing" in fw.Report(program).show("host")


def test_a_product_is_no_copy() -> None:
    a, b = fw.TensorSpec((256, 256), "bfloat16"), fw.TensorSpec((256, 256), "bfloat16")
    host = fw.compile(fw.trace(lambda a, b: a @ b, a, b)).host
    assert host.stats["copies"] == 0 and host.not_placed == {}


# --- pictures -----------------------------------------------------------------------------------


def test_syncs_say_on_the_map_what_they_order() -> None:
    (kernel,) = gather(fw.compile(fw.trace(softmax, SPEC)), "x").kernels
    assert all(m.orders for m in kernel.timeline.marks)
    text = unescape(memory_map_svg(kernel.timeline))
    assert re.search(r"#0 orders RAW smem workspace1: store L\d+ -> load L\d+", text)


def test_limits_show_the_prediction_and_its_parts() -> None:
    text = page()
    for part in ("predicted: ", "bytes once: ", "memory: ", "issue: "):
        assert f"<title>{part}" in text


def test_many_reasons_are_folded() -> None:
    facts = gather(fw.compile(fw.trace(softmax, SPEC)), "x")
    text = report_html(replace(facts, reasons=tuple(f"r{k}: because" for k in range(20))))
    assert "<summary>8 more</summary>" in text and "<li>r19: because</li>" in text


def test_a_notebook_gets_a_frame_that_styles_nothing_around_it() -> None:
    text = fw.Report(fw.compile(fw.trace(softmax, SPEC)))._repr_html_()
    assert text.startswith("<iframe ") and text.count("<") == 2 and "<style" not in text
    assert escape("<style>") in text


# --- a browser ----------------------------------------------------------------------------------

_PROBE = """
  const box = d.querySelector('.picture g[data-t~="k0.e"]');
  box.dispatchEvent(new w.MouseEvent('mouseover', {bubbles: true}));
  const lit = [...d.querySelectorAll('pre .lit')].map((e) => e.textContent.trim());
  const made = d.querySelectorAll('pre .made').length;
  d.body.dispatchEvent(new w.MouseEvent('mouseover', {bubbles: true}));
  const after = d.querySelectorAll('.lit').length;
  const scroll = d.documentElement.scrollWidth, width = w.innerWidth;
  return {lit, made, after, scroll, width, boxed: box.querySelectorAll('rect').length};
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_at_any_width_and_lights_up_what_belongs_together(
    width: int, tmp_path: Path
) -> None:
    found = seen(page(), width, _PROBE, tmp_path)
    assert found["width"] == width and found["scroll"] <= width  # no sideways scrolling of the page
    assert any("fw.exp(x" in line for line in found["lit"]) and found["made"] > 2
    assert found["after"] == 0 and found["boxed"] == 1


def gradients(dy: Any, x: Any) -> Any:
    norm = fw.nn.rms_norm
    return fw.grad(lambda x, y: fw.sum(norm(x, (1024,)) * dy + norm(y * x, (1024,)) * x), (0, 1))(
        x, dy
    )


_WIDTHS = """
  const picture = d.querySelector('.graph > .picture'), drawing = picture.querySelector('svg');
  return {page: picture.parentElement.clientWidth, picture: picture.clientWidth,
    drawing: drawing.getBoundingClientRect().width};
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize(("fn", "inputs"), [(softmax, 1), (gradients, 2)])
def test_a_graph_has_the_width_that_it_needs_and_the_page_has(
    fn: Any, inputs: int, tmp_path: Path
) -> None:
    """A wide one leaves no column to the source, which stands below it."""
    found = seen(page(fn, inputs), 1280, _WIDTHS, tmp_path)
    assert abs(found["picture"] - min(found["drawing"], found["page"])) <= 1
    assert (found["drawing"] > 0.67 * found["page"]) == (fn is gradients)
