"""Results that are kept up to a number of bytes."""

from __future__ import annotations

from collections.abc import Hashable

from fusewright.core.memo import Memo


def _memo(limit: int, made: list[Hashable]) -> tuple[Memo[int], list[Hashable]]:
    return Memo(limit, lambda _, value: value), made


def _get(memo: Memo[int], made: list[Hashable], key: str, nbytes: int) -> int:
    def make() -> int:
        made.append(key)
        return nbytes

    return memo.get(key, make)


def test_what_was_asked_for_last_is_kept() -> None:
    memo, made = _memo(10, [])
    for key in ("a", "b", "a", "c", "a", "b"):
        assert _get(memo, made, key, 4) == 4
    assert made == ["a", "b", "c", "b"]  # room for two: b went for c, not a


def test_a_result_larger_than_the_limit_is_made_each_time() -> None:
    memo, made = _memo(10, [])
    for key in ("a", "large", "large", "a"):
        _get(memo, made, key, 11 if key == "large" else 4)
    assert made == ["a", "large", "large", "a"]
