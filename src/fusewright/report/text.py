"""The report as text."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from fusewright.report.facts import KernelReport, ReportFacts, numbers
from fusewright.report.host_facts import host_text
from fusewright.report.memory_map import memory_map_text
from fusewright.report.steps import steps
from fusewright.report.table import nbytes_text, plural, table

KERNEL_HEADER = ("kernel", "times", "launch", "registers", "spills", "shared", "syncs")


def report_text(facts: ReportFacts) -> str:
    """Numbers, reasons, the table of kernels, then each kernel in full."""
    syncs = sum(len(k.syncs) for k in facts.kernels)
    head = f"{facts.title}: {plural(len(facts.kernels), 'kernel')}, {plural(syncs, 'sync')}"
    lines = numbers(facts)
    wide = max(len(label) for label, _ in lines)
    blocks = [head, "\n".join(f"  {label.ljust(wide)}  {value}" for label, value in lines)]
    if facts.reasons:
        reasons = "\n".join(f"- {r}" for r in facts.reasons)
        blocks.append("why it is not one fast kernel\n" + indent(reasons, "  "))
    blocks.append(table(KERNEL_HEADER, [kernel_row(k) for k in facts.kernels]))
    blocks.append("host program\n" + indent(host_text(facts.host), "  "))
    blocks += [kernel_text(k) for k in facts.kernels]
    return "\n\n".join(blocks)


_TITLES = {
    "nest": ("loop nest",),
    "candidates": ("candidates",),
    "edits": ("edits",),
    "syncs": ("syncs",),
    "memory": ("shared memory", "memory map"),
    "registers": ("registers", "compiler warnings"),
    "kir": ("kernel IR",),
    "cuda": ("CUDA",),
}
PARTS = (*_TITLES, "passes", "host", "graph", "all")
"""What can be shown of a program: of each kernel in turn, or of the whole."""


def part_text(facts: ReportFacts, part: str) -> str:
    """One of PARTS of every kernel that has it; `registers` is the table of kernels too."""
    match part:
        case "graph":
            return str(facts.fusion)
        case "host":
            return host_text(facts.host)
        case "passes":
            return "\n\n".join(f"=== {k.name}\n\n{passes_text(k)}" for k in facts.kernels)
        case _:
            pass
    blocks = [table(KERNEL_HEADER, [kernel_row(k) for k in facts.kernels])]
    blocks = blocks if part == "registers" else []
    for k in facts.kernels:
        found = [body for title, body in kernel_sections(k) if title in _TITLES[part]]
        if found:
            blocks.append("\n\n".join([f"=== {k.name}", *found]))
    return "\n\n".join(blocks) or f"no kernel has {part} to show"


def kernel_row(k: KernelReport) -> tuple[str, ...]:
    """A kernel under KERNEL_HEADER; `-` where there is no compiler to ask."""
    registers, spills = "-", "-"
    if k.resources is not None:
        registers = str(k.resources.registers)
        spills = nbytes_text(k.resources.spill_stores + k.resources.spill_loads)
    return (
        k.name,
        str(k.launches),
        k.launch,
        registers,
        spills,
        k.shared_nbytes,
        str(len(k.syncs)),
    )


def kernel_text(k: KernelReport) -> str:
    """One kernel: syncs, shared memory, loop nest, KIR, CUDA."""
    blocks = [f"=== {k.name}"]
    blocks += [f"{title}\n{indent(body, '  ')}" for title, body in kernel_sections(k)]
    return "\n\n".join(blocks)


def passes_text(k: KernelReport) -> str:
    """What each pass changed in the kernel's text, as a difference."""
    if k.lowered is None:
        return "the text before passes is not kept in a file"
    return "\n".join(
        "\n".join([f"{s.name}: {s.why}", *s.changes]) if s.changes else f"{s.name}: (unchanged)"
        for s in steps(k.lowered, k.target)
    )


def kernel_sections(k: KernelReport) -> Iterator[tuple[str, str]]:
    """The parts of a kernel's report as (title, text), in reading order."""
    yield "loop nest", k.schedule
    if k.candidates:
        yield "candidates", k.candidates
    if k.edits:
        yield "edits", k.edits
    yield "syncs", syncs_text(k)
    if k.smem:
        yield "shared memory", smem_text(k)
        yield "memory map", memory_map_text(k.timeline)
    if k.no_resources:
        yield "registers", k.no_resources
    elif k.resources is not None and k.resources.warnings:
        yield "compiler warnings", "\n".join(k.resources.warnings)
    yield "kernel IR", k.ir
    yield "CUDA", k.cuda


def syncs_text(k: KernelReport) -> str:
    """One line a sync with its reason."""
    if not k.syncs:
        return "none: no thread reads from shared memory what another one wrote"
    return "\n".join(f"#{s.id} {s.kind}: {s.why}" for s in k.syncs)


def smem_text(k: KernelReport) -> str:
    """The buffers in shared memory, lowest offset first, and the sizes that they have room for."""
    head = ("buffer", "offset", "bytes", "alignment", "shares bytes of")
    rows = [(b.name, b.offset, b.nbytes, b.alignment, b.alias_of or "") for b in k.smem]
    if not k.longest:
        return table(head, rows)
    wide = [(*row, k.longest.get(b.name, "")) for row, b in zip(rows, k.smem, strict=True)]
    return table((*head, "room for"), wide)
