"""A graph that failed, as a Python file that runs it again beside eager torch."""

from __future__ import annotations

import dataclasses
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.calls import hint
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.options import Options

_TEXT = '''"""Runs {name} through the fusewright backend again, beside eager torch.

{failure}
"""

from math import inf, nan

import torch
from torch import device


def tensor(shape, strides, dtype, where):
    """Numbers like those of the call: indices are 0 or 1."""
    made = torch.empty_strided(shape, strides, dtype=dtype, device=where)
    random = torch.rand(shape, device=where)
    return made.copy_(random if dtype.is_floating_point else random.round().to(dtype))


{code}

arguments = [
{arguments}
]
expected = forward(None, *arguments)
backend = dict(backend="fusewright", options={options})
found = torch.compile(lambda *given: forward(None, *given), dynamic=False, **backend)(*arguments)
torch.testing.assert_close(found, expected, equal_nan=True)
'''


def how_again(
    name: str,
    module: Callable[[], Any],
    values: Sequence[Any],
    options: Options,
    error: Exception,
) -> str:
    """What a warning says of a file that shows a failure again, which is written; or why there is
    none."""
    try:
        written = write_reproducer(name, module(), values, options, error)
    except Exception as e:
        return f"no file shows it again ({type(e).__name__}: {e})"
    return f"run 'python {written}' to see it again"


def write_reproducer(
    name: str, module: Any, values: Sequence[Any], options: Options, error: Exception
) -> Path:
    """Writes the file into a new temporary folder. `module` is an fx graph module, `values` are
    what its placeholders were traced with. Raises UnsupportedError where its control flow calls
    graphs."""
    if any(True for _ in module.children()):
        raise UnsupportedError("its control flow calls graphs, which no file can give to torch")
    folder = Path(tempfile.mkdtemp(prefix=f"fusewright_{name}_"))
    program = folder / f"{name}.py"
    failure = "".join(traceback.format_exception(error)).replace("\\", "/").replace('"""', "'''")
    program.write_text(
        _TEXT.format(
            name=name,
            failure=failure.strip(),
            code=module.code.strip(),
            arguments="\n".join(f"    {_argument(v)}," for v in values),
            options=dataclasses.asdict(dataclasses.replace(options, min_ops=1)),
        ),
        encoding="utf-8",
    )
    return program


def _argument(value: Any) -> str:
    """A value like the one of the call, as source."""
    if isinstance(value, torch.Tensor):
        shape, strides = (tuple(map(hint, x)) for x in (value.shape, value.stride()))
        return f"tensor({shape}, {strides}, {value.dtype}, {str(value.device)!r})"
    return str(hint(value)) if isinstance(value, int | torch.SymInt) else repr(value)
