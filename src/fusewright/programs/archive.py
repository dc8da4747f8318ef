"""A program as a record of text and machine code, for files and pickles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fusewright.core.expr import Var
from fusewright.errors import InternalError, UserError
from fusewright.fusion.ir import Fusion, Region, Tensor
from fusewright.fusion.known import Known
from fusewright.fusion.laps import laps_of
from fusewright.fusion.orders import Order, Orders
from fusewright.fusion.printing import print_fusion
from fusewright.fusion.text import parse_body, parse_fusion
from fusewright.host.control import call_of
from fusewright.host.groups import Reason
from fusewright.host.ir import JoinPieces
from fusewright.kernel import Kernel
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
from fusewright.programs.regions import region_dispatch
from fusewright.programs.views import SharedResults
from fusewright.target import Target, target_of


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
        **_rest_of(program, kernels),
    }
    if program.shared is not None:
        whole, written = program.shared.whole, list(program.shared.written)
        record["shared"] = {"fusion": print_fusion(whole), "written": written}
    members = {f"{i}.cubin": c for i, c in enumerate(codes)}
    return record, members | {f"{t.name}.constant": t.data.tobytes() for t in held}


def _rest_of(program: ProgramModel, kernels: Sequence[Kernel]) -> dict[str, Any]:
    """What a record says of a program, or of a body of a region, beside its fusion and kernels."""
    return {
        "launches": [_launch_record(x, kernels) for x in program.launches],
        "reasons": [[r.tensor, r.rule] for r in program.reasons],
        "held": [[t.name, argument.name] for t, argument in program.held.items()],
        "lenders": [t.name for t in program.lenders],
        "placed": list(program.pieces.placed.items()),
        "not_placed": list(program.pieces.not_placed.items()),
        "orders": {
            f.name: {n: list(o) for n, o in getattr(program.orders, f.name).items()}
            for f in fields(Orders)
        },
    }


def _launch_record(x: Dispatch, kernels: Sequence[Kernel]) -> dict[str, Any]:
    sites = {
        "inputs": [site_record(s) for s in x.reads],
        "outputs": [site_record(s) for s in x.writes],
    }
    if x.region is not None:
        call = x.region.call
        bodies = [
            {"fusion": print_fusion(b.fusion), **_rest_of(b, kernels)} for b in x.region.bodies
        ]
        chosen = {"used": list(call.used), "aliased": sorted(call.aliased)}
        return {"region": chosen, "bodies": bodies, **sites}
    values = [number_record(v) for v in x.values]
    return {"kernel": kernels.index(x.kernel), "values": values, **sites}


def restored(
    record: Mapping[str, Any], members: Mapping[str, bytes], what: str, *, later: bool = False
) -> ProgramModel:
    """The program of a record from `what`. Raises UserError for one that describes none, or one
    whose host program breaks an invariant. With `later` the statements of kernels are read, and
    checked, when somebody asks for them: of a record that this version of the package wrote."""
    try:
        model = _model(record, members, later=later)
        _ = model.host, model.results, model.holders
    except (*DAMAGE, InternalError) as e:
        raise UserError(f"{what} does not describe a program ({e!r}); save it again") from e
    return model


def _model(record: Mapping[str, Any], members: Mapping[str, bytes], *, later: bool) -> ProgramModel:
    constants = {r["name"]: restored_constant(r, members) for r in record["constants"]}
    fusion = parse_fusion(record["fusion"], constants)
    target = target_of(record["target"])
    symbols = {s.name: s for s in (*fusion.symbols, *laps_of(fusion))}
    kernels = [restored_kernel(r, members, target, symbols, later=later) for r in record["kernels"]]
    model = _model_of(record, fusion, kernels, symbols, target)
    shared = record.get("shared")
    if shared is not None:
        whole = parse_fusion(shared["fusion"], constants)
        model.shared = SharedResults(whole, tuple(map(str, shared["written"])))
        if [t.name for t in model.shared.rest.outputs] != [t.name for t in fusion.outputs]:
            raise ValueError("the results that are views do not fit those that are computed")
    return model


def _model_of(
    record: Mapping[str, Any],
    fusion: Fusion,
    kernels: Sequence[Kernel],
    symbols: Mapping[str, Var],
    target: Target,
) -> ProgramModel:
    """The program of a record, or a body of a region, over kernels and symbols of the whole."""
    values = {t.name: t for t in fusion.values}
    launches = tuple(_launch(x, values, kernels, symbols, target) for x in record["launches"])
    for x in launches:
        check_launch(x.kernel, x.reads, x.writes, x.values)
    return ProgramModel(
        fusion,
        launches,
        tuple(Reason(t, rule) for t, rule in record["reasons"]),
        target,
        JoinPieces(dict(record["placed"]), dict(record["not_placed"])),
        {values[t]: values[argument] for t, argument in record["held"]},
        Orders(*(_orders_of(record["orders"][f.name]) for f in fields(Orders))),
        tuple(values[name] for name in record["lenders"]),
    )


def _orders_of(listed: Mapping[str, Sequence[int]]) -> dict[str, Order]:
    return {str(name): tuple(map(int, order)) for name, order in listed.items()}


def _launch(
    x: Mapping[str, Any],
    values: Mapping[str, Tensor],
    kernels: Sequence[Kernel],
    symbols: Mapping[str, Var],
    target: Target,
) -> Dispatch:
    reads = tuple(restored_site(r, values, symbols) for r in x["inputs"])
    writes = tuple(restored_site(r, values, symbols) for r in x["outputs"])
    if "region" not in x:
        numbers = tuple(number_of(v) for v in x["values"])
        return Dispatch(kernels[int(x["kernel"])], reads, writes, numbers)
    op = writes[0].tensor.op
    if not isinstance(op, Region):
        raise ValueError(f"{writes[0].tensor.name} is the result of no region")
    used = tuple(map(int, x["region"]["used"]))
    aliased = frozenset(map(int, x["region"]["aliased"]))
    bodies = tuple(
        _model_of(b, parse_body(b["fusion"], symbols), kernels, symbols, target)
        for b in x["bodies"]
    )
    return region_dispatch(call_of(op, used, aliased), bodies, reads, writes)
