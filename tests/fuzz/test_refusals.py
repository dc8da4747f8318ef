"""Random programs: lowering refuses nothing that dispatch formation accepted."""

from __future__ import annotations

import pytest
from bench.refusals import of_plain, of_wide, refusals

from fusewright.errors import UserError

CHUNK = 20


@pytest.mark.slow
@pytest.mark.parametrize("source", [of_wide, of_plain])
@pytest.mark.parametrize("start", range(31000, 31100, CHUNK))
def test_no_group_of_random_programs_is_cut(source, start: int) -> None:
    compiled = 0
    for text, trace in source(range(start, start + CHUNK)):
        try:
            found = refusals(trace)
        except UserError:
            continue  # names that are no identifiers
        compiled += 1
        assert found == [], text
    assert compiled > CHUNK / 2


@pytest.mark.refuses
def test_a_group_that_is_cut_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule on axes off, a value that stands at two places of one line is found."""
    import fusewright.host.form as form

    monkeypatch.setattr(form, "loop_problem", lambda *_: None)
    _, trace = next(of_plain(range(434, 435)))
    assert len(refusals(trace)) >= 1
