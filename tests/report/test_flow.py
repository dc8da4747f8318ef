"""Pictures of graphs, as a browser draws them: no arrow runs behind a box, no box lies on another,
results stand out, nothing is fetched."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pages import BROWSER, seen

import fusewright as fw
from fusewright.report.facts import gather
from fusewright.report.flow import Arrow, FlowBox, flow_html, flow_script
from fusewright.report.html import document, report_html

VENDORED = Path(fw.__file__).parent / "report" / "vendor" / "dagre"
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")


# --- programs -----------------------------------------------------------------------------------


def _spec(*shape: int, dtype: str = "float32") -> fw.TensorSpec:
    return fw.TensorSpec(shape, dtype)


def softmax(x: Any) -> Any:
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.layer_norm(x, (1024,), w, b)


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = fw.where(mask, q @ fw.permute_dims(k, (0, 1, 3, 2)) * 0.125, -float("inf"))
    return fw.nn.softmax(scores, axis=-1) @ v


def sixty(x: Any, y: Any) -> Any:
    """More than sixty operations, whose later ones read the first."""
    first = x
    for k in range(10):
        x = fw.tanh(x * (k + 1.5) + y) - fw.sqrt(fw.abs(first) + k)
    return x, fw.sum(x, axis=0), fw.nn.softmax(x * first, axis=-1)


def several(x: Any, y: Any) -> Any:
    a = fw.concat([fw.nn.softmax(x, axis=-1), fw.nn.softmax(y, axis=0)], axis=0)
    return a, fw.sum(fw.cumulative_sum(x, axis=0), axis=1), y.T + 1.0


HEADS = _spec(2, 4, 64, 32)
PROGRAMS = {
    "softmax": (softmax, (_spec(64, 1024),)),
    "layer_norm": (layer_norm, (_spec(64, 1024), _spec(1024), _spec(1024))),
    "attention": (attention, (HEADS, HEADS, HEADS, _spec(64, 64, dtype="bool"))),
    "sixty": (sixty, (_spec(64, 1024), _spec(64, 1024))),
    "several": (several, (_spec(64, 1024), _spec(64, 1024))),
}


@cache
def program(name: str) -> fw.Program:
    fn, specs = PROGRAMS[name]
    return fw.compile(fw.trace(fn, *specs))


@cache
def page(name: str) -> str:
    return report_html(gather(program(name), name))


# --- what is drawn ------------------------------------------------------------------------------

_GEOMETRY = """
  const flows = [...d.querySelectorAll('.flow')].map((flow) => ({
    lists: flow.querySelectorAll('li').length,
    boxes: [...flow.querySelectorAll('rect[data-box]')].map((r) => ({
      key: r.dataset.box, kind: r.getAttribute('class'),
      at: ['x', 'y', 'width', 'height'].map((k) => +r.getAttribute(k)),
      texts: [...r.parentNode.querySelectorAll('text')].map((t) => {
        const b = t.getBBox();
        return [t.textContent, b.x, b.y, b.width, b.height];
      }),
    })),
    arrows: [...flow.querySelectorAll('path.edge')].map((p) => {
      const points = [], end = p.getTotalLength();
      for (let at = 0; at <= end; at += 2) {
        const q = p.getPointAtLength(at);
        points.push([q.x, q.y]);
      }
      return { from: p.dataset.from, to: p.dataset.to, points };
    }),
    size: flow.querySelector('svg').getBoundingClientRect(),
  }));
  return {
    flows, scroll: d.documentElement.scrollWidth, width: w.innerWidth,
    fetched: w.performance.getEntriesByType('resource').length,
  };
