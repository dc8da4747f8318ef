"""Random campaigns run on request only: `pytest -m fuzz`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `fuzz` unless markers were chosen on the command line."""
    if config.option.markexpr:
        return
    campaigns = [i for i in items if i.get_closest_marker("fuzz") and "/kir/" in i.nodeid]
    if campaigns:
        config.hook.pytest_deselected(items=campaigns)
        items[:] = [i for i in items if i not in campaigns]
