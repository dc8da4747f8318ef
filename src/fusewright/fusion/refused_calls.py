"""What to write instead of a call that Python refuses."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fusewright.fusion.elsewhere import instead_of_keyword
from fusewright.fusion.methods import call_of

P = ParamSpec("P")
R = TypeVar("R")


def advised(fn: Callable[P, R], module: str) -> Callable[P, R]:
    """A public function, whose refused calls say what to write; `module` is where it is public."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except TypeError as e:
            note = note_of(str(e))
            if note and not hasattr(e, "__notes__"):
                e.add_note(note)
            raise

    call.__module__ = module
    return call


def note_of(message: str) -> str:
    """What to write instead of what Python refuses in a traced function; "" where that is its own
    affair."""
    named = re.match(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'", message)
    if named:
        other = instead_of_keyword(named[2])
        call = call_of(named[1])
        return f"{named[2]}= is {other} here" if other else f"the call is {call}" if call else ""
    counted = re.match(r"([\w.]+)\(\) takes (?:from \d+ to )?(\d+) positional", message)
    if counted:
        call = call_of(counted[1], int(counted[2]))
        return f"the call is {call}" if call else ""
    lacking = re.match(r"([\w.]+)\(\) missing \d+ required", message)
    if lacking:
        call = call_of(lacking[1])
        return f"the call is {call}" if call else ""
    if message == "type Array doesn't define __round__ method":
        return "write fw.round(x)"
    if message.startswith("unsupported operand") and "'Array'" in message:
        return (
            "an array of another library is an argument of the function, or a constant, which "
            "fw.asarray makes of it"
        )
    return ""
