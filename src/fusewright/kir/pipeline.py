"""The passes a kernel goes through in order: the stage each establishes, and why it is here."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from fusewright import knobs
from fusewright.errors import InternalError, SpecError, UnsupportedError, UserError
from fusewright.kir.ir import Kernel
from fusewright.kir.names import name_symbols
from fusewright.kir.passes.add_at_once import add_at_once
from fusewright.kir.passes.branch_fills import branch_fills
from fusewright.kir.passes.complete_async import complete_async
from fusewright.kir.passes.count_remote_stores import count_remote_stores
from fusewright.kir.passes.drop_guards import drop_guards
from fusewright.kir.passes.elect_issuers import elect_issuers
from fusewright.kir.passes.expand_reductions import expand_reductions
from fusewright.kir.passes.expand_scans import expand_scans
from fusewright.kir.passes.guard_loops import guard_loops
from fusewright.kir.passes.guard_masked import guard_masked
from fusewright.kir.passes.keep_words import keep_words
from fusewright.kir.passes.locate_loads import locate_loads
from fusewright.kir.passes.materialise_async import materialise_async
from fusewright.kir.passes.materialise_rings import materialise_rings
from fusewright.kir.passes.pack_shared import pack_apart, pack_shared, pack_whole
from fusewright.kir.passes.peel_loops import peel_loops
from fusewright.kir.passes.place_fences import place_fences
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.prefetch import prefetch
from fusewright.kir.passes.promote import promote, promote_whole
from fusewright.kir.passes.prune_syncs import prune_syncs
from fusewright.kir.passes.round_wide import round_wide
from fusewright.kir.passes.share_loads import share_loads
from fusewright.kir.passes.share_words import share_words
from fusewright.kir.passes.simplify import simplify
from fusewright.kir.passes.sink_branches import sink_branches
from fusewright.kir.passes.skip_masked import skip_masked
from fusewright.kir.passes.trim_loops import trim_loops
from fusewright.kir.passes.unroll import unroll, unroll_last
from fusewright.kir.spec import Stage, check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.target import Target, target_of

Run: TypeAlias = Callable[[Kernel, Target], Kernel]


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass, the stage that holds behind it, and why it stands where it does."""

    name: str
    run: Run
    establishes: Stage
    why: str


def _for_any_target(f: Callable[[Kernel], Kernel]) -> Run:
    return lambda kernel, _: f(kernel)


