"""Which matrix products of a graph are taken from torch's library, with what follows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

from fusewright.dtypes import dtype_of
from fusewright.frontends.torch.calls import (
    call_text,
    constant_of,
    hint,
    is_getitem,
    is_view,
    tensors_of,
    trace_node,
    type_text,
)
from fusewright.frontends.torch.layouts import axis_order
from fusewright.frontends.torch.library import aten, prims, torch
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.products import PRODUCTS, float32_matmul
from fusewright.frontends.torch.table import ELEMENTWISE, overloads
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Concat, Fusion, IndexMap, MatMul, Tensor, TensorSpec
from fusewright.fusion.orders import Order
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.passes.follow_memory import follow_memory
from fusewright.fusion.passes.round_products import round_products
from fusewright.fusion.passes.select_results import select_results
from fusewright.fusion.passes.sink_reshapes import sink_reshapes
from fusewright.fusion.passes.store_in_orders import store_in_orders
from fusewright.fusion.trace import trace
from fusewright.host.product_forms import (
    aligned_us,
    fused_us,
    product_kernels,
    products_in_place,
    sizes_of,
    sums_us,
    whole_products,
)
from fusewright.host.products import is_held_result
from fusewright.runtime.device import architecture, has_gpu
from fusewright.schedule.heuristics.product_suffix import PLAIN, Suffix, suffix_of
from fusewright.schedule.schedule import Schedule
from fusewright.target import ISSUE_PER_CLOCK, WARP_SIZE, Feature, Target, target_of

JOINS = overloads(aten.cat)
CASTS = (prims.convert_element_type.default, *overloads(aten._to_copy))
GAIN = 1.02
"""By so much a product with what follows it must be faster than torch's call and a kernel for the
rest, to be taken. A result that is stored as well saves nothing: the kernel of the rest finds it in
the second-level cache, and two results of one kernel leave it one after the other
(4096 x 4096 x 1024 with gelu: 62 us for 69 alone, 73 for 70 with both results)."""

ITERATION_US = 8.0
"""What an iteration of a loop takes longer in torch, which launches it from the host: `while_loop`
of 64 x 64, 14.8 us for 6.8 (one H200, 2026-11-24, `python -m bench.loops`)."""


def left_products(
    nodes: Sequence[Any], reasons: Mapping[Any, str], options: Options
) -> dict[Any, str]:
    """The products of a graph that stay torch's, each with the reason. `reasons` are those of the
    nodes that cannot be fused."""
    products = [n for n in nodes if n.target in PRODUCTS and n not in reasons]
    if options.products == "always":
        return {}
    if options.products == "never":
        return dict.fromkeys(products, "products are left to torch (products='never')")
    place = {n: k for k, n in enumerate(nodes)}
    chains = [Chain.of(n, place, reasons) for n in products]
    known: dict[object, str | None] = {}
    left: dict[Any, str] = {}
    for chain in chains:
        if (why := _reason(chain, reasons, options, known)) is not None:
            left[chain.product] = why
    return left


def slower_in_loops(nodes: Sequence[Any], options: Options) -> dict[Any, str]:
    """The products of a loop's body that make the loop faster as torch's, each with the reason:
    what a product takes longer here must not be more than an iteration of torch's does."""
    products = [n for n in nodes if n.target in PRODUCTS]
    if options.products == "always":
        return {}
    if options.products == "never":
        return dict.fromkeys(products, "products are left to torch (products='never')")
    found = ((n, _slower_in_loop(n, options)) for n in products)
    return {n: why for n, why in found if why is not None}


def _slower_in_loop(node: Any, options: Options) -> str | None:
    if (why := _elsewhere(node, options)) is not None:
        return why
    target = target_of(options.target or architecture())
    whole = Chain(node, (node,), tuple(node.all_input_nodes), (node,), ()).fusion()
    whole = round_products(whole) if float32_matmul() == "tf32" else whole
    fusion = cse(decompose(whole, keeps=product_kernels(target)))
    product = next((t for t in fusion.values if isinstance(t.op, MatMul)), None)
    if product is None:
        (product,) = (t for t in whole.values if isinstance(t.op, MatMul))
        ours = sums_us(sizes_of(product), target)
        theirs = ours / (2 * ISSUE_PER_CLOCK)  # a pair takes one instruction, and no load
    else:
        ours, theirs = fused_us(product, PLAIN, target), aligned_us(product, target)
    if ours <= theirs + ITERATION_US:
        return None
    return f"it takes {ours:.1f} us here, {theirs:.1f} in torch, more than an iteration saves"


