"""What `FUSEWRIGHT_LOG` asks for: which messages of this package are shown, on stderr.

Loggers are Python's, under the name `fusewright`. Where the variable is unset they are left as the
caller configured them.
"""

from __future__ import annotations

import logging

from fusewright import knobs

_FORMAT = "%(levelname)s %(name)s: %(message)s"
_started: list[str] = []
"""The choice that is in force."""


def start() -> None:
    """Puts the choice of `FUSEWRIGHT_LOG` into force; does nothing where it is already. Tells of
    variables of the environment that are misspelt.

    Raises UserError for a level that does not exist.
    """
    knobs.tell_unknown()
    level = knobs.LOG.get()
    if not knobs.LOG.is_set or _started[-1:] == [level]:
        return
    _started.append(level)
    root = logging.getLogger("fusewright")
    if not root.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
    recompiles = level == "recompiles"
    root.setLevel(logging.WARNING if recompiles else level.upper())
    logging.getLogger("fusewright.recompiles").setLevel(
        logging.INFO if recompiles else logging.NOTSET
    )
