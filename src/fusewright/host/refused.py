"""What lowering refused after dispatch formation had accepted it.

Formation asks the facts that schedules are made from, so that this is a defect of its rules. The
kernel is cut in halves, which costs a launch and a trip to memory, and the log says so.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from fusewright.fusion.ir import Fusion
from fusewright.fusion.text import print_fusion
from fusewright.target import Target

LOGGER = "fusewright.refused"
"""The logger that hears of every such kernel; the tests fail where it hears of one."""
_log = logging.getLogger(LOGGER)

_REPRODUCER = """\
import fusewright as fw
from fusewright.fusion.text import parse_fusion

TEXT = [
{lines}
]
for reason in fw.compile(parse_fusion("\\n".join(TEXT)), "{arch}").reasons:
    print(reason)
"""


def tell_refused(name: str, group: Fusion, target: Target, why: Exception) -> None:
    """Warns of a kernel that has to be cut, with the rule and the path of a program that shows
    it."""
    directory = Path(tempfile.mkdtemp(prefix="fusewright_refused_"))
    program = directory / f"{name}.py"
    lines = "\n".join(f"    {line!r}," for line in print_fusion(group).split("\n"))
    program.write_text(_REPRODUCER.format(lines=lines, arch=target.arch), encoding="utf-8")
    _log.warning(
        "%s: a kernel is cut in two, which dispatch formation should have refused: %s; %s shows it",
        *(name, why, program),
    )