def _elsewhere(node: Any, options: Options) -> str | None:
    """Why nothing predicts a product."""
    if node.meta["val"].device.type != "cuda":
        return "a product on the host is torch's"
    if options.target is None and not has_gpu():
        return "no device tells what a product costs"
    target = target_of(options.target or architecture())
    return None if target.has(Feature.WGMMA) else f"{target} has no products by warpgroups"


def _dtype_reason(dtype: Any) -> str | None:
    """Why matrix instructions multiply no values of a dtype; None where they do."""
    if dtype in (torch.float16, torch.bfloat16):
        return None
    if dtype is not torch.float32:
        return f"there are no matrix instructions for {dtype_of(dtype)} here"
    if float32_matmul() == "tf32":
        return None
    return (
        "there are no matrix instructions for float32 that rounds nothing; "
        "torch.set_float32_matmul_precision('high') allows tf32"
    )


def _reason(
    chain: Chain, reasons: Mapping[Any, str], options: Options, known: dict[object, str | None]
) -> str | None:
    """Why torch's product and a kernel for what follows it are at least as fast as one kernel; None
    where that wins. Equal chains are asked once: `known` are the answers."""
    node = chain.product
    value = node.meta["val"]
    if (why := _elsewhere(node, options)) is not None:
        return why
    target = target_of(options.target or architecture())
    if (why := _dtype_reason(value.dtype)) is not None:
        return why
    a, b = (n.meta["val"] for n in node.all_input_nodes[-2:])
    if not all(isinstance(e, int) for e in (*a.shape, *b.shape)):
        return "its sizes are symbolic"
    if (why := _read_elsewhere(node, reasons)) is not None:
        return why
    key = chain.key
    if key not in known:
        known[key] = _slower(chain, target)
    return known[key]


@dataclass(frozen=True, slots=True)
class Chain:
    """A product and the elementwise nodes that are computed with its result, in order, what all of
    these read, which of them others read, and which of these only other fused operators read, such
    as reductions."""

    product: Any
    members: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    handed_on: tuple[Any, ...]

    @classmethod
    def of(cls, product: Any, place: Mapping[Any, int], reasons: Mapping[Any, str]) -> Chain:
        """What else these nodes read waits for the product on no other way."""
        waiting = _behind(product)
        members = {product: None}
        stack = [product]
        while stack:
            for u in list(stack.pop().users):
                new = {u: None} if _is_fused(u, reasons) and _has_as_many(u, product) else {}
                if u not in members:
                    new = new or _rejoined(u, product, members, waiting, reasons)
                    others = (n for m in new for n in m.all_input_nodes)
                    if waiting.isdisjoint(n for n in others if n not in members and n not in new):
                        stack += (n for n in new if n not in members)
                        members |= new
        _add_beside(members, product, reasons)
        ordered = sorted(members, key=place.__getitem__)
        read = dict.fromkeys(n for m in ordered for n in m.all_input_nodes if n not in members)
        others = {m: [u for u in m.users if u not in members] for m in ordered}
        outputs = [m for m in ordered if others[m]] or ordered[-1:]
        handed = [m for m in outputs if others[m] and all(_is_ours(u, reasons) for u in others[m])]
        return cls(product, tuple(ordered), tuple(read), tuple(outputs), tuple(handed))

    @property
    def key(self) -> object:
        """Equal for chains that compute the same thing on tensors of the same types."""
        number = {n: k for k, n in enumerate((*self.inputs, *self.members))}
        calls = tuple((str(n.target), call_text(n, number)) for n in self.members)
        types = tuple(type_text(n.meta.get("val")) for n in (*self.inputs, *self.members))
        ends = (self.outputs, self.handed_on)
        return calls, types, tuple(tuple(number[n] for n in nodes) for nodes in ends)

    @property
    def orders(self) -> list[Order | None]:
        """The orders of axes in which torch has the results."""
        values = [n.meta["val"] for n in self.outputs]
        return [axis_order(t) for t in values]

    def fusion(self) -> Fusion:
        """The chain as one function of tensors that lie as torch has them."""
        tensors = [n for n in self.inputs if isinstance(n.meta.get("val"), torch.Tensor)]
        rest = {n: constant_of(n) for n in self.inputs if n not in tensors}

        def computed(*arrays: Array) -> list[Array]:
            known: dict[Any, Any] = {**rest, **dict(zip(tensors, arrays, strict=True))}
            for n in self.members:
                known[n] = trace_node(n, known)
            return [known[n] for n in self.outputs]

        return trace(computed, *(_spec(n.meta["val"]) for n in tensors))


