"""Random kernels of rings, roles, products and turns: right ones, in which some lines are changed.

A line is left out, exchanged with the one below, or waits for less or for another phase. What makes
mbarriers stands apart and stays.
"""

from __future__ import annotations

import random
import re

import product_kernels
from async_suite import kernel_text, packed

from fusewright.kir import ir
from fusewright.kir.text import parse_kernel

KEPT = 4
"""Syncs of smaller numbers make mbarriers and let all threads know of them."""


def ring(rng: random.Random, likely: float) -> ir.Kernel:
    """A warp copies tiles of 64 for two others, which hand them back, exchange what they read, and
    let it leave by bulk stores."""
    stages, trips = rng.randint(1, 3), rng.randint(0, 5)
    full = f"full[k % {stages}]"
    arrive, count = rng.choice(
        (
            ("warp_sync #11\nmbar_arrive #12 EMPTY per_warp", 2),
            ("mbar_arrive #12 EMPTY", 64),
            (
                "named_sync #11 barrier(2) nthreads(64)\n"
                "if (tx < 32) {\nmbar_arrive #12 EMPTY per_warp\n}",
                1,
            ),
        )
    )
    index = rng.choice(("tx", "63 - tx", "tx ^ 1", "tx ^ 32"))
    leave = """
async_wait #13 kind(bulk) reads_only(true)
named_sync #14 barrier(1) nthreads(64)
store t[tx] = r[0]
proxy_fence #15 space(shared)
named_sync #16 barrier(1) nthreads(64)
bulk_store y[64*k] = t[0] size 64 by thread 0
async_commit #17 kind(bulk)
"""
    exchange = f"""
named_sync #14 barrier(1) nthreads(64)
store t[tx] = r[0]
named_sync #16 barrier(1) nthreads(64)
r[1] = load t[{rng.choice(("63 - tx", "tx ^ 1", "tx"))}]
store y[64*k + tx] = r[1]
"""
    consumer = f"""
for (k < {trips}) {{
mbar_wait #10 {full} parity (k // {stages}) % 2
r[0] = load s[64*(k % {stages}) + {index}]
{arrive.replace("EMPTY", f"empty[k % {stages}]")}
{rng.choice((leave, exchange, "store y[64*k + tx] = r[0]"))}
}}
async_wait #18 kind(bulk) reads_only(true)
"""
    full, empty = f"full[j % {stages}]", f"empty[j % {stages}]"
    producer = f"""
for (j < {trips}) {{
mbar_wait #20 {empty} parity (j // {stages} + 1) % 2 by thread 64
mbar_expect #21 {full} nbytes 256 by thread 64
bulk_load s[64*(j % {stages})] = x[64*j] size 64 on {full} by thread 64
}}
"""
    text = f"""
shared s: float32[{64 * stages}] align 128
shared t: float32[64] align 128
shared full: uint64[{stages}]
shared empty: uint64[{stages}]
for (i < {stages}) {{
mbar_init #0 full[i] count 1 by thread 0
mbar_init #1 empty[i] count {count} by thread 0
}}
proxy_fence #2 space(shared)
block_sync #3
roles {{
role warps 0..2 {{{changed(consumer, rng, likely)}}}
role warps 2..3 {{{changed(producer, rng, likely / 2)}}}
}}
"""
    return packed(parse_kernel(kernel_text(text, 96)))


def copies(rng: random.Random, likely: float) -> ir.Kernel:
    """No roles: what threads wrote or copied leaves by bulk stores, what bulk loads brought is read
    and overwritten."""
    fill = rng.choice(
        (
            "r[0] = load x[tx]\nstore s[tx] = r[0]",
            "cp_async s[tx] = x[tx]\n"
            "async_commit #10 kind(cp_async)\nasync_wait #11 kind(cp_async)",
        )
    )
    out = "bulk_store y[64*k] = s[0] size 64 by thread 0\nasync_commit #14 kind(bulk)"
    read_back = (
        f"r[1] = load y[64*k + {rng.choice(('tx', '63 - tx'))}]\nstore y[2048 + tx] = r[1]\n"
    )
    again = rng.choice((
        "",
        read_back,
        "store s[63 - tx] = r[0]\nblock_sync #17\n",
        "r[1] = load s[tx ^ 1]\nstore y[2048 + tx] = r[1]\nblock_sync #17\n",
        "mbar_expect #18 b[0] nbytes 256 by thread 0\n"
        "bulk_load s[0] = x[0] size 64 on b[0] by thread 0\n"
        "mbar_wait #19 b[0] parity k % 2\nr[1] = load s[63 - tx]\nstore y[2048 + tx] = r[1]\n"
        "block_sync #17\n",
    ))  # fmt: skip
    is_read = again == read_back
    back = f"""async_wait #15 kind(bulk){"" if is_read else rng.choice((" reads_only(true)", ""))}
block_sync #16
"""
    body = f"""
for (k < {rng.randint(1, 3)}) {{
{fill}
proxy_fence #12 space(shared)
block_sync #13
{out}
{back}{again}}}
"""
    text = f"""
shared s: float32[64] align 128
shared b: uint64[1]
mbar_init #0 b[0] count 1 by thread 0
proxy_fence #2 space(shared)
block_sync #3
{changed(body, rng, likely)}
"""
    return packed(parse_kernel(kernel_text(text, 64)))


