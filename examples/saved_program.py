"""A program compiled ahead of time into one file, and read where there is no compiler."""

import tempfile
from pathlib import Path

import numpy as np

import fusewright as fw

TABLE = np.linspace(0, 1, 16, dtype=np.float32)


def looked_up(x):
    return fw.take(TABLE, fw.astype(x, fw.int32) % 16, axis=0) * 2.0


program = fw.compile(fw.trace(looked_up, "f32[n,8]"), target="sm_90a")
x = np.arange(40, dtype=np.float32).reshape(5, 8)
with tempfile.TemporaryDirectory() as folder:
    path = program.save(Path(folder) / "looked_up.fw")
    print(path.stat().st_size, "bytes, with machine code and the table")
    loaded = fw.load(path)
(y,) = loaded(x, device="sim")
assert np.allclose(y, TABLE[x.astype(int) % 16] * 2)
