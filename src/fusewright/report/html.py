"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from fusewright.fusion.ir import Tensor
from fusewright.report.facts import KernelReport, ReportFacts, numbers
from fusewright.report.flow import flow_html, flow_script
from fusewright.report.graph import graph_boxes
from fusewright.report.host_facts import (
    LAYOUT_HEADER,
    HostFacts,
    arena_text,
    launch_rows,
)
from fusewright.report.memory_map import memory_map_svg
from fusewright.report.page import SCRIPT, STYLE
from fusewright.report.predicted import basis_note, serial_us
from fusewright.report.program_pictures import launch_boxes, limits_svg, timeline_svg
from fusewright.report.sources import source_lines
from fusewright.report.steps import PassStep, steps
from fusewright.report.text import KERNEL_HEADER, kernel_row, kernel_sections

_CLOSED = ("edits", "candidates", "shared memory")
LONGEST_NAME = 44
"""Characters of a cell that stays on one line."""
MAX_REASONS = 12
"""Reasons that a page shows before the reader asks for more."""
_SIDE_BY_SIDE = ("kernel IR", "CUDA")
_READ = (
    "Point at a value, a line or a box: what belongs to it lights up, the lines that make it "
    "most. A click holds the light and brings those lines into view. Results have a thick border, "
    "what no kernel computes a dashed one; a small box in a kernel names a value drawn elsewhere."
)
FETCHES_NOTHING = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""What a page tells the browser: it is whole, and nothing in it may ask for more."""


def report_html(facts: ReportFacts) -> str:
    """A whole HTML document."""
    links = [("graph", "graph"), ("host program", "host"), ("kernels", "kernels")]
    links += [(k.name, f"k{i}") for i, k in enumerate(facts.kernels)]
    parts = [
        "<nav>" + "".join(f'<a href="#{a}">{escape(t)}</a>' for t, a in links) + "</nav>",
        _numbers(facts),
        *_reasons(facts.reasons),
        '<h2 id="graph">The fusion, cut into kernels</h2>',
        f'<p class="quiet">{_READ}</p>',
        '<div class="graph">',
        flow_html(graph_boxes(facts.cut, facts.fusion, facts.marks)),
        *_sources(facts),
        "</div>",
        *_host(facts.host),
        '<h2 id="kernels">Kernels</h2>',
        html_table(KERNEL_HEADER, [kernel_row(k) for k in facts.kernels]),
        *(line for i, k in enumerate(facts.kernels) for line in _kernel(i, k)),
        f"<script>{flow_script()}</script>",
        f"<script>{SCRIPT}</script>",
    ]
    return document(facts.title, parts)


def document(title: str, parts: Iterable[str]) -> str:
    """A page that needs nothing else, with a title and the parts below it."""
    head = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{FETCHES_NOTHING}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
    )
    return "\n".join([*head, *parts, "</body></html>"]) + "\n"


def framed(page: str, title: str) -> str:
    """The page as a frame of its own, whose style and script touch nothing around it."""
    return (
        f'<iframe title="{escape(title)}" srcdoc="{escape(page)}" loading="lazy" '
        'style="width:100%;height:640px;border:1px solid #8884;border-radius:6px"></iframe>'
    )


def _numbers(facts: ReportFacts) -> str:
    launches = facts.host.launches
    symbols = ", ".join(v.name for v in facts.fusion.symbols)
    note = (f", for {symbols} = 4096" if symbols else "") + basis_note(launches)
    found = [*numbers(facts), (f"predicted, in a row{note}", f"{serial_us(launches):.1f} us")]
    if len({t.branch for t in launches}) > 1:
        ends = max(t.end for t in launches)
        found.append(("if branches cost each other nothing", f"{ends:.1f} us"))
    if facts.host.measured is not None:
        found.append(
            (f"measured on {facts.host.measured.device}", f"{facts.host.measured.us:.1f} us")
        )
    cells = (f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in found)
    return f'<div class="numbers">{"".join(cells)}</div>'


def _reasons(reasons: Sequence[str]) -> Iterable[str]:
    if reasons:
        yield "<h2>Why it is not one fast kernel</h2>"
        yield _list(reasons[:MAX_REASONS])
    if len(reasons) > MAX_REASONS:
        more = reasons[MAX_REASONS:]
        yield _details(f"{len(more)} more", _list(more), False)


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(x)}</li>" for x in lines) + "</ul>"


def _sources(facts: ReportFacts) -> Iterable[str]:
    """The user's lines, each with the marks of the values that it makes."""
    for file, lines in source_lines(facts.fusion.values).items():
        body: list[str] = []
        before = None
        for x in lines:
            if before is not None and x.number > before + 1:
                body.append("<span>...</span>")
            before = x.number
            number = f'<span class="n">{x.number:4}  </span>'
            body.append(_span(number + escape(x.text), _all_marks(x.values, facts.marks)))
        yield f"<div><h3>{escape(Path(file).name)}</h3><pre>{''.join(body)}</pre></div>"


def _all_marks(values: Sequence[Tensor], marks: Mapping[Tensor, str]) -> str:
    return " ".join(dict.fromkeys(m for t in values for m in marks.get(t, "").split()))


# --- the host program ---------------------------------------------------------------------------