def handed(rng: random.Random, likely: float) -> ir.Kernel:
    """One warp writes what the other reads; each arrives where the other waits."""
    trips = rng.randint(1, 4)
    writer = f"""
for (k < {trips}) {{
r[0] = load x[32*k + tx]
named_sync #10 barrier(2) nthreads(64)
store s[tx] = r[0]
barrier_arrive #11 barrier(1) nthreads(64)
}}
"""
    reader = f"""
for (j < {trips}) {{
barrier_arrive #12 barrier(2) nthreads(64)
named_sync #13 barrier(1) nthreads(64)
r[0] = load s[{rng.choice(("63 - tx", "tx - 32"))}]
store y[32*j + tx - 32] = r[0]
}}
"""
    text = f"""
shared s: float32[32] align 16
roles {{
role warps 0..1 {{{changed(writer, rng, likely)}}}
role warps 1..2 {{{changed(reader, rng, likely)}}}
}}
"""
    return packed(parse_kernel(kernel_text(text, 64)))


def product(rng: random.Random, likely: float) -> ir.Kernel:
    """A warp copies tiles by boxes for a warpgroup that multiplies them; b may be written by the
    threads, accumulators set to zero by them, and sums stored in every trip or at the end."""
    stages, trips = rng.randint(1, 2), rng.randint(1, 3)
    slot, nbytes = f"(k % {stages})", 8192 + 2048
    ids = iter(range(10, 90))
    zero = rng.random() < 0.3
    sums = "".join(f"store y[8*tx + {4 * i}] = acc[{4 * i}..{4 * i + 4}]\n" for i in range(2))
    steps = "".join(
        f"mma acc[0] = k_major a[4096*{slot} + {16 * i}] * k_major b[1024*{slot} + {16 * i}] n 16"
        + (" accumulate (0 < k)" if i == 0 and not zero else "") + "\n"
        for i in range(rng.randint(1, 2))
    )  # fmt: skip
    counted = f"""
if (0 < k) {{
async_wait #{next(ids)} kind(mma) keep(1)
mbar_arrive #{next(ids)} empty[(k - 1) % {stages}] per_warp
}}
}}
async_wait #{next(ids)} kind(mma)
{sums}"""
    each = f"""async_wait #{next(ids)} kind(mma)
mbar_arrive #{next(ids)} empty[k % {stages}] per_warp
{rng.choice((sums, ""))}}}
{sums}"""
    consumer = f"""
{"".join(f"acc[{i}] = copy(0.0:float32)" + chr(10) for i in range(8)) if zero else ""}
for (k < {trips}) {{
mbar_wait #{next(ids)} full{slot.replace("(", "[").replace(")", "]")} parity (k // {stages}) % 2
mma_fence #{next(ids)}
{steps}async_commit #{next(ids)} kind(mma)
{rng.choice((counted, each)) if stages > 1 else each}
"""
    full = f"full[j % {stages}]"
    producer = f"""
for (j < {trips}) {{
mbar_wait #{next(ids)} empty[j % {stages}] parity (j // {stages} + 1) % 2 by thread 128
mbar_expect #{next(ids)} {full} nbytes {nbytes} by thread 128
box_load a[4096*(j % {stages})] = xm at (0, 0) on {full} by thread 128
box_load b[1024*(j % {stages})] = wm at (0, 0) on {full} by thread 128
}}
"""
    text = f"""kernel k {{
param x: bfloat16[4096] align 16
param w: bfloat16[1024] align 16
param y: float32[1024] align 16
map xm: x sizes (64, 64) strides (1, 64) box (64, 64) swizzle 128
map wm: w sizes (64, 16) strides (1, 64) box (64, 16) swizzle 128
grid (bx < 1)
block (tx < 160)
min_blocks 1
shared a: bfloat16[{4096 * stages}] tile 64 x 64 swizzle 128
shared b: bfloat16[{1024 * stages}] tile 16 x 64 swizzle 128
shared full: uint64[{stages}]
shared empty: uint64[{stages}]
local acc: float32[8]
for (i < {stages}) {{
mbar_init #0 full[i] count 1 by thread 0
mbar_init #1 empty[i] count 4 by thread 0
}}
proxy_fence #2 space(shared)
block_sync #3
roles {{
role warps 0..4 {{{changed(consumer, rng, likely)}}}
role warps 4..5 {{{changed(producer, rng, likely / 2)}}}
}}
}}
"""
    return product_kernels.packed(parse_kernel(text))


