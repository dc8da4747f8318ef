"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fusewright.report.facts import KernelFacts, ReportFacts, numbers
from fusewright.report.graph import graph_svg
from fusewright.report.memory_map import memory_map_svg
from fusewright.report.text import KERNEL_HEADER, kernel_row, kernel_sections

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em;
       color: #222; background: #fcfcfc; }
h2 { border-bottom: 1px solid #ccc; padding-bottom: .2em; margin-top: 2em; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2em 1em .2em 0; }
th { border-bottom: 1px solid #999; } td { border-bottom: 1px solid #e4e4e4; }
pre { background: #f3f3f1; padding: .8em 1em; overflow-x: auto; font-size: 12px; }
.picture { overflow-x: auto; } summary { cursor: pointer; font-weight: 600; padding: .3em 0; }
mark { background: #ffe7a3; }
"""
_CLOSED = ("kernel IR",)


def report_html(facts: ReportFacts) -> str:
    """A whole HTML document."""
    title = escape(facts.title)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        _table(("", ""), numbers(facts)),
        *_reasons(facts.reasons),
        "<h2>Kernels</h2>",
        _table(KERNEL_HEADER, [kernel_row(k) for k in facts.kernels]),
        "<h2>The fusion, cut into kernels</h2>",
        f'<div class="picture">{graph_svg(facts.cut)}</div>',
        *(line for k in facts.kernels for line in _kernel(k)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _reasons(reasons: Sequence[str]) -> Iterable[str]:
    if reasons:
        yield "<h2>Why it is not one fast kernel</h2>"
        yield "<ul>" + "".join(f"<li>{escape(r)}</li>" for r in reasons) + "</ul>"


def _kernel(k: KernelFacts) -> Iterable[str]:
    yield f"<h2>{escape(k.name)}</h2>"
    for title, body in kernel_sections(k):
        state = "" if title in _CLOSED else " open"
        yield f"<details{state}><summary>{escape(title)}</summary>"
        if title == "memory map":
            yield f'<div class="picture">{memory_map_svg(k.timeline)}</div>'
        else:
            yield f"<pre>{_marked(body, [s.why for s in k.syncs])}</pre>"
        yield "</details>"


def _marked(body: str, phrases: Sequence[str]) -> str:
    """The text with the lines that carry one of the phrases marked."""
    return "\n".join(
        f"<mark>{escape(line)}</mark>" if any(p and p in line for p in phrases) else escape(line)
        for line in body.splitlines()
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in header) if any(header) else ""
    lines = ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows]
    return "<table>" + (f"<tr>{head}</tr>" if head else "") + "".join(lines) + "</table>"
