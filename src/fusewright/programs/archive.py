"""A program as a record of text and machine code, for files and pickles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewright.errors import InternalError, UserError
from fusewright.fusion.known import Known
from fusewright.fusion.printing import print_fusion
from fusewright.fusion.text import parse_fusion
from fusewright.host.groups import Reason
from fusewright.host.ir import Pieces
from fusewright.programs.model import Dispatch, ProgramModel
from fusewright.programs.records import (
    DAMAGE,
    check_launch,
    constant_record,
    kernel_record,
    number_of,
    number_record,
    restored_constant,
    restored_kernel,
    restored_site,
    site_record,
)
from fusewright.target import target_of


def packed(program: ProgramModel, *, with_code: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The program as a record, and machine code; without it only what has been made. Raises
    UserError where code is wanted and there is no compiler."""
    kernels = program.kernels
    made = [k for k in kernels if with_code or k.is_compiled]
    codes = list(dict.fromkeys(k.cubin() for k in made))
    held = [t for t in program.fusion.inputs if isinstance(t, Known)]
    record = {
        "target": program.target.arch,
        "fusion": print_fusion(program.fusion),
        "constants": [constant_record(t) for t in held],
        "kernels": [
            kernel_record(k, codes.index(k.cubin()) if k in made else None) for k in kernels
        ],
        "launches": [
            {
                "kernel": kernels.index(x.kernel),
                "inputs": [site_record(s) for s in x.reads],
                "outputs": [site_record(s) for s in x.writes],
                "values": [number_record(v) for v in x.values],
            }
            for x in program.launches
        ],
        "reasons": [[r.tensor, r.rule] for r in program.reasons],
        "held": [[t.name, argument.name] for t, argument in program.held.items()],
        "placed": list(program.pieces.placed.items()),
        "not_placed": list(program.pieces.not_placed.items()),
    }
    members = {f"{i}.cubin": c for i, c in enumerate(codes)}
    return record, members | {f"{t.name}.constant": t.data.tobytes() for t in held}


def restored(record: Mapping[str, Any], members: Mapping[str, bytes], what: str) -> ProgramModel:
    """The program of a record from `what`. Raises UserError for one that describes none, or one
    whose host program breaks an invariant."""
    try:
        model = _model(record, members)
        _ = model.host, model.results, model.holders
    except (*DAMAGE, InternalError) as e:
        raise UserError(f"{what} does not describe a program ({e!r}); save it again") from e
    return model


def _model(record: Mapping[str, Any], members: Mapping[str, bytes]) -> ProgramModel:
    constants = {r["name"]: restored_constant(r, members) for r in record["constants"]}
    fusion = parse_fusion(record["fusion"], constants)
    target = target_of(record["target"])
    values = {t.name: t for t in fusion.values}
    symbols = {s.name: s for s in fusion.symbols}
    kernels = [restored_kernel(r, members, target, symbols) for r in record["kernels"]]
    launches = tuple(
        Dispatch(
            kernels[int(x["kernel"])],
            tuple(restored_site(r, values, symbols) for r in x["inputs"]),
            tuple(restored_site(r, values, symbols) for r in x["outputs"]),
            tuple(number_of(v) for v in x["values"]),
        )
        for x in record["launches"]
    )
    for x in launches:
        check_launch(x.kernel, x.reads, x.writes, x.values)
    return ProgramModel(
        fusion,
        launches,
        tuple(Reason(t, rule) for t, rule in record["reasons"]),
        target,
        Pieces(dict(record["placed"]), dict(record["not_placed"])),
        {values[t]: values[argument] for t, argument in record["held"]},
    )