PIPELINE: tuple[Pass, ...] = (
    Pass(
        "materialise_rings",
        materialise_rings,
        "lowered",
        "a kernel gets its roles first: all passes see the threads that it will have",
    ),
    Pass(
        "materialise_async",
        materialise_async,
        "lowered",
        "tiles and the loops over them are still as scheduled",
    ),
    Pass(
        "unroll",
        _for_any_target(unroll),
        "lowered",
        "reductions of several values by one thread become neighbours and share one barrier",
    ),
    Pass(
        "trim_loops",
        _for_any_target(trim_loops),
        "lowered",
        "a part with a row less is a loop of fewer trips; loads ahead then need no other condition",
    ),
    Pass(
        "guard_loops",
        _for_any_target(guard_loops),
        "lowered",
        "loops that all threads leave early have ended; what is left is asked once, not every trip",
    ),
    Pass(
        "peel_loops",
        _for_any_target(peel_loops),
        "lowered",
        "loops without barriers keep their known number of trips, and no condition in them",
    ),
    Pass(
        "prefetch",
        prefetch,
        "lowered",
        "nothing moves over a barrier by itself, so loads ahead of it are written there",
    ),
    Pass(
        "expand_reductions",
        _for_any_target(expand_reductions),
        "lowered",
        "workspaces are buffers like all others before hazards and lifetimes are looked for",
    ),
    Pass(
        "expand_scans",
        _for_any_target(expand_scans),
        "expanded",
        "as reductions over threads: their workspaces, too, are buffers like all others",
    ),
    Pass(
        "simplify_addresses",
        _for_any_target(simplify),
        "expanded",
        "hazards are judged on the accesses that remain, at explicit addresses",
    ),
    Pass(
        "share_loads",
        _for_any_target(share_loads),
        "expanded",
        "equal addresses look equal by now; what reads copies reads the original from here on",
    ),
    Pass(
        "share_words",
        _for_any_target(share_words),
        "expanded",
        "equal loads are one, so that windows which meet are others; branches hold what is left",
    ),
    Pass(
        "add_at_once",
        _for_any_target(add_at_once),
        "expanded",
        "terms have one name by now; branches then hold the sums, and no term outlives them",
    ),
    Pass(
        "guard_masked",
        _for_any_target(guard_masked),
        "expanded",
        "positions are single expressions by now; loads in branches need no condition of their own",
    ),
    Pass(
        "skip_masked",
        _for_any_target(skip_masked),
        "expanded",
        "loads of what is dropped do not take place, so that only work is left to be skipped",
    ),
    Pass(
        "sink_branches",
        sink_branches,
        "expanded",
        "a thread does the work of its own piece; equal conditions look equal by now",
    ),
    Pass(
        "drop_guards",
        _for_any_target(drop_guards),
        "expanded",
        "what is still chosen by selects needs one fewer; branches were found by the conditions",
    ),
    Pass(
        "count_remote_stores",
        _for_any_target(count_remote_stores),
        "expanded",
        "what blocks store for each other is in place; hazards then know who waits for it",
    ),
    Pass(
        "complete_async",
        complete_async,
        "expanded",
        "a thread waits for its own copies before it can hand them on to others",
    ),
    Pass(
        "place_syncs",
        place_syncs,
        "synced",
        "orders every cross-thread hazard; afterwards statements no longer move",
    ),
    Pass(
        "promote",
        promote,
        "synced",
        "buys syncs that let packing reuse memory, beside those that exist anyway",
    ),
    Pass(
        "pack_shared",
        pack_shared,
        "packed",
        "buffers share memory only where the syncs that exist separate them",
    ),
    Pass(
        "place_fences",
        place_fences,
        "packed",
        "bulk copies see what threads wrote, also to bytes that are shared since packing",
    ),
    Pass(
        "prune_syncs",
        prune_syncs,
        "packed",
        "with addresses known, some syncs order nothing any more",
    ),
    Pass(
        "branch_fills",
        _for_any_target(branch_fills),
        "packed",
        "its branches hold nothing that a sync could be for",
    ),
    Pass(
        "unroll_last",
        _for_any_target(unroll_last),
        "packed",
        "syncs and addresses are settled: nothing looks at the copies of a statement one by one",
    ),
    Pass(
        "round_wide",
        _for_any_target(round_wide),
        "packed",
        "what is narrowed and widened by the same thread needs no place in between",
    ),
    Pass(
        "simplify",
        _for_any_target(simplify),
        "packed",
        "what packing and pruning left trivial goes before the text is made",
    ),
    Pass(
        "locate_loads",
        _for_any_target(locate_loads),
        "packed",
        "indices stay as they are from here on; the emitter proves nothing",
    ),
    Pass(
        "keep_words",
        _for_any_target(keep_words),
        "packed",
        "which registers loads fill, from which words, and who reads them stays as it is",
    ),
    Pass(
        "elect_issuers",
        _for_any_target(elect_issuers),
        "packed",
        "which thread issues each statement of a role, under which conditions, stays as it is",
    ),
    Pass(
        "name_symbols",
        _for_any_target(name_symbols),
        "final",
        "text, reports and CUDA call every symbol by the same name",
    ),
)


SWITCHES: dict[str, tuple[str, Run | None]] = {
    "scopes": ("pack_shared", pack_apart),
    "in_place": ("pack_shared", pack_whole),
    "counting": ("count_remote_stores", None),
    "promotion": ("promote", None),
    "split": ("promote", promote_whole),
    "pruning": ("prune_syncs", None),
}
"""What can be switched off, to see what it buys: the pass it is part of, and what runs instead."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How a run is watched; the defaults come from the environment.

    `spec` 0 off, 1 borders, 2 every pass, 3 text too; `dump` "", "all", "diff" or a pass;
    `without` lists, with commas, the switches of `SWITCHES` that are off.
    """

    spec: int = field(default_factory=knobs.SPEC.get)
    dump: str = field(default_factory=knobs.DUMP.get)
    dump_dir: Path = field(default_factory=knobs.DUMP_DIR.get)
    without: str = field(default_factory=knobs.WITHOUT.get)


def run_pipeline(kernel: Kernel, target: Target, options: PipelineOptions | None = None) -> Kernel:
    """The kernel ready for emission and simulation, stage "final".

    Raises SpecError when the kernel given breaks the spec of stage "lowered", UserError and
    UnsupportedError as passes find them, and InternalError, with the path of a runnable
    reproducer, when a pass fails or leaves a kernel that breaks the spec.
    """
    options = options or PipelineOptions()
    _check_dump(options)
    if options.spec:
        check_kernel(kernel, "lowered", target=target)
    if options.spec >= 3:
        _check_text(kernel)
    passes = _without(options.without)
    checked: Stage | None = "lowered" if options.spec else None
    for number, p in enumerate(passes):
        before = kernel
        is_last = number == len(passes) - 1
        level = _level(options, is_last=is_last)
        kernel = run_pass(p, kernel, target, spec=level, checked=checked)
        checked = p.establishes if level else None
        _dump(number, p, before, kernel, options)
    return kernel


