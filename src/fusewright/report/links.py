"""Names that a value has in common with the lines and boxes that stand for it elsewhere.

A kernel calls buffers and loops after the values they are for, with suffixes behind an underscore:
`t4`, `t4_1` and `t4_v7` belong to the value t4. A mark is such a name with the kernel's number in
front, since kernels of one structure are one text for several places of the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fusewright.fusion.ir import Tensor
from fusewright.report.cut import Cut
from fusewright.report.subject import KernelLike, LaunchLike

_WORD = re.compile(r"[A-Za-z_]\w*")
_MADE = re.compile(r"^\s*(?:store |fw_store<\d+>\(|(?:const )?(?:[\w:<>, ]+[ *]+)?)([A-Za-z_]\w*)")


class Names:
    """The values and buffers that a kernel's texts speak of."""

    def __init__(self, kernel: int, names: Iterable[str]) -> None:
        self._prefix = f"k{kernel}"
        self._names = frozenset(names)
        self._known: dict[str, str] = {}

    def of(self, word: str) -> str:
        """The mark of a word: of the longest name that it is, or begins with; "" for others."""
        if word not in self._known:
            name = word
            while name and name not in self._names:
                name = name.rpartition("_")[0]
            self._known[word] = f"{self._prefix}.{name}" if name else ""
        return self._known[word]

    def in_line(self, line: str) -> list[str]:
        """The marks of a line of text, each once, in order."""
        return list(dict.fromkeys(m for w in _WORD.findall(line) if (m := self.of(w))))

    def made_in(self, line: str) -> str:
        """The mark of what a line of text stores or assigns; "" for other lines."""
        found = _MADE.match(line) if "=" in line or "store" in line else None
        return self.of(found[1]) if found is not None else ""


def names_of(number: int, kernel: KernelLike, values: Sequence[Tensor]) -> Names:
    """The names of a kernel that computes these values."""
    borders = (b.name for b in kernel.ir.params)
    return Names(number, [*(t.name for t in values), *borders, *(b.name for b in kernel.smem)])


def marks_of(
    cut: Cut, kernels: Sequence[KernelLike], launches: Sequence[LaunchLike]
) -> Mapping[Tensor, str]:
    """For each value its marks: in the first launch of a kernel its own name; in later ones that of
    the value in its place."""
    numbers = {id(k): i for i, k in enumerate(kernels)}
    bands = {b.label: b.values for b in cut.bands}
    first: dict[int, LaunchLike] = {}
    out: dict[Tensor, dict[str, None]] = {}
    for x in launches:
        number = numbers[id(x.kernel)]
        model = first.setdefault(number, x)
        here, there = (*x.inputs, *x.outputs), (*model.inputs, *model.outputs)
        if x is model:
            here = there = (*here, *bands.get(x.kernel.name, ()))
        for t, named in zip(here, there, strict=False):
            out.setdefault(t, {})[f"k{number}.{named.name}"] = None
    return {t: " ".join(found) for t, found in out.items()}
