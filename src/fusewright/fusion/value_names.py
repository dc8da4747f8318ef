"""Names of the values of a fusion: the program's own, and numbers for the rest."""

from __future__ import annotations

from fusewright.core.expr import variables
from fusewright.errors import UserError
from fusewright.fusion.ir import Tensor


def fresh_name(name: str, taken: set[str]) -> str:
    """The name with the first number that gives one which is not taken; it is from then on."""
    number = 0
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def give_names(values: tuple[Tensor, ...]) -> None:
    """Gives every value a name: the program's, which must be unique, or t0, t1, ..."""
    taken: dict[str, Tensor] = {}
    for t in values:
        if t.name and taken.setdefault(t.name, t) is not t:
            raise UserError(f"two values are called {t.name!r}; give each its own name")
    symbols = {v.name for t in values for s in t.shape for v in variables(s)}
    number = 0
    for t in values:
        if t.name:
            continue
        while f"t{number}" in taken or f"t{number}" in symbols:
            number += 1
        t.name = f"t{number}"
        taken[t.name] = t
