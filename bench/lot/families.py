"""The families, and the draw of a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.lot import composing, moving, pointwise, reducing
from bench.lot.dice import Dice
from bench.lot.draws import Draw, Program

FAMILIES: Mapping[str, Callable[[Dice], Program]] = {
    "elementwise": pointwise.elementwise,
    "reduction": reducing.reduction,
    "reductions": reducing.reductions,
    "statistics": reducing.statistics,
    "norm": reducing.norm,
    "norm backward": reducing.norm_backward,
    "softmax": reducing.softmax,
    "scan": reducing.scan,
    "window": moving.window,
    "permutation": moving.permutation,
    "join": moving.join,
    "pad": moving.pad,
    "crop": moving.crop,
    "roll": moving.roll,
    "flip": moving.flip,
    "gather": moving.gather,
    "quantisation": pointwise.quantisation,
    "loss": reducing.loss,
    "mask": pointwise.mask,
    "optimiser": pointwise.optimiser,
    "composition": composing.composition,
}


def draw(seed: int, low: float, high: float) -> Draw:
    """The draw of a seed that moves about `low` to `high` bytes. Families take turns, so that any
    run of seeds has all of them."""
    names = tuple(FAMILIES)
    family = names[seed % len(names)]
    return Draw(seed, family, FAMILIES[family](Dice(seed, low, high)))