def _without(switches: str) -> tuple[Pass, ...]:
    """The pipeline with some switches off. Raises UserError for one that does not exist."""
    passes = PIPELINE
    for name in filter(None, switches.split(",")):
        if name not in SWITCHES:
            raise UserError(f"{knobs.WITHOUT.name}={switches!r}: use {', '.join(SWITCHES)}")
        part, instead = SWITCHES[name]
        passes = tuple(
            p if p.name != part else replace(p, run=instead)
            for p in passes
            if p.name != part or instead is not None
        )
    return passes


def _level(options: PipelineOptions, *, is_last: bool) -> int:
    """The level of checks behind a pass: level 1 looks only behind the last one."""
    return options.spec if options.spec >= 2 or is_last else 0


def run_pass(
    p: Pass, kernel: Kernel, target: Target, *, spec: int, checked: Stage | None = None
) -> Kernel:
    """One pass with the checks behind it; a failure writes a reproducer. The kernel given has
    passed the checks of the stage `checked`: a pass that did nothing leaves no others to make than
    those of a later stage. Raises as `run_pipeline`."""
    try:
        new = p.run(kernel, target)
        is_known = new is kernel and checked is not None
        if spec and not (is_known and checked == p.establishes):
            check_kernel(new, p.establishes, target=target)
        if spec >= 3 and not is_known:
            _check_text(new)
    except (UserError, UnsupportedError):
        raise
    except Exception as error:
        path = write_reproducer(p, kernel, target)
        raise InternalError(
            f"pass {p.name} failed on kernel {kernel.name}: {type(error).__name__}: {error}\n"
            f"Its input was written; run 'python {path}' to see the failure again."
        ) from error
    return new


def run_pass_on_text(name: str, text: str, arch: str) -> Kernel:
    """Run one pass, with all checks, on the text of its input; reproducers call this."""
    p = next((p for p in PIPELINE if p.name == name), None)
    if p is None:
        known = ", ".join(p.name for p in PIPELINE)
        raise UserError(f"there is no pass '{name}'; use one of {known}")
    kernel, target = parse_kernel(text), target_of(arch)
    new = p.run(kernel, target)
    check_kernel(new, p.establishes, target=target)
    _check_text(new)
    return new


def _check_text(kernel: Kernel) -> None:
    text = print_kernel(kernel)
    again = print_kernel(parse_kernel(text))
    if again != text:
        lines = difflib.unified_diff(text.splitlines(), again.splitlines(), lineterm="", n=0)
        raise SpecError(
            f"the text of kernel {kernel.name} does not parse back to itself:\n" + "\n".join(lines)
        )


_REPRODUCER = '''"""Runs the pass {name} on the kernel that it failed on."""

from pathlib import Path

from fusewright.kir.pipeline import run_pass_on_text
from fusewright.kir.text import print_kernel

TEXT = Path(__file__).with_name("{kir}").read_text(encoding="utf-8")
print(print_kernel(run_pass_on_text("{name}", TEXT, "{arch}")))
'''


def write_reproducer(p: Pass, kernel: Kernel, target: Target) -> Path:
    """Write the input of a pass, as text and as a program that runs the pass on it, into a new
    temporary directory; the path of the program."""
    directory = Path(tempfile.mkdtemp(prefix=f"fusewright_{p.name}_"))
    kir = f"{p.name}.kir"
    (directory / kir).write_text(print_kernel(kernel), encoding="utf-8")
    program = directory / f"{p.name}.py"
    text = _REPRODUCER.format(name=p.name, kir=kir, arch=target.arch)
    program.write_text(text, encoding="utf-8")
    return program


def _check_dump(options: PipelineOptions) -> None:
    known = ("", "all", "diff", *(p.name for p in PIPELINE))
    if options.dump not in known:
        raise UserError(
            f"{knobs.DUMP.name}={options.dump!r}: use all, diff or a pass: {', '.join(known[3:])}"
        )


def _dump(number: int, p: Pass, before: Kernel, after: Kernel, options: PipelineOptions) -> None:
    if options.dump not in ("all", "diff", p.name):
        return
    if after is before:
        text = "(unchanged)\n"
    elif options.dump == "diff":
        old, new = print_kernel(before).splitlines(), print_kernel(after).splitlines()
        text = "\n".join(difflib.unified_diff(old, new, "before", p.name, lineterm="")) + "\n"
    else:
        text = print_kernel(after)
    directory = options.dump_dir / after.name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:02}_{p.name}.kir").write_text(text, encoding="utf-8")
    except OSError as e:
        raise UserError(
            f"{knobs.DUMP_DIR.name}: {directory} cannot be written ({e.strerror}); name a folder "
            f"that can be, or unset {knobs.DUMP.name}"
        ) from None
