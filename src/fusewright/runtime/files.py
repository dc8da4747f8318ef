"""Files that other processes read: written as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

TEMPORARY = ".tmp"
"""How the name of a file ends that is not whole yet."""


def write_whole(path: Path, content: bytes) -> None:
    """Writes under a name of its own in the same folder, and renames: who opens `path` finds what
    was there before, or all of the content. Readable by this user alone. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
