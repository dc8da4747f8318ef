"""What is proved of where loads begin, for those whose instructions depend on it."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.node import Node, rewrite
from fusewright.kir.analysis.load_places import early_in_word, is_inside
from fusewright.kir.ir import Kernel, Load


def locate_loads(kernel: Kernel) -> Kernel:
    """Note how far into a word unaligned loads begin, and which loads of some lanes stay in their
    buffer even where they do not take place.

    rewrite:  r[0..8] = load x[8*i + 2] unaligned   ->   r[0..8] = load x[8*i + 2] unaligned early 2
    checks:   nothing; the spec looks at every load that is marked
    order:    when indices no longer change
    """

    def located(n: Node) -> Node:
        if not isinstance(n, Load):
            return n
        early, inside = early_in_word(n), is_inside(n)
        same = (early, inside) == (n.early, n.inside)
        return n if same else replace(n, early=early, inside=inside)

    return rewrite(kernel, located)
