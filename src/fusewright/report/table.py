"""Tables and quantities as text."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under a header, columns padded; a column of numbers stands right.

    Raises ValueError for a row that is not as long as the header.
    """
    cells = [[str(c) for c in row] for row in rows]
    for row in cells:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells under a header of {len(header)}: {row}")
    columns = list(zip(*cells, strict=True)) if cells else [() for _ in header]
    widths = [
        max(map(len, (title, *column))) for title, column in zip(header, columns, strict=True)
    ]
    right = [bool(column) and all(map(_is_quantity, column)) for column in columns]

    def line(parts: Sequence[str]) -> str:
        padded = (
            part.rjust(w) if r else part.ljust(w)
            for part, w, r in zip(parts, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, cells)])


def _is_quantity(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("", "-")


def nbytes_text(n: int) -> str:
    """A number of bytes with a unit, to about three digits: 768 B, 2.00 KiB, 64.0 MiB."""
    size, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    if unit == "B":
        return f"{n} B"
    return f"{size:.{max(0, 3 - len(str(int(size))))}f} {unit}"


def plural(n: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
