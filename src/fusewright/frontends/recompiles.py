"""Why a fused function is compiled again: what sets a call apart from those before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusewright.frontends.marks import Marks, roots_of
from fusewright.frontends.signature import Signature
from fusewright.fusion.trees import Tree


def reason(new: Signature, before: Iterable[Signature], tree: Tree, marks: Marks) -> str:
    """What differs from the call before it that is most alike, and what would have made one
    program serve both."""
    alike = [s for s in before if s.structure == new.structure and len(s.arrays) == len(new.arrays)]
    if not alike:
        return "its arguments have another structure, or other Python values, than those before"
    if new in alike:
        return "arguments may be written over that before could not, or the other way round"
    found = min((_differences(new, s, _names(tree, marks)) for s in alike), key=len)
    return "; ".join(found)


def _names(tree: Tree, marks: Marks) -> list[str]:
    """The parameter that each array belongs to."""
    known = marks.parameters
    return [known[r] if isinstance(r, int) and r < len(known) else str(r) for r in roots_of(tree)]


def _differences(new: Signature, old: Signature, names: Sequence[str]) -> list[str]:
    out: list[str] = []
    specs = zip(names, new.arrays, old.arrays, new.specs, old.specs, strict=True)
    for name, a, b, now, then in specs:
        if a.dtype is not b.dtype:
            out.append(f"{name} has dtype {a.dtype}, before {b.dtype}")
        if len(a.shape) != len(b.shape):
            out.append(f"{name} has rank {len(a.shape)}, before {len(b.shape)}")
        elif a.shape != b.shape:
            out.append(_sizes(name, a.shape, b.shape, now.shape, then.shape))
        if a.shape == b.shape and (a.strides, a.pattern) != (b.strides, b.pattern):
            out.append(f"{name} lies in memory in another way")
        if a.alignment != b.alignment:
            out.append(f"{name} begins at a multiple of {a.alignment} bytes, before {b.alignment}")
    return out or ["other sizes are equal than before"]


def _sizes(
    name: str,
    a: Sequence[object],
    b: Sequence[object],
    now: Sequence[object],
    then: Sequence[object],
) -> str:
    axes = [k for k, (n, o) in enumerate(zip(a, b, strict=True)) if n != o]
    fixed = [k for k in axes if _can_change(a[k]) and _can_change(b[k])]
    text = f"{name} has shape ({_listed(now)}), before ({_listed(then)})"
    if not fixed:
        return text
    return f"{text}; dynamic={{{name!r}: {tuple(fixed)}}} would share a program"


def _can_change(size: object) -> bool:
    """Whether a size could be symbolic: 0 and 1 stay numbers."""
    return isinstance(size, int) and size >= 2


def _listed(shape: Sequence[object]) -> str:
    return f"{', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}"
