"""Messages are part of the interface: every one is matched by a test."""

from __future__ import annotations

from pathlib import Path

from tools.untested_errors import ROOT, messages, untested


def test_every_message_is_matched_by_a_test() -> None:
    found = untested(ROOT / "src" / "fusewright", ROOT / "tests")
    assert found == [], "\n".join(map(str, found))


def test_a_message_without_a_test_is_found(tmp_path: Path) -> None:
    source, tests = tmp_path / "src", tmp_path / "tests"
    for folder in (source, tests):
        folder.mkdir()
    (source / "a.py").write_text(
        'raise UserError(f"the {x} has no wheels: give it four")\n'
        'raise SpecError("a boat swims; " + f"draw {n} of them")\n'
        'raise InternalError("a defect that no test makes")\n'
        'raise UserError(f"{x}; use one of {y}")\n'
    )
    (tests / "test_a.py").write_text('match=r"draw 3 of\\b them"')
    assert [m.line for m in messages(source)] == [1, 2, 4]
    assert [m.line for m in untested(source, tests)] == [1, 4]
    (tests / "test_b.py").write_text('"has no wheels"; "; use one of a, b"')
    assert untested(source, tests) == []


def test_texts_that_reach_an_error_through_a_function_are_messages(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "def refusal(what: str) -> UserError:\n"
        '    """One of many."""\n'
        '    return UserError(f"{what}: paint it")\n'
        "def checked(x):\n"
        '    raise refusal("a house has no roof")\n'
        "def walls(k) -> Iterator[Problem]:\n"
        '    yield None, f"{k} walls of three stand"\n'
        "def others(k) -> Iterator[str]:\n"
        '    yield "a text that is no error"\n'
    )
    found = {m.line: (m.error, m.parts) for m in messages(tmp_path)}
    assert found == {
        3: ("UserError", (": paint it",)),
        5: ("UserError", ("a house has no roof",)),
        7: ("SpecError", (" walls of three stand",)),
    }
