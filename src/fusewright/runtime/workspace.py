"""A workspace that the caller gives a call: memory for what its kernels store for each other, in
place of an arena that the call allocates."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.dtypes import uint8
from fusewright.errors import UserError
from fusewright.host.subspans import ROOT_ALIGNMENT
from fusewright.runtime.arrays import ArrayInfo


def check_workspace(
    w: ArrayInfo,
    nbytes: int,
    like: str,
    arguments: Sequence[ArrayInfo],
    out: Sequence[ArrayInfo | None],
) -> None:
    """Raises UserError for a workspace that cannot hold `nbytes` bytes beside the arguments and
    the arrays of `out=`, which are `like` arrays of one library on one device."""
    if w.dtype is not uint8 or len(w.shape) != 1 or (w.shape[0] > 1 and w.strides != (1,)):
        raise UserError(
            f"workspace= is {w.dtype}{list(w.shape)} of strides {w.strides}; pass {nbytes} bytes "
            "side by side, an array of uint8 with one axis"
        )
    if f"{w.kind} on {w.device}" != like:
        raise UserError(
            f"workspace= is {w.kind} on {w.device}, the arguments are {like}; pass memory that "
            "lies beside them"
        )
    if w.is_read_only:
        raise UserError("workspace= is read-only; pass an array that can be written")
    check_room(w.shape[0], nbytes)
    if nbytes and w.device.kind == "cuda":
        check_address(w.pointer)
    named = [(f"argument {k}", x) for k, x in enumerate(arguments)]
    named += [(f"out= {k}", o) for k, o in enumerate(out) if o is not None]
    for what, x in named:
        check_apart(w.pointer, w.pointer + nbytes, what, x.bytes_range)


def check_room(given: int, nbytes: int) -> None:
    """Raises UserError for a workspace of too few bytes."""
    if given < nbytes:
        raise UserError(
            f"workspace= has {given} bytes, this call needs {nbytes}; pass an array of as many as "
            "`program.workspace_nbytes` says, or leave workspace= out"
        )


def check_address(pointer: int) -> None:
    """Raises UserError for a workspace that begins where kernels do not expect one."""
    if pointer % ROOT_ALIGNMENT:
        raise UserError(
            f"workspace= begins {pointer % ROOT_ALIGNMENT} bytes behind a multiple of "
            f"{ROOT_ALIGNMENT}; pass one whose address is a multiple of {ROOT_ALIGNMENT}"
        )


def check_apart(start: int, end: int, what: str, other: tuple[int, int]) -> None:
    """Raises UserError where the bytes of a workspace that a call uses meet those of an array."""
    first, last = other
    if first < end and start < last:
        shared = min(end, last) - max(start, first)
        raise UserError(
            f"workspace= shares {shared} bytes with {what}; pass memory that no argument and no "
            "array of out= lies in"
        )
