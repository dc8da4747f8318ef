"""The public names of the package, which loads them when one is first asked for."""

from inspect import isfunction as _isfunction

from fusewright.driver import Schedule, compile
from fusewright.dtypes import (
    DType,
    bfloat16,
    bool_ as bool,
    complex64,
    complex128,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from fusewright.errors import (
    DeviceError,
    FusewrightError,
    InternalError,
    ScheduleError,
    SpecError,
    UnsupportedError,
    UserError,
)
from fusewright.frontends import lazy as _lazy
from fusewright.frontends.benchmark import Benchmark, benchmark
from fusewright.frontends.fuse import fuse
from fusewright.frontends.interop import from_torch
from fusewright.frontends.lazy import *  # noqa: F403
from fusewright.frontends.own_kernel import kernel
from fusewright.frontends.tune import Tuning, tune
from fusewright.fusion import nn, ops as _ops, refused_calls as _refused_calls
from fusewright.fusion.ir import Fusion, Sym, TensorSpec
from fusewright.fusion.objects import register_pytree
from fusewright.fusion.ops import *  # noqa: F403
from fusewright.fusion.trace import name, trace
from fusewright.fusion.transforms.batching import vmap
from fusewright.fusion.transforms.gradients import (
    custom_vjp,
    grad,
    jvp,
    stop_gradient,
    value_and_grad,
    vjp,
)
from fusewright.host.assemble import HostProgram
from fusewright.kernel import Kernel
from fusewright.kir.text import parse_kernel
from fusewright.memory import Memory as _Memory
from fusewright.program import Program, load
from fusewright.programs.model import Layout
from fusewright.report.explain import Report
from fusewright.runtime.config import config
from fusewright.schedule.parallel import Parallel as _Parallel
from fusewright.verify import VerifyReport, evaluate, verify

BIDx, BIDy, BIDz = _Parallel.BIDX, _Parallel.BIDY, _Parallel.BIDZ
TIDx, TIDy, TIDz = _Parallel.TIDX, _Parallel.TIDY, _Parallel.TIDZ
Vectorize, Unroll, Serial = _Parallel.VECTORIZE, _Parallel.UNROLL, _Parallel.SERIAL
Bulk, Mma, ClusterX = _Parallel.BULK, _Parallel.MMA, _Parallel.CLUSTERX
GLOBAL, SHARED, LOCAL = _Memory.GLOBAL, _Memory.SHARED, _Memory.LOCAL

__all__ = [
    "GLOBAL",
    "LOCAL",
    "SHARED",
    "BIDx",
    "BIDy",
    "BIDz",
    "Benchmark",
    "Bulk",
    "ClusterX",
    "DType",
    "DeviceError",
    "FusewrightError",
    "Fusion",
    "HostProgram",
    "InternalError",
    "Kernel",
    "Layout",
    "Mma",
    "Program",
    "Report",
    "Schedule",
    "ScheduleError",
    "Serial",
    "SpecError",
    "Sym",
    "TIDx",
    "TIDy",
    "TIDz",
    "TensorSpec",
    "Tuning",
    "Unroll",
    "UnsupportedError",
    "UserError",
    "Vectorize",
    "VerifyReport",
    "benchmark",
    "bfloat16",
    "bool",
    "compile",
    "complex64",
    "complex128",
    "config",
    "custom_vjp",
    "evaluate",
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "from_torch",
    "fuse",
    "grad",
    "int8",
    "int16",
    "int32",
    "int64",
    "jvp",
    "kernel",
    "load",
    "name",
    "nn",
    "parse_kernel",
    "register_pytree",
    "stop_gradient",
    "trace",
    "tune",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
    "verify",
    "vjp",
    "vmap",
]
__all__ += _lazy.__all__
__all__ += _ops.__all__

for _names, _module in ((globals(), __name__), (nn.__dict__, nn.__name__)):
    for _name in nn.__all__ if _module == nn.__name__ else (*_lazy.__all__, *_ops.__all__):
        if _isfunction(_names[_name]):
            _names[_name] = _refused_calls.advised(_names[_name], _module)
