"""Tests that run on a CUDA device: `pytest -m gpu tests/gpu`. Skipped where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fusewright.runtime.device import has_gpu

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / part) for part in ("cuda", "host", "schedule", "sim", ".")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)
            if not has_gpu():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
