"""Capsules for memory of ours, whose destructors are functions of this process."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from fusewright.dtypes import float32
from fusewright.runtime import arrays, dlpack
{holder}.kept = dlpack.capsule_of(object(), 4096, (1,), (1,), float32, 0)
"""


@pytest.mark.parametrize("holder", ["sys", "arrays"])
def test_a_capsule_may_outlive_the_names_of_modules(holder: str) -> None:
    made = subprocess.run(
        [sys.executable, "-c", CODE.format(holder=holder)], capture_output=True, text=True
    )
    assert (made.returncode, made.stderr) == (0, "")