def straight_product(rng: random.Random, likely: float) -> ir.Kernel:
    """One or two products of operands that the threads wrote, of shared memory or of registers, in
    groups that are waited for together or one by one; then the operands are overwritten."""
    place = "8*(tx ^ (tx // 8 % 8))"
    fill = "for (i < 4) {\nr[0..8] = load x[8*tx + 1024*i]\n"
    fill += f"store a[{place} + 1024*i] = r[0..8]\n}}\n"
    fill += f"r[0..8] = load w[8*tx]\nstore b[{place}] = r[0..8]\n"
    first = rng.choice(("k_major a[0]", "r[0]"))
    is_apart = rng.random() < 0.6
    products = (
        f"mma acc[0] = {first} * k_major b[0] n 16 accumulate (false)\n",
        f"mma {'other' if is_apart else 'acc'}[0] = k_major a[16] * k_major b[16] n 16 "
        "accumulate (false)\n",
    )
    sums = tuple(
        "".join(
            f"store y[{1024 * k} + 8*tx + {4 * i}] = {name}[{4 * i}..{4 * i + 4}]\n" for i in (0, 1)
        )
        for k, name in enumerate(("acc", "other"))
    )
    over = rng.choice(("", "r[0..8] = load x[8*tx]\n", "block_sync #20\nstore b[8*tx] = r[0..8]\n"))
    done = "async_commit #13 kind(mma)\nasync_wait #14 kind(mma)\n"
    one = f"{products[0]}{done}{over}{sums[0]}"
    two = f"""{products[0]}async_commit #13 kind(mma)
{products[1]}async_commit #15 kind(mma)
async_wait #14 kind(mma) keep(1)
{sums[0]}async_wait #16 kind(mma)
{over}{sums[1]}"""
    batch = f"{products[0]}{products[1]}{done}{sums[0]}{over}"
    body = changed(
        f"{fill}proxy_fence #10 space(shared)\nblock_sync #11\nmma_fence #12\n"
        + (two if is_apart and rng.random() < 0.5 else rng.choice((one, batch))),
        rng,
        likely,
    )
    text = f"""kernel k {{
param x: bfloat16[4096] align 16
param w: bfloat16[1024] align 16
param y: float32[2048] align 16
grid (bx < 1)
block (tx < 128)
min_blocks 1
shared a: bfloat16[4096] tile 64 x 64 swizzle 128
shared b: bfloat16[1024] tile 16 x 64 swizzle 128
local acc: float32[8]
local other: float32[8]
local r: bfloat16[8]
{body}
}}
"""
    return product_kernels.packed(parse_kernel(text))


def turns(rng: random.Random, likely: float) -> ir.Kernel:
    """Three blocks add to one row, in turns."""
    guarded = "guarded(w) first(0) size(64) issuer(0)"
    exchanged = "r[1] = load w[63 - tx] if (0 < bx)\nblock_sync #14"
    body = f"""
r[0] = load x[64*bx + tx]
semaphore_acquire #10 semaphore(f) index(0) value(bx) {guarded}
block_sync #11
{rng.choice(("r[1] = load w[tx] if (0 < bx)", exchanged))}
store w[tx] = r[0] if (bx < 2)
block_sync #12
semaphore_release #13 semaphore(f) index(0) value((bx + 1) % 3) {guarded}
store y[tx] = r[0] if (bx == 2)
"""
    text = f"""kernel turns {{
param x: float32[192] align 16
param y: float32[64] align 16
param w: float32[64] align 16
param f: uint32[1]
semaphores (f)
scratch (w)
grid (bx < 3)
block (tx < 64)
local r: float32[2]
{changed(body, rng, likely)}
}}
"""
    return parse_kernel(text)


def changed(text: str, rng: random.Random, likely: float) -> str:
    """The lines, one of them changed with this probability, a second one with half of it."""
    lines = [line for line in text.splitlines() if line]
    while rng.random() < likely:
        likely /= 2
        at = rng.choice([i for i, line in enumerate(lines) if not _is_bracket(line)])
        line = lines[at]
        choice = rng.random()
        if choice < 0.3 and " load " not in line and "= copy" not in line:
            del lines[at]
        elif choice < 0.7:
            if at + 1 < len(lines) and not _is_bracket(lines[at + 1]):
                lines[at : at + 2] = lines[at + 1], line
        elif "keep(1)" in line or "reads_only" in line:
            lines[at] = re.sub(r" (keep\(1\)|reads_only\(true\))", "", line)
        elif "async_wait" in line:
            lines[at] = line + rng.choice((" keep(1)", " keep(2)"))
        elif "parity" in line:
            lines[at] = re.sub(r"parity (\S.*?) % 2", r"parity (\1 + 1) % 2", line)
        elif "named_sync" in line:
            lines[at] = line.replace("named_sync", "barrier_arrive")
        elif "per_warp" in line:
            lines[at] = f"if (tx % 64 < 32) {{\n{line}\n}}"
    return "\n" + "\n".join(lines) + "\n"


def _is_bracket(line: str) -> bool:
    return line.endswith("{") or line == "}"