"""
Box = tuple[float, float, float, float]


def _inside(x: float, y: float, box: Box) -> bool:
    left, top, width, height = box
    return left + 0.6 < x < left + width - 0.6 and top + 0.6 < y < top + height - 0.6


def _holds(outer: Box, inner: Box) -> bool:
    (a, b, wide, high), (x, y, width, height) = outer, inner
    return a <= x and b <= y and x + width <= a + wide and y + height <= b + high


def _apart(a: Box, b: Box) -> bool:
    return (
        a[0] + a[2] <= b[0] or b[0] + b[2] <= a[0] or a[1] + a[3] <= b[1] or b[1] + b[3] <= a[1]
    )  # fmt: skip


def check_picture(flow: dict[str, Any]) -> None:
    """Boxes lie beside or in each other, arrows keep clear of all but the boxes around both of
    their ends, and lead from below the one to the top of the other."""
    at: dict[str, Box] = {b["key"]: tuple(b["at"]) for b in flow["boxes"]}
    kinds = {b["key"]: b["kind"].split() for b in flow["boxes"]}
    for a, b in combinations(at, 2):
        outer = [k for k in (a, b) if "band" in kinds[k]]
        nested = any(_holds(at[k], at[b if k == a else a]) for k in outer)
        assert nested or _apart(at[a], at[b]), (a, b)
    for arrow in flow["arrows"]:
        ends = (arrow["from"], arrow["to"])
        (x0, y0), (x1, y1) = arrow["points"][0], arrow["points"][-1]
        above, below = at[ends[0]], at[ends[1]]
        assert above[0] <= x0 <= above[0] + above[2] and abs(y0 - above[1] - above[3]) < 1
        assert below[0] <= x1 <= below[0] + below[2] and abs(y1 - below[1]) < 2.5
        for key, box in at.items():
            if key not in ends and all(_holds(box, at[k]) for k in ends):
                continue
            crossed = [p for p in arrow["points"] if _inside(*p, box)]
            assert not crossed, (ends, key, crossed[:3])
        assert all(0 <= x <= flow["size"]["width"] for x, _ in arrow["points"])
    for b in flow["boxes"]:
        for text, x, y, width, height in b["texts"]:
            assert _holds(tuple(b["at"]), (x, y, width, height)), text


@needs_browser
@pytest.mark.parametrize(
    ("name", "width"), [*((name, 1280) for name in PROGRAMS), ("attention", 390), ("several", 390)]
)
def test_no_arrow_runs_behind_a_box_and_no_box_lies_on_another(
    name: str, width: int, tmp_path: Path
) -> None:
    found = seen(page(name), width, _GEOMETRY, tmp_path)
    assert found["scroll"] <= found["width"] == width and found["fetched"] == 0
    fusion = program(name).fusion
    assert len(found["flows"]) == 1 + bool(program(name).host.edges)
    for flow in found["flows"]:
        assert flow["lists"] == 0 and flow["arrows"]  # the picture stands where the list was
        check_picture(flow)
    graph = found["flows"][0]
    first = {t[0] for b in graph["boxes"] for t in b["texts"]}
    assert {k.name for k in program(name).kernels} <= first
    ends = [b for b in graph["boxes"] if "result" in b["kind"].split()]
    assert len(ends) == len(fusion.outputs)
    said = sorted(t[0] for b in ends for t in b["texts"] if t[0].startswith("result"))
    numbered = [f"result {k}" for k in range(len(ends))]
    assert said == (["result"] if len(ends) == 1 else numbered)


@needs_browser
def test_the_arrows_are_those_of_the_program(tmp_path: Path) -> None:
    """Of softmax: everything stands in one kernel, x -> sub among the arrows."""
    (flow,) = seen(page("softmax"), 1280, _GEOMETRY, tmp_path)["flows"]
    named = {b["key"]: b["texts"][0][0].partition(" = ")[0] for b in flow["boxes"] if b["texts"]}
    drawn = sorted((named[a["from"]], named[a["to"]]) for a in flow["arrows"])
    fusion = program("softmax").fusion
    assert drawn == sorted((o.name, t.name) for t in fusion.values for o in t.op.operands)


def _random_boxes(rng: Random, prefix: str, depth: int) -> list[FlowBox]:
    """Boxes of many widths and heights, some with boxes inside, arrows with labels and without."""
    boxes: list[FlowBox] = []
    for k in range(rng.randint(4, 14)):
        lines = tuple("x" * rng.randint(1, 30) for _ in range(rng.randint(1, 4)))
        sources = rng.sample(boxes, k=min(len(boxes), rng.randint(0, 3)))
        arrows = [
            Arrow(b.key, b.key, "label " * rng.randint(0, 2), f"{b.key} arrow") for b in sources
        ]
        parts = (
            _random_boxes(rng, f"{prefix}{k}.", depth - 1) if depth and rng.random() < 0.5 else ()
        )
        kind = "band c1" if parts else "node"
        boxes.append(FlowBox(f"{prefix}{k}", lines, kind, arrows=arrows, parts=parts))
    return boxes


@needs_browser
def test_random_pictures_keep_the_rules(tmp_path: Path) -> None:
    flows = [flow_html(_random_boxes(Random(seed), "b", 1)) for seed in range(6)]
    text = document("random", [*flows, f"<script>{flow_script()}</script>"])
    found = seen(text, 1280, _GEOMETRY, tmp_path)
    assert len(found["flows"]) == 6
    for flow in found["flows"]:
        check_picture(flow)


@needs_browser
def test_many_boxes_are_drawn_when_the_reader_asks(tmp_path: Path) -> None:
    chain = [FlowBox("b0", ("0",))]
    chain += [FlowBox(f"b{k}", (str(k),), arrows=(Arrow(f"b{k - 1}", "b"),)) for k in range(1, 700)]
    text = document("long", [flow_html(chain), f"<script>{flow_script()}</script>"])
    probe = """
      const flow = d.querySelector('.flow'), before = flow.querySelectorAll('li').length;
      const said = flow.querySelector('button').textContent;
      flow.querySelector('button').click();
      return { before, said, rects: flow.querySelectorAll('rect').length,
               after: flow.querySelectorAll('li, button').length };
    """
    found = seen(text, 1280, probe, tmp_path)
    assert (found["before"], found["rects"], found["after"]) == (700, 700, 0)
    assert found["said"] == "Draw these 700 boxes, which may take a while"


@needs_browser
def test_a_value_lights_up_with_its_arrows_and_its_name_leads_to_it(tmp_path: Path) -> None:
    probe = """
      const named = [...d.querySelectorAll('rect.name')].map((r) => r.parentNode);
      const box = named.find((g) => g.textContent.includes('t19')), picture = box.closest('.flow');
      box.dispatchEvent(new w.MouseEvent('mouseover', {bubbles: true}));
      const lit = [...picture.querySelectorAll('.lit')];
      const texts = lit.filter((e) => e.matches('g')).map((e) => e.textContent);
      w.scrollTo(0, 0);
      box.dispatchEvent(new w.MouseEvent('click', {bubbles: true}));
      return { texts, arrows: lit.filter((e) => e.matches('path')).length, scrolled: w.scrollY };
    """
    found = seen(page("several"), 1280, probe, tmp_path)
    assert len(found["texts"]) == 2 and any("t19 = add along 0" in t for t in found["texts"])
    assert found["arrows"] == 2 and found["scrolled"] > 0


@needs_browser
def test_colours_of_the_picture_follow_the_scheme(tmp_path: Path) -> None:
    """Text and its box, and arrows and the page, differ in both schemes."""
    probe = """
      const colour = (e, k) => w.getComputedStyle(e)[k];
      const all = (scheme) => {
        for (const s of d.styleSheets) for (const r of s.cssRules)
          if (r.media) r.media.mediaText = scheme ? 'all' : 'not all';
        return [colour(d.querySelector('rect.node:not(.input)'), 'fill'),
          colour(d.querySelector('.flow svg text'), 'fill'),
          colour(d.querySelector('path.edge'), 'stroke'), colour(d.body, 'backgroundColor')];
      };
      return { light: all(false), dark: all(true) };
    """
    found = seen(page("softmax"), 1280, probe, tmp_path)
    for scheme in ("light", "dark"):
        fill, ink, edge, back = (sum(map(int, re.findall(r"\d+", c)[:3])) for c in found[scheme])
        assert abs(fill - ink) > 300 and abs(edge - back) > 250, scheme
    assert all(a != b for a, b in zip(found["light"], found["dark"], strict=True))


# --- what a page is made of ---------------------------------------------------------------------


def test_a_page_says_the_graph_without_scripts() -> None:
    """What stands between the tags, as a reader without scripts sees it."""
    text = re.sub(r"<(script|style)>.*?</\1>", "", page("softmax"), flags=re.DOTALL)
    lines = [re.sub(r"<[^>]+>", "", x) for x in text.split("<li")]
    assert any("t3 = sub float32[64, 1024] from x, t2" in x for x in lines)
    assert any("t8 = div float32[64, 1024] result from t4, t7" in x for x in lines)


def test_a_page_may_not_ask_for_anything() -> None:
    assert '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'' in page(
        "softmax"
    )


def test_the_library_is_the_released_file_with_its_licence() -> None:
    said = (VENDORED / "README.md").read_text(encoding="utf-8")
    found = re.search(r"sha256 of `dagre.min.js`: ([0-9a-f]{64})", said)
    assert found is not None
    assert hashlib.sha256((VENDORED / "dagre.min.js").read_bytes()).hexdigest() == found[1]
    licence = (VENDORED / "LICENSE").read_text(encoding="utf-8")
    assert "Permission is hereby granted, free of charge" in licence
    assert licence in flow_script() and licence in page("softmax")  # each copy bears the notice
    assert "</script" not in flow_script() and "sourceMappingURL" not in flow_script()
