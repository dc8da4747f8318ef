"""Small kernels, written by hand, that the tests of emission, compilation and launch share."""

from __future__ import annotations

from fusewright.core.conditions import less
from fusewright.core.expr import Int, Var
from fusewright.core.functions import FUNCTIONS
from fusewright.cuda import scalars
from fusewright.dtypes import ALL, DType, dtype_of
from fusewright.kir.ir import (
    Alloc,
    BlockSync,
    Buffer,
    Cache,
    Compute,
    Dim,
    For,
    If,
    Kernel,
    Load,
    Memory,
    Reg,
    Shuffle,
    Statement,
    Store,
    WarpSync,
)

NTHREADS = 128


def dims(block: int = NTHREADS, grid: int = 1) -> dict[str, tuple[Dim, ...]]:
    """One-dimensional grid and block."""
    bx, tx = Var("bx", 0, grid - 1), Var("tx", 0, block - 1)
    return {"grid": (Dim(bx, Int(grid)),), "block": (Dim(tx, Int(block)),)}


def kernel(name: str, params: tuple[Buffer, ...], body: tuple[Statement, ...], **more) -> Kernel:
    """A kernel without arguments; dimensions of `dims()` unless given."""
    fields = {"arguments": (), "symbols": (), **dims(), **more}
    return Kernel(name=name, params=params, body=body, **fields)


def local(name: str, dtype: str | DType, size: int = 1) -> Buffer:
    return Buffer(name, dtype_of(dtype), Int(size), Memory.LOCAL)


def glob(name: str, dtype: str | DType, size: int = 1024) -> Buffer:
    return Buffer(name, dtype_of(dtype), Int(size), Memory.GLOBAL, 16)


def result_dtype(fn: str, dtype: DType) -> DType:
    """The dtype of `fn` on `dtype` as `core.functions` says."""
    result = FUNCTIONS[fn].result
    return dtype if result == "same" else dtype_of(result)