def _spec(t: Any) -> TensorSpec:
    shape, strides = (tuple(map(hint, x)) for x in (t.shape, t.stride()))
    return TensorSpec(shape, t.dtype, strides=strides)


def _slower(chain: Chain, target: Target) -> str | None:
    """Why one kernel is predicted to be no faster than torch's product and a kernel for what
    follows; None where it is."""
    in_place, kernels = products_in_place(target), product_kernels(target)
    whole = chain.fusion()
    whole = round_products(whole) if float32_matmul() == "tf32" else whole
    if any(isinstance(t.op, Concat) for t in whole.values):
        lying = follow_memory(store_in_orders(whole, chain.orders)).fusion
        whole = select_results(lying, lambda t: in_place(t) and whole_products(target)(t))
        if not all(map(_is_of_threads, whole.values)):
            return "parts of its result are joined, and no thread of its kernel holds all of them"
    fusion = cse(decompose(sink_reshapes(whole, in_place), keeps=kernels))
    product = next((t for t in fusion.values if isinstance(t.op, MatMul)), None)
    if product is None:
        return "it is no product for matrix instructions"
    flow = Schedule(fusion).flow
    stage = next(s for s in flow.stages if isinstance(s.op, MatMul))
    suffix = suffix_of(flow, stage)
    ours, alone = fused_us(product, suffix, target), aligned_us(product, target)
    ours += _read_again_us(chain, target)
    rest = _rest_us(chain, suffix, target)
    if ours * GAIN <= alone + rest:
        return None
    return (
        f"with what follows it takes {ours:.1f} us here, beside {alone:.1f} for torch's product "
        f"and {rest:.1f} for a kernel of the rest: too little to gain"
    )


def _is_of_threads(t: Tensor) -> bool:
    """Whether a value of a chain is no join, and no map of a product's result that reads another
    thread's."""
    moved = isinstance(t.op, IndexMap) and isinstance(t.op.operands[0].op, MatMul)
    return not isinstance(t.op, Concat) and (not moved or is_held_result(t))


def _rest_us(chain: Chain, suffix: Suffix, target: Target) -> float:
    """Microseconds of a kernel of what follows a product, behind that on a stream: it reads the
    product from the second-level cache where that holds it, and other tensors from memory, issues
    its instructions meanwhile, and stores what is not handed on: that it uses itself."""
    known = target.calibration
    first = chain.product.all_input_nodes
    read = _read_nbytes(chain.product, target)
    read += sum(_nbytes(n) for n in chain.inputs if n not in first[-2:])
    stored = (n for n in chain.outputs if n not in chain.handed_on)
    moved = read + known.write_weight * sum(map(_nbytes, stored))
    launch = known.sums_launch_us + known.stream_launch_us
    memory = moved / (known.read_share * target.memory_nbytes_per_us)
    places = prod(map(hint, chain.product.meta["val"].shape))
    clocks = places * suffix.instructions / (WARP_SIZE * ISSUE_PER_CLOCK * target.multiprocessors)
    return launch + max(memory, clocks / target.clock_mhz)


