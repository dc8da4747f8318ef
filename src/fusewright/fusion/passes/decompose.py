"""Large ops in terms of small ones, for kernels that have no form of their own for them."""

from __future__ import annotations

from fusewright.core.expr import Expr, add, as_expr, ceildiv, mul
from fusewright.fusion import build, ir
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.fusion.passes.rebuild import rebuild

CHUNK = 32  # elements of an inner scan: one per lane of a warp
LONGEST = 64  # a scan up to this extent stays whole
UNBOUNDED_LEVELS = 2  # levels of blocks for a symbolic extent that has no upper bound


def decompose(fusion: Fusion) -> Fusion:
    """Write products as sums of products and long scans as scans of blocks.

    rewrite:  MatMul(a, b)[.., i, j]  ->  sum over k of a[.., i, k] * b[.., k, j]
              Scan(x) over n > 64     ->  Scan(chunks of 32) + exclusive prefix of their totals
    checks:   afterwards there is no MatMul, and every Scan axis has at most 64 elements; only a
              symbolic extent n without upper bound leaves one Scan of ceil(n / 1024)
    order:    before scheduling, on segments that no matmul or scan scheduler took

    The products keep the operands' dtype: kernels multiply and add in its compute dtype and round
    only where the sum is stored, which is what MatMul means.
    """
    return rebuild(fusion, _decomposed)


def _decomposed(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
    match t.op:
        case ir.MatMul():
            return _sum_of_products(*operands)
        case ir.Scan():
            return None
            return blocked_scan(t.op.fn, operands[0], t.op.axis)
        case _:
            return None


def _sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """Over (.., m, k, n): rows of b stay contiguous, and k is innermost for a single column."""
    rank = a.ndim
    shape = (*a.shape, b.shape[-1])
    rows = build.value(shape, a.dtype, ir.Broadcast((a,), (*range(rank), None)))
    order = (*range(rank - 2), None, rank - 2, rank - 1)
    columns = build.value(shape, b.dtype, ir.Broadcast((b,), order))
    return build.reduce("add", build.pointwise("mul", rows, columns), (rank - 1,))


# --- scans --------------------------------------------------------------------------------------


def _is_short(extent: Expr) -> bool:
    most = extent.interval[1]
    return most is not None and most <= LONGEST


def blocked_scan(fn: str, t: Tensor, axis: int, level: int = 0) -> Tensor:
    """Inclusive prefix `fn` along an axis: each chunk by itself, then the total of the chunks
    before it combined into every element. The totals are scanned in the same way.

    Source: Blelloch, Prefix sums and their applications (1990), section 1.2.
    """
    extent = t.shape[axis]
    is_bounded = extent.interval[1] is not None
    if _is_short(extent) or (not is_bounded and level == UNBOUNDED_LEVELS):
        return build.scan(fn, t, axis)
    chunks = ceildiv(extent, CHUNK)
    inner = build.scan(fn, _chunked(fn, t, axis, chunks), axis + 1)
    totals = blocked_scan(fn, _last_of_chunk(inner, axis), axis, level + 1)
    before = _along(totals, axis, (1, -1), build.identity(fn, t.dtype))
    spread = (*range(axis + 1), None, *range(axis + 1, t.ndim))
    offsets = build.value(inner.shape, t.dtype, ir.Broadcast((before,), spread))
    whole = build.pointwise(fn, offsets, inner)
    padded = mul(chunks, CHUNK)
    flat = build.reshape("scan", whole, (*t.shape[:axis], padded, *t.shape[axis + 1 :]))
    return _along(flat, axis, (0, add(extent, mul(padded, -1))), 0)


def _along(t: Tensor, axis: int, amounts: tuple[int, Expr | int], fill: ir.Scalar) -> Tensor:
    """A resize of one axis."""
    low, high = ([amount if k == axis else 0 for k in range(t.ndim)] for amount in amounts)
    return build.resize(t, low, high, fill)


def _chunked(fn: str, t: Tensor, axis: int, chunks: Expr) -> Tensor:
    """The axis filled up to whole chunks and split into (chunks, 32)."""
    missing = add(mul(chunks, CHUNK), mul(t.shape[axis], -1))
    full = _along(t, axis, (0, missing), build.identity(fn, t.dtype))
    shape = (*t.shape[:axis], chunks, as_expr(CHUNK), *t.shape[axis + 1 :])
    return build.reshape("scan", full, shape)


def _last_of_chunk(inner: Tensor, axis: int) -> Tensor:
    last = _along(inner, axis + 1, (1 - CHUNK, 0), 0)
    shape = (*inner.shape[: axis + 1], *inner.shape[axis + 2 :])
    return build.reshape("scan", last, shape)
