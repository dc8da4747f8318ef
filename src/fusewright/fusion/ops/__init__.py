"""Operations under their array API standard names, and the few that the standard lacks."""

from fusewright.fusion.ops.elementwise import *  # noqa: F403
from fusewright.fusion.ops.reductions import *  # noqa: F403
