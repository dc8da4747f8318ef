"""Every argument of what compiles, schedules, runs and checks changes something, or is refused.

A row has what the usual call shows, and what it shows, or raises, with the argument changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import as_expr
from fusewright.cuda.emit import emit
from fusewright.errors import FusewrightError
from fusewright.frontends.fuse import Fused
from fusewright.kernel import TensorInfo
from fusewright.kir.text import parse_kernel
from fusewright.report.predicted import Measured
from fusewright.runtime.config import active
from fusewright.schedule.edits import EditCall
from fusewright.schedule.schedule import ScheduledTensor
from fusewright.target import target_of

S = fw.TensorSpec((4, 64), "float32")
X = np.arange(256, dtype=np.float32).reshape(4, 64)


def own_kernel(schedule):
    return fw.compile(fw.trace(fw.kernel(scaled, schedule=schedule), S))


def scaled(x):
    h = fw.name(x * 2.0, "h")
    return fw.name(fw.sum(h, axis=1), "total")


def summed(x, y):
    return fw.sum(x + y)


FUSION = fw.trace(scaled, S)
DYNAMIC = fw.trace(scaled, fw.TensorSpec(("n", 64), "float32"))
PROGRAM = fw.compile(FUSION)
OTHER_TARGET = fw.compile(FUSION, target="sm_80")
KERNEL = PROGRAM.kernels[0]
ROWS_KERNEL = fw.compile(DYNAMIC).kernels[0]

_HEAD = "grid (bx < 2, by < 1, bz < 1)\n  block (tx < 2, ty < 1, tz < 1)"
_PICKED = parse_kernel(f"""kernel picked {{
  param i: int64[2] align 16
  param o: int64[8] align 16
  {_HEAD}

  local r: int64[1]
  local q: int64[1]
  r[0] = load i[tx]
  q[0] = load i[bx]
  store o[r[0]] = r[0]
  store o[7] = q[0]
}}
""")
"""Its threads write where their arguments say, and its blocks one more element."""


def picked() -> fw.Kernel:
    one = (as_expr(1),)
    given = TensorInfo("i", (as_expr(2),), fw.int64, one)
    made = TensorInfo("o", (as_expr(8),), fw.int64, one)
    return fw.Kernel(_PICKED, target_of("sm_90a"), (given,), (made,), (), "")


AT = np.array([1, 2])


def racing() -> fw.Program:
    """A program of that kernel."""
    fusion = fw.trace(
        lambda i: fw.astype(fw.pad(i, (0, 6)), fw.int64), fw.TensorSpec((2,), "int64")
    )
    (launch,) = fw.compile(fusion).launches
    return fw.Program(
        fusion, (replace(launch, kernel=picked(), values=()),), (), target_of("sm_90a")
    )


def derived(name: str, **options: Any) -> str:
    """The program of a derivative of a function of two arrays."""
    fn = options.pop("fn", lambda x, y: fw.sum(x * y))
    return str(fw.trace(getattr(fw, name)(fn, **options), S, S))


def pulled(fn: Any = fw.sin, of: Any = lambda x: x) -> str:
    """The program of a cotangent."""
    return str(fw.trace(lambda x: fw.vjp(fn, of(x))[1](x), S))


def pushed(**options: Any) -> str:
    """The program of a tangent."""
    fn = options.pop("fn", fw.sin)
    primals = options.pop("primals", lambda x: (x,))
    tangents = options.pop("tangents", lambda x: (x,))
    return str(fw.trace(lambda x: fw.jvp(fn, primals(x), tangents(x), **options)[1:], S))


def mapped(**options: Any) -> str:
    """The program of a mapped function of an array."""
    fn = options.pop("fn", lambda x: fw.cumulative_sum(x, axis=0))
    return str(fw.trace(fw.vmap(fn, **options), S))


def ruled(**options: Any) -> str:
    """The gradient of a function with a rule of its own."""
    parts = {"forward": lambda x: (fw.exp(x), x), "backward": lambda s, g: (g,), **options}
    fn = fw.custom_vjp(fw.exp, **parts)
    return str(fw.trace(fw.value_and_grad(lambda x: fw.sum(fn(x))), S))


def program(**options: Any) -> str:
    made = fw.compile(options.pop("fusion", FUSION), **options)
    return f"{made.target.arch} {[emit(k.ir, k.target) for k in made.kernels]} {made.host}"


def donated(**options: Any) -> str:
    fusion = fw.trace(
        lambda x, y: fw.insert(x, y * 2, (0, 0)), S, fw.TensorSpec((1, 64), "float32")
    )
    return str(fw.compile(fusion, **options).host)


def scheduled(edit: Callable[[Any, Any, Any], Any]) -> str:
    """The loops of a schedule after an edit of it, of a product and of its sum."""
    s = fw.Schedule(FUSION)
    out = edit(s, s["h"], s["total"])
    stages = [(t, t.memory, t.stage.stages, t.stage.ahead, t.promotes_reuse) for t in s.tensors]
    loops = [(t.name, t.axes, t.stage.inline_depth, t.stage.allocation_order) for t in s.tensors]
    return (
        f"{s}\n{stages}\n{loops}\n{s.min_blocks} {s.cluster}\n{out if isinstance(out, str) else ''}"
    )


def tiled(by: str | None = "cp_async"):
    """An edit that leaves an asynchronous copy of the input, read in a serial loop."""

    def edit(s: Any, h: Any, total: Any) -> Any:
        return s["x"].cache_after(by)

    return edit


def multiplied(**options: Any) -> str:
    """A tile of a product by the instructions of warpgroups."""
    given = fw.TensorSpec((128, 64), "bfloat16"), fw.TensorSpec((64, 128), "bfloat16")
    s = fw.Schedule(fw.trace(fw.matmul, *given))
    (product,) = s.outputs
    return str(product.cache_before().mma(**options).axes)


def bound(h: Any) -> Any:
    """A product whose rows and columns are bound."""
    return h.reorder([1, 0]).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)


def shared_tile(h: Any) -> Any:
    """A product in shared memory, its innermost loop over four elements."""
    return h.set_memory(fw.SHARED).cache_after().split(1, 4)


def sliced(s: Any, reads_copy: bool = False) -> str:
    """Copies of an input that is computed with and cut."""
    cut = fw.Schedule(fw.trace(lambda x: (fw.name(x[:, :2], "cut") * 2, x * 3), S))
    return str([t.name for t in cut.cache_inputs([cut["cut"]] if reads_copy else [])])


def scanned(width: int) -> Any:
    s = fw.Schedule(fw.trace(lambda x: fw.cumulative_sum(x, axis=1), S))
    return s.outputs[0].block_scan(width).axes


def squared() -> str:
    s = fw.Schedule(fw.trace(lambda x: x @ x, fw.TensorSpec((64, 64), "bfloat16")))
    return str(s.separate_operands(s.outputs[0]))


def fused(fn: Any = scaled, x: Any = X, **options: Any) -> str:
    f = fw.fuse(fn, **{"device": "sim", **options})
    made = [a.strides for a in np.atleast_1d(f(x))] if "out_layouts" in options else f(x).tolist()
    p = f.program(x)
    return f"{p.target.arch} {made} {p.fusion} {p.host}"


def shared(is_allowed: bool) -> object:
    p = fw.compile(fw.trace(lambda x: x.T, S), alias_results=is_allowed)
    return len(p.launches)


def verified(**options: Any) -> str:
    r = fw.verify(options.pop("kernel", PROGRAM), *options.pop("arrays", ()), **options)
    return f"{len(r.necessary)} {r.redundant} {r.missing} {r.witnesses}"


def symbol(**options: Any) -> str:
    return repr(
        fw.trace(
            scaled, fw.TensorSpec((fw.Sym(options.pop("name", "n"), **options), 64), "float32")
        )
    )


def spec(shape: Any = (4, 64), dtype: str = "float32", **options: Any) -> str:
    fusion = fw.trace(lambda x: x * 2.0, fw.TensorSpec(shape, dtype, **options))
    return f"{fusion} {fw.compile(fusion).kernels[0].cuda}"


def configured(**changes: Any) -> str:
    with fw.config(**changes):
        return str(active())


def sized(n: int, **options: Any) -> object:
    """The results of a program of a symbolic size on n rows."""
    p = fw.compile(fw.trace(scaled, fw.TensorSpec((fw.Sym("n", **options), 64), "float32")))
    return p.simulate(np.ones((n, 64), np.float32)).outputs


def lowered(*, predict: bool = False, **options: Any) -> str:
    s = fw.Schedule(FUSION)
    if predict:
        return str(s.launch(min_blocks=24).predict(**options))
    k = s.lower(**options)
    return f"{k.target.arch} {k.cuda}"


def registered(**options: Any) -> object:
    """What a function of an object of a new class returns."""

    class Pair:
        def __init__(self, value: Any) -> None:
            self.value = value

    fw.register_pytree(
        **{
            "cls": Pair,
            "flatten": lambda p: ([p.value], ""),
            "unflatten": lambda rest, children: children[0],
            **options,
        }
    )
    return fw.fuse(lambda x: x[0] + 1, device="sim")(Pair(X))


Row = tuple[Callable[[], object], "Callable[[], object] | tuple[Callable[[], object], str]"]


def edits(usual: Callable[..., Any], other: Callable[..., Any], refusal: str | None = None) -> Any:
    changed = lambda: scheduled(other)  # noqa: E731
    return (lambda: scheduled(usual)), (changed if refusal is None else (changed, refusal))


ROWS: dict[str, dict[str, Row]] = {
    "compile": {
        "fusion": (program, lambda: program(fusion=DYNAMIC)),
        "target": (program, lambda: program(target="sm_80")),
        "dynamic": (program, (lambda: program(dynamic=True), "no size of this fusion is symbolic")),
        "donate": (donated, lambda: donated(donate=("x",))),
        "out_layouts": (
            lambda: str(fw.compile(fw.trace(fw.exp, S)).layouts),
            lambda: str(fw.compile(fw.trace(fw.exp, S), out_layouts=[(1, 0)]).layouts),
        ),
        "alias_results": (lambda: shared(False), lambda: shared(True)),
    },
    "config": {
        "changes": (configured, lambda: configured(execution="stream")),
    },
    "evaluate": {
        "fusion": (lambda: fw.evaluate(FUSION, X), lambda: fw.evaluate(fw.trace(fw.exp, S), X)),
        "arrays": (lambda: fw.evaluate(FUSION, X), lambda: fw.evaluate(FUSION, X + 1)),
    },
    "fuse": {
        "fn": (fused, lambda: fused(lambda x: x + 1)),
        "target": (fused, lambda: fused(target="sm_80")),
        "device": (fused, (lambda: fused(device="tpu"), "use 'auto', 'cuda' or 'sim'")),
        "out_layouts": (
            lambda: fused(lambda x: x + 1, out_layouts=None),
            lambda: fused(lambda x: x + 1, out_layouts=[(1, 0)]),
        ),
        "alias_results": (
            lambda: fused(lambda x: x.T),
            lambda: fused(lambda x: x.T, alias_results=True),
        ),
        "dynamic": (fused, lambda: fused(dynamic=True)),
        "donate": (fused, (lambda: fused(donate=("q",)), "q")),
    },
    "Fused.__call__": {
        "args": (
            lambda: fw.fuse(scaled, device="sim")(X),
            lambda: fw.fuse(scaled, device="sim")(-X),
        ),
        "out": (
            lambda: fw.fuse(scaled, device="sim")(X),
            (lambda: fw.fuse(scaled, device="sim")(X, out=np.empty(3, np.float32)), "out"),
        ),
        "kwargs": (
            lambda: fw.fuse(summed, device="sim")(X, y=X),
            lambda: fw.fuse(summed, device="sim")(X, y=-X),
        ),
    },
    "Fused.explain": {
        "args": (
            lambda: str(fw.fuse(scaled).explain(X)),
            lambda: str(fw.fuse(scaled).explain(X[:2])),
        ),
        "kwargs": (
            lambda: str(fw.fuse(summed).explain(X, y=X)),
            lambda: str(fw.fuse(summed).explain(X, y=X[:1])),
        ),
    },
    "Fused.program": {
        "args": (
            lambda: str(fw.fuse(scaled).program(X).host),
            lambda: str(fw.fuse(scaled).program(X[:2]).host),
        ),
        "kwargs": (
            lambda: str(fw.fuse(summed).program(X, y=X).host),
            lambda: str(fw.fuse(summed).program(X, y=X[:1]).host),
        ),
    },
    "load": {"path": (lambda: "", (lambda: fw.load("nothing.fw"), "cannot read"))},
    "parse_kernel": {
        "text": (lambda: str(fw.parse_kernel(str(KERNEL.ir))), (lambda: fw.parse_kernel("x"), "1")),
        "symbols": (
            lambda: fw.parse_kernel(str(fw.compile(DYNAMIC).kernels[0].ir)).symbols[0] is None,
            lambda: (
                lambda k: (
                    fw.parse_kernel(str(k.ir), {s.name: s for s in k.ir.symbols}).symbols[0]
                    is k.ir.symbols[0]
                )
            )(fw.compile(DYNAMIC).kernels[0]),
        ),
    },
    "kernel": {
        "fn": (
            lambda: str(fw.trace(fw.kernel(scaled, schedule=len), S)),
            lambda: str(fw.trace(fw.kernel(fw.exp, schedule=len), S)),
        ),
        "schedule": (
            lambda: str(own_kernel(lambda s: None).kernels[0].ir),
            lambda: str(own_kernel(lambda s: s.inline_most()).kernels[0].ir),
        ),
        "results": (lambda: 0, (lambda: fw.kernel(scaled, results="f32[4]"), "needs schedule=")),
    },
    "benchmark": {
        "fn": (lambda: fw.benchmark(scaled, X).timings, (lambda: fw.benchmark(3), "a function")),
        "args": (
            lambda: fw.benchmark(scaled, X).nbytes,
            lambda: fw.benchmark(scaled, np.concat([X, X])).nbytes,
        ),
        "beside": (lambda: 0, (lambda: fw.benchmark(scaled, X, beside={"f": scaled}), "measured")),
        "clock": (lambda: 0, (lambda: fw.benchmark(scaled, X, clock=3), "must be a clock")),
        "kwargs": (
            lambda: fw.benchmark(scaled, X).nbytes,
            lambda: fw.benchmark(scaled, x=np.concat([X, X])).nbytes,
        ),
    },
    "trace": {
        "fn": (lambda: str(FUSION), lambda: str(fw.trace(fw.exp, S))),
        "specs": (lambda: str(FUSION), lambda: str(DYNAMIC)),
        "kwargs": (lambda: str(fw.trace(summed, S, y=S)), lambda: str(fw.trace(summed, S, y=2.0))),
    },
    "tune": {
        "fn": (lambda: 0, (lambda: fw.tune(3, X), "must be a function")),
        "args": (lambda: 0, (lambda: fw.tune(fw.fuse(scaled)), "GPU|argument")),
        "clock": (lambda: 0, (lambda: fw.tune(fw.fuse(scaled), X), "clock= takes times")),
        "kwargs": (lambda: 0, (lambda: fw.tune(fw.fuse(scaled), x=X), "GPU")),
    },
    "verify": {
        "kernel": (verified, lambda: verified(kernel=picked())),
        "arrays": (
            lambda: verified(kernel=picked()),
            lambda: verified(kernel=picked(), arrays=(np.array([2, 2]),)),
        ),
        "blocks": (verified, (lambda: verified(blocks=[77]), "77")),
        "seed": (lambda: verified(kernel=picked()), lambda: verified(kernel=picked(), seed=3)),
    },
    "TensorSpec": {
        "shape": (spec, lambda: spec((4, 32))),
        "dtype": (spec, lambda: spec(dtype="float16")),
        "strides": (spec, lambda: spec(strides=(128, 1))),
        "alignment": (spec, lambda: spec(alignment=4)),
    },
    "Sym": {
        "name": (symbol, lambda: symbol(name="m")),
        "min": (lambda: sized(3), (lambda: sized(3, min=4), "at least 4")),
        "max": (lambda: sized(3), (lambda: sized(3, max=2), "at most 2")),
        "multiple_of": (lambda: sized(3), (lambda: sized(3, multiple_of=4), "multiple of 4")),
    },
    "Schedule": {
        "fusion": (lambda: str(fw.Schedule(FUSION)), lambda: str(fw.Schedule(DYNAMIC))),
    },
    "Schedule.transform_like": {
        "t": edits(
            lambda s, h, t: s.transform_like(h.split(1, 4)), lambda s, h, t: s.transform_like(t)
        ),
        "others": edits(
            lambda s, h, t: s.transform_like(h.split(1, 4)),
            lambda s, h, t: s.transform_like(h.split(1, 4), []),
        ),
        "align": edits(
            lambda s, h, t: (t.cache_before(), s.transform_like(bound(h), [t]))[0].name,
            lambda s, h, t: (t.cache_before(), s.transform_like(bound(h), [t], align=True))[0].name,
        ),
    },
    "Schedule.replay": {
        "log": edits(
            lambda s, h, t: s.replay(()),
            lambda s, h, t: s.replay((EditCall("h", "split", (1, 4)),)),
        ),
    },
    "Schedule.clone_untied_uses": {},
    "Schedule.cache_inputs": {
        "through": edits(lambda s, h, t: sliced(s), lambda s, h, t: sliced(s, True)),
    },
    "Schedule.separate_phases": {
        "t": edits(
            lambda s, h, t: s.separate_phases(t),
            lambda s, h, t: s.separate_phases(h),
            "is no reduction",
        ),
        "held": edits(
            lambda s, h, t: (t.cache_before(), s.separate_phases(s["total_c"]))[0].name,
            lambda s, h, t: (t.cache_before(), s.separate_phases(s["total_c"], [h]))[0].name,
        ),
    },
    "Schedule.relate": {
        "t": edits(lambda s, h, t: s.relate(t), lambda s, h, t: s.relate(h), "is no reduction"),
    },
    "Schedule.separate_operands": {
        "t": (
            lambda: squared(),
            (lambda: scheduled(lambda s, h, t: s.separate_operands(h)), "is no product"),
        ),
    },
    "Schedule.vectorize": {
        "t": edits(
            lambda s, h, t: s.vectorize(h.split(1, 4)),
            lambda s, h, t: (h.split(1, 4), s.vectorize(t))[0].name,
        ),
        "in_shared": edits(
            lambda s, h, t: s.vectorize(shared_tile(h)),
            lambda s, h, t: s.vectorize(shared_tile(h), [h]),
        ),
    },
    "Schedule.put_first": {
        "tensors": edits(
            lambda s, h, t: s.put_first([h]), lambda s, h, t: s.put_first([t]), "must wait"
        ),
    },
    "Schedule.inline_most": {
        "selected": edits(lambda s, h, t: s.inline_most(), lambda s, h, t: s.inline_most([])),
    },
    "Schedule.launch": {
        "min_blocks": edits(lambda s, h, t: s.launch(), lambda s, h, t: s.launch(min_blocks=2)),
        "cluster": edits(lambda s, h, t: s.launch(), lambda s, h, t: s.launch(cluster=2)),
        # Only blocks of products walk over tiles (tests/schedule/test_mma_schedules.py).
        "max_sms": edits(
            lambda s, h, t: s.launch(), lambda s, h, t: s.launch(max_sms=8), "max_sms=8"
        ),
    },
    "Schedule.lower": {
        "target": (lambda: lowered(), lambda: lowered(target="sm_80")),
        "name": (lambda: lowered(), lambda: lowered(name="mine")),
    },
    "Schedule.predict": {
        "target": (
            lambda: lowered(predict=True),
            (lambda: lowered(predict=True, target="sm_86"), "sm_86, which holds 16"),
        ),
    },
    "Schedule.fusion": {},
    "Schedule.check": {},
    "ScheduledTensor.split": {
        "axis": edits(lambda s, h, t: h.split(1, 4), lambda s, h, t: h.split(0, 4)),
        "factor": edits(lambda s, h, t: h.split(1, 4), lambda s, h, t: h.split(1, 8)),
        "inner": edits(lambda s, h, t: h.split(1, 4), lambda s, h, t: h.split(1, 4, inner=False)),
    },
    "ScheduledTensor.merge": {
        "axis": edits(
            lambda s, h, t: h.split(1, 4).merge(0), lambda s, h, t: h.split(1, 4).merge(1)
        ),
        "axis2": edits(
            lambda s, h, t: h.split(1, 4).merge(0), lambda s, h, t: h.split(1, 4).merge(0, 2)
        ),
    },
    "ScheduledTensor.reorder": {
        "order": edits(lambda s, h, t: h.reorder([0, 1]), lambda s, h, t: h.reorder([1, 0])),
    },
    "ScheduledTensor.swizzle": {
        "axis": edits(
            lambda s, h, t: h.split(1, 4).swizzle(0, 2), lambda s, h, t: h.split(1, 4).swizzle(2, 0)
        ),
        "axis2": edits(
            lambda s, h, t: h.split(1, 4).swizzle(0, 2),
            lambda s, h, t: h.split(1, 4).swizzle(0, 1),
            "must be the same power",
        ),
    },
    "ScheduledTensor.serpentine": {
        "axis": edits(lambda s, h, t: h.serpentine(1, 0), lambda s, h, t: h.serpentine(0, 1)),
        "by": edits(
            lambda s, h, t: h.serpentine(1, 0), lambda s, h, t: h.serpentine(1, 1), "two loops"
        ),
    },
    "ScheduledTensor.parallelize": {
        "axis": edits(
            lambda s, h, t: h.parallelize(0, fw.TIDx), lambda s, h, t: h.parallelize(1, fw.TIDx)
        ),
        "parallel": edits(
            lambda s, h, t: h.parallelize(0, fw.TIDx), lambda s, h, t: h.parallelize(0, fw.BIDx)
        ),
    },
    "ScheduledTensor.inline_at": {
        "consumer": edits(
            lambda s, h, t: h.inline_at(t, 1), lambda s, h, t: h.inline_at(h, 1), "inline_at"
        ),
        "axis": edits(lambda s, h, t: h.inline_at(t, 0), lambda s, h, t: h.inline_at(t, 1)),
    },
    "ScheduledTensor.set_memory": {
        "memory": edits(
            lambda s, h, t: h.set_memory(fw.LOCAL), lambda s, h, t: h.set_memory(fw.SHARED)
        ),
    },
    "ScheduledTensor.promote_reuse": {
        "on": edits(
            lambda s, h, t: h.set_memory(fw.SHARED).promote_reuse(),
            lambda s, h, t: h.set_memory(fw.SHARED).promote_reuse(False),
        ),
    },
    "ScheduledTensor.set_allocation_order": {
        "order": edits(
            lambda s, h, t: h.set_allocation_order((0, 1)),
            lambda s, h, t: h.set_allocation_order((1, 0)),
        ),
    },
    "ScheduledTensor.cache_after": {
        "by": edits(tiled(None), tiled("bulk")),
        "readers": edits(
            lambda s, h, t: s["x"].cache_after(),
            lambda s, h, t: h.cache_after(readers=[h]),
            "readers",
        ),
        "memory": edits(
            lambda s, h, t: h.cache_after(), lambda s, h, t: h.cache_after(memory=fw.SHARED)
        ),
    },
    "ScheduledTensor.cache_before": {
        "by": edits(
            lambda s, h, t: t.cache_before(), lambda s, h, t: t.cache_before("stmatrix"), "stmatrix"
        ),
    },
    "ScheduledTensor.recompute": {},
    "ScheduledTensor.axis": {
        "position": edits(
            lambda s, h, t: str(h.axis(0)), lambda s, h, t: h.axis(2), "it has 2 axes"
        ),
    },
    "ScheduledTensor.loop_over": {
        "loops": edits(
            lambda s, h, t: h.loop_over([(h.axis(0), fw.Serial), (h.axis(1), fw.TIDx)]),
            lambda s, h, t: h.loop_over([(h.axis(0), fw.Serial)]),
            "do not determine",
        ),
    },
    "ScheduledTensor.skew": {
        "axis": edits(lambda s, h, t: h.skew(1, 0, 3, 4), lambda s, h, t: h.skew(0, 1, 3, 4)),
        "rows": edits(
            lambda s, h, t: h.skew(1, 0, 3, 4), lambda s, h, t: h.skew(1, 1, 3, 4), "two loops"
        ),
        "stride": edits(lambda s, h, t: h.skew(1, 0, 3, 4), lambda s, h, t: h.skew(1, 0, 8, 4)),
        "width": edits(
            lambda s, h, t: h.skew(1, 0, 3, 4), lambda s, h, t: h.skew(1, 0, 3, 0), "at least 1"
        ),
    },
    "ScheduledTensor.resize": {
        "axis": edits(lambda s, h, t: h.resize(1, 0, 4), lambda s, h, t: h.resize(0, 0, 4)),
        "low": edits(
            lambda s, h, t: h.resize(1, 0, 4), lambda s, h, t: h.resize(1, -1, 4), "from 0 on"
        ),
        "high": edits(lambda s, h, t: h.resize(1, 0, 4), lambda s, h, t: h.resize(1, 0, 8)),
    },
    "ScheduledTensor.allocate_by": {
        "axes": edits(
            lambda s, h, t: h.set_memory(fw.SHARED).allocate_by([h.axis(1), h.axis(0)]),
            lambda s, h, t: h.set_memory(fw.SHARED).allocate_by([h.axis(1)]),
            "do not determine",
        ),
    },
    "ScheduledTensor.block_scan": {
        "width": (lambda: str(scanned(4)), (lambda: scanned(0), "width < 1")),
    },
    "ScheduledTensor.tile_after": {
        "readers": edits(
            lambda s, h, t: s["x"].tile_after([h])[0].name,
            lambda s, h, t: s["x"].tile_after([t])[0].name,
            "total does not read it",
        ),
    },
    "ScheduledTensor.tile_before": {},
    "ScheduledTensor.rfactor": {
        "axes": edits(
            lambda s, h, t: t.split(1, 4).rfactor(1), lambda s, h, t: t.split(1, 4).rfactor([2])
        ),
    },
    "ScheduledTensor.circular_buffer": {
        "stages": edits(
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3, 1),
            lambda s, h, t: tiled()(s, h, t).circular_buffer(4, 1),
        ),
        "prefetch": edits(
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3),
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3, prefetch=1),
        ),
        "warp_specialized": edits(
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3),
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3, warp_specialized=True),
            "warp_specialized",
        ),
        "registers": edits(
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3),
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3, registers=(40, 232)),
            "registers",
        ),
        "ping_pong": edits(
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3),
            lambda s, h, t: tiled()(s, h, t).circular_buffer(3, ping_pong=True),
            "ping_pong",
        ),
    },
    "ScheduledTensor.request_serial_grid_reduction": {
        "mode": edits(
            lambda s, h, t: "",
            lambda s, h, t: t.request_serial_grid_reduction("queue"),
            "'slices'",
        ),
        "work_dtype": edits(
            lambda s, h, t: "",
            lambda s, h, t: t.request_serial_grid_reduction(work_dtype="int8"),
            "work_dtype=int8",
        ),
        "read_back": edits(
            lambda s, h, t: "",
            lambda s, h, t: t.request_serial_grid_reduction("tma", read_back="mail"),
            "read_back",
        ),
        "stream": edits(
            lambda s, h, t: "",
            lambda s, h, t: t.request_serial_grid_reduction(stream=True),
            "leave stream out",
        ),
    },
    "ScheduledTensor.mma": {
        "warpgroups": (lambda: multiplied(), lambda: multiplied(warpgroups=1)),
        "warps": (lambda: multiplied(), lambda: multiplied(warps=(2, 2))),
        "by_lanes": (lambda: multiplied(), lambda: multiplied(by_lanes=True)),
    },
    "Program.__call__": {
        "arrays": (lambda: PROGRAM(X, device="sim"), lambda: PROGRAM(-X, device="sim")),
        "device": (lambda: PROGRAM(X, device="sim"), (lambda: PROGRAM(X, device="tpu"), "tpu")),
        "out": (
            lambda: PROGRAM(X, device="sim"),
            (lambda: PROGRAM(X, device="sim", out=[None, None]), "out= has 2 arrays"),
        ),
        "workspace": (
            lambda: PROGRAM(X, device="sim"),
            (lambda: PROGRAM(X, device="sim", workspace=X), "an array of uint8 with one axis"),
        ),
    },
    "Program.simulate": {
        "arrays": (lambda: PROGRAM.simulate(X).outputs, lambda: PROGRAM.simulate(-X).outputs),
        "check_races": (
            lambda: racing().simulate(AT).races,
            lambda: racing().simulate(AT, check_races=False).races,
        ),
        "seed": (
            lambda: racing().simulate(AT).outputs,
            lambda: racing().simulate(AT, seed=3).outputs,
        ),
    },
    "Program.run_cuda": {"arrays": (lambda: "", (lambda: PROGRAM.run_cuda(X), "GPU|driver"))},
    "Program.save": {
        "path": (lambda: "", (lambda: PROGRAM.save("/no/folder/p.fw"), "cannot save"))
    },
    "Kernel.__call__": {
        "arrays": (lambda: KERNEL(X, device="sim"), lambda: KERNEL(-X, device="sim")),
        "device": (lambda: KERNEL(X, device="sim"), (lambda: KERNEL(X, device="tpu"), "tpu")),
    },
    "Kernel.simulate": {
        "arrays": (lambda: KERNEL.simulate(X).outputs, lambda: KERNEL.simulate(-X).outputs),
        "blocks": (
            lambda: KERNEL.simulate(X).stats,
            (lambda: KERNEL.simulate(X, blocks=[77]), "77"),
        ),
        "check_races": (
            lambda: picked().simulate(AT).races,
            lambda: picked().simulate(AT, check_races=False).races,
        ),
        "seed": (
            lambda: picked().simulate(AT).outputs,
            lambda: picked().simulate(AT, seed=3).outputs,
        ),
        "symbols": (
            lambda: ROWS_KERNEL.simulate(X).outputs,
            (
                lambda: ROWS_KERNEL.simulate(X, symbols={ROWS_KERNEL.ir.symbols[0]: 5}),
                "must have shape",
            ),
        ),
        "values": (
            lambda: KERNEL.simulate(X, values=KERNEL.argument_values).outputs,
            lambda: KERNEL.simulate(X, values=(3.0,)).outputs,
        ),
    },
    "Report": {
        "program": (
            lambda: str(fw.Report(PROGRAM)),
            lambda: str(fw.Report(fw.compile(fw.trace(fw.exp, S)))),
        ),
        "title": (lambda: str(fw.Report(PROGRAM)), lambda: str(fw.Report(PROGRAM, title="mine"))),
        "measured": (
            lambda: str(fw.Report(PROGRAM)),
            lambda: str(fw.Report(PROGRAM, measured=Measured("a device", {}))),
        ),
    },
    "Report.show": {
        "what": (lambda: fw.Report(PROGRAM).show(), lambda: fw.Report(PROGRAM).show("nest")),
    },
    "grad": {
        "fn": (lambda: derived("grad"), lambda: derived("grad", fn=lambda x, y: fw.sum(x))),
        "argnums": (lambda: derived("grad"), lambda: derived("grad", argnums=1)),
        "has_aux": (
            lambda: derived("grad", fn=lambda x, y: (fw.sum(x * y), y), has_aux=True),
            (lambda: derived("grad", has_aux=True), "it must return a pair"),
        ),
    },
    "value_and_grad": {
        "fn": (
            lambda: derived("value_and_grad"),
            lambda: derived("value_and_grad", fn=lambda x, y: fw.sum(x)),
        ),
        "argnums": (
            lambda: derived("value_and_grad"),
            lambda: derived("value_and_grad", argnums=(0, 1)),
        ),
        "has_aux": (
            lambda: derived("value_and_grad", fn=lambda x, y: (fw.sum(x * y), y), has_aux=True),
            (lambda: derived("value_and_grad", has_aux=True), "it must return a pair"),
        ),
    },
    "stop_gradient": {
        "x": (
            lambda: derived("grad", fn=lambda x, y: fw.sum(x * fw.stop_gradient(y))),
            lambda: derived("grad", fn=lambda x, y: fw.sum(x * fw.stop_gradient(x))),
        ),
    },
    "custom_vjp": {
        "fn": (lambda: "", (lambda: fw.custom_vjp(3, fw.exp, fw.exp), "expected a function|fn=3")),
        "forward": (lambda: ruled(), lambda: ruled(forward=lambda x: (fw.sin(x), x))),
        "backward": (lambda: ruled(), lambda: ruled(backward=lambda s, g: (g * s,))),
    },
    "vjp": {
        "fn": (lambda: pulled(), lambda: pulled(fn=fw.cos)),
        "primals": (lambda: pulled(), lambda: pulled(of=lambda x: x * 2)),
    },
    "jvp": {
        "fn": (lambda: pushed(), lambda: pushed(fn=fw.cos)),
        "primals": (lambda: pushed(), lambda: pushed(primals=lambda x: (x * 2,))),
        "tangents": (lambda: pushed(), lambda: pushed(tangents=lambda x: (x * 2,))),
        "has_aux": (
            lambda: pushed(fn=lambda x: (fw.sin(x), x), has_aux=True),
            (lambda: pushed(has_aux=True), "it must return a pair"),
        ),
    },
    "vmap": {
        "fn": (lambda: mapped(), lambda: mapped(fn=fw.exp)),
        "in_axes": (lambda: mapped(), lambda: mapped(in_axes=1)),
        "out_axes": (lambda: mapped(), lambda: mapped(out_axes=1)),
    },
    "register_pytree": {
        "cls": (lambda: 0, (lambda: registered(cls=list), "is a structure already")),
        "flatten": (registered, lambda: registered(flatten=lambda p: ([p.value * 2], ""))),
        "unflatten": (registered, lambda: registered(unflatten=lambda rest, c: (c[0],))),
    },
    "Report.to_trace": {
        "path": (
            lambda: "",
            (lambda: fw.Report(PROGRAM).to_trace("/no/folder/x.json"), "cannot write"),
        ),
    },
    "Report.to_html": {
        "path": (
            lambda: "",
            (lambda: fw.Report(PROGRAM).to_html("/no/folder/x.html"), "cannot write"),
        ),
        "beside": (
            lambda: "",
            (
                lambda: fw.Report(PROGRAM).to_html(
                    "/no/folder/x.html", beside=fw.Report(OTHER_TARGET)
                ),
                "cannot write",
            ),
        ),
    },
    "Report.compare": {
        "other": (
            lambda: str(fw.Report(PROGRAM).compare(fw.Report(PROGRAM))),
            lambda: str(fw.Report(PROGRAM).compare(fw.Report(OTHER_TARGET))),
        ),
    },
}

INNER = {
    "Kernel": (
        *("adopt", "arguments", "compiled", "flat_arrays", "own_arrays", "start_compiling"),
        "symbol_values",
    ),
    "Program": (
        "check_arguments",
        "symbol_values",
    ),
    "Fused": (
        "run",
        "compile_for",
        "wanted_for",
        "recompile",
        "trace",
        "bound",
        "derived",
        "program_and_arguments",
    ),
}
"""Methods that other rooms of the package call, and no user."""


def surfaces() -> Iterator[tuple[str, Any]]:
    """Functions, constructors and methods of the public names, each with its signature's owner."""
    for n in (
        "benchmark",
        "compile",
        "config",
        "evaluate",
        "fuse",
        "kernel",
        "load",
        "parse_kernel",
        "trace",
        "tune",
        "verify",
        "register_pytree",
        "grad",
        "jvp",
        "value_and_grad",
        "stop_gradient",
        "custom_vjp",
        "vjp",
        "vmap",
    ):
        yield n, getattr(fw, n)
    for c in (fw.TensorSpec, fw.Sym, fw.Schedule, fw.Report):
        yield c.__name__, c
    for c in (fw.Schedule, ScheduledTensor, fw.Program, fw.Kernel, fw.Report, Fused):
        for n, f in inspect.getmembers(c, inspect.isfunction):
            if (n == "__call__" or not n.startswith("_")) and n not in INNER.get(c.__name__, ()):
                yield f"{c.__name__}.{n}", f


def wanted() -> Iterator[tuple[str, str]]:
    for name, f in surfaces():
        for p in inspect.signature(f).parameters:
            if p != "self":
                yield name, p


@pytest.mark.parametrize(("name", "argument"), list(wanted()))
def test_an_argument_changes_what_a_call_shows(name: str, argument: str) -> None:
    found = ROWS.get(name, {}).get(argument)
    assert found is not None, f"{name}({argument}=): show here what it changes"
    usual, other = found
    before = repr(usual())
    if isinstance(other, tuple):
        with pytest.raises(FusewrightError, match=other[1]):
            other[0]()
    else:
        assert repr(other()) != before


def test_no_row_is_for_an_argument_that_is_gone() -> None:
    assert {(n, a) for n, row in ROWS.items() for a in row} <= set(wanted())
