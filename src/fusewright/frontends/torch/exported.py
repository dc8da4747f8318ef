"""The operator that stands for a fused function in an exported program.

`torch.export` writes a program down, and another process reads it, which has never seen the
function. So the operator has the fusion's own text as an argument: it needs nothing but that
`fusewright.frontends.torch` is imported, which registers it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fusewright.driver import compile
from fusewright.dtypes import dtype_of
from fusewright.errors import UserError
from fusewright.frontends.torch.layouts import dense_strides
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.promotion import torch_dtype
from fusewright.fusion.evaluate import values_of
from fusewright.fusion.ir import Fusion
from fusewright.fusion.known import Known
from fusewright.fusion.orders import Order, c_order
from fusewright.fusion.text import parse_fusion, print_fusion
from fusewright.program import Program

_NAME = "fusewright::exported"
_SCHEMA = "(Tensor[] tensors, str program) -> Tensor[]"
_KEPT = 64
"""Programs that stay compiled; an exported model has one for each call of a fused function."""


def written(fusion: Fusion, orders: Sequence[Order | None], device: str) -> str:
    """A fusion, the orders in which its results lie, and where it runs, as text."""
    held = {t.name: _encoded(t.data) for t in fusion.inputs if isinstance(t, Known)}
    record = {"fusion": print_fusion(fusion), "held": held, "orders": orders, "device": device}
    return json.dumps(record)


def _encoded(data: Any) -> dict[str, Any]:
    content = base64.b64encode(np.ascontiguousarray(data).tobytes()).decode("ascii")
    return {"dtype": dtype_of(data.dtype).name, "shape": list(data.shape), "content": content}


def _decoded(record: dict[str, Any]) -> Any:
    content = base64.b64decode(record["content"])
    return np.frombuffer(content, dtype_of(record["dtype"]).numpy).reshape(record["shape"]).copy()


@lru_cache(maxsize=_KEPT)
def _read(text: str) -> tuple[Fusion, tuple[Order | None, ...], str]:
    """Raises UserError for a text that `written` did not write."""
    try:
        record = json.loads(text)
        held = {name: _decoded(x) for name, x in record["held"].items()}
        orders = tuple(None if o is None else tuple(o) for o in record["orders"])
        return parse_fusion(record["fusion"], held), orders, str(record["device"])
    except (KeyError, TypeError, ValueError) as e:
        raise UserError(
            f"{_NAME}: the text of the program is damaged ({e}); export it again"
        ) from None


@lru_cache(maxsize=_KEPT)
def _compiled(text: str) -> Program:
    fusion, orders, _ = _read(text)
    return compile(fusion, target=None, out_layouts=orders)


def _compute(tensors: list[Any], program: str) -> list[Any]:
    return _compiled(program)(*tensors, device=_read(program)[2])


def _like(tensors: list[Any], program: str) -> list[Any]:
    fusion, orders, _ = _read(program)
    pairs = zip(fusion.inputs, tensors, strict=False)  # held inputs stand behind the arguments
    shapes = ((t.shape, x.shape) for t, x in pairs)
    sizes: dict[Any, Any] = {e: n for s, given in shapes for e, n in zip(s, given, strict=True)}
    out: list[Any] = []
    for t, order in zip(fusion.outputs, orders, strict=True):
        shape = tuple(values_of(e, sizes) for e in t.shape)
        strides = dense_strides(shape, order or c_order(t.ndim))
        dtype, device = torch_dtype(t.dtype), tensors[0].device
        out.append(torch.empty_strided(shape, strides, dtype=dtype, device=device))
    return out


operator: Any = torch.library.custom_op(_NAME, _compute, mutates_args=(), schema=_SCHEMA)
operator.register_fake(_like)