def _host(h: HostFacts) -> Iterable[str]:
    yield '<h2 id="host">The host program</h2>'
    cells = (f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in h.figures)
    yield f'<div class="numbers">{"".join(cells)}</div>'
    yield "<h3>Launches over predicted time</h3>"
    yield '<p class="quiet">A line is a branch. Launches that fill the device take longer side by '
    yield "side than is drawn.</p>"
    yield f'<div class="picture">{timeline_svg(dict(enumerate(h.launches)))}</div>'
    if h.measured is not None:
        yield f"<h3>Launches as measured on {escape(h.measured.device)}</h3>"
        yield '<p class="quiet">One by one, from a cold cache; each from the end of what was '
        yield "before it to its own.</p>"
        yield f'<div class="picture">{timeline_svg(h.measured.launches)}</div>'
    yield "<h3>Who waits for whom</h3>"
    yield flow_html(launch_boxes(h)) if h.edges else "<p>No launch waits for another.</p>"
    yield f'<div class="wide">{html_table(h.launch_header, launch_rows(h))}</div>'
    yield "<h3>The arena over launches</h3>"
    if h.arena is not None and h.arena.boxes:
        yield f'<div class="picture">{memory_map_svg(h.arena, step="#")}</div>'
    else:
        yield f"<p>{escape(arena_text(h.arena).strip())}</p>"
    yield "<h3>Layouts, as element strides</h3>"
    yield f'<div class="wide">{html_table(LAYOUT_HEADER, h.layouts)}</div>'
    yield "<h3>Made where it ends up</h3>"
    yield html_table(("value", "where"), h.placed) if h.placed else "<p>Nothing had to be.</p>"
    yield "<h3>Not made where it ends up</h3>"
    yield html_table(("value", "why"), h.not_placed) if h.not_placed else "<p>Nothing.</p>"


# --- kernels ------------------------------------------------------------------------------------


def _kernel(number: int, k: KernelReport) -> Iterable[str]:
    yield f'<h2 id="k{number}">{escape(k.name)}</h2>'
    if k.cost is not None:
        yield "<h3>What limits it</h3>"
        yield f'<div class="picture">{limits_svg(k)}</div>'
    sections = list(kernel_sections(k))
    for title, body in sections:
        if title not in _SIDE_BY_SIDE:
            yield _details(title, _section(k, number, title, body), title not in _CLOSED)
    yield '<div class="panes">'
    for title, body in sections:
        if title in _SIDE_BY_SIDE:
            yield _details(title, _code(body, k), True)
    yield "</div>"
    if k.lowered is not None:
        yield _details("passes", "".join(map(_step, steps(k.lowered, k.target))), False)


def _section(k: KernelReport, number: int, title: str, body: str) -> str:
    if title == "memory map":
        found = _buffer_marks(k)
        picture = memory_map_svg(k.timeline, marks=lambda name: " ".join(found[name]))
        return f'<div class="picture">{picture}</div>'
    return _code(body, k) if title == "loop nest" else f"<pre>{escape(body)}</pre>"


def _buffer_marks(k: KernelReport) -> dict[str, dict[str, None]]:
    """For each buffer in shared memory its own mark, and those of the values that pass by it."""
    own = {b.name: k.names.of(b.name) for b in k.smem}
    out: dict[str, dict[str, None]] = {name: {mark: None} for name, mark in own.items()}
    for line in k.ir.splitlines():
        marks = k.names.in_line(line)
        values = dict.fromkeys(m for m in marks if m not in own.values())
        for name, mark in own.items():
            if mark in marks:
                out[name].update(values)
    return out


def _details(title: str, body: str, is_open: bool) -> str:
    state = " open" if is_open else ""
    return f"<details{state}><summary>{escape(title)}</summary>{body}</details>"


def _code(body: str, k: KernelReport) -> str:
    """Lines of text with the marks of what they speak of; those of syncs stand out."""
    phrases = [s.why for s in k.syncs if s.why]
    lines: list[str] = []
    for line in body.splitlines():
        kind = "sync-line" if any(p in line for p in phrases) else ""
        marks = " ".join(k.names.in_line(line))
        lines.append(_span(escape(line), marks, k.names.made_in(line), kind))
    return f"<pre>{''.join(lines)}</pre>"


def _span(content: str, marks: str, made: str = "", kind: str = "") -> str:
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' data-t="{escape(marks)}"' if marks else ""
    attributes += f' data-d="{escape(made)}"' if made else ""
    return f"<span{attributes}>{content}</span>"


def _step(s: PassStep) -> str:
    """One pass: closed, with the number of lines that it changed."""
    new, gone = s.counts
    what = f'<code>{s.name}</code> <span class="quiet">{escape(s.why)}</span>'
    if not s.changes:
        return f'<p class="quiet"><code>{s.name}</code> changes nothing</p>'
    kinds = {"+": "new", "-": "gone"}
    body = "".join(_span(escape(x), "", kind=kinds.get(x[:1], "")) for x in s.changes)
    head = f"<summary>{what} +{new} -{gone}</summary>"
    return f'<details class="steps">{head}<pre>{body}</pre></details>'


def _cell(text: str) -> str:
    """A cell: names and figures stay on one line, a narrow screen scrolls; sentences wrap."""
    is_text = max(map(len, text.split("\n"))) > LONGEST_NAME
    kind = ' class="text"' if is_text else ""
    return f"<td{kind}>{escape(text)}</td>"


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in header)
    lines = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'
