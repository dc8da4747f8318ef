"""Programs in one file: a zip of one JSON record and machine code, versioned and checked.

A crash leaves no half of a file (`write_whole`). Nothing is ever unpickled; the record names the
sha256 of every member.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fusewright.errors import UserError
from fusewright.runtime.files import write_whole

FORMAT = "fusewright program"
VERSION = 7
_RECORD = "program.json"
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,  # RecursionError, of text that is nested too deeply, among them
    OverflowError,
    struct.error,
)
"""What reading a zip raises whose bytes are not what was written."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(record: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    """The bytes of a file."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    head = {"format": FORMAT, "version": VERSION, "sha256": sums, "program": dict(record)}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        _add(z, _RECORD, json.dumps(head, indent=1, sort_keys=True).encode())
        for name, content in members.items():
            _add(z, name, content)
    return file.getvalue()


def write_archive(path: Path, record: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
    """Writes the file. Raises UserError when the disk does not take it."""
    try:
        write_whole(path, pack(record, members))
    except OSError as e:
        raise UserError(
            f"cannot save a program as {path}: {e.strerror}; name a file in a folder that exists "
            "and may be written"
        ) from e


def _add(z: zipfile.ZipFile, name: str, content: bytes) -> None:
    """One member with a fixed date, so that equal programs are equal files."""
    z.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)


def read_archive(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The record and the members. Raises UserError for what is no intact file of this version."""
    try:
        content = path.read_bytes()
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from e
    return unpack(content, str(path))


def unpack(content: bytes, path: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What `pack` was given; `path` says in errors where the bytes are from. Raises UserError for
    what is not intact or of another version."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as z:
            loaded: object = json.loads(z.read(_RECORD))
            members = {n: z.read(n) for n in z.namelist() if n != _RECORD}
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from e
    except _DAMAGE as e:
        raise UserError(f"{path} is not a saved program or is damaged ({e}); save it again") from e
    head = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    if head.get("format") != FORMAT:
        raise UserError(f"{path} is not a saved program; write one with program.save(path)")
    if head.get("version") != VERSION:
        raise UserError(
            f"{path} has format version {head.get('version')}, this fusewright reads {VERSION}; "
            "compile and save the program again"
        )
    sums = {n: hashlib.sha256(content).hexdigest() for n, content in members.items()}
    if sums != head.get("sha256"):
        raise UserError(f"{path} is damaged: its contents do not match their checksums")
    program: object = head.get("program")
    if not isinstance(program, dict):
        raise UserError(f"{path} is damaged: its record holds no program; save it again")
    return cast("dict[str, Any]", program), members
