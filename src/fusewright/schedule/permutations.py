"""Orders of loops, as `reorder` takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusewright.errors import ScheduleError


def permutation_of(
    name: str,
    order: Mapping[int, int] | Sequence[int],
    n: int,
    axis: Callable[[int], int],
) -> list[int]:
    """For each of `n` positions the loop that stands there after `reorder(order)` of the tensor
    called `name`; `axis` counts a loop from the front.

    Raises ScheduleError for an order that is none.
    """
    if isinstance(order, Mapping):
        moves = {axis(k): axis(v) for k, v in order.items()}
        if len(set(moves.values())) != len(moves):
            raise ScheduleError(
                f"reorder({name}, {dict(order)}): two loops for one position; give each its own"
            )
        rest = iter([i for i in range(n) if i not in moves])
        back = {v: k for k, v in moves.items()}
        return [back[j] if j in back else next(rest) for j in range(n)]
    permutation = [axis(k) for k in order]
    if sorted(permutation) != list(range(n)):
        raise ScheduleError(f"reorder({name}, {list(order)}): not a permutation of {n} axes")
    return permutation
