"""Pictures: a canvas of a few SVG shapes. Every picture stands alone, without a style sheet."""

from __future__ import annotations

from html import escape

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
CHAR_WIDTH = 6.7  # of a monospaced letter at 11 px
PALETTE = ("#cfe3f7", "#d6efd0", "#fbe3c0", "#e6d7f5", "#f7d3d9", "#d0efee", "#efe9b8", "#dfdfdf")


class Canvas:
    """Shapes in the order drawn; lengths in pixels, y downward."""

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self._width = 0.0
        self._height = 0.0

    def rect(
        self, x: float, y: float, width: float, height: float, *, fill: str, tip: str = ""
    ) -> None:
        """A box with a thin border; `tip` shows under the pointer."""
        self._reach(x + width, y + height)
        self._shapes.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="3" '
            f'fill="{fill}" stroke="#777" stroke-width="0.7">{_tip(tip)}</rect>'
        )

    def text(
        self, x: float, y: float, content: str, *, bold: bool = False, end: bool = False
    ) -> None:
        """A line of text whose baseline starts, or with `end` ends, at (x, y)."""
        width = len(content) * CHAR_WIDTH
        self._reach(x if end else x + width, y + 4)
        weight = ' font-weight="bold"' if bold else ""
        anchor = ' text-anchor="end"' if end else ""
        self._shapes.append(
            f'<text x="{_n(x)}" y="{_n(y)}"{weight}{anchor}>{escape(content, quote=False)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, stroke: str, tip: str = ""
    ) -> None:
        """A straight line."""
        self._reach(max(x1, x2), max(y1, y2))
        self._shapes.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" stroke="{stroke}" '
            f'stroke-width="1.6">{_tip(tip)}</line>'
        )

    def flow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A curve from (x1, y1) down to (x2, y2)."""
        self._reach(max(x1, x2), max(y1, y2))
        bend = max(12.0, (y2 - y1) / 2)
        self._shapes.append(
            f'<path d="M{_n(x1)} {_n(y1)} C{_n(x1)} {_n(y1 + bend)} {_n(x2)} {_n(y2 - bend)} '
            f'{_n(x2)} {_n(y2)}" fill="none" stroke="#555" stroke-width="0.9" opacity="0.75"/>'
        )

    def svg(self) -> str:
        """The picture as one `<svg>` element."""
        width, height = self._width + 8, self._height + 8
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
            f'viewBox="0 0 {_n(width)} {_n(height)}" font-family="{FONT}" font-size="11" '
            f'fill="#222">\n' + "\n".join(self._shapes) + "\n</svg>"
        )

    def _reach(self, x: float, y: float) -> None:
        self._width = max(self._width, x)
        self._height = max(self._height, y)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tip(text: str) -> str:
    return f"<title>{escape(text, quote=False)}</title>" if text else ""


def text_width(content: str) -> float:
    """The width in pixels of a line of text."""
    return len(content) * CHAR_WIDTH
