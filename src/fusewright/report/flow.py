"""Boxes and arrows: written as a list that reads by itself, drawn as a picture by the browser.

dagre (`vendor/dagre`) places the boxes, `flow.js` draws them and takes the arrows around them. The
list is what the picture is made of, so a page without scripts says the same in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fusewright.report.svg import FONT

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Arrow:
    """From another box of the same list; `name` is what the list calls it, `label` stands on the
    arrow, `tip` shows under the pointer. It lights up with `marks`."""

    source: str
    name: str
    label: str = ""
    tip: str = ""
    marks: str = ""


@dataclass(frozen=True, slots=True)
class FlowBox:
    """A box with lines of text; `end` is one more line, which stands out. A box with `parts` has
    those in it, placed by themselves, below its lines. `kind`: its classes, `marks`: names that it
    shares with what it stands for elsewhere on the page."""

    key: str
    lines: Sequence[str]
    kind: str = "node"
    tip: str = ""
    marks: str = ""
    end: str = ""
    arrows: Sequence[Arrow] = ()
    parts: Sequence[FlowBox] = ()


def flow_html(boxes: Sequence[FlowBox]) -> str:
    """The list that becomes a picture."""
    return f'<div class="picture flow">{_list(boxes)}</div>'


def flow_script() -> str:
    """What draws the lists of a page: dagre, with its notice, and the drawing."""
    licence = (_FOLDER / "vendor" / "dagre" / "LICENSE").read_text(encoding="utf-8")
    library = (_FOLDER / "vendor" / "dagre" / "dagre.min.js").read_text(encoding="utf-8")
    code = "".join(x for x in library.splitlines(True) if not x.startswith(("//#", "/*!")))
    drawing = (_FOLDER / "flow.js").read_text(encoding="utf-8")
    return f"/* @dagrejs/dagre\n{licence}*/\n{code}\n{drawing}"


def _list(boxes: Iterable[FlowBox]) -> str:
    return f"<ul>{''.join(map(_item, boxes))}</ul>"


def _item(box: FlowBox) -> str:
    arrows = [
        {"from": a.source, "label": a.label, "tip": a.tip, "marks": a.marks} for a in box.arrows
    ]
    attributes = {
        "data-box": box.key,
        "data-kind": box.kind,
        "data-arrows": json.dumps(arrows) if arrows else "",
        "data-t": box.marks,
        "title": box.tip,
    }
    written = "".join(f' {k}="{escape(v)}"' for k, v in attributes.items() if v)
    lines = [f"<span>{escape(x)}</span>" for x in box.lines]
    lines += [f"<b>{escape(box.end)}</b>"] if box.end else []
    names = ", ".join(dict.fromkeys(a.name for a in box.arrows))
    said = f" <small>from {escape(names)}</small>" if names else ""
    return f"<li{written}>{' '.join(lines)}{said}{_list(box.parts) if box.parts else ''}</li>"


FLOW_STYLE = f"""
.flow {{ font: 11px/15px {FONT}; }} .flow ul {{ margin: .2em 0; padding-left: 1.5em; }}
.flow li b {{ padding-left: .6em; }} .flow small {{ color: var(--quiet); font-size: 1em; }}
.flow > button {{ font: inherit; margin: .4em 0; padding: .2em .8em; }}
"""
