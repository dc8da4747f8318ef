"""Fewer views: each costs microseconds of host time, and torch's graphs are full of them."""

from __future__ import annotations

from typing import Any

from fusewright.frontends.torch.calls import is_getitem, is_view
from fusewright.frontends.torch.library import aten

_SAME = (aten.detach.default, aten.alias.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default)


def tidy(graph: Any) -> None:
    """Shortens chains of views in place.

    rewrite:  t(t(x)) -> x;  view(view(x, a), b) -> view(x, b);  detach(x) -> x, x no argument
              view(x, a), view(x, a) -> one of them, where the caller is given neither
    """
    known: dict[tuple[Any, str], Any] = {}
    for n in list(graph.nodes):
        if n.op != "call_function" or not n.args:
            continue
        source = n.args[0]
        if n.target in _SAME and source.op != "placeholder":
            n.replace_all_uses_with(source)
        elif n.target is aten.t.default and source.target is aten.t.default:
            n.replace_all_uses_with(source.args[0])
        elif n.target in _RESHAPES and source.target in _RESHAPES:
            n.args = (source.args[0], *n.args[1:])
        if is_view(n) and not is_getitem(n) and not any(u.op == "output" for u in n.users):
            same = known.setdefault((n.target, repr((n.args, n.kwargs))), n)
            if same is not n:
                n.replace_all_uses_with(same)
