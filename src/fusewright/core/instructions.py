"""What functions cost: instructions of one value."""

from __future__ import annotations

from collections.abc import Mapping

# Instructions of one value of 32 bits: exact, and where only 16 bits of it are needed; on the way
# that arguments of a usual size take. Source: counted in cubins for sm_90a (notes/measured.md).
INSTRUCTIONS: Mapping[str, tuple[float, float]] = {
    "exp": (8, 2), "exp_added": (4, 4), "exp2": (6, 1), "expm1": (16, 16), "log": (14, 14),
    "log2": (14, 14), "log10": (16, 16), "log1p": (18, 18), "sin": (20, 20), "cos": (20, 20),
    "tan": (30, 30), "tanh": (15, 12), "erf": (22, 15), "sqrt": (8, 1), "rsqrt": (4, 1),
    "reciprocal": (10, 1), "div": (9, 3), "pow": (60, 60), "floordiv": (35, 35), "rem": (35, 35),
    "where": (2, 2), "philox": (14, 14), "copy": (0, 0), "cast": (1, 0.5),
}  # fmt: skip
"""Functions that are not one instruction."""
