"""What arguments of public functions must be, checked where the function begins.

`@takes(axis=INTEGER)` looks at arguments before the function runs, so that a wrong one is named
with the rule and the way out, and no exception comes from the inside.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

from fusewright.errors import FusewrightError, UserError

P = ParamSpec("P")
R = TypeVar("R")

DEVICES = ("auto", "cuda", "sim")


POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Unfit(Exception):
    """An argument is not what a rule asks for."""


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """What an argument must be, in words that follow "it must be"; `taken` gives it as the function
    sees it and raises Unfit for anything else; `hint` is the way out for a value."""

    words: str
    taken: Callable[[Any], Any]
    hint: Callable[[Any], str] | None = None


def takes(
    error: type[FusewrightError] = UserError, /, **rules: ArgumentRule
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function whose named arguments follow rules. Raises `error` for those that do
    not; wrong numbers of arguments and unknown names are Python's to report."""

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(fn).parameters.values()
        names = tuple(p.name for p in parameters if p.kind in POSITIONAL)

        @functools.wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given: list[Any] = list(args)
            named: dict[str, Any] = dict(kwargs)
            for k, name in enumerate(names[: len(given)]):
                if name in rules:
                    given[k] = fitting(fn.__qualname__, name, given[k], rules[name], error)
            for name in named:
                if name in rules:
                    named[name] = fitting(fn.__qualname__, name, named[name], rules[name], error)
            return cast("Callable[..., R]", fn)(*given, **named)

        return checked

    return decorate


def fitting(
    function: str,
    name: str,
    value: Any,
    rule: ArgumentRule,
    error: type[FusewrightError] = UserError,
) -> Any:
    """The argument as the function sees it. Raises `error` where it breaks the rule."""
    try:
        return rule.taken(value)
    except Unfit:
        pass
    owner, _, last = function.rpartition(".")
    short = owner if last == "__init__" else last
    way_out = "" if rule.hint is None else rule.hint(value)
    raise error(
        f"{short}: {name}={shown(value)} is {type(value).__name__}; it must be {rule.words}"
        + (f"; {way_out}" if way_out else "")
    )


def shown(value: object) -> str:
    """A value as messages print it: at most 60 characters, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of the caller's class: the message is about the argument, not about this
        text = f"<{type(value).__name__}, whose repr fails>"
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- rules --------------------------------------------------------------------------------------


def instance_of(*types: type, words: str, hint: Callable[[Any], str] | None = None) -> ArgumentRule:
    """An instance of one of the types."""

    def taken(value: Any) -> Any:
        if not isinstance(value, types):
            raise Unfit
        return value

    return ArgumentRule(words, taken, hint)


def optional(rule: ArgumentRule) -> ArgumentRule:
    """What a rule takes, or None."""
    return ArgumentRule(
        f"{rule.words}, or None", lambda v: None if v is None else rule.taken(v), rule.hint
    )


def several(rule: ArgumentRule, words: str, *, or_one: bool = False) -> ArgumentRule:
    """A list, tuple or generator of what a rule takes, as a tuple; with `or_one` a single one
    too."""

    def taken(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            if or_one:
                return (rule.taken(value),)
            raise Unfit
        return tuple(rule.taken(v) for v in cast("Iterable[Any]", value))

    return ArgumentRule(words, taken, rule.hint)


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise Unfit
    try:
        return operator.index(value)
    except TypeError:
        raise Unfit from None


def _count(value: Any) -> int:
    found = _integer(value)
    if found < 0:
        raise Unfit
    return found


def _path(value: Any) -> Any:
    if not isinstance(value, str | os.PathLike) or not os.fspath(cast("Any", value)):
        raise Unfit
    text = cast("object", os.fspath(cast("Any", value)))
    if not isinstance(text, str) or "\0" in text:
        raise Unfit
    return cast("Any", value)


def _called(value: Any) -> Any:
    if not callable(value):
        raise Unfit
    return value


INTEGER = ArgumentRule("an integer", _integer)
COUNT = ArgumentRule("an integer from 0 on", _count)
TEXT = instance_of(str, words="a string")
FLAG = instance_of(bool, words="True or False")
NAMES = ArgumentRule(
    "a tuple or list of names, which are strings",
    several(TEXT, "").taken,
    lambda value: f"pass a tuple of names: ({value!r},)" if isinstance(value, str) else "",
)
PATH = ArgumentRule("a path: a string or a pathlib.Path", _path)
FUNCTION = ArgumentRule("a function", _called)


def check_device_choice(device: object) -> None:
    """UserError for what is no place to run on."""
    if not isinstance(device, str) or device not in DEVICES:
        raise UserError(f"device={shown(device)}: use 'auto', 'cuda' or 'sim'")
