"""Capsules for memory of ours, whose destructors are functions of this process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fusewright.dtypes import ALL, DType
from fusewright.runtime.dlpack import dl_type

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


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_the_type_of_an_element_is_that_of_the_standard(dtype: DType) -> None:
    """`DLDataTypeCode` of dlpack.h, version 1.1."""
    code, bits = dl_type(dtype)
    assert bits == 8 * dtype.nbytes
    codes = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}
    others = {"bfloat16": 4, "float8_e4m3": 10, "float8_e5m2": 12}
    assert code == others.get(dtype.name, codes[dtype.kind])
    assert np.dtype(dtype.numpy).itemsize * 8 == bits
