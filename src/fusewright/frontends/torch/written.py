"""A graph as one generated function: regions, torch's operators, allocations, frees.

def call(boxed):
  if active() is not config or current_device() != 0 or .. or not free.acquire(False):
    return otherwise(boxed)
  try:
    return steps(boxed)
  finally:
    free.release()

def steps(boxed):
  [x, w] = boxed
  boxed.clear()
  stream = stream_of(0)
  # fused_0: mul, add
  x_at = x.data_ptr()
  if x_at & 15:
    [y] = call_fused_0(x)
  else:
    try:
      y = empty((4, 8), (8, 1), float32)
      pack_fused_0(buffer_fused_0, 0, x_at, y.data_ptr())
      if stream != plan_fused_0.stream: plan_fused_0.move_to(stream)
      status = launch_fused_0(config0_fused_0, kernel0_fused_0, table0_fused_0, 0)
      if status[0]: plan_fused_0.check_launch(0, status)
    except Exception as error:
      [y] = after_fused_0(error, x)
  del x
  z = mm(y, w)
  return (z,)

What holds for all regions is asked once, and that no other thread is inside: the buffers that
launches read their parameters from belong to the function. Views that only kernels read are
addresses, those that plain operators read are made by `reinterpret`, but for the first one of a
region's result, as which the result is allocated (frontends/torch/lying). A result is made in the
memory of one that nobody reads any more (frontends/torch/reuse), `z = y if is_own else empty(..)`,
as long as kernels have made all results of the call: what torch computes instead may show memory of
others.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType
from typing import Any, cast

from fusewright.frontends.torch.direct import Directly, reinterpreted
from fusewright.frontends.torch.library import fx, torch
from fusewright.frontends.torch.lying import Lying, ViewPlace, made_as_views, places_of, rooted_in
from fusewright.frontends.torch.region import FusedRegion
from fusewright.frontends.torch.reuse import Result, reused
from fusewright.runtime.arrays import Device
from fusewright.runtime.config import active
from fusewright.runtime.locks import fork_safe_lock
from fusewright.runtime.plan import PlainLaunches, SpelledLaunches
from fusewright.runtime.specialised_call import launch_lines
from fusewright.runtime.torch_calls import VECTOR_MASK, Steps, torch_api

After = Callable[[FusedRegion], Callable[..., Sequence[Any]]]
"""What computes a call of a region of which the kernels failed: of the error and arguments."""
_SAFE = ("aten", "prims")
"""Operators that change no stream."""
_OWN = (
    "call", "steps", "boxed", "stream", "scratch", "is_own", "error", "status", "_", "hasattr",
    "Exception", "slice",
)  # fmt: skip
"""The names of the text itself."""


@dataclass(frozen=True, slots=True)
class WrittenGraph:
    """The function of a graph, its text, and the device of its launches."""

    call: Callable[[list[Any]], Any]
    text: str
    device: int


@dataclass(slots=True)
class _NodeLines:
    """Lines for one node, and the local names that they read and make."""

    lines: list[str]
    reads: dict[str, None] = field(default_factory=dict[str, None])
    makes: tuple[str, ...] = ()


def written(
    module: Any,
    found: Mapping[Any, Lying],
    after: After,
    otherwise: Callable[[list[Any]], Any],
    threads: Any,
    *,
    may_require_grad: bool,
) -> WrittenGraph | None:
    """The function of a graph in which regions are bound; None where none is. `found`: how tensors
    lay in a call; `after` makes what runs where kernels fail, `otherwise` runs the graph where
    they are not asked, such as in a thread that has no mark `ready` in `threads`, or while another
    one is inside of the function."""
    regions = _regions(module.graph, found)
    if not regions:
        return None
    first = next(iter(regions.values()))
    api = torch_api(torch)
    names: dict[str, Any] = {
        "active": active,
        "config": first.config,
        "current_device": api.current_device,
        "empty": api.empty_on_current or api.allocator(Device("cuda", first.device)),
        "forward_ad": api.forward_ad,
        "free": fork_safe_lock(),
        "is_grad_enabled": api.is_grad_enabled,
        "modes": api.modes,
        "otherwise": otherwise,
        "reinterpret": reinterpreted(),
        "changed": api.changed,
        "stream_of": api.stream,
        "threads": threads,
    }
    asks = may_require_grad or any(s.requires_grad for s in regions.values())
    text = _Text(module, found, regions, names, after).text(first.device, asks_gradients=asks)
    exec(compile(text, "<a graph by fusewright>", "exec"), names)
    return WrittenGraph(names["call"], text, first.device)


def _regions(graph: Any, found: Mapping[Any, Lying]) -> dict[Any, Steps]:
    """The calls of regions whose steps are written out: bound ones that ask the same of a call."""
    out: dict[Any, Steps] = {}
    for n in graph.nodes:
        if not isinstance(n.target, FusedRegion) or n.target.bound is None:
            continue
        steps = n.target.bound.steps()
        if steps is None or any(n.args[h].op != "placeholder" for h in steps.held.values()):
            continue
        first = next(iter(out.values()), steps)
        if (steps.config, steps.device) == (first.config, first.device):
            out[n] = steps
    return out


class _Text:
    """Writes the function of one graph."""

    def __init__(
        self,
        module: Any,
        found: Mapping[Any, Lying],
        regions: Mapping[Any, Steps],
        names: dict[str, Any],
        after: After,
    ) -> None:
        """`names` are what the function finds as globals, to which constants are added."""
        self._module = module
        self._graph = module.graph
        self._regions = regions
        self._names = names
        self._after = after
        self._taken = {*_OWN, *names}
        self._local: dict[Any, str] = {n: self._unused(n.name) for n in self._graph.nodes}
        self._addresses: dict[str, str] = {}
        """The names of the addresses of tensors."""
        self._aligned: dict[str, None] = {}
        """The tensors that are ours, and lie where an allocator puts new ones."""
        self._made: dict[Any, None] = {}
        """The views that are made."""
        self._constants: dict[int, str] = {}
        self._directly = Directly()
        self._places: dict[Any, ViewPlace] = {}
        self._views: dict[Any, Any] = {}
        """The results of regions that are made as views of them."""
        self._shapes: dict[Any, ViewPlace] = {}
        """These views, and how they lie."""
        if names["reinterpret"] is not None:
            self._find_places(found)
        lying = {n: self._lying(n, steps) for n, steps in regions.items()}
        self._reused = reused(self._graph, found, lying, _keeps_stream)
        """The results that are made in the memory of others."""
        self._spelled: dict[PlainLaunches, SpelledLaunches] = {}
        """Launches by plans that the function has for itself; equal regions share one."""
        self._names_of: dict[Result, str] = {}
        """The names of results so far."""

    def text(self, device: int, *, asks_gradients: bool) -> str:
        """The function `call` on a device."""
        blocks = [self._block(n) for n in self._graph.nodes if n.op != "placeholder"]
        given = [self._local[n] for n in self._graph.nodes if n.op == "placeholder"]
        first = _NodeLines([f"[{', '.join(given)}] = boxed", "boxed.clear()"], {}, tuple(given))
        first.lines += ["is_own = True"] if self._reused else []
        asked = [
            "active() is not config",
            f"current_device() != {device}",
            "modes() > 0",
            "forward_ad._current_level >= 0",
            'not hasattr(threads, "ready")',
        ]
        if asks_gradients:
            asked.append("is_grad_enabled()")
        asked.append("not free.acquire(False)")
        lines = [
            "def call(boxed):",
            f"  if {' or '.join(asked)}:",
            "    return otherwise(boxed)",
            "  try:",
            "    return steps(boxed)",
            "  finally:",
            "    free.release()",
            "",
            "def steps(boxed):",
        ]
        steps = _freeing([first, _NodeLines([f"stream = stream_of({device})"]), *blocks])
        return "\n".join([*lines, *(f"  {line}" for line in steps), ""])

    def _find_places(self, found: Mapping[Any, Lying]) -> None:
        is_region = self._regions.__contains__
        places = places_of(self._graph, found, is_region)
        results: dict[Any, tuple[Sequence[int], Sequence[int]]] = {}
        for n, steps in self._regions.items():
            for r in n.users:
                if r.args[1] in steps.made:
                    shape, strides, _ = _made(n.target, steps, r.args[1])
                    results[r] = shape, strides
        self._views = made_as_views(places, results, is_region)
        self._shapes = {v: places[v] for v in self._views.values()}
        self._places = rooted_in(places, self._views, results)

    # --- nodes ----------------------------------------------------------------------------------

    def _block(self, n: Any) -> _NodeLines:
        if n.op == "output":
            reads: dict[str, None] = {}
            return _NodeLines([f"return {self._value(n.args[0], reads)}"], reads)
        if n.op == "get_attr":
            self._names[self._local[n]] = _attribute(self._module, n.target)
            return _NodeLines([])
        if n in self._regions:
            return self._region(n, self._regions[n])
        if n in self._shapes or (n.target is operator.getitem and n.args[0] in self._regions):
            return _NodeLines([])
        if n in self._places:
            return self._view(n)
        if n.target is operator.getitem:
            reads = {}
            source = self._value(n.args[0], reads)
            name = self._local[n]
            return _NodeLines([f"{name} = {source}[{n.args[1]!r}]"], reads, (name,))
        return self._call(n)

    def _call(self, n: Any) -> _NodeLines:
        """A call of whatever it is."""
        reads: dict[str, None] = {}
        args = [self._value(a, reads) for a in n.args]
        args += [f"{k}={self._value(a, reads)}" for k, a in n.kwargs.items()]
        word = f"call_{n.name}" if isinstance(n.target, FusedRegion) else _word(n.target)
        called = self._constant(word, self._directly.of(n))
        name = self._local[n]
        lines = [f"{name} = {called}({', '.join(args)})"]
        if not _keeps_stream(n):
            lines.append(f"stream = stream_of({next(iter(self._regions.values())).device})")
        return _NodeLines(lines, reads, (name,))

    def _view(self, n: Any) -> _NodeLines:
        """A view that operators of torch read; nothing for one that only kernels do."""
        unseen = (self._regions, self._places, self._shapes)
        readers = [u for u in n.users if not any(u in known for known in unseen)]
        if not readers:
            return _NodeLines([])
        reads: dict[str, None] = {}
        name = self._local[n]
        line = f"{name} = {self._shown(n, reads)}"
        self._made[n] = None
        return _NodeLines([line], reads, (name,))

    def _shown(self, n: Any, reads: dict[str, None]) -> str:
        """A view of its root."""
        p = self._places[n]
        root = self._value(p.root, reads)
        return f"reinterpret({root}, {p.shape!r}, {p.strides!r}, {p.distance})"

    def _value(self, value: Any, reads: dict[str, None]) -> str:
        """An argument as text; the local names in it are added to `reads`."""
        match value:
            case None | bool() | int() | str():
                return repr(value)
            case float() if math.isfinite(value):
                return repr(value)
            case tuple():
                items = [self._value(v, reads) for v in cast("Sequence[Any]", value)]
                return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
            case list():
                items = [self._value(v, reads) for v in cast("Sequence[Any]", value)]
                return f"[{', '.join(items)}]"
            case dict():
                known = cast("dict[Any, Any]", value)
                items = [f"{k!r}: {self._value(v, reads)}" for k, v in known.items()]
                return f"{{{', '.join(items)}}}"
            case slice():
                part = cast("slice[Any, Any, Any]", value)
                items = [self._value(v, reads) for v in (part.start, part.stop, part.step)]
                return f"slice({', '.join(items)})"
            case _:
                pass
        if not isinstance(value, fx.Node):
            return self._constant(_word(value), value)
        if value in self._places and value not in self._made:
            return self._shown(value, reads)
        name = self._local[value]
        if value.op != "get_attr":
            reads[name] = None
        return name

    def _constant(self, word: str, value: Any) -> str:
        """A global name of something."""
        known = self._constants.get(id(value))
        if known is not None:
            return known
        name = self._unused(word)
        self._names[name] = value
        self._constants[id(value)] = name
        return name

    def _unused(self, word: str) -> str:
        """A name that nothing else has: a word, or one with a number behind it."""
        k, name = 0, word
        while name in self._taken:
            k, name = k + 1, f"{word}_{k}"
        self._taken.add(name)
        return name

    def _address(self, name: str) -> str:
        """The name of a tensor's address."""
        if name not in self._addresses:
            self._addresses[name] = self._unused(f"{name}_at")
        return self._addresses[name]

    # --- regions --------------------------------------------------------------------------------

    def _region(self, n: Any, steps: Steps) -> _NodeLines:
        """The launches of a region between allocations, or its call where addresses are others."""
        reads: dict[str, None] = {}
        region: FusedRegion = n.target
        word = f"# {region.__name__}: {', '.join(_word(m.target) for m in region.part.owned)}"
        lines = [word if len(word) <= 100 else f"{word[:96]} ..."]
        addresses, tests, is_never = self._given(n, steps, reads, lines)
        results = self._results(n, steps)
        own = {k: results[k] for k in steps.made}
        self._names_of |= {(n, k): name for k, name in own.items()}
        given = ", ".join(self._value(a, reads) for a in n.args)
        name = self._constant(f"call_{region.__name__}", region)
        unpacked = ", ".join(own.get(k, "_") for k in range(len(results)))
        shown = [
            f"{own[k]} = reinterpret({own[k]}, {p.shape!r}, {p.strides!r}, 0)"
            for k, p in self._views_of(n).items()
        ]
        shown += ["is_own = False"] if self._reused else []
        after = self._constant(f"after_{region.__name__}", self._after(region))
        direct = [
            "try:",
            *(f"  {line}" for line in self._launches(n, steps, own, addresses, reads)),
            "except Exception as error:",
            f"  [{unpacked}] = {after}(error{', ' if given else ''}{given})",
            *(f"  {line}" for line in shown),
        ]
        slow = [f"[{unpacked}] = {name}({given})", *shown]
        if is_never:
            lines += slow
        elif tests:
            lines.append(f"if ({' | '.join(tests)}) & {VECTOR_MASK}:")
            lines += [f"  {line}" for line in slow]
            lines += ["else:", *(f"  {x}" for x in direct)]
        else:
            lines += direct
        self._aligned |= dict.fromkeys(own.values())
        return _NodeLines(lines, reads, tuple(own.values()))

    def _given(
        self, n: Any, steps: Steps, reads: dict[str, None], lines: list[str]
    ) -> tuple[list[str], list[str], bool]:
        """The addresses of a region's arguments, what of them has bits that a call must not have,
        and whether every call has some. New tensors, which are ours, lie as they should."""
        addresses: list[str] = []
        tests: dict[str, None] = {}
        is_never = False
        for a, low in zip(n.args, steps.low, strict=True):
            place = self._places.get(a)
            root = self._value(a if place is None else place.root, reads)
            behind = 0 if place is None else place.nbytes
            if root not in self._addresses:
                lines.append(f"{self._address(root)} = {root}.data_ptr()")
            at = self._address(root)
            addresses.append(_plus(at, behind))
            if root in self._aligned:
                is_never |= (behind - low) & VECTOR_MASK != 0
            else:
                tests[_plus(at, (behind - low) & VECTOR_MASK)] = None
        return addresses, list(tests), is_never

    def _results(self, n: Any, steps: Steps) -> dict[int, str]:
        """The names of results by their numbers; those that arguments hold are these."""
        names: dict[int, str] = {}
        for k in sorted((*steps.made, *steps.held)):
            if k in steps.held:
                names[k] = self._local[n.args[steps.held[k]]]
            else:
                names[k] = self._unused(f"{n.name}_{k}")
        for u in n.users:
            if u in self._views:
                names[u.args[1]] = self._local[self._views[u]]
            self._local[u] = names[u.args[1]]
        return names

    def _views_of(self, n: Any) -> dict[int, ViewPlace]:
        """Of the results of a region's call that are made as views, by number, how these lie."""
        return {r.args[1]: self._shapes[self._views[r]] for r in n.users if r in self._views}

    def _lying(self, n: Any, steps: Steps) -> dict[int, Any]:
        """How each new result of a region is allocated: shape, strides and dtype."""
        views = self._views_of(n)
        kinds = {k: _made(n.target, steps, k) for k in steps.made}
        return {
            k: (views[k].shape, views[k].strides, dtype) if k in views else (shape, strides, dtype)
            for k, (shape, strides, dtype) in kinds.items()
        }

    def _launches(
        self,
        n: Any,
        steps: Steps,
        own: Mapping[int, str],
        addresses: Sequence[str],
        reads: dict[str, None],
    ) -> list[str]:
        lines: list[str] = []
        for k, (shape, strides, dtype) in self._lying(n, steps).items():
            made = self._empty(shape, strides, dtype)
            if (n, k) in self._reused:
                old = self._names_of[self._reused[n, k]]
                reads[old] = None
                made = f"{old} if is_own else {made}"
            lines.append(f"{own[k]} = {made}")
        where = [*addresses, *(f"{r}.data_ptr()" for r in own.values())]
        for t in steps.scratch:
            lines.append(f"scratch = {self._empty(*t)}")
            where.append("scratch.data_ptr()")
        lines += self._launched(n.target.__name__, steps.launch, where)
        if steps.scratch:
            lines.append("del scratch")
        if steps.held:
            held = [self._local[n.args[h]] for h in steps.held.values()]
            lines.append(f"changed([{', '.join(held)}])")
        return lines

    def _launched(self, region: str, launch: Any, where: Sequence[str]) -> list[str]:
        """The launches of a region, given the addresses of its roots."""
        if not isinstance(launch, PlainLaunches):
            called = self._constant(f"launch_{region}", launch)
            return [f"{called}({', '.join([*where, 'stream'])})"]
        if launch not in self._spelled:
            self._spelled[launch] = launch.plan.spelled()
        spelled = self._spelled[launch]
        lines: list[str] = []
        places = list(where)
        for k, place in enumerate(places):
            if place.endswith(")") and sum(root == k for root, _ in spelled.slots) > 1:
                places[k] = self._unused("place")
                lines.append(f"{places[k]} = {place}")
        slots = [_plus(places[root], nbytes) for root, nbytes in spelled.slots]

        def name(word: str) -> str:
            known = spelled.named.get(word)
            return word if known is None else self._constant(f"{word}_{region}", known)

        return lines + launch_lines(spelled.count, slots, name, "stream")

    def _empty(self, shape: Any, strides: Any, dtype: Any) -> str:
        return f"empty({tuple(shape)!r}, {tuple(strides)!r}, {self._constant(_word(dtype), dtype)})"


