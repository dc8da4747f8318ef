"""Everything fusewright raises. A message says what is wrong, the rule, and the way out."""

from __future__ import annotations


class FusewrightError(Exception):
    """Base of every error raised on purpose by this package. `source`: the line of the caller's
    program that it comes from, where it was raised by an operation of a trace."""

    source = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} [{self.source}]" if self.source else text


class UserError(FusewrightError, ValueError):
    """The caller's program or arrays break a rule; the message says which and what to do."""


class AxisError(UserError, IndexError):
    """An axis, or an index into one, that an array does not have."""


def merged_text(axes: tuple[int, ...]) -> str:
    """What is said of an index of several axes that a look-up counts as one."""
    return f"an index is outside axis {' or axis '.join(map(str, axes))}"


def index_error(
    index: int, axis: int, size: int, source: str = "", merged: tuple[int, ...] = ()
) -> AxisError:
    """What is raised of an index that a look-up promised to be inside of its axis, at a line of the
    program. `merged`: the program's axes that the look-up counts as one, if it does; which of them
    and which index it was is not known then."""
    some = f"indices go from -{size} to {size - 1}" if size else "it has none"
    what = f"index {index} is outside axis {axis} of size {size}; {some}"
    error = AxisError(
        f"{merged_text(merged) if merged else what}; a look-up with mode='fill', 'clip' or 'wrap' "
        "takes others"
    )
    error.source = source
    return error


class NoAttributeError(UserError, AttributeError):
    """An attribute that an array does not have."""


class ScheduleError(UserError):
    """A schedule primitive was asked for something that would change the result or cannot run."""


class UnsupportedError(FusewrightError):
    """The request is meaningful but outside what is implemented."""


class SpecError(FusewrightError):
    """An IR breaks its own spec; raised between passes and on hand-written kernel text."""


class DeviceError(FusewrightError, RuntimeError):
    """A kernel stopped on the device, by a check of its own or by a fault. The context of CUDA is
    lost with it: every later call of CUDA in the process fails, too."""


class InternalError(FusewrightError):
    """A bug in fusewright."""
