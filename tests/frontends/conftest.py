"""What holds for the tests of the front ends: programs are made, not found on disk, and graphs are
traced, so that a test that watches a stage of compiling meets it."""

from __future__ import annotations

import sys

import pytest

from fusewright.frontends import stored_programs


@pytest.fixture(autouse=True)
def programs_are_made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("stores") is None:
        monkeypatch.setattr(stored_programs, "is_kept", lambda fusion: False)
        kept_graphs = sys.modules.get("fusewright.frontends.torch.kept_graphs")
        if kept_graphs is not None:  # in tests of the torch backend
            monkeypatch.setattr(kept_graphs, "are_kept", lambda: False)