def _made(region: FusedRegion, steps: Steps, k: int) -> tuple[Any, Any, Any]:
    """Shape, strides and dtype of a new result by its number."""
    shape, strides, dtype = steps.made[k]
    return shape, region.strides.get(k, strides), dtype


def _keeps_stream(n: Any) -> bool:
    """Whether a node leaves the current stream as it is."""
    if n.op != "call_function" or isinstance(n.target, FusedRegion | BuiltinFunctionType):
        return True
    return getattr(n.target, "namespace", "") in _SAFE


def _freeing(blocks: Sequence[_NodeLines]) -> Iterable[str]:
    """The lines of blocks; each local name is deleted behind the block that reads it last."""
    last: dict[str, int] = {}
    for k, b in enumerate(blocks):
        last |= dict.fromkeys((*b.makes, *b.reads), k)
    for k, b in enumerate(blocks):
        yield from b.lines
        gone = [x for x in dict.fromkeys((*b.makes, *b.reads)) if last[x] == k]
        if gone and k < len(blocks) - 1:
            yield f"del {', '.join(gone)}"


def _plus(name: str, nbytes: int) -> str:
    return f"{name} + {nbytes}" if nbytes else name


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _word(value: Any) -> str:
    """A name for a constant: what it is called, or its type."""
    schema = getattr(value, "_schema", None)
    text = schema.name.split("::")[1] if schema else getattr(value, "__name__", "")
    if isinstance(value, torch.dtype):
        text = str(value).removeprefix("torch.")
    return text if text.isidentifier() else type(value).__name__