def elementwise(fn: str, dtype: DType, n: int, target: DType | None = None) -> Kernel:
    """`y[i] = fn(x0[i], x1[i], ...)` for `n` elements of `dtype`; `where` takes bools first.
    `target` is the dtype of y, the function's own when not given."""
    arity = FUNCTIONS[fn].arity
    block = dims(NTHREADS, -(-n // NTHREADS))
    i = block["grid"][0].var * NTHREADS + block["block"][0].var
    types = [dtype] * arity
    if fn == "where":
        types[0] = dtype_of("bool")
    xs = tuple(glob(f"x{k}", t, n) for k, t in enumerate(types))
    out = target or result_dtype(fn, dtype)
    y = glob("y", out, n)
    rs = [local(f"r{k}", t) for k, t in enumerate(types)]
    result = local("result", out)
    inside = (
        *(Load(Reg(r), x, i) for r, x in zip(rs, xs, strict=True)),
        Compute(fn, Reg(result), tuple(Reg(r) for r in rs)),
        Store(y, i, Reg(result)),
    )
    body = (*(Alloc(r) for r in (*rs, result)), If(less(i, n), inside))
    name = f"{fn}_{dtype}" + (f"_to_{target}" if target else "")
    return kernel(name, (*xs, y), body, **block)


def functions_of(dtype: DType, result: str) -> list[str]:
    """The functions that `dtype` has and whose result is "same", "bool" or "uint32"."""
    return [
        fn
        for fn, f in FUNCTIONS.items()
        if f.result == result and scalars.supports(fn, dtype) and fn != "cast"
    ]


def functions_kernel(dtype: DType, n: int) -> Kernel:
    """Every function of a dtype on `n` points: inputs c (bool, for `where`), x0, x1, x2; outputs
    `same`, `bool`, `uint32`, in which function k of `functions_of` has elements [k n, (k+1) n)."""
    block = dims(NTHREADS, -(-n // NTHREADS))
    i = block["grid"][0].var * NTHREADS + block["block"][0].var
    c, xs = glob("c", "bool", n), [glob(f"x{k}", dtype, n) for k in range(3)]
    rc, *rs = (local(f"r{x.name}", x.dtype) for x in (c, *xs))
    body: list[Statement] = [Load(Reg(r), x, i) for r, x in zip((rc, *rs), (c, *xs), strict=True)]
    outputs: list[Buffer] = []
    allocs = [Alloc(r) for r in (rc, *rs)]
    for result in ("same", "bool", "uint32"):
        names = functions_of(dtype, result)
        if not names:
            continue
        out = dtype if result == "same" else dtype_of(result)
        y, r = glob(result, out, n * len(names)), local(f"r_{result}", out)
        outputs.append(y)
        allocs.append(Alloc(r))
        for k, fn in enumerate(names):
            operands = (rc, rs[0], rs[1]) if fn == "where" else rs[: FUNCTIONS[fn].arity]
            body.append(Compute(fn, Reg(r), tuple(Reg(o) for o in operands)))
            body.append(Store(y, i + k * n, Reg(r)))
    inside = If(less(i, n), tuple(body))
    return kernel(f"functions_{dtype}", (c, *xs, *outputs), (*allocs, inside), **block)


def casts_kernel(source: DType, n: int) -> Kernel:
    """`y_t[i] = x[i]` as dtype t, for every t but the source's."""
    block = dims(NTHREADS, -(-n // NTHREADS))
    i = block["grid"][0].var * NTHREADS + block["block"][0].var
    x, r = glob("x", source, n), local("r", source)
    ys = [glob(f"y_{t}", t, n) for t in ALL if t is not source]
    rs = [local(f"r_{y.dtype}", y.dtype) for y in ys]
    body: list[Statement] = [Load(Reg(r), x, i)]
    for y, t in zip(ys, rs, strict=True):
        body += [Compute("cast", Reg(t), (Reg(r),)), Store(y, i, Reg(t))]
    allocs = tuple(Alloc(b) for b in (r, *rs))
    inside = If(less(i, n), tuple(body))
    return kernel(f"casts_{source}", (x, *ys), (*allocs, inside), **block)


def copy_kernel(
    source: DType,
    target: DType,
    width: int,
    n: int,
    *,
    load: Cache = Cache.DEFAULT,
    store: Cache = Cache.DEFAULT,
) -> Kernel:
    """`y[:n] = x[:n]`, `width` elements an access, in a loop of one block; the store converts."""
    block = dims()
    x, y, r = glob("x", source, n), glob("y", target, n), local("r", source, width)
    t = Var("t", 0, n // (NTHREADS * width) - 1)
    at = t * (NTHREADS * width) + block["block"][0].var * width
    body = (
        Load(Reg(r), x, at, width, cache=load),
        Store(y, at, Reg(r), width, cache=store),
    )
    name = f"copy_{source}_{target}_{width}_{load.value}_{store.value}"
    loop = For(t, Int(n // (NTHREADS * width)), body)
    return kernel(name, (x, y), (Alloc(r), loop), **block)


def reversed_kernel() -> Kernel:
    """`y[i] = x[n-1-i]` through shared memory, with the barrier it needs (id 7)."""
    block = dims()
    tx = block["block"][0].var
    x, y, r = (
        glob("x", "float32", NTHREADS),
        glob("y", "float32", NTHREADS),
        local("r", "float32"),
    )
    tile = Buffer("tile", dtype_of("float32"), Int(NTHREADS), Memory.SHARED)
    body = (
        Alloc(tile, offset=1024),
        Alloc(r),
        Load(Reg(r), x, tx),
        Store(tile, tx, Reg(r)),
        BlockSync(7, "RAW tile: store -> load"),
        Load(Reg(r), tile, NTHREADS - 1 - tx),
        WarpSync(9, "for show"),
        Store(y, tx, Reg(r)),
    )
    return kernel("reverse", (x, y), body, **block)


def warp_sum_kernel(dtype: DType) -> Kernel:
    """`y[i]` is the sum of x over the warp of thread i, by five exchanges."""
    block = dims()
    tx = block["block"][0].var
    x, y = glob("x", dtype, NTHREADS), glob("y", dtype, NTHREADS)
    r, other = local("r", dtype), local("other", dtype)
    steps: list[Statement] = []
    for distance in (16, 8, 4, 2, 1):
        steps.append(Shuffle(Reg(other), Reg(r), "xor", Int(distance)))
        steps.append(Compute("add", Reg(r), (Reg(r), Reg(other))))
    body = (Alloc(r), Alloc(other), Load(Reg(r), x, tx), *steps, Store(y, tx, Reg(r)))
    return kernel(f"warp_sum_{dtype}", (x, y), body, **block)
