"""AdamW on a dictionary of parameters: one call, every array read and written once."""

from dataclasses import dataclass

import numpy as np

import fusewright as fw


@dataclass
class State:
    mean: dict
    square: dict


@fw.fuse(device="sim")
def adamw(parameters, gradients, state, rate, step):
    made = {}
    mean, square = {}, {}
    for name, p in parameters.items():
        g = gradients[name]
        mean[name] = 0.9 * state.mean[name] + 0.1 * g
        square[name] = 0.999 * state.square[name] + 0.001 * g * g
        unbiased = mean[name] / (1 - 0.9**step)
        scale = fw.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
        made[name] = p * (1 - rate * 0.01) - rate * unbiased / scale
    return made, State(mean, square)


rng = np.random.default_rng(0)
shapes = {"weight": (64, 32), "bias": (64,)}
parameters = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
zeros = {k: np.zeros(s, np.float32) for k, s in shapes.items()}
state = State(dict(zeros), dict(zeros))
rate = np.float32(1e-1)
for step in range(1, 4):  # the loss is the sum of squares
    gradients = {k: 2 * p for k, p in parameters.items()}
    before = sum((p * p).sum() for p in parameters.values())
    # An array of rank 0 may change from call to call; a Python number would mean a new program.
    parameters, state = adamw(parameters, gradients, state, np.asarray(rate), np.float32(step))
    assert sum((p * p).sum() for p in parameters.values()) < before
