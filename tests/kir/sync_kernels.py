"""Short ways to write a kernel and to see the syncs in it."""

from __future__ import annotations

from fusewright.core.node import walk
from fusewright.kir.ir import (
    For,
    If,
    Kernel,
    Load,
    MbarArrive,
    MbarInit,
    MbarWait,
    Store,
    SyncStatement,
)
from fusewright.kir.text import parse_kernel


def kernel(body: str, block: str = "tx < 64", head: str = "") -> Kernel:
    """A kernel with registers r, t, g and global arrays x, y around the given statements."""
    return parse_kernel(
        f"""kernel k {{
          {head}
          param x: float32[4096] align 16
          param y: float32[4096] align 16
          grid (bx < 4)
          block ({block})
          local r: float32[8]
          local t: float32[1]
          local g: int32[1]
          {body}
        }}"""
    )


def outline(k: Kernel) -> str:
    """Loads as `l`, stores as `s`, syncs as B and W, loops as (), branches as [];
    of mbarriers `i` is the start, `<` an arrival, `>` a wait."""
    return _outline(k.body)


def _outline(body: tuple[object, ...]) -> str:
    out = ""
    for s in body:
        match s:
            case For():
                out += f"({_outline(s.body)})"
            case If():
                rest = f"|{_outline(s.otherwise)}" if s.otherwise else ""
                out += f"[{_outline(s.then)}{rest}]"
            case Load():
                out += "l"
            case Store():
                out += "s"
            case MbarInit():
                out += "i"
            case MbarArrive():
                out += "<"
            case MbarWait():
                out += ">"
            case SyncStatement():
                out += type(s).__name__[0]
            case _:
                pass
    return out


def syncs(k: Kernel) -> list[SyncStatement]:
    """The syncs in program order."""
    return [s for s in walk(k) if isinstance(s, SyncStatement)]
