"""torch's operations on lists of tensors, as optimisers call them: the same on each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusewright.frontends.torch.library import aten, torch

PREFIX = "_foreach_"
Rule = Callable[..., list[Any]]
_NAMES: dict[str, str] = {"norm": "linalg_vector_norm", "zero": "zeros_like"}
_WITH_NUMBERS: dict[str, str] = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""Functions whose second operand is a tensor, and what they are called with a number."""
_WITH_VALUE = ("addcdiv", "addcmul")
"""Functions of three tensors and a factor that goes by its name."""
_LEFT = ("powsum",)


def foreach_rules() -> dict[Any, Rule]:
    """For every such operator without side effects, what it does to each tensor."""
    registered: list[str] = torch._C._dispatch_get_all_op_names()
    names = {n.split("::")[1].split(".")[0] for n in registered}
    found: dict[Any, Rule] = {}
    for name in sorted(n for n in names if n.startswith(PREFIX) and not n.endswith("_")):
        own = name.removeprefix(PREFIX)
        called = _NAMES.get(own, own)
        fn: Any = getattr(aten, called, None)
        if fn is None or own in _LEFT:
            continue
        packet = getattr(aten, name)
        for overload in packet.overloads():
            if "out" in overload or (own in _WITH_VALUE and overload == "Tensor"):
                continue
            found[getattr(packet, overload)] = _rule(own, fn)
    return found


def _rule(name: str, fn: Any) -> Rule:
    def each(*args: Any, **named: Any) -> list[Any]:
        if name in _WITH_VALUE and len(args) > 3:
            args, named = args[:3], {**named, "value": args[3]}
        count = next(len(a) for a in args if _is_list(a))
        return [_called(name, fn, args, named, k) for k in range(count)]

    return each


def _called(name: str, fn: Any, args: tuple[Any, ...], named: dict[str, Any], k: int) -> Any:
    own = [a[k] if _is_list(a) else a for a in args]
    keys = {key: a[k] if _is_list(a) else a for key, a in named.items()}
    if name in _WITH_NUMBERS and not isinstance(own[1], torch.Tensor):
        fn = getattr(aten, _WITH_NUMBERS[name])
    return fn(*own, **keys)


def _is_list(a: Any) -> bool:
    return isinstance(a, list | tuple)