def _read_again_us(chain: Chain, target: Target) -> float:
    """Microseconds of the kernel that remains behind a product where something is handed on, which
    could have computed it: it reads what was stored for it."""
    if not chain.handed_on:
        return 0.0
    known = target.calibration
    read = sum(_read_nbytes(n, target) for n in chain.handed_on)
    launch = known.sums_launch_us + known.stream_launch_us
    return launch + read / (known.read_share * target.memory_nbytes_per_us)


def _read_nbytes(node: Any, target: Target) -> int:
    """Bytes that come from memory where what was just stored is read; none where the second-level
    cache holds it."""
    own = _nbytes(node)
    return 0 if own <= target.calibration.cached_share * target.l2_nbytes else own


def _nbytes(node: Any) -> int:
    """Bytes of a node's tensors."""
    found = tensors_of(node.meta.get("val"))
    return sum(prod(map(hint, t.shape)) * t.dtype.itemsize for t in found)


def _read_elsewhere(node: Any, reasons: Mapping[Any, str]) -> str | None:
    """Why a product's result would be stored; None where only what one kernel computes with it
    reads it."""
    fused = [
        n not in reasons
        and (n.target in ELEMENTWISE or (n.target in JOINS and _has_as_many(n, node)))
        for n in _readers(node)
    ]
    if not any(fused):
        return "nothing elementwise follows it"
    return None if all(fused) else "its result is stored as well"


def _readers(node: Any) -> Iterator[Any]:
    """Who reads a result, also through views, and through casts, which readers do themselves: a
    kernel that a cast had to itself would be none."""
    for n in node.users:
        if _is_same_values(n):
            yield from _readers(n)
        else:
            yield n


def _is_same_values(node: Any) -> bool:
    """Whether a node casts, or shows in other places, what another one made."""
    is_tensor = any(True for _ in tensors_of(node.meta.get("val")))
    return node.target in CASTS or (is_view(node) and not is_getitem(node) and is_tensor)


def _behind(node: Any) -> set[Any]:
    """All nodes that need a node's result."""
    found: set[Any] = set()
    stack = [node]
    while stack:
        for u in stack.pop().users:
            if u not in found:
                found.add(u)
                stack.append(u)
    return found


def _rejoined(
    part: Any,
    product: Any,
    members: Mapping[Any, None],
    waiting: Set[Any],
    reasons: Mapping[Any, str],
) -> dict[Any, None]:
    """The nodes from a part of a product's result to the joins in which all parts of it meet again,
    with as many elements: `cat([-q[.., n:], q[.., :n]])`. None where something else reads one."""
    found: dict[Any, None] = {part: None}
    stack = [part]
    while stack:
        n = stack.pop()
        is_join = n.target in JOINS and n not in reasons and _has_as_many(n, product)
        if not is_join and not (_is_fused(n, reasons) and n.users):
            return {}
        parts = [o for o in n.all_input_nodes if o in waiting and o not in members]
        near = [*parts, *(() if is_join else n.users)]
        stack += (o for o in near if o not in found)
        found |= dict.fromkeys(near)
    return found


def _add_beside(members: dict[Any, None], product: Any, reasons: Mapping[Any, str]) -> None:
    """Adds the elementwise nodes of other tensors whose results only members read."""
    stack = [n for m in members if m is not product for n in m.all_input_nodes]
    while stack:
        n = stack.pop()
        if n in members or any(u not in members for u in n.users):
            continue
        if _is_fused(n, reasons) and _has_as_many(n, product):
            members[n] = None
            stack += n.all_input_nodes


def _is_ours(node: Any, reasons: Mapping[Any, str]) -> bool:
    """Whether one of our kernels computes a node."""
    return node.op == "call_function" and node not in reasons and node.target not in PRODUCTS


def _is_fused(node: Any, reasons: Mapping[Any, str]) -> bool:
    return node not in reasons and (node.target in ELEMENTWISE or _is_same_values(node))


def _has_as_many(node: Any, product: Any) -> bool:
    """Whether a node's result has an element for each of a product's."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and prod(map(hint, value.shape)) == prod(
        map(hint, product.meta["val"].shape)
    )
