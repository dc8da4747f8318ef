"""Names of kernels: what they fuse, in the words of the program, and a digest of their structure.

    fw_add_rms_norm_4f1c      two operations of the program, added and normalised
    fw_exp_sum_3_more_09be    five of them

Kernels of equal structure have equal names, whichever program they belong to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from fusewright.fusion.ir import Fusion, Input, Pointwise, Reduce, Tensor
from fusewright.host.groups import is_view

MAX_WORDS = 3
"""Operations that a name spells out."""
_SUMS = {"add": "sum", "mul": "prod", "and": "all", "or": "any"}


def kernel_name(fusion: Fusion, structure: object) -> str:
    """The name of the kernel that computes a fusion of this structure."""
    words = list(dict.fromkeys(w for t in fusion.values if (w := _word(t)))) or ["copy"]
    if len(words) > MAX_WORDS:
        words = [*words[: MAX_WORDS - 1], f"{len(words) - MAX_WORDS + 1}_more"]
    return f"fw_{'_'.join(words)}_{_digest(structure)}"


def moves_name(structure: object) -> str:
    """The name of the kernel that copies and fills what no other kernel computes."""
    return f"fw_move_{_digest(structure)}"


def joined_name(names: Sequence[str]) -> str:
    """The name of the kernel whose blocks do what those of several kernels do."""
    return f"{names[0].rpartition('_')[0]}_{len(names)}_side_by_side_{_digest(names)}"


def _digest(structure: object) -> str:
    return hashlib.blake2b(repr(structure).encode(), digest_size=2).hexdigest()


def _word(t: Tensor) -> str:
    """The operation of the program that a value belongs to; "" for what only says where values lie
    or in which type."""
    if isinstance(t.op, Input) or not t.op.operands or is_view(t):
        return ""
    if t.source is not None and t.source.call:
        return re.sub(r"\W", "_", t.source.call)
    match t.op:
        case Pointwise(fn="cast" | "copy" | "segment_set"):
            return ""
        case Pointwise(fn=fn):
            return fn
        case Reduce(fn=fn):
            return _SUMS.get(fn, fn)
        case _:
            return type(t.op).__name__.lower()
