"""The way out of what newcomers try first, as the ends of messages."""

from __future__ import annotations

from collections.abc import Iterable

from fusewright.fusion.elsewhere import instead_of_name

INSTEAD_OF_TRUTH = (
    "use fw.where(condition, a, b) for if, & | ~ for and, or, not, and (a < x) & (x < b) for "
    "a < x < b"
)

INSTEAD_OF_VALUE = (
    "write functions of fw in place of those of math and numpy, which take values; fw.cond "
    "chooses, and fw.while_loop counts, by what is computed"
)

_OF_PLACES = ("cuda", "cpu", "to", "gpu", "get", "device_put", "pin_memory", "block_until_ready")
_OF_GRADIENTS = ("backward", "grad", "requires_grad", "requires_grad_", "detach")


def instead_of(value: object) -> str:
    """What to write for a value that stands where an array belongs."""
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return (
            f"a {kind} is a structure of arguments, not an array; wrap it with fw.asarray, or "
            "pass numpy.asarray of it"
        )
    if isinstance(value, bool | int | float | complex):
        return "wrap it with fw.asarray, or with fw.full"
    if isinstance(value, str):
        return "pass an array; of text nothing can be computed"
    return "pass an array as an argument of the function, or make one with fw.asarray"


def instead_of_asking(asked: str) -> str:
    """What to write where Python asks for a value that is not known, by `bool()` for example."""
    if asked == "bool()":
        return f"so Python cannot branch or loop on it; {INSTEAD_OF_TRUTH}"
    return f"so Python cannot compute with it; {INSTEAD_OF_VALUE}"


def instead_of_attribute(name: str, functions: Iterable[str], layers: Iterable[str]) -> str:
    """What to write for `x.name` that arrays do not have; `functions` are those of the package,
    `layers` those of its `nn`."""
    if name in _OF_PLACES:
        return (
            "a value of a program is on no device yet: the arrays of the call, or device= of "
            "fw.fuse, say where it is computed; leave it out (another dtype is x.astype(dtype))"
        )
    if name in _OF_GRADIENTS:
        return "a value of a program records no gradients; leave it out"
    found = instead_of_name(name, functions, layers)
    ways = found or "operations are functions, such as fw.exp(x)"
    return f"{ways}; docs/ops.md lists the operations"


def instead_of_function(name: str, functions: Iterable[str], layers: Iterable[str]) -> str:
    """What to write for a function of numpy or torch."""
    return instead_of_name(name, functions, layers) or "write it with functions of fw"
