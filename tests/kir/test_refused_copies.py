"""Copies that cannot be made asynchronous: what stands in the way, and what to schedule instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from product_texts import Lowered

from fusewright.errors import ScheduleError
from fusewright.kir.passes.materialise_async import materialise_async
from fusewright.kir.passes.materialise_rings import materialise_rings
from fusewright.kir.text import parse_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")


@dataclass(frozen=True)
class Copied:
    """Tiles of 128 elements, which a warp copies and reads, `asked` for in these words."""

    asked: str = "copied cp_async"
    load: str = "r[0..4] = load x[128*i + 4*tx]"
    between: str = ""
    store: str = "store s[4*tx] = r[0..4]"
    before: str = ""
    head: str = "for (i < 4) {"

    def text(self) -> str:
        return f"""kernel k {{
          symbol n in [2, 64]
          param x: float32[512] align 16
          param y: float32[512] align 16
          grid (bx < 1)
          block (tx < 32)
          local r: float32[4] align 16
          local v: float32[4] align 16
          {self.head}
            shared s: float32[128] align 16 {self.asked}
            {self.before}
            {self.load}
            {self.between}
            {self.store}
            v[0..4] = load s[4*(31 - tx)]
            store y[128*i + 4*tx] = v[0..4]
          }}
        }}"""


def test_a_plain_copy_is_taken() -> None:
    kernel = parse_kernel(Copied().text())
    assert "cp_async" in str(materialise_async(kernel, TARGET))


NAMED: list[tuple[str, Copied, str]] = [
    (
        "two statements",
        Copied(
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx]\nstore s[4*tx] = r[0..4]\n}",
            store="for (h < 1) {\nr[0..4] = load x[4*tx]\nstore s[4*tx] = r[0..4]\n}",
        ),
        r"s is filled by 2 statements of the body it lives in, not by one copy; inline it where al",
    ),
    (
        "something beside it",
        Copied(
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx]\nv[0] = neg(r[0])",
            store="store s[4*tx] = r[0..4]\n}",
        ),
        r"s is to be filled by asynchronous copies, but beside its elements Compute happens; let t",
    ),
    (
        "a fill that is not zero",
        Copied(
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx] if (i < 3) else 1.0:float32",
            store="store s[4*tx] = r[0..4]\n}",
        ),
        r"s is filled with 1\.0 where there is nothing to copy; cp_async fills with zeros only",
    ),
    (
        "read before it is copied",
        Copied(
            asked="copied cp_async stages 2 ahead 1",
            before="v[0..4] = load s[4*tx]",
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx]",
            store="store s[4*tx] = r[0..4]\n}",
        ),
        r"s is read in an iteration over i before it is copied; a ring hands each tile to the iter",
    ),
    (
        "bulk copies in a branch",
        Copied(
            asked="copied bulk",
            head="for (i < 4) { if (tx < 32 && i < 3) {",
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx]",
            store="store s[4*tx] = r[0..4]\n}\n",
        ),
        r"s is filled by bulk copies inside a branch; its mbarrier would lose count of their phase",
    ),
    (
        "bulk copies from two arrays",
        Copied(
            asked="copied bulk",
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx] if (tx < 16)",
            store="store s[4*tx] = r[0..4] if (tx < 16)\n"
            "v[0..4] = load y[128*i + 4*tx] if (15 < tx)\n"
            "store s[4*tx] = v[0..4] if (15 < tx)\n}",
        ),
        r"s cannot be filled by bulk copies: its elements come from several places; they move",
    ),
    (
        "bulk copies of rows that differ",
        Copied(
            asked="copied bulk",
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx] if (!(tx == 3))",
            store="store s[4*tx] = r[0..4] if (!(tx == 3))\n}",
        ),
        r"s cannot be filled by bulk copies: its 2 rows differ in length or distance; they move",
    ),
    (
        "bulk copies beside filled elements",
        Copied(
            asked="copied bulk",
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx] if (tx < 30) else 0.0:float32",
            store="store s[4*tx] = r[0..4]\n}",
        ),
        r"s cannot be filled by bulk copies: some elements are filled in, not copied; they move",
    ),
    (
        "a number of bulk copies that is not known",
        Copied(
            asked="copied bulk",
            load="for (j < n) {\nr[0..4] = load x[128*i + 4*tx]",
            store="store s[4*tx] = r[0..4]\n}",
        ),
        r"s cannot be filled by bulk copies: the loop over j has the extent n; they move whole",
    ),
    (
        "warps of their own",
        Copied(
            asked="copied bulk stages 2 ahead 1 warp_specialized",
            load="for (j < 1) {\nr[0..4] = load x[128*i + 4*tx]",
            store="store s[4*tx] = r[0..4]\n}",
        ),
        r"s is not copied as boxes, and warps of their own copy boxes only; bind the last two loop",
    ),
]


@pytest.mark.parametrize(("copied", "message"), [x[1:] for x in NAMED], ids=[x[0] for x in NAMED])
def test_refuses(copied: Copied, message: str) -> None:
    text = copied.text()
    text += "}" * (text.count("{") - text.count("}"))
    kernel = parse_kernel(text)
    with pytest.raises(ScheduleError, match=message):
        materialise_async(kernel, TARGET)


@pytest.mark.parametrize(("target", "by"), [("sm_80", "bulk")])
def test_targets_without_the_copy_are_refused(target: str, by: str) -> None:
    text = Copied(f"copied {by}").text()
    with pytest.raises(
        ScheduleError, match=f"s is to be copied by {by}, which {target} does not ha"
    ):
        materialise_async(parse_kernel(text), target_of(target))


# --- rings of boxes -------------------------------------------------------------------------------


def test_boxes_in_a_branch_are_not_counted() -> None:
    text = Lowered(ring="stages 3 ahead 2").text()
    load = "box_load sx[0] = xm"
    start = text.index(load)
    end = text.index("\n", start)
    branch = f"if (k < 3) {{\n{text[start:end]}\n}}"
    with pytest.raises(ScheduleError, match="boxes fill a tile within If; their number is not kno"):
        materialise_rings(parse_kernel(text[:start] + branch + text[end:]), TARGET)


def test_roles_of_one_kernel_have_one_split_of_registers() -> None:
    ring = "stages 2 warp_specialized registers (40, 232)"
    text = Lowered(ring=ring).text()
    loop = text[text.index("for (t <") : text.rindex("}")]
    again = loop.replace("(40, 232)", "(24, 240)").replace("sx", "sa")
    again = re.sub(r"\b(sw|acc)\b", r"\1_again", again)
    with pytest.raises(ScheduleError, match="rings of one kernel ask for different registers"):
        materialise_rings(parse_kernel(text.replace(loop, loop + again)), TARGET)


@pytest.mark.parametrize(("threads", "groups"), [(96, "(40, 232)"), (48, "")])
def test_roles_take_whole_warps_of_one_dimension(threads: int, groups: str) -> None:
    ring = f"stages 2 warp_specialized {f'registers {groups}' if groups else ''}"
    text = Lowered(ring=ring).text().replace("block (tx < 256)", f"block (tx < {threads})")
    unit = 128 if groups else 32
    with pytest.raises(
        ScheduleError, match=rf"lowered has a block of {threads} threads; .* a multiple of {unit}"
    ):
        materialise_rings(parse_kernel(text), TARGET)


def test_a_ring_holds_tiles_at_their_alignment() -> None:
    text = Lowered(ring="stages 2 ahead 1", tile_n=8, n=8).text()
    text = text.replace("tile 8 x 64 swizzle 128", "tile 8 x 64 swizzle 128 align 4096")
    with pytest.raises(
        ScheduleError, match=r"a tile of sw has 1024 bytes, not a multiple of its al"
    ):
        materialise_rings(parse_kernel(text), TARGET)
