"""What `request_serial_grid_reduction` may be asked for."""

from __future__ import annotations

from fusewright.dtypes import DType, bfloat16, dtype_of, float16, float32
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul, Reduce, Scan
from fusewright.schedule.graph import Stage
from fusewright.schedule.rules import GRID_MODES, READ_BACK, STREAM_MODES


def work_of_request(
    stage: Stage, mode: str, work_dtype: object, read_back: str, *, stream: bool = False
) -> DType | None:
    """The dtype to which parts are rounded on the way, None where they stay what they are. Raises
    ScheduleError for what is no reduction, and for a mode, a dtype or a way back that it has not,
    or no last wave of it that blocks share.
    """
    if isinstance(stage.op, Scan) and mode != "slices":
        raise ScheduleError(
            f"request_serial_grid_reduction({stage.name}, {mode!r}): blocks that scan lines "
            "together gather the totals of all; use mode 'slices'"
        )
    if isinstance(stage.op, MatMul) and mode == "all":
        raise ScheduleError(
            f"request_serial_grid_reduction({stage.name}, 'all'): every block of a product "
            "would add up the sums of all; use mode 'slices', whose blocks finish a share each"
        )
    if not isinstance(stage.op, Reduce | Scan | MatMul):
        raise ScheduleError(
            f"request_serial_grid_reduction({stage.name}, {mode!r}): it is no reduction; ask "
            "for it on the tensor whose loops reduce"
        )
    if mode not in GRID_MODES:
        known = ", ".join(map(repr, GRID_MODES))
        raise ScheduleError(
            f"request_serial_grid_reduction({stage.name}, {mode!r}): there is no such mode; use "
            f"one of {known}"
        )
    if stream and (not isinstance(stage.op, MatMul) or mode not in STREAM_MODES):
        known = ", ".join(map(repr, STREAM_MODES))
        raise ScheduleError(
            f"request_serial_grid_reduction({stage.name}, {mode!r}, stream=True): blocks share the "
            f"last wave of the tiles of a product, in modes {known}; leave stream out"
        )
    compute = stage.dtype.compute
    work = compute if work_dtype is None else dtype_of(work_dtype)
    if work is not compute and not (compute is float32 and work in (float16, bfloat16)):
        shorter = ", or float16 or bfloat16" if compute is float32 else ""
        raise ScheduleError(
            f"request_serial_grid_reduction({stage.name}, {mode!r}, work_dtype={work}): parts "
            f"of it are handed on in {compute}{shorter}; use that, or leave work_dtype out"
        )
    is_known = read_back in READ_BACK and (mode == "tma" or read_back == "vector")
    if not is_known:
        raise ScheduleError(
            f"request_serial_grid_reduction({stage.name}, {mode!r}, read_back={read_back!r}): "
            "use 'vector', or in mode 'tma' 'bulk'"
        )
    return None if work is compute else work
