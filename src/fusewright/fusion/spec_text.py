"""Specs as text: `f32[1024,1024]`, `bf16[n,4096]`, as the command line takes them."""

from __future__ import annotations

import re

from fusewright.dtypes import ALL
from fusewright.errors import UserError
from fusewright.fusion.ir import TensorSpec

_SHORT = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}
_ELSEWHERE = {
    "float": "f32", "double": "f64", "half": "f16", "int": "i32", "long": "i64", "short": "i16",
    "byte": "u8", "fp64": "f64", "fp32": "f32", "fp16": "f16", "fp8": "f8e4m3", "tf32": "f32",
    "s64": "i64", "s32": "i32", "s16": "i16", "s8": "i8", "pred": "bool", "b1": "bool",
}  # fmt: skip
"""Names of dtypes in other notations, and ours."""
_SPEC = re.compile(r"(\w+)\[([^\[\]]*)\]")
_NAMES = frozenset((*_SHORT, *(d.name for d in ALL)))


def parse_spec(text: str) -> TensorSpec:
    """The spec that a text such as `f32[1024,n]` describes; `f32[]` is 0-dimensional.

    Raises UserError for another form, or a dtype that does not exist.
    """
    found = _SPEC.fullmatch(text.replace(" ", ""))
    if found is None:
        raise UserError(f"spec {text!r}: write dtype[sizes], such as f32[1024,1024] or bf16[n,64]")
    dtype, inside = found.groups()
    if dtype in _ELSEWHERE:
        raise UserError(f"spec {text!r}: {dtype} is {_ELSEWHERE[dtype]} here")
    entries = inside.split(",") if inside else []
    bad = [e for e in entries if not e.isdigit() and not e.isidentifier()]
    if bad:
        raise UserError(f"spec {text!r}: size {bad[0]!r} is neither a number nor a name")
    shape = tuple(int(e) if e.isdigit() else e for e in entries)
    return TensorSpec(shape, _SHORT.get(dtype, dtype))


def is_spec_text(value: object) -> bool:
    """Whether a value is a string that begins like a spec: a dtype, of any notation, and a
    bracket."""
    if not isinstance(value, str):
        return False
    dtype, bracket, _ = value.partition("[")
    return bool(bracket) and (dtype.strip() in _NAMES or dtype.strip() in _ELSEWHERE)
