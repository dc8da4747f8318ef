"""Pictures: a canvas of a few SVG shapes. Colours are classes, which the page gives a meaning."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
CHAR_WIDTH = 6.7  # of a monospaced letter at 11 px
COLOURS = 8
_LIGHT = ("cfe3f7", "d6efd0", "fbe3c0", "e6d7f5", "f7d3d9", "d0efee", "efe9b8", "dfdfdf")
_DARK = ("1f3a57", "26452a", "54401c", "3f2f57", "57262f", "1d4544", "49441c", "3c3c3c")


def colour(i: int) -> str:
    """The class of the i-th colour of a picture."""
    return f"c{i % COLOURS}"


def _palette(values: Sequence[str]) -> str:
    return " ".join(f"--c{i}: #{v};" for i, v in enumerate(values))


SVG_STYLE = f"""
:root {{ {_palette(_LIGHT)} --ink: #222; --node: #fff; --edge: #667; --sync: #b3261e; }}
@media (prefers-color-scheme: dark) {{
  :root {{ {_palette(_DARK)} --ink: #e4e4e0; --node: #23262b; --edge: #9aa; --sync: #ff8a80; }}
}}
svg text {{ fill: var(--ink); }}
svg rect {{ stroke: var(--edge); stroke-width: .7; }}
svg .node {{ fill: var(--node); }} svg .result {{ stroke-width: 2.4; }}
svg .input {{ fill: var(--c0); }} svg .view {{ stroke-dasharray: 5 3; }}
svg .name {{ fill: none; stroke-dasharray: 1 2; }}
svg .plain {{ fill: none; }}
svg .edge {{ fill: none; stroke: var(--edge); stroke-width: 1; }}
svg .tip {{ fill: var(--edge); stroke: none; }}
svg .axis {{ stroke: var(--edge); stroke-width: 1; }}
svg .sync {{ fill: none; stroke: var(--sync); stroke-width: 1.6; }}
svg .order {{ fill: none; stroke: var(--sync); stroke-width: 1; stroke-dasharray: 3 2; }}
svg .weak {{ opacity: .65; }}
svg .blank {{ fill: var(--page); stroke: none; }}
svg [class^="on-"] {{ paint-order: stroke; stroke-width: 4px; stroke-linejoin: round; }}
""" + "\n".join(
    f"svg .c{i} {{ fill: var(--c{i}); }} svg .on-c{i} {{ stroke: var(--c{i}); }}"
    for i in range(COLOURS)
)
"""What the classes of pictures mean, in light and in dark."""


class Canvas:
    """Shapes in the order drawn; lengths in pixels, y downward. `marks` are names that shapes share
    with what they stand for elsewhere on the page."""

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self._width = 0.0
        self._height = 0.0

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        kind: str,
        tip: str = "",
        marks: str = "",
    ) -> None:
        """A box with a thin border; `tip` shows under the pointer."""
        self._reach(x + width, y + height)
        self._shapes.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="3" '
            f'class="{kind}"{_marks(marks)}>{_tip(tip)}</rect>'
        )

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        bold: bool = False,
        end: bool = False,
        kind: str = "",
        on: str = "",
    ) -> None:
        """A line of text whose baseline starts, or with `end` ends, at (x, y). `on`: the colour of
        the box that it stands on, which keeps lines behind it away from its letters."""
        width = text_width(content)
        self._reach(x if end else x + width, y + 4)
        weight = ' font-weight="bold"' if bold else ""
        anchor = ' text-anchor="end"' if end else ""
        kinds = " ".join(filter(None, (f"on-{on}" if on else "", kind)))
        named = f' class="{kinds}"' if kinds else ""
        self._shapes.append(
            f'<text x="{_n(x)}" y="{_n(y)}"{weight}{anchor}{named}>'
            f"{escape(content, quote=False)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, kind: str, tip: str = "") -> None:
        """A straight line."""
        self._reach(max(x1, x2), max(y1, y2))
        self._shapes.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{kind}">'
            f"{_tip(tip)}</line>"
        )

    def arc(self, x1: float, x2: float, y: float, height: float, *, kind: str, tip: str) -> None:
        """An arc over a place, from x1 to x2 at y."""
        self._reach(max(x1, x2), y)
        self._shapes.append(
            f'<path d="M{_n(x1)} {_n(y)} Q{_n((x1 + x2) / 2)} {_n(y - height)} {_n(x2)} {_n(y)}" '
            f'class="{kind}">{_tip(tip)}</path>'
        )

    def svg(self) -> str:
        """The picture as one `<svg>` element."""
        width, height = self._width + 8, self._height + 8
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
            f'viewBox="0 0 {_n(width)} {_n(height)}" font-family="{FONT}" font-size="11">\n'
            + "\n".join(self._shapes)
            + "\n</svg>"
        )

    def _reach(self, x: float, y: float) -> None:
        self._width = max(self._width, x)
        self._height = max(self._height, y)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tip(text: str) -> str:
    return f"<title>{escape(text, quote=False)}</title>" if text else ""


def _marks(marks: str) -> str:
    return f' data-t="{escape(marks)}"' if marks else ""


def text_width(content: str) -> float:
    """The width in pixels of a line of text."""
    return len(content) * CHAR_WIDTH
