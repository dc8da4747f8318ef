"""Products as lowering writes them: boxes that nobody counts, no waits, fences or barriers."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.kir.tiles import Tile


@dataclass(frozen=True)
class Lowered:
    """`y[m, n] = x[m, k] @ w[n, k]` (with `w_mn` from w[k, n]), a block for each `blocks`-th tile
    of 64 `groups` x `tile_n`; `ring` are the words behind the tiles of operands, `suffix` how
    results leave."""

    m: int = 128
    n: int = 64
    k: int = 256
    blocks: int = 0
    groups: int = 2
    tile_n: int = 64
    depth: int = 64
    ring: str = ""
    suffix: str = "registers"
    w_mn: bool = False

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along m and n."""
        return -(-self.m // (64 * self.groups)), -(-self.n // self.tile_n)

    @property
    def grid(self) -> int:
        """Blocks."""
        return self.blocks or self.tiles[0] * self.tiles[1]

    @property
    def trips(self) -> int:
        """Tiles of a block."""
        return -(-self.tiles[0] * self.tiles[1] // self.grid)

    def text(self) -> str:
        rows, bn, bk = 64 * self.groups, self.tile_n, self.depth
        a, b, c = Tile(rows, bk, 2, 128), Tile(bn, bk, 2, 128), Tile(64, bn, 2, 128)
        number = f"(t*{self.grid} + bx)"
        row, column = f"{rows}*({number} // {self.tiles[1]})", f"{bn}*({number} % {self.tiles[1]})"
        if self.w_mn:
            b = Tile(bk, bn, 2, 128)
        major, step = ("mn_major", 16 * 64) if self.w_mn else ("k_major", 16)
        products = "\n".join(
            f"mma acc[0] = k_major sx[{64 * bk}*(tx // 128) + {16 * i}] * {major} sw[{step * i}] "
            f"n {bn}" + (" accumulate (0 < k)" if i == 0 else "")
            for i in range(bk // 16)
        )
        loads = f"box_load sw[0] = wm at ({bk}*k, {column}) by thread 0"
        wide, tall = (self.n, self.k) if self.w_mn else (self.k, self.n)
        if self.w_mn:
            loads = "\n".join(
                f"box_load sw[{64 * bk * p}] = wm at ({column} + {64 * p}, {bk}*k) by thread 0"
                for p in range(bn // 64)
            )
        body = f"""local acc: float32[{bn // 2}]
    for (k < {-(-self.k // bk)}) {{
      shared sx: bfloat16[{a.size}] tile {rows} x {bk} swizzle 128 copied bulk {self.ring}
      shared sw: bfloat16[{b.size}] tile {b.rows} x {b.columns} swizzle 128 copied bulk {self.ring}
      box_load sx[0] = xm at ({bk}*k, {row}) by thread 0
      {loads}
      {products}
    }}
    {getattr(self, "_" + self.suffix)(row, column)}"""
        if self.tiles[0] * self.tiles[1] % self.grid:
            body = f"if ({number} < {self.tiles[0] * self.tiles[1]}) {{\n{body}\n}}"
        y_map = (
            f"map ym: y sizes ({self.n}, {self.m}) strides (1, {self.n}) box (64, 64) swizzle 128"
            if self.suffix == "boxes" else ""
        )  # fmt: skip
        y_tile = (
            f"shared sy: bfloat16[{self.groups * c.size}] tile 64 x {bn} swizzle 128"
            if self.suffix == "boxes" else ""
        )  # fmt: skip
        out = "float32" if self.suffix == "registers" else "bfloat16"
        return f"""kernel lowered {{
  param x: bfloat16[{self.m * self.k}] align 16
  param w: bfloat16[{self.n * self.k}] align 16
  param y: {out}[{self.m * self.n}] align 16
  map xm: x sizes ({self.k}, {self.m}) strides (1, {self.k}) box (64, {rows}) swizzle 128
  map wm: w sizes ({wide}, {tall}) strides (1, {wide}) box (64, {b.rows}) swizzle 128
  {y_map}
  grid (bx < {self.grid})
  block (tx < {128 * self.groups})
  min_blocks 1
  stored_once (y)
  {y_tile}
  for (t < {self.trips}) {{
    {body}
  }}
}}
"""

    def _registers(self, row: str, column: str) -> str:
        """Pairs of registers to global memory."""
        at = f"{row} + 16*(tx//32) + tx % 32 // 4 + 8*h"
        column = f"{column} + 8*j + 2*(tx % 4)"
        return f"""for (j < {self.tile_n // 8}) {{
      for (h < 2) {{
        store y[{self.n}*({at}) + {column}] = acc[4*j + 2*h..4*j + 2*h + 2] if (
          {at} < {self.m} && {column} < {self.n})
      }}
    }}"""

    def _boxes(self, row: str, column: str) -> str:
        """Through tiles in shared memory, a box for each panel of a warpgroup."""
        lines: list[str] = ["local out: bfloat16[8]"]
        lane = "(tx % 16 + 16*(tx//32 % 4))"
        panels = self.tile_n // 64
        for p in range(panels):
            for q in range(4):
                lines += [f"out[{e}] = cast(acc[{4 * (8 * p + 2 * q) + e}])" for e in range(8)]
                chunk = f"((tx % 32 // 16 + {2 * q}) ^ (tx % 8))"
                base = f"{64 * self.tile_n}*(tx // 128) + {4096 * p}"
                lines.append(f"stmatrix sy[{base} + 64*{lane} + 8*{chunk}] = out[0] count 4")
        lines += [
            f"box_store ym at ({column} + {64 * p}, {row} + {64 * g}) = "
            f"sy[{64 * self.tile_n * g + 4096 * p}] by thread 0"
            for g in range(self.groups)
            for p in range(panels)
        ]
        return "\n    ".join(lines)
