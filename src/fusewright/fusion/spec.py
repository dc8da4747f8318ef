"""What a fusion must satisfy: a list of named checks, run between passes and on parsed text."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, assert_never

from fusewright import dtypes
from fusewright.core.conditions import less, less_equal, prove
from fusewright.core.expr import Var, add, as_expr, constant_value, variables
from fusewright.core.functions import FUNCTIONS
from fusewright.dtypes import DType, float32, is_bitcast
from fusewright.errors import SpecError
from fusewright.fusion import ir
from fusewright.fusion.build import element_count, shape_text
from fusewright.fusion.ir import Fusion, Shape, Tensor

REDUCTIONS = ("add", "mul", "max", "min", "and", "or")
SCANS = ("add", "mul", "max", "min")
PRECISIONS = ("ieee", "tf32")
GATHERS = ("promise", "raise", "fill")


def check(fusion: Fusion) -> None:
    """Run every check; SpecError names the check, the value and the rule."""
    for named in CHECKS:
        named(fusion)


def check_body(body: Fusion) -> None:
    """The checks of what may be the body of a region: sizes, numbers and iterations that it
    mentions may be those of the fusion around it. SpecError as `check`."""
    for named in BODY_CHECKS:
        named(body)


def _fail(t: Tensor, rule: str) -> NoReturn:
    raise SpecError(f"{t!r} = {type(t.op).__name__}: {rule}")


# --- the program --------------------------------------------------------------------------------


def check_order(fusion: Fusion) -> None:
    """Every operand is a value above its use; inputs and outputs are values."""
    above: dict[Tensor, None] = {}
    for t in fusion.values:
        for o in t.op.operands:
            if o not in above:
                _fail(t, f"operand {o.name} is not defined above it")
        above[t] = None
    for t in (*fusion.inputs, *fusion.outputs):
        if t not in above:
            _fail(t, "an input or output that is not among the fusion's values")


def check_names(fusion: Fusion) -> None:
    """Names of values are unique and not empty, and so are names of sizes."""
    names: dict[str, Tensor] = {}
    for t in fusion.values:
        if not t.name:
            _fail(t, "the value has no name")
        if names.setdefault(t.name, t) is not t:
            _fail(t, "another value has this name")
    sizes: set[str] = set()
    for v in fusion.symbols:
        if v.name in sizes:
            raise SpecError(f"two sizes are called {v.name}")
        sizes.add(v.name)


def check_inputs(fusion: Fusion) -> None:
    """The inputs are exactly the Input ops, in the order of their positions."""
    found = tuple(t for t in fusion.values if isinstance(t.op, ir.Input))
    if len(found) != len(fusion.inputs) or any(t not in fusion.inputs for t in found):
        raise SpecError(f"inputs {fusion.inputs} are not the Input ops {found}")
    for k, t in enumerate(fusion.inputs):
        if not isinstance(t.op, ir.Input) or t.op.position != k:
            _fail(t, f"it stands at position {k} of the inputs")


def check_variables(fusion: Fusion) -> None:
    """Every variable is the whole size of an input's axis, so that arrays determine it, a number of
    the call, or a coordinate of the index map it stands in."""
    bound = {s for t in fusion.inputs for s in t.shape if isinstance(s, Var)}
    bound |= {n.symbol for n in fusion.numbers}
    for c in fusion.checks:
        if any(v not in bound for v in variables(c.gap)):
            raise SpecError(f"check {c.gap}: it mentions what is no size and no number")
    for t in fusion.values:
        for v in ir.tensor_variables(t):
            if v not in bound:
                _fail(
                    t, f"{v} is neither the size of any input's axis nor a coordinate, nor a number"
                )


# --- single values ------------------------------------------------------------------------------


def check_values(fusion: Fusion) -> None:
    """Every value has the shape and dtype that its op and operands give it."""
    for t in fusion.values:
        _check_value(t)


def _expect(t: Tensor, shape: Shape, dtype: DType) -> None:
    if t.shape != shape:
        _fail(t, f"its shape must be {shape_text(shape)}")
    if t.dtype is not dtype:
        _fail(t, f"its dtype must be {dtype}")


def _check_axis(t: Tensor, axis: int, rank: int) -> None:
    if not 0 <= axis < rank:
        _fail(t, f"axis {axis} is outside rank {rank}")


def _check_operands(t: Tensor, count: int) -> None:
    if len(t.op.operands) != count:
        _fail(t, f"{len(t.op.operands)} operands instead of {count}")


_ARITY: dict[type[ir.Op], int] = {
    ir.Input: 0,
    ir.Constant: 0,
    ir.Iota: 0,
    ir.Size: 0,
    ir.Broadcast: 1,
    ir.Permute: 1,
    ir.Reshape: 1,
    ir.Resize: 1,
    ir.Parts: 1,
    ir.IndexMap: 1,
    ir.Reduce: 1,
    ir.Scan: 1,
    ir.Sort: 1,
    ir.Take: 2,
    ir.TakeAlong: 2,
    ir.MatMul: 2,
}


def _check_value(t: Tensor) -> None:
    op = t.op
    if type(op) in _ARITY:
        _check_operands(t, _ARITY[type(op)])
    match op:
        case ir.Input() | ir.Constant() | ir.Iota() | ir.Size():
            _check_leaf(t, op)
        case ir.Pointwise():
            _check_pointwise(t, op)
        case ir.Broadcast():
            _check_broadcast(t, op)
        case ir.Permute():
            source = op.operands[0]
            if sorted(op.axes) != list(range(source.ndim)):
                _fail(t, f"axes {op.axes} are not a permutation of {source.ndim} axes")
            _expect(t, tuple(source.shape[a] for a in op.axes), source.dtype)
        case ir.Reshape():
            source = op.operands[0]
            _expect(t, t.shape, source.dtype)
            if element_count(t.shape) != element_count(source.shape):
                _fail(t, f"it must have the {element_count(source.shape)} elements of {source!r}")
        case ir.Resize():
            _check_resize(t, op)
        case ir.Parts():
            _check_parts(t, op)
        case ir.IndexMap():
            _check_index_map(t, op)
        case ir.Concat():
            _check_concat(t, op)
        case ir.Insert():
            _check_insert(t, op)
        case ir.Reduce():
            _check_reduce(t, op)
        case ir.Scan():
            _check_axis(t, op.axis, t.ndim)
            if op.fn not in SCANS:
                _fail(t, f"a scan is one of {', '.join(SCANS)}")
            _expect(t, op.operands[0].shape, op.operands[0].dtype)
        case ir.Sort():
            _check_axis(t, op.axis, t.ndim)
            if t.dtype.kind != "uint" or t.dtype.nbytes < 4:
                _fail(t, "what is sorted are uint32 or uint64")
            _expect(t, op.operands[0].shape, op.operands[0].dtype)
        case ir.Take() | ir.TakeAlong():
            _check_gather(t, op)
        case ir.MatMul():
            _check_matmul(t, op)
        case ir.OwnKernel():
            if op.body is not None:
                _expect(t, *op.body.results[op.result])
        case ir.Region():
            _check_region(t, op)
        case _:
            assert_never(op)


def _check_insert(t: Tensor, op: ir.Insert) -> None:
    if len(op.operands) < 2:
        _fail(t, "it has an array, a block of it, and integers of rank 0 that say where")
    dest, block, *where = op.operands
    _expect(t, dest.shape, dest.dtype)
    if block.dtype is not dest.dtype or not block.ndim == len(op.start) == dest.ndim:
        _fail(t, f"{block!r} at {len(op.start)} places is no block of {dest!r}")
    for p in where:
        if p.ndim or not p.dtype.is_integer:
            _fail(t, f"{p!r} is no place: an integer of rank 0")
    known = set(ir.positions(len(where)))
    for e in op.start:
        for v in variables(e):
            if isinstance(v, ir.Position) and v not in known:
                _fail(t, f"{e} mentions {v}, and there are {len(where)} places")


def _check_region(t: Tensor, op: ir.Region) -> None:
    """A result is what its body gives, and bodies take what the operands are."""
    kinds = {"cond": 2, "while_loop": 2, "fori_loop": 1, "scan": 1}
    if len(op.bodies) != kinds.get(op.fn):
        _fail(t, f"{op.fn!r} with {len(op.bodies)} bodies; kinds and their bodies are {kinds}")
    if op.carried + op.sliced > len(op.operands) or not 0 <= op.result < op.nresults:
        _fail(
            t, f"result {op.result} of {op.nresults}, {op.carried} carried and {op.sliced} sliced"
        )
    if op.lap is not None and (op.trips is None or op.lap.upper != add(op.trips, -1)):
        _fail(t, f"{op.lap} is no number of {op.trips} iterations, which begin at 0")
    for body in op.bodies:
        check_body(body)
        taken = op.operands[1:] if op.fn == "cond" else op.operands
        if len(taken) != len(body.inputs):
            _fail(t, f"a body takes {len(body.inputs)} values, and is given {len(taken)}")
        for k, (o, x) in enumerate(zip(taken, body.inputs, strict=True)):
            is_slice = op.carried <= k < op.carried + op.sliced
            if (o.shape[is_slice:], o.dtype) != (x.shape, x.dtype):
                _fail(t, f"a body takes {x!r}, and is given {o!r}")
    made = op.bodies[-1].outputs[op.result]
    is_stacked = op.trips is not None and op.result >= op.carried
    lead = (op.trips,) if is_stacked and op.trips is not None else ()
    _expect(t, (*lead, *made.shape), made.dtype)


def _check_leaf(t: Tensor, op: ir.Input | ir.Constant | ir.Iota | ir.Size) -> None:
    match op:
        case ir.Input():
            if len(op.strides) != t.ndim:
                _fail(t, f"{len(op.strides)} strides for rank {t.ndim}")
        case ir.Iota():
            _check_axis(t, op.axis, t.ndim)
            if not t.dtype.is_integer:
                _fail(t, "coordinates are integers")
        case ir.Constant():
            _expect(t, (), t.dtype)
        case ir.Size():
            _expect(t, (), t.dtype)
            if not t.dtype.is_integer:
                _fail(t, "a size is an integer")


def _check_pointwise(t: Tensor, op: ir.Pointwise) -> None:
    function = FUNCTIONS.get(op.fn)
    if function is None:
        _fail(t, f"there is no function {op.fn!r}")
    _check_operands(t, function.arity)
    for o in op.operands:
        if o.shape != t.shape:
            _fail(t, f"operand {o!r} must have its shape; broadcast explicitly")
    if op.fn == "cast":
        return
    if op.fn == "bitcast":
        if not is_bitcast(op.operands[0].dtype, t.dtype):
            _fail(t, f"the bits of {op.operands[0]!r} are no {t.dtype}")
        return
    own = op.operands[1:] if op.fn == "where" else op.operands
    for o in own:
        if o.dtype is not own[0].dtype:
            _fail(t, f"operands {own[0]!r} and {o!r} must have one dtype; cast explicitly")
    results = {"same": own[0].dtype, "bool": dtypes.bool_, "uint32": dtypes.uint32}
    _expect(t, t.shape, results[function.result])
    if op.fn == "where" and op.operands[0].dtype is not dtypes.bool_:
        _fail(t, f"the condition {op.operands[0]!r} must be bool")


def _check_broadcast(t: Tensor, op: ir.Broadcast) -> None:
    source = op.operands[0]
    if len(op.axes) != t.ndim or [a for a in op.axes if a is not None] != list(range(source.ndim)):
        _fail(t, f"axes {op.axes} must name every operand axis once, in order, or None")
    for j, a in enumerate(op.axes):
        if a is not None and source.shape[a] not in (t.shape[j], as_expr(1)):
            _fail(t, f"axis {j} of size {t.shape[j]} reads axis {a} of size {source.shape[a]}")
    _expect(t, t.shape, source.dtype)


def _check_resize(t: Tensor, op: ir.Resize) -> None:
    source = op.operands[0]
    if not len(op.low) == len(op.high) == source.ndim:
        _fail(t, f"amounts for {len(op.low)} and {len(op.high)} axes of rank {source.ndim}")
    widths = zip(op.low, source.shape, op.high, strict=True)
    _expect(t, tuple(add(a, n, b) for a, n, b in widths), source.dtype)


def _check_parts(t: Tensor, op: ir.Parts) -> None:
    source = op.operands[0]
    if not op.axes or list(op.axes) != list(range(op.axes[0], op.axes[-1] + 1)):
        _fail(t, f"axes {op.axes} are no run of axes")
    for a in op.axes:
        _check_axis(t, a, source.ndim)
    first, last = op.axes[0], op.axes[-1] + 1
    if element_count(source.shape[first:last]) != as_expr(op.partition.size):
        _fail(t, f"its axes must have the {op.partition.size} elements that are cut in parts")
    shape = (*source.shape[:first], *op.partition.shape, *source.shape[last:])
    _expect(t, shape, source.dtype)


def _check_index_map(t: Tensor, op: ir.IndexMap) -> None:
    source = op.operands[0]
    if len(op.coordinates) != t.ndim or len(op.index) != source.ndim:
        _fail(t, f"{len(op.coordinates)} coordinates and {len(op.index)} indices do not fit")
    for c, n in zip(op.coordinates, t.shape, strict=True):
        if c.upper != add(n, -1):
            _fail(t, f"coordinate {c} must go to {add(n, -1)}")
    if [c.name for c in op.coordinates] != [f"i{k}" for k in range(t.ndim)]:
        _fail(t, f"coordinates {op.coordinates} must be named i0, i1, .. by axis, as in its text")
    empty = any(constant_value(n) == 0 for n in t.shape)
    for e, n in zip(op.index, source.shape, strict=True):
        if not empty and (prove(less_equal(0, e)) is False or prove(less(e, n)) is False):
            _fail(t, f"index {e} is never inside size {n}")
    _expect(t, t.shape, source.dtype)


def _check_concat(t: Tensor, op: ir.Concat) -> None:
    if not op.operands:
        _fail(t, "it needs an operand")
    _check_axis(t, op.axis, t.ndim)
    for o in op.operands:
        if o.ndim != t.ndim or o.dtype is not t.dtype:
            _fail(t, f"operand {o!r} must have its rank and dtype")
        for k in range(t.ndim):
            if k != op.axis and o.shape[k] != t.shape[k]:
                _fail(t, f"operand {o!r} differs in axis {k}")
    total = add(*(o.shape[op.axis] for o in op.operands))
    _expect(t, (*t.shape[: op.axis], total, *t.shape[op.axis + 1 :]), t.dtype)


def _check_reduce(t: Tensor, op: ir.Reduce) -> None:
    source = op.operands[0]
    if op.fn not in REDUCTIONS:
        _fail(t, f"a reduction is one of {', '.join(REDUCTIONS)}")
    if list(op.axes) != sorted(set(op.axes)) or not op.axes:
        _fail(t, f"axes {op.axes} must be sorted, distinct and not empty")
    for a in op.axes:
        _check_axis(t, a, source.ndim)
    if op.fn in ("and", "or") and source.dtype is not dtypes.bool_:
        _fail(t, f"{op.fn} reduces bool, not {source.dtype}")
    _expect(t, tuple(s for k, s in enumerate(source.shape) if k not in op.axes), source.dtype)


def _check_gather(t: Tensor, op: ir.Take | ir.TakeAlong) -> None:
    source, indices = op.operands
    _check_axis(t, op.axis, source.ndim)
    if not indices.dtype.is_integer:
        _fail(t, f"the indices {indices!r} must be integers")
    if op.mode not in GATHERS:
        _fail(t, f"the mode {op.mode!r} is not one of {', '.join(GATHERS)}")
    lead, trail = source.shape[: op.axis], source.shape[op.axis + 1 :]
    if isinstance(op, ir.Take):
        _expect(t, (*lead, *indices.shape, *trail), source.dtype)
        return
    if indices.ndim != source.ndim:
        _fail(t, f"the indices {indices!r} must have rank {source.ndim}")
    _expect(t, (*lead, indices.shape[op.axis], *trail), source.dtype)
    _expect(t, indices.shape, source.dtype)


def _check_matmul(t: Tensor, op: ir.MatMul) -> None:
    a, b = op.operands
    mixed = a.dtype is b.dtype or (t.dtype is float32 and a.dtype.nbytes == b.dtype.nbytes == 1)
    if a.ndim != b.ndim or a.ndim < 2 or not mixed:
        _fail(t, f"operands {a!r} and {b!r} need one dtype and one rank of at least 2")
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        _fail(t, f"operands {a!r} and {b!r} do not fit; leading axes and the inner size are equal")
    if op.precision not in PRECISIONS:
        _fail(t, f"the precision {op.precision!r} is not one of {', '.join(PRECISIONS)}")
    if op.precision != "ieee" and a.dtype is not float32:
        _fail(t, f"operands of {a.dtype} are not rounded to {op.precision}; those of float32 are")
    floats = a.dtype.is_float and b.dtype.is_float
    widened = t.dtype is float32 and floats and a.dtype.nbytes <= 2
    _expect(t, (*a.shape[:-1], b.shape[-1]), float32 if widened else a.dtype)


BODY_CHECKS: tuple[Callable[[Fusion], None], ...] = (
    check_order,
    check_names,
    check_inputs,
    check_values,
)
CHECKS = (*BODY_CHECKS, check_variables)
