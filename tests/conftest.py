"""What holds in every test: lowering refuses nothing that dispatch formation accepted."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator

import pytest

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Each worker, and each of some forty processes that tests start, would compile the sources again:
# a second of a process that makes one kernel, and half of what collecting the tests takes.

from fusewright.host.refused import LOGGER  # noqa: E402
from fusewright.programs import join_launches  # noqa: E402

YOUNG_OBJECTS = 50_000
"""Objects that come to life between two searches for cycles of garbage, 700 by default: the modules
and thousands of tests that stay alive make each of these slow."""

gc.set_threshold(YOUNG_OBJECTS)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no search looks through it."""
    gc.collect()
    gc.freeze()


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def refused(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The kernels that lowering refused in this test. There are none, but in tests that are marked
    `refuses`, which make lowering refuse."""
    heard = _Heard()
    logger = logging.getLogger(LOGGER)
    logger.addHandler(heard)
    yield heard.messages
    logger.removeHandler(heard)
    assert request.node.get_closest_marker("refuses") or not heard.messages, heard.messages


@pytest.fixture
def launched_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short launches stay apart, as long ones do."""
    monkeypatch.setattr(join_launches, "share_blocks", lambda _: False)
