"""The calls of one graph: by torch's interpreter of it first, then by a function written for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.lying import Observer, moves_memory
from fusewright.frontends.torch.region import FusedRegion
from fusewright.frontends.torch.written import WrittenGraph, written
from fusewright.runtime.device import adopt
from fusewright.runtime.torch_calls import torch_api

_log = logging.getLogger("fusewright.torch")

MAX_TEXTS = 8
"""Functions of a graph that are written as what its regions are bound to changes. Callers that
switch between choices more often are served by the last one, or by the graph itself."""


class GraphCall:
    """Calls a graph with its regions replaced, which takes a list of arguments and empties it.

    The first call shows how tensors lie and binds the regions; behind it the function is written.
    It asks once what each region would ask, and calls the graph where the answers are others, such
    as in a thread's first call. A region that fails is replaced in the function.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._regions = [n.target for n in module.graph.nodes if isinstance(n.target, FusedRegion)]
        self._observer: Observer | None = None
        self._bound: Sequence[Any] = ()
        self._threads = threading.local()
        self._left = MAX_TEXTS
        self.written: WrittenGraph | None = None
        """The function; None where there is none yet, or no region that it could launch."""
        can_move = moves_memory(module.graph)
        self.run: Callable[[list[Any]], Any] = module.forward if can_move else self.plain
        """What a call runs now."""

    def plain(self, boxed: list[Any]) -> Any:
        """A call of the graph itself, behind which the function fits what regions are bound to."""
        made = self._observed(boxed) if self._observer is None else self._module.forward(boxed)
        try:
            self._write()
        except Exception as e:
            _log.warning("no function is written for a graph: %s: %s", type(e).__name__, e)
            self.run = self._module.forward
        return made

    def _observed(self, boxed: list[Any]) -> Any:
        """The first call that nobody records."""
        if torch_api(torch).modes() > 0:
            return self._module.forward(boxed)
        observer = Observer(self._module)
        made = observer.called(boxed)
        self._observer = observer
        return made

    def _write(self) -> None:
        """Writes the function where regions are bound to something else than before."""
        bound = [r.bound for r in self._regions]
        known = len(bound) == len(self._bound) and all(map(is_, bound, self._bound))
        if not known and self._left > 0 and self._observer is not None:
            self._left -= 1
            self._bound = bound
            self.written = written(
                self._module,
                self._observer.found,
                self._after,
                self.plain,
                self._threads,
                may_require_grad=self._observer.may_require_grad,
            )
        if self.written is not None:
            adopt(self.written.device)
            self._threads.ready = True
            self.run = self.written.call

    def _after(self, region: FusedRegion) -> Callable[..., Sequence[Any]]:
        """What computes a call of a region whose kernels failed. Where they are given up, the
        function is written without them, or with the region's next ones."""

        def after(error: Exception, *args: Any) -> Sequence[Any]:
            before = region.bound
            made = region.after(error, *args)
            if region.bound is not before:
                self._left += 1
                self._write()
            return made

        return after
