"""`python -m bench.moves`: programs of moves, joins, parts and insertions, in launches and bytes.

The least is one read of what is needed of the arguments and one write of the results. With `--time`
on a GPU the calls are measured too, over the time in which `torch` copies as many bytes. Prints a
table for `notes/`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fusewright as fw

S = fw.TensorSpec
F, H = "float32", "bfloat16"
N = 4096
X = S((N, N), F)
ROW = S((1024,), F)
IMAGE = S((4, 64, 128, 128), F)
HEADS = S((8, 32, 2048, 128), H)
PATCHES = S((64, 196, 768), F)
TABLES = [S((2048, 64), F)] * 2
BLOCKS = [S((2000, 2000), F)] * 2


@dataclass(frozen=True)
class Program:
    """A function of arguments of these types; `read`: the bytes that it needs of them where that
    is not all."""

    fn: Callable[..., Any]
    specs: list[fw.TensorSpec]
    read: int | None = None

    def compiled(self) -> fw.Program:
        """The program for sm_90a."""
        return fw.compile(fw.trace(self.fn, *self.specs))

    def least(self, program: fw.Program) -> int:
        """The bytes that any implementation moves."""
        fusion = program.fusion
        read = nbytes(fusion.inputs) if self.read is None else self.read
        return read + nbytes(fusion.outputs)


def nbytes(tensors: Any) -> int:
    """The bytes of all of them, whose sizes are known."""
    return sum(t.dtype.nbytes * math.prod(int(str(e)) for e in t.shape) for t in tensors)


# --- moves of arguments -------------------------------------------------------------------------


def rotary_pairs(x: Any, c: Any, s: Any) -> Any:
    pairs = fw.reshape(x, (*x.shape[:-1], x.shape[-1] // 2, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return fw.reshape(fw.stack([a * c - b * s, a * s + b * c], axis=-1), x.shape)


def rotary_halves(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., :64], x[..., 64:]
    return fw.concat([a * c - b * s, a * s + b * c], axis=-1)


def rotated_half(x: Any, c: Any, s: Any) -> Any:
    return x * c + fw.concat([-x[..., 64:], x[..., :64]], axis=-1) * s


def rotary_of_a_part(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., :32], x[..., 32:64]
    return fw.concat([a * c - b * s, a * s + b * c, x[..., 64:]], axis=-1)


def repeated(x: Any) -> Any:
    return fw.repeat(fw.repeat(x, 2, axis=2), 2, axis=3)


def doubled(x: Any) -> Any:
    n, c, h, w = x.shape
    wide = fw.broadcast_to(x[:, :, :, None, :, None], (n, c, h, 2, w, 2))
    return fw.reshape(wide, (n, c, 2 * h, 2 * w))


def regrouped(x: Any, split: Any, order: Any, joined: Any) -> Any:
    return fw.reshape(fw.permute_dims(fw.reshape(x, split), order), joined)


def patches(x: Any) -> Any:
    return regrouped(x, (16, 3, 14, 16, 14, 16), (0, 2, 4, 1, 3, 5), (16, 196, 768))


def windows(x: Any) -> Any:
    return regrouped(x, (16, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5), (1024, 49, 96))


def shifted_windows(x: Any) -> Any:
    return windows(fw.roll(x, (-3, -3), axis=(1, 2)))


def quarters(x: Any) -> Any:
    parts = [x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]]
    return fw.concat(parts, axis=-1)


def normal_image(x: Any, m: Any, s: Any) -> Any:
    y = fw.astype(fw.permute_dims(x, (0, 3, 1, 2)), fw.float32)
    y = (y - m[:, None, None]) / s[:, None, None]
    return fw.flip(y, axis=3)[:, :, 16:240, 16:240]


def three_heads(x: Any) -> Any:
    y = fw.permute_dims(fw.reshape(x, (8, 1024, 3, 16, 64)), (2, 0, 3, 1, 4))
    return y[0] * 0.125, y[1], y[2]


def relative_shift(x: Any) -> Any:
    wide = fw.reshape(fw.pad(x, ((0, 0), (0, 0), (0, 0), (1, 0))), (4, 8, 1025, 1024))
    return fw.reshape(wide[:, :, 1:], (4, 8, 1024, 1024))


MOVES: dict[str, Program] = {
    "rotary by pairs": Program(rotary_pairs, [HEADS, *TABLES]),
    "rotary by halves": Program(rotary_halves, [HEADS, *TABLES]),
    "rotary with a rotated half": Program(rotated_half, [HEADS, *[S((2048, 128), F)] * 2]),
    "rotary of a part": Program(
        rotary_of_a_part, [S((8, 32, 1024, 128), H), *[S((1024, 32), H)] * 2]
    ),
    "mean of four neighbours": Program(
        lambda x: (x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2]) * 0.25, [X]
    ),
    "nearest upsampling, repeat": Program(repeated, [IMAGE]),
    "nearest upsampling, broadcast": Program(doubled, [IMAGE]),
    "nearest upsampling of relu": Program(lambda x: doubled(fw.nn.relu(x)), [IMAGE]),
    "upsampling beside a skip": Program(
        lambda x, y: fw.concat([repeated(x), y], axis=1), [IMAGE, S((4, 64, 256, 256), F)]
    ),
    "relu of upsampling beside a skip": Program(
        lambda x, y: fw.nn.relu(fw.concat([doubled(x), y], axis=1)),
        [IMAGE, S((4, 64, 256, 256), F)],
    ),
    "roll of flip": Program(lambda x: fw.roll(fw.flip(x, axis=1), 100, axis=1), [X]),
    "roll of flip of the other axis": Program(
        lambda x: fw.roll(fw.flip(x, axis=0), 100, axis=1), [X]
    ),
    "turned by a quarter": Program(lambda x: fw.exp(fw.flip(x.T, axis=1)), [X]),
    "flip of a transposed function": Program(lambda x: fw.flip(fw.exp(x).T, axis=0), [X]),
    "reverse complement": Program(
        lambda x: fw.flip(fw.flip(x, axis=1), axis=2), [S((256, 8192, 4), F)]
    ),
    "pairs of neighbours": Program(lambda x: fw.stack([x[:, :-1], x[:, 1:]], axis=-1), [X]),
    "frames of four": Program(
        lambda x: fw.stack([x[:, k : k + 16381] for k in range(4)], axis=-1),
        [S((64, 16384), F)],
    ),
    "pixel shuffle": Program(
        lambda x: regrouped(x, (4, 16, 2, 2, 128, 128), (0, 1, 4, 2, 5, 3), (4, 16, 256, 256)),
        [IMAGE],
    ),
    "pixel unshuffle": Program(
        lambda x: regrouped(x, (4, 16, 128, 2, 128, 2), (0, 1, 3, 5, 2, 4), (4, 64, 128, 128)),
        [S((4, 16, 256, 256), F)],
    ),
    "patches of an image": Program(patches, [S((16, 3, 224, 224), F)]),
    "shifted windows": Program(shifted_windows, [S((16, 56, 56, 96), F)]),
    "patch merging": Program(quarters, [S((16, 56, 56, 96), F)]),
    "channel shuffle of relu": Program(
        lambda x: regrouped(fw.nn.relu(x), (8, 4, 32, 4096), (0, 2, 1, 3), (8, 128, 64, 64)),
        [S((8, 128, 64, 64), F)],
    ),
    "heads": Program(
        lambda x: fw.permute_dims(fw.reshape(x * 2, (8, 1024, 16, 64)), (0, 2, 1, 3)),
        [S((8, 1024, 1024), H)],
    ),
    "queries, keys and values": Program(three_heads, [S((8, 1024, 3072), H)]),
    "keys repeated for groups": Program(
        lambda k: fw.reshape(
            fw.broadcast_to(k[:, :, None], (4, 8, 4, 1024, 64)), (4, 32, 1024, 64)
        ),
        [S((4, 8, 1024, 64), H)],
    ),
    "image, normalised, cropped, flipped": Program(
        normal_image, [S((32, 256, 256, 3), "uint8"), S((3,), F), S((3,), F)], 32 * 224 * 224 * 3
    ),
    "relative shift": Program(relative_shift, [S((4, 8, 1024, 1024), F)]),
    "border zeroed": Program(
        lambda x: fw.pad(x[1:-1, 1:-1], ((1, 1), (1, 1))), [X], 4 * (N - 2) * (N - 2)
    ),
    "mean of blocks by reshape": Program(
        lambda x: fw.mean(fw.reshape(x, (8, 64, 64, 2, 64, 2)), axis=(3, 5)),
        [S((8, 64, 128, 128), F)],
    ),
    "gated unit": Program(lambda x: x[:, :2048] * fw.nn.sigmoid(x[:, 2048:]), [X]),
    "gated unit of pairs": Program(lambda x: fw.nn.silu(x[:, ::2]) * x[:, 1::2], [X]),
}

# --- functions at other places ------------------------------------------------------------------


def three_neighbours(x: Any) -> Any:
    y = fw.exp(x)
    return y[:, :-2] + y[:, 1:-1] + y[:, 2:]


def five_points(x: Any) -> Any:
    y = fw.exp(x)
    sides = y[:-2, 1:-1] + y[2:, 1:-1] + y[1:-1, :-2] + y[1:-1, 2:]
    return y[1:-1, 1:-1] * 4 - sides


def around(x: Any) -> Any:
    turned = [fw.roll(x, by, axis=a) for a in (0, 1) for by in (1, -1)]
    return turned[0] + turned[1] + turned[2] + turned[3] - 4 * x


def two_steps_of_heat(x: Any) -> Any:
    x = x + 0.1 * around(x)
    return x + 0.1 * around(x)


def sobel(x: Any) -> Any:
    right = x[:-2, 2:] + 2 * x[1:-1, 2:] + x[2:, 2:]
    return right - (x[:-2, :-2] + 2 * x[1:-1, :-2] + x[2:, :-2])


def variation(x: Any) -> Any:
    return fw.sum(fw.abs(x[1:] - x[:-1])) + fw.sum(fw.abs(x[:, 1:] - x[:, :-1]))


def twice_as_long(x: Any) -> Any:
    p = fw.pad(x, ((0, 0), (0, 0), (1, 1)), mode="edge")
    a, b, c = p[:, :, :-2], p[:, :, 1:-1], p[:, :, 2:]
    return fw.reshape(fw.stack([a * 0.25 + b * 0.75, b * 0.75 + c * 0.25], axis=-1), (8, 32, 512))


def four_taps(x: Any, w: Any) -> Any:
    p = fw.pad(x, ((0, 0), (3, 0), (0, 0)))
    return p[:, :-3] * w[0] + p[:, 1:-2] * w[1] + p[:, 2:-1] * w[2] + p[:, 3:] * w[3]


def before(y: Any) -> Any:
    return fw.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def mixed_with_the_token_before(x: Any, w: Any, b: Any, m: Any) -> Any:
    y = fw.nn.layer_norm(x, (1024,), w, b)
    return y * m + before(y) * (1 - m)


def padded(mode: str) -> dict[str, Program]:
    """Pads of one mode of a matrix and of images."""
    return {
        f"{mode} pad of relu": Program(
            lambda x: fw.pad(fw.nn.relu(x), ((3, 3), (5, 5)), mode=mode), [X]
        ),
        f"{mode} pad of exp of images": Program(
            lambda x: fw.pad(fw.exp(x), ((0, 0), (0, 0), (3, 3), (3, 3)), mode=mode),
            [S((8, 32, 128, 128), F)],
        ),
    }


PLACES: dict[str, Program] = {
    "crop of exp": Program(lambda x: fw.exp(x)[:, 5:-5], [X], 4 * N * (N - 10)),
    "negative pad of exp": Program(
        lambda x: fw.pad(fw.exp(x), ((-3, -3), (-5, -5))), [X], 4 * (N - 6) * (N - 10)
    ),
    "shift by one of exp": Program(lambda x: fw.pad(fw.exp(x), ((0, 0), (1, -1))), [X]),
    "roll of exp": Program(lambda x: fw.roll(fw.exp(x), 1, axis=1), [X]),
    "diff of exp": Program(lambda x: fw.diff(fw.exp(x), axis=1), [X]),
    "diff of exp along rows": Program(lambda x: fw.diff(fw.exp(x), axis=0), [X]),
    "stencil of exp": Program(three_neighbours, [X]),
    "five points of exp": Program(five_points, [X]),
    **padded("reflect"),
    **padded("edge"),
    **padded("symmetric"),
    **padded("wrap"),
    "Laplacian with wrap": Program(around, [X]),
    "two steps of heat": Program(two_steps_of_heat, [X]),
    "Sobel": Program(sobel, [X]),
    "Sobel with edge pad": Program(lambda x: sobel(fw.pad(x, ((1, 1), (1, 1)), mode="edge")), [X]),
    "total variation": Program(variation, [X]),
    "linear upsampling": Program(twice_as_long, [S((8, 32, 256), F)]),
    "causal taps": Program(four_taps, [S((8, 2048, 1024), H), S((4, 1024), H)]),
    "causal taps of a norm": Program(
        lambda x, g, w: fw.nn.silu(four_taps(fw.nn.rms_norm(x, (1024,), g), w)),
        [S((8, 2048, 1024), H), S((1024,), H), S((4, 1024), H)],
    ),
    "norm mixed with the token before": Program(
        mixed_with_the_token_before, [S((16, 2048, 1024), F), *[ROW] * 3]
    ),
    "norm mixed with the token before, bf16": Program(
        mixed_with_the_token_before, [S((16, 2048, 1024), H), *[S((1024,), H)] * 3]
    ),
    "reversed prefix sums": Program(
        lambda x: fw.flip(fw.cumulative_sum(fw.flip(x, axis=1), axis=1), axis=1), [X]
    ),
    "windows of a norm": Program(
        lambda x, w, b: windows(fw.nn.layer_norm(x, (96,), w, b)),
        [S((16, 56, 56, 96), F), S((96,), F), S((96,), F)],
    ),
    "shifted windows of a norm": Program(
        lambda x, w, b: shifted_windows(fw.nn.layer_norm(x, (96,), w, b)),
        [S((16, 56, 56, 96), F), S((96,), F), S((96,), F)],
    ),
    "maxima of 3 x 3": Program(
        lambda x: fw.nn.max_pool2d(x, 3, stride=2, padding=1), [S((8, 64, 112, 112), F)]
    ),
}

# --- parts --------------------------------------------------------------------------------------


def norm(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.layer_norm(x, (x.shape[-1],), w, b)


def halves_of_a_norm(x: Any, w: Any) -> Any:
    y = fw.nn.rms_norm(x, (4096,), w)
    return y[:, :2048], y[:, 2048:]


def gated_norm(x: Any, w: Any) -> Any:
    a, b = halves_of_a_norm(x, w)
    return fw.nn.silu(a) * b


def rows_of_a_softmax(x: Any) -> Any:
    y = fw.nn.softmax(x, axis=-1)
    return y[:100], y[100:300], y[300:]


def joined_and_split(a: Any, b: Any) -> Any:
    y = fw.concat([a, b], axis=1) * 2
    return y[:, :1024], y[:, 1024:]


def joined_and_split_in_three(a: Any, b: Any) -> Any:
    y = fw.exp(fw.concat([a, b], axis=1))
    return y[:, :1000], y[:, 1000:3000], y[:, 3000:]


TOKENS = [S((64, 512, 1024), F), ROW, ROW]
TWO_ROWS = 2 * 1024 * 4
NORM_H = [S((8192, 4096), H), S((4096,), H)]
PARTS: dict[str, Program] = {
    "norm of the last token": Program(
        lambda x, w, b: norm(x, w, b)[:, -1], TOKENS, 64 * 1024 * 4 + TWO_ROWS
    ),
    "norm of all tokens but one": Program(
        lambda x, w, b: norm(x, w, b)[:, 1:], TOKENS, 64 * 511 * 1024 * 4 + TWO_ROWS
    ),
    "every second row of a softmax": Program(
        lambda x: fw.nn.softmax(x, axis=-1)[::2], [X], 2 * N * N
    ),
    "log-probabilities but the last": Program(
        lambda x: fw.nn.log_softmax(x, axis=-1)[:, :-1],
        [S((8, 129, 32000), H)],
        2 * 8 * 128 * 32000,
    ),
    "corner of a product": Program(
        lambda a, b: (a @ b)[:256, :256], [S((2048, 2048), H)] * 2, 2 * 2 * 256 * 2048
    ),
    "last row of a product": Program(
        lambda a, b: (a @ b)[-1], [S((2048, 2048), H)] * 2, 2 * (2048 + 2048 * 2048)
    ),
    "norm of the last token, multiplied": Program(
        lambda x, w, b, m: norm(x, w, b)[:, -1] @ m,
        [S((64, 512, 1024), H), S((1024,), H), S((1024,), H), S((1024, 1024), H)],
        2 * (64 * 1024 + 2048 + 1024 * 1024),
    ),
    "halves of a norm": Program(halves_of_a_norm, NORM_H),
    "gated halves of a norm": Program(gated_norm, NORM_H),
    "runs of rows of a softmax": Program(rows_of_a_softmax, [X]),
    "join, then split": Program(joined_and_split, [S((N, 2048), F)] * 2),
    "join, then split in three": Program(joined_and_split_in_three, [S((N, 2048), F)] * 2),
    "one place of a stack": Program(
        lambda a, b: (lambda y: y[:, 0] + y[:, 1] * 2)(fw.exp(fw.stack([a, b], axis=1))),
        [S((N, 1024), F)] * 2,
    ),
}

# --- joins --------------------------------------------------------------------------------------


def haar(x: Any) -> Any:
    a, b = x[:, ::2], x[:, 1::2]
    return fw.concat([(a + b) * 0.7, (a - b) * 0.7], axis=1)


def haar_back(x: Any) -> Any:
    a, b = x[:, :2048], x[:, 2048:]
    return fw.reshape(fw.stack([(a + b) * 0.7, (a - b) * 0.7], axis=-1), (N, N))


def with_class_token(c: Any, x: Any, p: Any) -> Any:
    return fw.concat([fw.broadcast_to(c, (64, 1, 768)), x], axis=1) + p


def joins_of_many(count: int) -> dict[str, Program]:
    """Joins of arguments along rows, and of functions of them along columns."""
    return {
        f"{count} pieces": Program(lambda *t: fw.concat(t, axis=0), [S((100, 1024), F)] * count),
        f"{count} functions": Program(
            lambda *t: fw.concat([fw.exp(x) for x in t], axis=1), [S((1024, 128), F)] * count
        ),
    }


def next_values(r: Any, v: Any) -> Any:
    zeros = fw.zeros((v.shape[0], 1), dtype=fw.float32)
    return r + 0.99 * fw.concat([v[:, 1:], zeros], axis=1) - v


def of_groups(k: Any, w: Any) -> Any:
    y = fw.nn.rms_norm(k, (64,), w)
    return fw.reshape(fw.broadcast_to(y[:, :, None], (4, 8, 4, 1024, 64)), (4, 32, 1024, 64))


CLASS = [S((1, 1, 768), F), PATCHES, S((1, 197, 768), F)]
NARROW = S((N, 1024), F)
JOINS: dict[str, Program] = {
    "sin beside cos": Program(lambda x: fw.concat([fw.sin(x), fw.cos(x)], axis=-1), [X]),
    "exp beside exp": Program(lambda x: fw.concat([fw.exp(x), fw.exp(x)], axis=-1), [X]),
    "four powers": Program(lambda x: fw.concat([x, x**2, x**3, x**4], axis=-1), [X]),
    "four powers, stacked": Program(lambda x: fw.stack([x, x**2, x**3, x**4], axis=-1), [X]),
    "pads and joins joined": Program(
        lambda a, b, c: fw.concat([fw.pad(a, ((0, 0), (1, 1))), fw.concat([b, c], axis=1)], axis=1),
        [S((N, 1022), F), NARROW, NARROW],
    ),
    "pads and joins of functions joined": Program(
        lambda a, b, c: fw.concat(
            [fw.pad(fw.exp(a), ((0, 0), (1, 1))), fw.concat([fw.exp(b), c], axis=1)], axis=1
        ),
        [S((N, 1022), F), NARROW, NARROW],
    ),
    "tile of exp": Program(lambda x: fw.tile(fw.exp(x), (1, 3)), [NARROW]),
    "tile of exp both ways": Program(lambda x: fw.tile(fw.exp(x), (2, 3)), [NARROW]),
    **joins_of_many(24),
    **joins_of_many(25),
    **joins_of_many(60),
    "log_softmax of 129 columns": Program(
        lambda x, t: fw.nn.log_softmax(x / (1 + fw.exp(t)), axis=-1),
        [S((8192, 129), F), S((129,), F)],
    ),
    "softmax of padded rows": Program(
        lambda x: fw.nn.softmax(fw.pad(x, ((0, 0), (0, 64)), constant_values=-1e9), axis=-1), [X]
    ),
    "class token": Program(with_class_token, CLASS),
    "norm with a class token": Program(
        lambda c, x, p, w, b: norm(with_class_token(c, x, p), w, b),
        [*CLASS, S((768,), F), S((768,), F)],
    ),
    "norm of patch merging": Program(
        lambda x, w, b: norm(quarters(x), w, b),
        [S((16, 56, 56, 96), F), S((384,), F), S((384,), F)],
    ),
    "Haar": Program(haar, [X]),
    "Haar back": Program(haar_back, [X]),
    "Fourier features": Program(
        lambda x, f: fw.concat([fw.sin(x[:, None] * f), fw.cos(x[:, None] * f)], axis=-1),
        [S((65536,), F), S((128,), F)],
    ),
    "tile of a norm": Program(
        lambda x, w: fw.tile(fw.nn.rms_norm(x, (1024,), w), (1, 2)), [NARROW, ROW]
    ),
    "norm repeated for groups": Program(of_groups, [S((4, 8, 1024, 64), H), S((64,), H)]),
    "padded softmax": Program(
        lambda x: fw.pad(fw.nn.softmax(x, axis=-1), ((0, 0), (0, 96))), [S((N, 4000), F)]
    ),
    "reflect pad of a softmax": Program(
        lambda x: fw.pad(fw.nn.softmax(x, axis=-1), ((1, 1), (2, 2)), mode="reflect"), [X]
    ),
    "two softmaxes": Program(
        lambda a, b: fw.concat([fw.nn.softmax(a, axis=-1), fw.nn.softmax(b, axis=-1)], axis=1),
        [NARROW, S((N, 2048), F)],
    ),
    "rows beside their norm": Program(
        lambda x, w: fw.stack([x, fw.nn.rms_norm(x, (1024,), w)], axis=1), [NARROW, ROW]
    ),
    "rows beside their softmax": Program(
        lambda x: fw.concat([x, fw.nn.softmax(x, axis=-1)], axis=1), [NARROW]
    ),
    "rows with their mean": Program(
        lambda x: fw.concat([x, fw.mean(x, axis=1, keepdims=True)], axis=1), [X]
    ),
    "mean beside maximum": Program(
        lambda x: fw.concat(
            [fw.mean(x, axis=1, keepdims=True), fw.max(x, axis=1, keepdims=True)], axis=1
        ),
        [S((8, 64, 128, 128), F)],
    ),
    "means beside rows": Program(
        lambda x, y: fw.concat(
            [fw.broadcast_to(fw.mean(x, axis=1, keepdims=True), (N, 1024)), y], axis=1
        ),
        [X, NARROW],
    ),
    "blocks on a diagonal": Program(
        lambda a, b: fw.concat(
            [fw.pad(a, ((0, 0), (0, 2048))), fw.pad(b, ((0, 0), (2048, 0)))], axis=0
        ),
        [S((2048, 2048), F)] * 2,
    ),
    "even and odd": Program(
        lambda a, b: fw.reshape(fw.stack([fw.exp(a), b], axis=2), (N, N)), [S((N, 2048), F)] * 2
    ),
    "norm of some heads": Program(
        lambda x, w: fw.concat([fw.nn.rms_norm(x[:, :64], (64,), w), x[:, 64:]], axis=1),
        [S((65536, 128), H), S((64,), H)],
    ),
    "differences to the next value": Program(next_values, [NARROW] * 2),
    "labels of the next token": Program(
        lambda x: fw.concat([x[:, 1:], fw.full((64, 1), -100, dtype=fw.int64)], axis=1),
        [S((64, 8192), "int64")],
    ),
}

# --- insertions and pads ------------------------------------------------------------------------


def in_zeros(a: Any, b: Any) -> Any:
    z = fw.insert(fw.zeros((N, N), dtype=fw.float32), a, (8, 8))
    return fw.insert(z, b, (2056, 2056))


def softmaxes_in_zeros(a: Any, b: Any) -> Any:
    return in_zeros(fw.nn.softmax(a, axis=-1), fw.nn.softmax(b, axis=-1))


def pads(mode: str) -> Program:
    """A pad of an argument."""
    return Program(lambda x: fw.pad(x, ((2, 2), (3, 3)), mode=mode), [X])


MODES = ("linear_ramp", "mean", "maximum", "minimum", "median", "empty")
INSERTIONS: dict[str, Program] = {
    "two blocks in zeros": Program(in_zeros, BLOCKS),
    "two softmaxes in zeros": Program(softmaxes_in_zeros, BLOCKS),
    "two blocks in an argument": Program(
        lambda c, a, b: fw.insert(fw.insert(c, a, (8, 8)), b, (2056, 2056)),
        [X, *BLOCKS],
        4 * N * N,
    ),
    "block in an argument": Program(
        lambda c, v: fw.insert(c, v, (8, 0)), [X, S((1024, N), F)], 4 * N * N
    ),
    "softmax in an argument": Program(
        lambda c, v: fw.insert(c, fw.nn.softmax(v, axis=-1), (8, 0)),
        [X, S((1024, N), F)],
        4 * N * N,
    ),
    **{f"{mode} pad": pads(mode) for mode in MODES},
    "pad of a mask": Program(lambda x: fw.pad(x > 0, ((1, 1), (1, 1))), [X]),
}

PROGRAMS = MOVES | PLACES | PARTS | JOINS | INSERTIONS


def timed(x: Program, program: fw.Program) -> float:
    """Microseconds of a call on a GPU, replayed as torch times it, over those in which it copies
    the least bytes."""
    import torch
    from torch.utils.benchmark import Timer

    arrays = [torch.randn(s.shape, device="cuda").to(getattr(torch, s.dtype.name)) for s in x.specs]
    source = torch.empty(x.least(program) // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    scope = {"f": program, "a": arrays, "s": source, "t": target}
    ours, copy = (
        Timer(text, globals=scope).blocked_autorange(min_run_time=0.2).median
        for text in ("f(*a)", "t.copy_(s)")
    )
    return ours / copy


def main() -> None:
    """Prints a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names, default all")
    parser.add_argument("--time", action="store_true", help="measure on a GPU")
    args = parser.parse_args()
    print("| program | launches | fills, copies | bytes over the least | path |")
    print("|---|---|---|---|---|")
    for name, x in PROGRAMS.items():
        if args.names and not any(n in name for n in args.names):
            continue
        program = x.compiled()
        s = program.host.stats
        over = s["bytes_moved"] / x.least(program)
        moves = f"{s['fills']}, {s['copies']}"
        last = f" {timed(x, program):.2f} of a copy's time |" if args.time else ""
        print(f"| {name} | {s['launches']} | {moves} | {over:.3f} | {s['critical_path']} |{last}")


if __name__ == "__main__":
    main()
