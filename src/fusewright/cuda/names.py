"""C++ identifiers for the symbols of a kernel: readable, unique, never a reserved word."""

from __future__ import annotations

import re

from fusewright.cuda import scalars
from fusewright.cuda.prelude import is_reserved

KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl
    const constexpr const_cast continue decltype default delete do double dynamic_cast else enum
    explicit export extern false float for friend goto if inline int long mutable namespace new
    noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual
    void volatile wchar_t while xor xor_eq
    threadIdx blockIdx blockDim gridDim warpSize min max abs""",
    )
)
_MACROS = re.compile(
    r"[A-Z][A-Z0-9]+(_\w*)?|(NV|CU|va|cuda)[A-Z_]\w*|assert|linux|unix|__\w*|_[A-Z]\w*"
)
"""What a compiler may have defined, whose names no declaration can take."""


def identifier(name: str) -> str:
    """`name` with everything that C++ does not take in an identifier replaced."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    is_taken = text in KEYWORDS or text in scalars.spelled_words() or is_reserved(text)
    return f"v_{text}" if text[0].isdigit() or is_taken or _MACROS.fullmatch(text) else text


class Identifiers:
    """One identifier for each symbol; symbols are told apart by identity."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}
        self._taken: set[str] = set()
        self._symbols: list[object] = []

    def of(self, symbol: object, wish: str) -> str:
        """The identifier of `symbol`, `wish` or like it when it is new."""
        known = self._of.get(id(symbol))
        if known is not None:
            return known
        base = identifier(wish)
        name, n = base, 1
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._symbols.append(symbol)
        self._taken.add(name)
        self._of[id(symbol)] = name
        return name
