"""A process that makes programs for another one (`ahead`): reads requests, a line of JSON each, and
answers with the key of what it has put on disk, or with what went wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from fusewright.driver import compile_in_place, no_tuned_schedule
from fusewright.frontends.stored_programs import programs_on_disk, store
from fusewright.fusion.text import parse_fusion
from fusewright.runtime.config import config
from fusewright.target import target_of


def make(request: Mapping[str, Any]) -> str:
    """Makes and stores the program of a request, if no other process has; its key."""
    key = str(request["key"])
    cache = programs_on_disk()
    with cache.claim(key):
        if not cache.has(key):
            orders = [None if o is None else tuple(o) for o in request["orders"]]
            with config(float32_matmul=request["precision"]):
                program = compile_in_place(
                    parse_fusion(request["fusion"]),
                    target_of(request["target"]),
                    {int(k): at for k, at in request["donated"]},
                    tuned_of=no_tuned_schedule,
                    out_layouts=orders,
                )
            store(key, program, with_code=bool(request["with_code"]))
    return key


def main() -> None:
    """Answers the requests on standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints meanwhile is no answer
    for line in sys.stdin:
        try:
            answer = make(json.loads(line))
        except Exception as e:
            answer = " ".join(f"{type(e).__name__}: {e}".split())
        print(answer, file=answers, flush=True)
