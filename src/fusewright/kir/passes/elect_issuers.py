"""Roles all of whose work one thread issues say which."""

from __future__ import annotations

from dataclasses import replace

from fusewright.kir.analysis.uniformity import only_issuer
from fusewright.kir.ir import Kernel, Role, Statement
from fusewright.kir.traverse import OfClasses, map_statements, statements_of


def elect_issuers(kernel: Kernel) -> Kernel:
    """Note the thread that issues all that a role does, where another lane of its warp could as
    well: a lane that the hardware elects may then stand for it.

    rewrite:  role warps 4..5 { box_load ... by thread 128 }
                  ->   role warps 4..5 by thread 128 { box_load ... by thread 128 }
    checks:   nothing; the spec looks at every role that is marked
    order:    when statements no longer change
    """

    def marked(n: Statement) -> Statement:
        if not isinstance(n, Role) or n.issuer == (issuer := only_issuer(n, kernel)):
            return n
        return replace(n, issuer=issuer)

    return map_statements(kernel, marked, OfClasses()) if statements_of(kernel, Role) else kernel
