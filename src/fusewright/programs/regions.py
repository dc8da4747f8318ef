"""Launches that are regions: made of compiled bodies, and run step by step in the simulator."""

from __future__ import annotations

import hashlib

from fusewright.core.expr import ZERO
from fusewright.host.control import RegionBody, RegionCall, host_region, stand_in
from fusewright.host.subspans import Subspan
from fusewright.kernel import Kernel, TensorInfo
from fusewright.programs.model import Dispatch, ProgramModel, RegionBodies


def region_dispatch(
    call: RegionCall,
    bodies: tuple[ProgramModel, ...],
    reads: tuple[Subspan, ...],
    writes: tuple[Subspan, ...],
) -> Dispatch:
    """The launch of a region over the places of its operands, and of its results that are used."""
    host = host_region(call, [_body_of(b) for b in bodies])
    text = "\n".join(str(b.fusion) for b in bodies)
    name = f"{call.fn}_{hashlib.sha256(text.encode()).hexdigest()[:4]}"
    kernel = stand_in(name, call, host)
    infos = [
        TensorInfo(b.name, s.shape, b.dtype, s.strides)
        for b, s in zip(kernel.arrays, (*reads, *writes), strict=True)
    ]
    n = len(reads)
    made = Kernel(kernel, bodies[0].target, tuple(infos[:n]), tuple(infos[n:]), (), "")
    return Dispatch(made, reads, writes, (), RegionBodies(call, host, bodies))


def _body_of(program: ProgramModel) -> RegionBody:
    arena = program.assembled.arena
    nbytes = arena.nbytes if arena.offsets else ZERO
    return RegionBody(program.holders, tuple(program.places), nbytes)
