"""Adjoints of loops and branches: a loop of known trips goes back over what it carried, a branch
is chosen again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from fusewright.errors import UnsupportedError
from fusewright.fusion import build, ir
from fusewright.fusion.array import Array
from fusewright.fusion.derivatives import recorded_again
from fusewright.fusion.ir import Fusion, Region, Tensor
from fusewright.fusion.ops import arange, cond, zeros_like
from fusewright.fusion.ops.control import known_extent, scan_with

Pull: TypeAlias = Callable[
    [Sequence[Array], Sequence[Array], Sequence[Array]], "list[Array | None]"
]
"""Outputs, their cotangents, and variables to the cotangents of these, None where nothing flows."""


def region_adjoint(op: Region, given: Mapping[int, Array], pull: Pull) -> list[Array | None]:
    """The cotangents of the operands from those of results, by number. Raises UnsupportedError for
    a loop whose trips nobody knows."""
    if op.fn == "cond":
        return _of_branches(op, given, pull)
    if op.trips is None:
        raise UnsupportedError(
            f"grad: {op.fn} has no derivative, as the values of an unknown number of iterations "
            "would have to be kept; use fw.fori_loop or fw.scan with a bound on the iterations, or "
            "give the function a derivative with fw.custom_vjp"
        )
    return _of_loop(op, given, pull)


def run(body: Fusion, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a body on arrays of the trace that is at hand. Names stay in the body."""
    known = dict(zip(body.inputs, (x.tensor for x in inputs), strict=True))
    found = recorded_again(body.outputs, known, rules=True)
    given = set(known.values())
    for t in ir.topological(tuple(found), tuple(known.values())):
        if t not in given:
            t.name = ""
    return [Array(t) for t in found]


def _pulled(
    body: Fusion, inputs: Sequence[Array], seeds: Mapping[int, Array], pull: Pull
) -> list[Array | None]:
    """The cotangents of a body's inputs, from those of some of its outputs."""
    floats = [k for k, x in enumerate(inputs) if x.dtype.is_float]
    own = {k: Array(_own(inputs[k].tensor)) for k in floats}
    outputs = run(body, [own.get(k, x) for k, x in enumerate(inputs)])
    chosen = [outputs[k] for k in seeds]
    found = pull(chosen, list(seeds.values()), list(own.values()))
    at = dict(zip(floats, found, strict=True))
    return [at.get(k) for k in range(len(inputs))]


def _own(t: Tensor) -> Tensor:
    return build.value(t.shape, t.dtype, ir.Permute((t,), tuple(range(t.ndim))))


def _of_branches(op: Region, given: Mapping[int, Array], pull: Pull) -> list[Array | None]:
    """The branch that ran goes back; an operand that it does not read gets zeros."""
    condition, *operands = (Array(t) for t in op.operands)
    floats = [k for k, x in enumerate(operands) if x.dtype.is_float]

    def back(body: Fusion) -> list[Array]:
        found = _pulled(body, operands, given, pull)
        return [zeros_like(operands[k]) if (c := found[k]) is None else c for k in floats]

    made = cond(condition, *(partial(back, body) for body in op.bodies))
    at = dict(zip(floats, made, strict=True))
    return [None, *(at.get(k) for k in range(len(operands)))]


def _of_loop(op: Region, given: Mapping[int, Array], pull: Pull) -> list[Array | None]:
    """The iterations in the other order, each from the carried values that it began with: these
    are stacked by running the loop once more. What flows to an operand that all iterations share
    is added up on the way."""
    assert op.trips is not None
    (body,) = op.bodies
    operands = [Array(t) for t in op.operands]
    n, m = op.carried, op.carried + op.sliced
    start, slices, shared = operands[:n], operands[n:m], operands[m:]
    counts = arange(known_extent(op.trips))

    def forward(state: list[Array], x: tuple[list[Array], Array]) -> tuple[list[Array], Any]:
        return run(body, [*state, *x[0], *shared])[:n], list(state)

    _, states = scan_with(forward, start, (slices, counts), reverse=op.reverse, lap=op.lap)
    stacked = {k: g for k, g in given.items() if k >= n}
    moving = [k for k, x in enumerate(start) if x.dtype.is_float]
    summed = [k for k, x in enumerate(shared) if x.dtype.is_float]
    reached: set[int] = set()

    def back(carry: Any, x: Any) -> tuple[Any, Any]:
        (flows, sums), (state, taken, seeds, _) = carry, x
        given_here = dict(zip(moving, flows, strict=True)) | dict(zip(stacked, seeds, strict=True))
        found = _pulled(body, [*state, *taken, *shared], given_here, pull)
        reached.update(k for k, c in enumerate(found) if c is not None)
        new = [zeros_like(start[k]) if (c := found[k]) is None else c for k in moving]
        total = [
            s if (c := found[m + k]) is None else s + c for k, s in zip(summed, sums, strict=True)
        ]
        return (new, total), found[n:m]

    first = [given[k] if k in given else zeros_like(start[k]) for k in moving]
    zeros = [zeros_like(shared[k]) for k in summed]
    rows = (states, slices, list(stacked.values()), counts)
    (flows, sums), pieces = scan_with(
        back, (first, zeros), rows, reverse=not op.reverse, lap=op.lap
    )
    at = dict(zip(moving, flows, strict=True))
    total = dict(zip(summed, sums, strict=True))
    behind = [total[k] if m + k in reached else None for k in range(len(shared))]
    return [*(at.get(k) for k in range(n)), *pieces, *behind]
