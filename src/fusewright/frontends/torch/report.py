"""What the backend took of a model, and why it left the rest to torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewright.frontends.torch.calls import is_getitem, is_view
from fusewright.frontends.torch.graph_call import GraphCall
from fusewright.frontends.torch.model_page import model_page
from fusewright.frontends.torch.model_times import PartTime, part_times
from fusewright.frontends.torch.region import FusedRegion
from fusewright.target import Target, target_of


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One aten graph: its fused regions, and the reason for each operator call that is in none.
    `not_recorded`: why it is not recorded as a CUDA graph, None if nobody asked for one; "" where
    it is. `bodies`: the graphs that its control flow calls. `call`: what calls it."""

    name: str
    regions: tuple[FusedRegion, ...]
    reasons: Mapping[Any, str]
    not_recorded: str | None = None
    bodies: tuple[GraphReport, ...] = ()
    call: GraphCall | None = None

    @property
    def everything(self) -> list[GraphReport]:
        """The graph, and those inside of it."""
        return [self, *(g for body in self.bodies for g in body.everything)]

    @property
    def function(self) -> str | None:
        """The text of the function that calls of the graph run; None where there is none, such as
        before the first call, and without a GPU."""
        written = None if self.call is None else self.call.written
        return None if written is None else written.text

    @property
    def taken(self) -> list[str]:
        """The operators that are fused, in order, views left out."""
        return [str(n.target) for r in self.regions for n in r.part.owned if not is_free(n)]

    @property
    def left(self) -> list[tuple[str, str]]:
        """The operators that torch runs, with the reasons, views left out."""
        return [(str(n.target), why) for n, why in self.reasons.items() if not is_free(n)]

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.taken)} operators in {len(self.regions)} fused regions"]
        if self.not_recorded is not None:
            lines.append(f"  {self._recording()}")
        for r in self.regions:
            own = [_short(n) for n in r.part.owned if not is_free(n)]
            lines.append(f"  {r.part.name}: {', '.join(own)}")
            lines += [f"    failed: {f}" for f in r.failures]
        counted: dict[tuple[str, str], int] = {}
        for entry in self.left:
            counted[entry] = counted.get(entry, 0) + 1
        if counted:
            lines.append(f"{self.name}: {len(self.left)} operators run by torch")
        lines += [f"  {count} x {op}: {why}" for (op, why), count in counted.items()]
        lines += [f"  {line}" for body in self.bodies for line in str(body).splitlines()]
        return "\n".join(lines)

    def _recording(self) -> str:
        if self.not_recorded:
            return f"not recorded as a CUDA graph: {self.not_recorded}"
        return "recorded as one CUDA graph"


def is_free(node: Any) -> bool:
    """Whether a node costs nothing: a view, or the choice of one result of several."""
    return is_view(node) or is_getitem(node)


def _short(node: Any) -> str:
    return str(node.target).removeprefix("aten.").removesuffix(".default")


def _times(graph: GraphReport, target: Target) -> list[PartTime]:
    left = {n: why for n, why in graph.reasons.items() if not is_free(n)}
    return part_times([r.part for r in graph.regions], left, target)


@dataclass(slots=True)
class TorchReport:
    """The graphs of a model, in the order in which they were compiled."""

    graphs: list[GraphReport]

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs)) or "nothing was compiled"

    def times(self, target: str) -> list[tuple[str, list[PartTime]]]:
        """Where the time of each graph would go on a target such as "sm_90a", the dearest calls
        first. Compiles every different region for it. Raises UserError for a target that is not
        known."""
        return [
            (g.name, _times(g, target_of(target)))
            for graph in self.graphs
            for g in graph.everything
        ]

    def to_html(self, path: str | Path, target: str = "sm_90a") -> Path:
        """Writes one self-contained page that says where the time of the model would go on a
        target; the path written. Raises UserError for a target that is not known."""
        page = model_page(self.times(target), target, str(self))
        Path(path).write_text(page, encoding="utf-8")
        return Path(path)

    @property
    def regions(self) -> Sequence[FusedRegion]:
        """The fused regions of all graphs."""
        return [r for g in self.graphs for part in g.everything for r in part.regions]
