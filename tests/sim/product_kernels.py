"""Kernels of matrix products as text, built from sizes: the simplest, and a ring with roles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusewright.core.expr import Expr
from fusewright.core.node import rewrite
from fusewright.kir import ir
from fusewright.kir.tiles import Tile
from fusewright.memory import Memory


def packed(kernel: ir.Kernel) -> ir.Kernel:
    """Shared buffers one behind the other, each at its alignment."""
    end = 0

    def edit(n):
        nonlocal end
        if isinstance(n, ir.Alloc) and n.buffer.memory is Memory.SHARED:
            start = -(-end // n.buffer.alignment) * n.buffer.alignment
            end = start + int(str(n.buffer.size)) * n.buffer.dtype.nbytes
            return replace(n, offset=start)
        return n

    return rewrite(kernel, edit)


@dataclass(frozen=True)
class Product:
    """`y[m, n] = x @ w` for one warpgroup and one tile of 64 x `n`, `k` deep. K-major operands are
    x[m, k] and w[n, k]; MN-major ones are x[k, m] and w[k, n]."""

    n: int = 64
    k: int = 64
    swizzle: int = 128
    a_major: str = "k_major"
    b_major: str = "k_major"
    dtype: str = "bfloat16"

    def _operand(self, name: str, extent: int, major: str) -> tuple[Tile, str, list[str]]:
        rows, columns = (extent, self.k) if major == "k_major" else (self.k, extent)
        tile = Tile(rows, columns, 2, self.swizzle)
        box = ", ".join(map(str, tile.box))
        header = (
            f"map {name}m: {name} sizes ({columns}, {rows}) strides (1, {columns}) "
            f"box ({box}) swizzle {self.swizzle}"
        )
        loads = [
            f"box_load s{name}[{tile.index(0, c)}] = {name}m at ({c}, 0) on full[0] by thread 0"
            for c in range(0, columns, tile.panel)
        ]
        return tile, header, loads

    @staticmethod
    def _step(tile: Tile, major: str, step: int) -> Expr:
        return tile.index(0, 16 * step) if major == "k_major" else tile.index(16 * step, 0)

    def text(self) -> str:
        a, a_map, a_loads = self._operand("x", 64, self.a_major)
        b, b_map, b_loads = self._operand("w", self.n, self.b_major)
        products = [
            f"mma acc[0] = {self.a_major} sx[{self._step(a, self.a_major, i)}] * "
            f"{self.b_major} sw[{self._step(b, self.b_major, i)}] n {self.n}"
            + (" accumulate (false)" if i == 0 else "")
            for i in range(self.k // 16)
        ]
        stores = [
            f"store y[{self.n}*(16*(tx//32) + tx % 32 // 4 + {8 * h}) + {8 * j} + 2*(tx % 4)] = "
            f"acc[{4 * j + 2 * h}..{4 * j + 2 * h + 2}]"
            for j in range(self.n // 8)
            for h in range(2)
        ]
        swizzle = f" swizzle {self.swizzle}"
        line = "\n  "
        return f"""kernel product {{
  param x: {self.dtype}[{a.size}] align 16
  param w: {self.dtype}[{b.size}] align 16
  param y: float32[{64 * self.n}] align 16
  {a_map}
  {b_map}
  grid (bx < 1)
  block (tx < 128)
  shared sx: {self.dtype}[{a.size}] tile {a.rows} x {a.columns}{swizzle}
  shared sw: {self.dtype}[{b.size}] tile {b.rows} x {b.columns}{swizzle}
  shared full: uint64[1]
  local acc: float32[{self.n // 2}]
  mbar_init #0 full[0] count 1 by thread 0
  proxy_fence #1 space(shared)
  block_sync #2
  mbar_expect #3 full[0] nbytes {2 * (a.size + b.size)} by thread 0
  {line.join(a_loads + b_loads)}
  mbar_wait #4 full[0] parity 0
  mma_fence #5
  {line.join(products)}
  async_commit #6 kind(mma)
  async_wait #7 kind(mma)
  {line.join(stores)}
}}
"""


@dataclass(frozen=True)
class Ring:
    """`y[m, n] = x[m, k] @ w[n, k]` with a warp that loads and two warpgroups that multiply, each
    64 x `n` of a tile, in a persistent grid; results leave through shared memory by boxes."""

    m: int
    n: int
    k: int
    blocks: int
    stages: int = 4
    tile_n: int = 256
    depth: int = 64
    dtype: str = "bfloat16"

    @property
    def tiles(self) -> int:
        """Tiles of 128 x `tile_n`, those at the edges included."""
        return -(-self.m // 128) * -(-self.n // self.tile_n)

    @property
    def trips(self) -> int:
        """Tiles of a block."""
        return -(-self.tiles // self.blocks)

    def _guarded(self, trip: str, body: str) -> str:
        """What is done for the tiles that exist."""
        if self.tiles % self.blocks == 0:
            return body
        return f"if ({trip}*{self.blocks} + bx < {self.tiles}) {{\n{body}\n}}"

    @property
    def halves(self) -> int:
        """Parts in which a tile leaves, so that its stages leave room."""
        return 1 if self.stages < 4 else 2

    @property
    def depths(self) -> int:
        """Stages of a tile."""
        return -(-self.k // self.depth)

    def text(self) -> str:
        s, bn, bk = self.stages, self.tile_n, self.depth
        a, b, c = Tile(128, bk, 2, 128), Tile(bn, bk, 2, 128), Tile(64, bn // self.halves, 2, 128)
        return f"""kernel ring {{
  param x: {self.dtype}[{self.m * self.k}] align 16
  param w: {self.dtype}[{self.n * self.k}] align 16
  param y: {self.dtype}[{self.m * self.n}] align 16
  map xm: x sizes ({self.k}, {self.m}) strides (1, {self.k}) box (64, 128) swizzle 128
  map wm: w sizes ({self.k}, {self.n}) strides (1, {self.k}) box (64, {bn}) swizzle 128
  map ym: y sizes ({self.n}, {self.m}) strides (1, {self.n}) box (64, 64) swizzle 128
  grid (bx < {self.blocks})
  block (tx < 384)
  min_blocks 1
  shared sx: {self.dtype}[{s * a.size}] tile 128 x {bk} swizzle 128
  shared sw: {self.dtype}[{s * b.size}] tile {bn} x {bk} swizzle 128
  shared sy: {self.dtype}[{2 * c.size}] tile 64 x {c.columns} swizzle 128
  shared full: uint64[{s}]
  shared empty: uint64[{s}]
  prefetch_map xm by thread 0
  prefetch_map wm by thread 0
  prefetch_map ym by thread 0
  for (i < {s}) {{
    mbar_init #0 full[i] count 1 by thread 0
    mbar_init #1 empty[i] count 8 by thread 0
  }}
  proxy_fence #2 space(shared)
  block_sync #3
  roles {{
    role warps 0..4 {{
      set_max_registers 40
      {self._producer()}
    }}
    {self._consumer(0)}
    {self._consumer(1)}
  }}
}}
"""

    def _place(self, trip: str) -> tuple[str, str]:
        """The tile's coordinates in the units of its rows and columns."""
        tiles_n = -(-self.n // self.tile_n)
        number = f"({trip}*{self.blocks} + bx)"
        return f"128*({number} // {tiles_n})", f"{self.tile_n}*({number} % {tiles_n})"

    def _producer(self) -> str:
        row, column = self._place("t")
        s, bk = self.stages, self.depth
        a, b = 128 * bk, self.tile_n * bk
        at = f"({self.depths}*t + k)"
        full = f"full[{at} % {s}]"
        body = f"""for (k < {self.depths}) {{
            mbar_wait #4 empty[{at} % {s}] parity ({at} // {s} + 1) % 2 by thread 0
            mbar_expect #5 {full} nbytes {2 * (a + b)} by thread 0
            box_load sx[{a}*({at} % {s})] = xm at ({bk}*k, {row}) on {full} by thread 0
            box_load sw[{b}*({at} % {s})] = wm at ({bk}*k, {column}) on {full} by thread 0
          }}"""
        return f"for (t < {self.trips}) {{ {self._guarded('t', body)} }}"

    def _consumer(self, group: int) -> str:
        ids = iter(range(10 + 20 * group, 30 + 20 * group))
        v = f"{group}"
        s, bk, bn = self.stages, self.depth, self.tile_n
        a, b = 128 * bk, bn * bk
        at = f"({self.depths}*t{v} + k{v})"
        row, column = self._place(f"t{v}")
        first = 128 * (group + 1)
        products = "\n".join(
            f"mma acc{v}[0] = k_major sx[{a}*({at} % {s}) + {64 * bk * group + 16 * i}] * "
            f"k_major sw[{b}*({at} % {s}) + {16 * i}] n {bn}"
            + (f" accumulate (0 < k{v})" if i == 0 else "")
            for i in range(bk // 16)
        )
        halves = self.halves
        panels = bn // 64 // halves
        base = group * 64 * bn // halves
        epilogue: list[str] = []
        lane = f"(tx % 16 + 16*(tx//32 - {4 * (group + 1)}))"
        for h in range(halves):
            epilogue.append(f"async_wait #{next(ids)} kind(bulk) reads_only(true)")
            epilogue.append(f"named_sync #{next(ids)} barrier({group + 1}) nthreads(128)")
            for p in range(panels):
                for q in range(4):
                    column8 = (h * panels + p) * 8 + 2 * q
                    for e in range(8):
                        epilogue.append(f"out{v}[{e}] = cast(acc{v}[{4 * column8 + e}])")
                    chunk = f"((tx % 32 // 16 + {2 * q}) ^ (tx % 8))"
                    place = f"{base + p * 4096} + 64*{lane} + 8*{chunk}"
                    epilogue.append(f"stmatrix sy[{place}] = out{v}[0] count 4")
            epilogue.append(f"proxy_fence #{next(ids)} space(shared)")
            epilogue.append(f"named_sync #{next(ids)} barrier({group + 1}) nthreads(128)")
            for p in range(panels):
                epilogue.append(
                    f"box_store ym at ({column} + {64 * (h * panels + p)}, {row} + {64 * group}) = "
                    f"sy[{base + p * 4096}] by thread {first}"
                )
            epilogue.append(f"async_commit #{next(ids)} kind(bulk)")
        line = "\n          "
        body = f"""for (k{v} < {self.depths}) {{
          mbar_wait #{next(ids)} full[{at} % {s}] parity ({at} // {s}) % 2
          mma_fence #{next(ids)}
{products}
          async_commit #{next(ids)} kind(mma)
          if (0 < k{v}) {{
            async_wait #{next(ids)} kind(mma) keep(1)
            mbar_arrive #{next(ids)} empty[({at} - 1) % {s}] per_warp
          }}
          }}
          async_wait #{next(ids)} kind(mma)
          mbar_arrive #{next(ids)} empty[({self.depths}*t{v} + {self.depths - 1}) % {s}] per_warp
          {line.join(epilogue)}"""
        return f"""role warps {4 * (group + 1)}..{4 * (group + 2)} {{
      set_max_registers 232 grows
      local acc{v}: float32[{bn // 2}]
      local out{v}: {self.dtype}[8]
      for (t{v} < {self.trips}) {{
        {self._guarded(f"t{v}", body)}
      }}
      async_wait #{next(ids)} kind(bulk) reads_only(true)
    }}"""
