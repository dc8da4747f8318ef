"""A run: which cases are measured, for how long, and what is kept. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.cases import Case
from bench.neighbours import neighbours
from bench.outcome import Outcome, line


@dataclass(frozen=True, slots=True)
class Session:
    """What to measure. `wanted`: substrings of case names, none for all; `budget_seconds`: no case
    starts when less is left than the longest so far took."""

    wanted: tuple[str, ...] = ()
    neighbours: bool = False
    budget_seconds: float = float("inf")

    def rows(self, cases: Sequence[Case]) -> Iterator[tuple[Case, str]]:
        """The cases in order, each with the name of the case that it is a neighbour of. Neighbours
        come after all cases, so that a budget is spent on those first.

        Raises ValueError when no case has such a name.
        """
        chosen = [c for c in cases if not self.wanted or any(w in c.name for w in self.wanted)]
        if not chosen:
            known = ", ".join(c.name for c in cases)
            raise ValueError(
                f"no case has {' or '.join(self.wanted)} in its name; there are {known}"
            )
        yield from ((c, "") for c in chosen)
        if self.neighbours:
            yield from ((n, c.name) for c in chosen for n in neighbours(c))

    def run(
        self,
        cases: Sequence[Case],
        measure: Callable[[Case], Outcome],
        clock: Callable[[], float],
        keep: Callable[[list[Outcome]], None],
        show: Callable[[str], None] = print,
    ) -> list[Outcome]:
        """Measures the rows while time lasts; `keep` sees all outcomes after each. Neighbours stand
        behind their case. An outcome that cannot be had at all is shown, and left out."""
        start = clock()
        longest = 0.0
        outcomes: list[Outcome] = []
        rows = list(self.rows(cases))
        for done, (case, of) in enumerate(rows):
            begun = clock()
            if begun - start + longest > self.budget_seconds:
                show(f"out of time: {len(rows) - done} of {len(rows)} not measured")
                break
            try:
                found = dataclasses.replace(measure(case), of=of)
            except Exception as e:
                show(f"{case.name}: {type(e).__name__}: {e}"[:300])
                continue
            finally:
                longest = max(longest, clock() - begun)
            outcomes.insert(_place(outcomes, of), found)
            show(line(found, outcomes, list(found.times_us)))
            keep(outcomes)
        return outcomes


def _place(outcomes: Sequence[Outcome], of: str) -> int:
    """Behind the last outcome of a case and its neighbours; at the end for a new case."""
    places = [i for i, o in enumerate(outcomes) if of and of in (o.name, o.of)]
    return places[-1] + 1 if places else len(outcomes)
