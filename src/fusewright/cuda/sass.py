"""Machine code as text, by nvdisasm. Needs no GPU."""

from __future__ import annotations

import importlib
import subprocess
import tempfile
from pathlib import Path

from fusewright.errors import InternalError, UserError


def sass(cubin: bytes) -> str:
    """The disassembly of a cubin. Raises UserError when nvdisasm is not installed."""
    with tempfile.TemporaryDirectory(prefix="fusewright-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run(
            [_nvdisasm(), "-c", str(path)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise InternalError(f"nvdisasm failed with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _nvdisasm() -> str:
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        found = pathfinder.find_nvidia_binary_utility("nvdisasm")
    except ImportError:
        found = None
    if found is None:
        raise UserError(
            "disassembling needs nvdisasm; install it with: pip install 'fusewright[sass]'"
        )
    return str(found)
