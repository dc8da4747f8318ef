"""Matrix products of aten, and which of them are taken from torch's library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusewright.dtypes import dtype_of
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.following import Following, following, readers_beyond
from fusewright.frontends.torch.library import aten, torch
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.promotion import cast_to
from fusewright.frontends.torch.table import ELEMENTWISE, Dtypes, lowers
from fusewright.fusion import ops
from fusewright.fusion.array import Array
from fusewright.runtime.config import Float32Matmul
from fusewright.runtime.device import architecture, has_gpu
from fusewright.schedule.heuristics.product_plans import Sizes
from fusewright.schedule.heuristics.product_suffix import Suffix
from fusewright.schedule.heuristics.product_times import least_us
from fusewright.schedule.products import needed_axis
from fusewright.target import BULK_ALIGNMENT, Feature, Target, target_of

PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
GAIN = 1.02
"""By so much of the product's time a product with what follows it must be faster than torch's call
and a kernel for the rest, to be taken. The products alone are counted as equally fast: ours take
0.83 to 1.02 times as long as torch's (16 rows to 8192 cubed, one H200, 2026-11-23, `bench.products`
and bench/product-plans-2026-11-23-h200.json). A result that is stored as well saves nothing: the
kernel of the rest finds it in the second-level cache, and two results of one kernel leave it one
after the other (4096 x 4096 x 1024 with gelu: 62 us for 69 alone, 73 for 70 with both results)."""


# --- lowerings ------------------------------------------------------------------------------------


@lowers(aten.mm.default, aten.bmm.default)
def _mm(out: Dtypes, a: Array, b: Array) -> Array:
    return _product(a, b)


@lowers(aten.addmm.default, aten.baddbmm.default)
def _addmm(
    out: Dtypes, bias: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1
) -> Array:
    made = _product(a, b)
    if alpha != 1:
        made = made * cast_to(alpha, out[0])
    if beta == 0:
        return made
    return made + (bias if beta == 1 else bias * cast_to(beta, out[0]))


def _product(a: Array, b: Array) -> Array:
    if not a.dtype.is_float:
        raise UnsupportedError(f"a product of {a.dtype} is no float's")
    return ops.matmul(a, b)


# --- the choice -----------------------------------------------------------------------------------


def left_products(
    nodes: Sequence[Any], reasons: Mapping[Any, str], options: Options
) -> dict[Any, str]:
    """The products of a graph that stay torch's, each with the reason. `reasons` are those of the
    nodes that cannot be fused."""
    products = [n for n in nodes if n.target in PRODUCTS and n not in reasons]
    if options.products == "always":
        return {}
    if options.products == "never":
        return dict.fromkeys(products, "products are left to torch (products='never')")
    found = {n: _reason(n, reasons, options) for n in products}
    return {n: why for n, why in found.items() if why is not None}


def float32_matmul() -> Float32Matmul:
    """What torch allows of its own products of float32 on a GPU, which ours take over:
    `torch.backends.cuda.matmul.allow_tf32`, or `torch.set_float32_matmul_precision`."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _dtype_reason(dtype: Any) -> str | None:
    """Why matrix instructions multiply no values of a dtype; None where they do."""
    if dtype in (torch.float16, torch.bfloat16):
        return None
    if dtype is not torch.float32:
        return f"there are no matrix instructions for {dtype_of(dtype)} here"
    if float32_matmul() == "tf32":
        return None
    return (
        "there are no matrix instructions for float32 that rounds nothing; "
        "torch.set_float32_matmul_precision('high') allows tf32"
    )


def _reason(node: Any, reasons: Mapping[Any, str], options: Options) -> str | None:
    """Why torch's product and a kernel for what follows it are at least as fast as one kernel; None
    where that wins."""
    value = node.meta["val"]
    if value.device.type != "cuda":
        return "a product on the host is torch's"
    if options.target is None and not has_gpu():
        return "no device tells what a product costs"
    target = target_of(options.target or architecture())
    if not target.has(Feature.WGMMA):
        return f"{target} has no products by warpgroups"
    if (why := _dtype_reason(value.dtype)) is not None:
        return why
    a, b = (n.meta["val"] for n in node.all_input_nodes[-2:])
    if not all(isinstance(e, int) for e in (*a.shape, *b.shape)):
        return "its sizes are symbolic"
    if not all(_fits(t) for t in (a, b)):
        return f"the rows of an operand are no multiples of {BULK_ALIGNMENT} bytes"
    batch = a.shape[0] if a.ndim == 3 else 1
    sizes = Sizes(batch, a.shape[-2], b.shape[-1], a.shape[-1], value.dtype.itemsize)
    if (why := _read_elsewhere(node, reasons)) is not None:
        return why
    return _too_slow(sizes, following(node, reasons), _transposed_us(a, b, target), target)


def _too_slow(sizes: Sizes, f: Following, transposed: float, target: Target) -> str | None:
    """Why one kernel is not faster than torch's product and a kernel that reads its result and what
    else is read for it, and stores what others read. A kernel that reduces what follows remains in
    both ways: behind a product it reads what that had to store for it."""
    places = sizes.batch * sizes.rows * sizes.columns
    known = target.calibration

    def moved_us(nbytes: float) -> float:
        return known.launch_us + places * nbytes / target.memory_nbytes_per_us

    plain = least_us(sizes, target)
    rest = moved_us(sizes.itemsize + f.loaded + known.write_weight * f.stored)
    more = max(f.stored + f.handed_on - sizes.itemsize, 0)
    own = least_us(sizes, target, Suffix(f.instructions, f.loaded, more))
    own += moved_us(f.reduced) if f.reduced else 0.0
    if own + transposed + (GAIN - 1) * plain <= plain + rest:
        return None
    first = f" and {transposed:.1f} to transpose its operands" if transposed else ""
    return (
        f"one kernel takes {own:.1f} us{first}, a product {plain:.1f} and what follows it "
        f"{rest:.1f}: too little to gain"
    )


def _transposed_us(a: Any, b: Any, target: Target) -> float:
    """Microseconds in which operands are transposed that instructions read along one axis only."""
    us = 0.0
    for position, t in enumerate((a, b)):
        needed = needed_axis(dtype_of(t.dtype), position)
        if needed is not None and t.stride()[needed] != 1:
            nbytes = 2 * t.numel() * t.dtype.itemsize
            us += target.calibration.launch_us + nbytes / target.memory_nbytes_per_us
    return us


def _fits(t: Any) -> bool:
    """Whether a tensor map takes a matrix: one of its axes is contiguous, the other is a multiple
    of 16 bytes long."""
    unit = BULK_ALIGNMENT // t.dtype.itemsize
    strides = t.stride()[-2:]
    return 1 in strides and all(s % unit == 0 for s in t.stride() if s != 1)


def _read_elsewhere(node: Any, reasons: Mapping[Any, str]) -> str | None:
    """Why a product's result would be stored; None where only what one kernel computes with it
    reads it."""
    fused = [n.target in ELEMENTWISE and n not in reasons for n in readers_beyond(node)]
    if not any(fused):
        return "nothing elementwise follows it"
    return None if all(fused) else "its result is stored as well"
