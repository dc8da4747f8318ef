"""`python -m bench.textbook`: programs as people write them, in launches and bytes, and seconds.

The least is one read of the arguments and one write of the results. Prints a table for `notes/`, of
the programs whose names contain the words given, or of all. Needs no GPU.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import fusewright as fw
from bench.moves import Program
from bench.textbook_models import PROGRAMS as FURTHER

S = fw.TensorSpec
F, H, U, INT = "float32", "bfloat16", "uint8", "int32"
POINTS = S((2048, 3), F)
IMAGES = [S((32, 224, 224, 3), U), S((3,), F), S((3,), F)]
CHANNELS = [S((64,), F)] * 2
HEADS = S((8, 32, 1024, 128), H)
SCORES = S((2, 16, 1024, 1024), F)
SERIES = S((512, 8192), F)

# --- points -------------------------------------------------------------------------------------


def distances(a: Any, b: Any) -> Any:
    return fw.sum((a[:, None] - b[None]) ** 2, axis=-1)


def forces(p: Any, m: Any) -> Any:
    d = p[None] - p[:, None]
    squares = fw.sum(d * d, axis=-1, keepdims=True) + 1e-3
    return fw.sum(d * (m[None, :, None] / (squares * fw.sqrt(squares))), axis=1)


def energy(p: Any, m: Any) -> Any:
    return -0.5 * fw.sum(m[:, None] * m[None] / fw.sqrt(distances(p, p) + 1e-3))


def chamfer(a: Any, b: Any) -> Any:
    d = distances(a, b)
    return fw.mean(fw.min(d, axis=1)) + fw.mean(fw.min(d, axis=0))


def discrepancy(a: Any, b: Any) -> Any:
    """Between two samples, by a Gaussian kernel."""

    def kernel(x: Any, y: Any) -> Any:
        return fw.mean(fw.exp(-distances(x, y)))

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


def best_overlap(a: Any, b: Any) -> Any:
    low = fw.maximum(a[:, None, :2], b[None, :, :2])
    high = fw.minimum(a[:, None, 2:], b[None, :, 2:])
    both = fw.prod(fw.maximum(high - low, 0.0), axis=-1)
    areas = [fw.prod(x[:, 2:] - x[:, :2], axis=-1) for x in (a, b)]
    return fw.max(both / (areas[0][:, None] + areas[1][None] - both), axis=1)


def nearest_by_product(x: Any, c: Any) -> Any:
    d = fw.sum(x * x, axis=1, keepdims=True) - 2 * (x @ c.T) + fw.sum(c * c, axis=1)[None]
    return fw.argmin(d, axis=1)


def means_of_clusters(x: Any, c: Any) -> Any:
    nearest = nearest_by_product(x, c)
    mine = fw.astype(nearest[:, None] == fw.arange(256)[None], fw.float32)
    return (mine.T @ x) / fw.maximum(fw.sum(mine, axis=0), 1.0)[:, None]


def segment_sum(x: Any, ids: Any) -> Any:
    mine = ids[None, :] == fw.arange(64, dtype=fw.int32)[:, None]
    return fw.sum(fw.where(mine[:, :, None], x[None], 0.0), axis=1)


def segment_mean(x: Any, ids: Any) -> Any:
    mine = fw.astype(ids[None, :] == fw.arange(64, dtype=fw.int32)[:, None], fw.float32)
    return (mine @ x) / fw.maximum(fw.sum(mine, axis=1, keepdims=True), 1.0)


def segment_sum_of_scan(x: Any, starts: Any) -> Any:
    c = fw.pad(fw.cumulative_sum(x, axis=0), ((1, 0), (0, 0)))
    return fw.take(c, starts[1:], axis=0) - fw.take(c, starts[:-1], axis=0)


def rigid(p: Any, turn: Any, shift: Any) -> Any:
    return fw.sum(turn[:, None] * p[:, :, None], axis=-1) + shift[:, None]


POINT_PROGRAMS: dict[str, Program] = {
    "forces between bodies": Program(forces, [POINTS, S((2048,), F)]),
    "energy of bodies": Program(energy, [POINTS, S((2048,), F)]),
    "nearest centre": Program(
        lambda x, c: fw.argmin(distances(x, c), axis=1), [S((16384, 16), F), S((64, 16), F)]
    ),
    "nearest centre by a product": Program(
        nearest_by_product, [S((16384, 64), F), S((256, 64), F)]
    ),
    "step of k-means": Program(means_of_clusters, [S((16384, 64), F), S((256, 64), F)]),
    "chamfer distance": Program(chamfer, [POINTS, POINTS]),
    "discrepancy of samples": Program(discrepancy, [S((1024, 8), F)] * 2),
    "best overlap of boxes": Program(best_overlap, [S((2048, 4), F), S((1024, 4), F)]),
    "rigid motions": Program(rigid, [S((256, 1024, 3), F), S((256, 3, 3), F), S((256, 3), F)]),
    "segment sum by masks": Program(segment_sum, [S((4096, 128), F), S((4096,), INT)]),
    "segment mean by a product": Program(segment_mean, [S((4096, 128), F), S((4096,), INT)]),
    "segment sum by a scan": Program(segment_sum_of_scan, [S((4096, 128), F), S((65,), INT)]),
}

# --- statistics ---------------------------------------------------------------------------------


def normed(x: Any, axes: Any) -> Any:
    mean = fw.mean(x, axis=axes, keepdims=True)
    return (x - mean) / fw.sqrt(fw.mean((x - mean) ** 2, axis=axes, keepdims=True) + 1e-5)


def norm_relu_last(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.relu(normed(x, (0, 1, 2)) * w + b)


def norm_relu_first(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.relu(normed(x, (0, 2, 3)) * w[:, None, None] + b[:, None, None])


def two_norms_last(x: Any, *weights: Any) -> Any:
    return norm_relu_last(norm_relu_last(x, *weights[:2]), *weights[2:])


def two_norms_first(x: Any, *weights: Any) -> Any:
    return norm_relu_first(norm_relu_first(x, *weights[:2]), *weights[2:])


def centred_twice(d: Any) -> Any:
    rows, columns = (fw.mean(d, axis=a, keepdims=True) for a in (1, 0))
    return -0.5 * (d - rows - columns + fw.mean(d))


def correlations(x: Any) -> Any:
    z = (x - fw.mean(x, axis=0)) / fw.std(x, axis=0)
    return z.T @ z / x.shape[0]


def clipped(*gradients: Any) -> Any:
    total = fw.sqrt(sum(fw.sum(g * g) for g in gradients))
    return [g * fw.minimum(1.0 / (total + 1e-6), 1.0) for g in gradients]


def averages(*tensors: Any) -> Any:
    half = len(tensors) // 2
    return [0.99 * a + 0.01 * b for a, b in zip(tensors[:half], tensors[half:], strict=True)]


PARAMETERS = [S(shape, F) for shape in ((1024, 1024), (4096, 1024), (1024,), (4096,), (50, 300))]
LAST, FIRST = S((32, 28, 28, 64), F), S((32, 64, 28, 28), F)
STATISTICS: dict[str, Program] = {
    "batch norm and relu, channels last": Program(norm_relu_last, [LAST, *CHANNELS]),
    "batch norm and relu, channels first": Program(norm_relu_first, [FIRST, *CHANNELS]),
    "two batch norms, channels last": Program(two_norms_last, [LAST, *CHANNELS * 2]),
    "two batch norms, channels first": Program(two_norms_first, [FIRST, *CHANNELS * 2]),
    "channels made normal": Program(lambda x: normed(x, (0, 2, 3)), [S((32, 3, 224, 224), F)]),
    "rows, then columns made normal": Program(
        lambda x: normed(normed(x, 1), 0), [S((4096, 1024), F)]
    ),
    "instance norm, channels last": Program(
        lambda x: fw.nn.gelu(normed(x, (1, 2))), [S((32, 56, 56, 64), F)]
    ),
    "distances centred twice": Program(centred_twice, [S((2048, 2048), F)]),
    "correlations of columns": Program(correlations, [S((8192, 256), F)]),
    "gradients clipped by their norm": Program(clipped, PARAMETERS),
    "averages of parameters": Program(averages, PARAMETERS * 2),
}

# --- series and sampling ------------------------------------------------------------------------


def moving_average(x: Any) -> Any:
    c = fw.pad(fw.cumulative_sum(x, axis=1), ((0, 0), (1, 0)))
    return (c[:, 16:] - c[:, :-16]) / 16


def moving_average_of_stack(x: Any) -> Any:
    return fw.mean(fw.stack([x[:, k : k + 8188] for k in range(5)], axis=-1), axis=-1)


def average_by_scan(x: Any) -> Any:
    w = 0.9 ** fw.arange(256, dtype=fw.float32)
    return fw.cumulative_sum(x / w, axis=1) * w * 0.1


def advantages(r: Any, v: Any) -> Any:
    d = r + 0.99 * fw.pad(v[:, 1:], ((0, 0), (0, 1))) - v
    w = 0.94 ** fw.arange(256, dtype=fw.float32)
    a = fw.flip(fw.cumulative_sum(fw.flip(d * w, axis=1), axis=1), axis=1) / w
    return a, a + v


def beam_step(logits: Any, scores: Any) -> Any:
    total = fw.reshape(scores[:, :, None] + fw.nn.log_softmax(logits, axis=-1), (8, -1))
    values, at = fw.topk(total, 4)
    return values, at // 32000, at % 32000


def top_p(logits: Any, u: Any) -> Any:
    p = fw.nn.softmax(logits, axis=-1)
    order = fw.argsort(p, axis=-1, descending=True)
    s = fw.take_along_axis(p, order, axis=-1)
    s = fw.where(fw.cumulative_sum(s, axis=-1) - s < 0.9, s, 0.0)
    below = fw.cumulative_sum(s, axis=-1) < u[:, None] * fw.sum(s, axis=-1, keepdims=True)
    at = fw.sum(fw.astype(below, fw.int32), axis=-1, keepdims=True)
    return fw.take_along_axis(order, at, axis=-1)[:, 0]


def smoothed(logits: Any, labels: Any) -> Any:
    classes = fw.arange(logits.shape[-1], dtype=fw.int32)
    target = fw.astype(labels[:, None] == classes[None], fw.float32) * 0.9 + 0.1 / 8192
    return -fw.mean(fw.sum(target * fw.nn.log_softmax(logits, axis=-1), axis=-1))


SERIES_PROGRAMS: dict[str, Program] = {
    "moving average by a scan": Program(moving_average, [SERIES]),
    "moving average by a stack": Program(moving_average_of_stack, [SERIES]),
    "exponential average by a scan": Program(average_by_scan, [S((1024, 256), F)]),
    "advantages by a scan": Program(advantages, [S((1024, 256), F)] * 2),
    "step of a beam search": Program(beam_step, [S((8, 4, 32000), F), S((8, 4), F)]),
    "sampling of the top p": Program(top_p, [S((16, 4096), F), S((16,), F)]),
    "label smoothing": Program(smoothed, [S((4096, 8192), F), S((4096,), INT)]),
}

# --- attention and images -----------------------------------------------------------------------


def rotary_halves(x: Any, c: Any, s: Any) -> Any:
    turned = fw.concat([-x[..., 64:], x[..., :64]], axis=-1)
    return fw.astype(x * c + turned * s, fw.bfloat16)


def rotary_pairs(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    pairs = fw.stack([a * c - b * s, a * s + b * c], axis=-1)
    return fw.astype(fw.reshape(pairs, x.shape), fw.bfloat16)


def rotary_complex(x: Any, angles: Any) -> Any:
    z = fw.reshape(fw.astype(x, fw.float32), (*x.shape[:-1], 64, 2))
    a, b, c, s = z[..., 0], z[..., 1], fw.cos(angles), fw.sin(angles)
    pairs = fw.stack([a * c - b * s, a * s + b * c], axis=-1)
    return fw.astype(fw.reshape(pairs, x.shape), fw.bfloat16)


def with_slopes(scores: Any) -> Any:
    n = fw.arange(1024)
    apart = fw.astype(n[None] - n[:, None], fw.float32)
    slopes = 2.0 ** (-0.5 * (fw.arange(16, dtype=fw.float32) + 1))
    bias = fw.where(apart > 0, -math.inf, slopes[:, None, None] * apart)
    return fw.nn.softmax(scores + bias, axis=-1)


def in_a_window(scores: Any) -> Any:
    i, j = fw.arange(1024)[:, None], fw.arange(1024)[None]
    return fw.nn.softmax(fw.where((j <= i) & (i - j < 256), scores, -math.inf), axis=-1)


def channels_first(x: Any, m: Any, s: Any) -> Any:
    return fw.permute_dims((fw.astype(x, fw.float32) / 255.0 - m) / s, (0, 3, 1, 2))


def equalised(x: Any) -> Any:
    f = fw.astype(fw.reshape(x, (4, 4096)), fw.int32)
    bins = fw.arange(256, dtype=fw.int32)
    c = fw.cumulative_sum(
        fw.sum(fw.astype(f[:, None] == bins[None, :, None], fw.int32), axis=-1), axis=-1
    )
    least = fw.min(fw.where(c > 0, c, 1 << 30), axis=-1, keepdims=True)
    table = fw.astype((c - least) * 255 // fw.maximum(4096 - least, 1), fw.uint8)
    return fw.reshape(fw.take_along_axis(table, f, axis=-1), x.shape)


def mixed(x: Any, order: Any, share: Any) -> Any:
    w = share[:, None, None, None]
    return w * x + (1 - w) * fw.take(x, order, axis=0)


OTHERS: dict[str, Program] = {
    "rotary, rotated halves": Program(rotary_halves, [HEADS, *[S((1024, 128), F)] * 2]),
    "rotary, pairs": Program(rotary_pairs, [HEADS, *[S((1024, 64), F)] * 2]),
    "rotary, complex": Program(rotary_complex, [HEADS, S((1024, 64), F)]),
    "softmax with slopes": Program(with_slopes, [SCORES]),
    "softmax in a window": Program(in_a_window, [SCORES]),
    "images, channels first": Program(channels_first, IMAGES),
    "histogram equalised": Program(equalised, [S((4, 64, 64), U)]),
    "mixed images": Program(mixed, [S((64, 3, 64, 64), F), S((64,), INT), S((64,), F)]),
    "kernel of distances": Program(
        lambda a, b: fw.exp(-fw.sqrt(distances(a, b))), [POINTS, POINTS]
    ),
    "longest paths of two steps": Program(
        lambda x: fw.max(x[:, :, None] + x[None], axis=1), [S((256, 256), F)]
    ),
}

PROGRAMS = {**POINT_PROGRAMS, **STATISTICS, **SERIES_PROGRAMS, **OTHERS, **FURTHER}


def row(name: str) -> str:
    """A line of the table."""
    begin = time.process_time()
    program = PROGRAMS[name].compiled()
    seconds = time.process_time() - begin
    stats = program.host.stats
    over = stats["bytes_moved"] / PROGRAMS[name].least(program)
    moved = f"{stats['fills']}, {stats['copies']}"
    return f"| {name} | {stats['launches']} | {moved} | {over:.2f} | {seconds:.2f} |"


def main(words: list[str]) -> None:
    """Prints the table."""
    print("| program | launches | fills, copies | bytes over the least | seconds of Python |")
    print("|---|---|---|---|---|")
    for name in PROGRAMS:
        if not words or any(w in name for w in words):
            print(row(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
