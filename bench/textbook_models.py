"""Further programs of `bench/textbook.py`: attention, routing, losses, optimisers, quantisation,
augmentation, signals, physics and statistics, in the plainest style."""

from __future__ import annotations

import math
from typing import Any

import fusewright as fw
from bench.moves import Program

S = fw.TensorSpec
F, H, U, I8, INT, FLAG = "float32", "bfloat16", "uint8", "int8", "int32", "bool"

# --- attention and routing ------------------------------------------------------------------------


def biased_attention(q: Any, k: Any, v: Any, bias: Any, lengths: Any) -> Any:
    """With a bias for each head and a mask of what is padded."""
    scores = q @ fw.matrix_transpose(k) / math.sqrt(q.shape[-1]) + bias
    inside = fw.arange(k.shape[2], dtype=fw.int32)[None] < lengths[:, None]
    scores = fw.where(inside[:, None, None], scores, -1e9)
    return fw.nn.softmax(scores, axis=-1) @ v


def softcapped_scores(scores: Any, sinks: Any) -> Any:
    """Softmax with soft-capped scores and a learned sink for each head."""
    capped = 30.0 * fw.tanh(scores / 30.0)
    sink = fw.broadcast_to(sinks[None, :, None, None], (*scores.shape[:-1], 1))
    return fw.nn.softmax(fw.concat([capped, sink], axis=-1), axis=-1)[..., :-1]


def relative_bias(scores: Any, table: Any) -> Any:
    """T5: a learned bias for each bucket of distances."""
    n = fw.arange(scores.shape[-1])
    apart = fw.clip(n[None] - n[:, None] + 32, 0, 63)
    return fw.nn.softmax(scores + fw.permute_dims(table[apart], (2, 0, 1)), axis=-1)


def norm_and_rotary(x: Any, w: Any, c: Any, s: Any) -> Any:
    """Heads made normal, then turned, of which only the first half of the channels turns."""
    y = fw.astype(x, fw.float32)
    y = y / fw.sqrt(fw.mean(y * y, axis=-1, keepdims=True) + 1e-6) * w
    turned, kept = y[..., :64], y[..., 64:]
    a, b = turned[..., :32], turned[..., 32:]
    out = fw.concat([a * c - b * s, b * c + a * s, kept], axis=-1)
    return fw.astype(fw.permute_dims(out, (0, 2, 1, 3)), fw.bfloat16)


def routed(logits: Any) -> Any:
    """The two experts of each token, their shares, and the loss that balances loads."""
    p = fw.nn.softmax(logits, axis=-1)
    shares, experts = fw.topk(p, 2)
    shares = shares / fw.sum(shares, axis=-1, keepdims=True)
    chosen = fw.sum(fw.nn.one_hot(experts, 64), axis=1)
    load = fw.mean(fw.astype(chosen, fw.float32), axis=0) * fw.mean(p, axis=0)
    return shares, experts, 64 * fw.sum(load)


def places_of_tokens(experts: Any) -> Any:
    """The place of each token in the queue of its expert, and which are dropped."""
    mine = fw.astype(experts[:, None] == fw.arange(64, dtype=fw.int32)[None], fw.int32)
    place = fw.sum(fw.cumulative_sum(mine, axis=0) * mine, axis=1) - 1
    return place, place < 128


def gated_experts(x: Any, weights: Any, outputs: Any) -> Any:
    """What two experts made of each token, by their shares, on top of it."""
    return x + fw.sum(outputs * weights[..., None], axis=1)


# --- sampling and losses --------------------------------------------------------------------------


def penalised(logits: Any, counts: Any) -> Any:
    """Logits with penalties for what was said, by a temperature, as log-probabilities."""
    said = fw.astype(counts > 0, fw.float32)
    x = fw.where(
        (counts > 0) & (logits > 0), logits / 1.2, fw.where(counts > 0, logits * 1.2, logits)
    )
    x = x - 0.1 * fw.astype(counts, fw.float32) - 0.2 * said
    return fw.nn.log_softmax(x / 0.7, axis=-1)


def least_p(logits: Any, noise: Any) -> Any:
    """A token of those at least a twentieth as probable as the best, by Gumbel noise."""
    p = fw.nn.softmax(logits, axis=-1)
    kept = p >= 0.05 * fw.max(p, axis=-1, keepdims=True)
    gumbel = -fw.log(-fw.log(noise))
    return fw.argmax(fw.where(kept, fw.log(p), -math.inf) + gumbel, axis=-1)


def top_k_sample(logits: Any, u: Any) -> Any:
    values, at = fw.topk(logits, 50)
    p = fw.cumulative_sum(fw.nn.softmax(values, axis=-1), axis=-1)
    place = fw.sum(fw.astype(p < u[:, None], fw.int32), axis=-1)
    return fw.take_along_axis(at, place[:, None], axis=-1)[:, 0]


def smoothed_cross_entropy(logits: Any, labels: Any) -> Any:
    """Label smoothing, with the labels below 0 left out."""
    logp = fw.nn.log_softmax(logits, axis=-1)
    kept = labels >= 0
    at = fw.where(kept, labels, 0)
    nll = -fw.take_along_axis(logp, at[:, None], axis=-1)[:, 0]
    loss = 0.9 * nll - 0.1 * fw.mean(logp, axis=-1)
    return fw.sum(fw.where(kept, loss, 0.0)) / fw.sum(fw.astype(kept, fw.float32))


def contrastive(a: Any, b: Any) -> Any:
    """CLIP: both directions of a matrix of similarities."""
    a = a / fw.sqrt(fw.sum(a * a, axis=-1, keepdims=True))
    b = b / fw.sqrt(fw.sum(b * b, axis=-1, keepdims=True))
    s = 100.0 * (a @ b.T)
    rows = fw.mean(fw.logsumexp(s, axis=1) - fw.diagonal(s))
    columns = fw.mean(fw.logsumexp(s, axis=0) - fw.diagonal(s))
    return (rows + columns) / 2


def focal(logits: Any, targets: Any) -> Any:
    p = fw.nn.sigmoid(logits)
    ce = -(targets * fw.log(p + 1e-8) + (1 - targets) * fw.log(1 - p + 1e-8))
    pt = p * targets + (1 - p) * (1 - targets)
    return fw.mean(fw.sum((0.25 * targets + 0.75 * (1 - targets)) * (1 - pt) ** 2 * ce, axis=-1))


def distilled(student: Any, teacher: Any) -> Any:
    t = fw.nn.softmax(teacher / 2.0, axis=-1)
    logs = fw.nn.log_softmax(student / 2.0, axis=-1)
    return 4.0 * fw.mean(fw.sum(t * (fw.log(t + 1e-9) - logs), axis=-1))


# --- optimisers and quantisation ------------------------------------------------------------------


def lamb(p: Any, g: Any, m: Any, v: Any) -> Any:
    """A step whose length is that of the parameters."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    step = m / (fw.sqrt(v) + 1e-6) + 0.01 * p
    trust = fw.sqrt(fw.sum(p * p)) / fw.sqrt(fw.sum(step * step))
    return p - 1e-3 * trust * step, m, v


def adafactor(p: Any, g: Any, rows: Any, columns: Any) -> Any:
    """A step with the squares of gradients as a product of a column and a row."""
    g2 = g * g + 1e-30
    rows = 0.99 * rows + 0.01 * fw.mean(g2, axis=1)
    columns = 0.99 * columns + 0.01 * fw.mean(g2, axis=0)
    scale = rows[:, None] * columns[None] / fw.mean(rows)
    step = g / fw.sqrt(scale)
    step = step / fw.maximum(1.0, fw.sqrt(fw.mean(step * step)))
    return p - 1e-2 * step, rows, columns


def mixed_adam(master: Any, g: Any, m: Any, v: Any, average: Any, scale: Any) -> Any:
    """Half-precision gradients, a copy in half precision, and an average of the parameters."""
    g = fw.astype(g, fw.float32) / scale
    m = 0.9 * m + 0.1 * g
    v = 0.95 * v + 0.05 * g * g
    new = master * 0.9999 - 3e-4 * (m / 0.5) / (fw.sqrt(v / 0.4) + 1e-8)
    return new, fw.astype(new, fw.bfloat16), m, v, 0.999 * average + 0.001 * new


def quantised_groups(x: Any) -> Any:
    """Groups of 32 as 8-bit integers with a scale each."""
    g = fw.reshape(fw.astype(x, fw.float32), (x.shape[0], -1, 32))
    scale = fw.max(fw.abs(g), axis=-1, keepdims=True) / 127.0
    q = fw.round(g / fw.maximum(scale, 1e-12))
    q = fw.astype(fw.clip(q, -127, 127), fw.int8)
    return fw.reshape(q, x.shape), fw.astype(scale[..., 0], fw.bfloat16)


def from_groups(q: Any, scales: Any, zeros: Any) -> Any:
    """Two 4-bit integers a byte, in groups of 128 with scale and zero."""
    low, high = fw.astype(q & 15, fw.float32), fw.astype(q >> 4, fw.float32)
    w = fw.reshape(fw.stack([low, high], axis=-1), (q.shape[0], -1, 128))
    return fw.astype(
        fw.reshape((w - zeros[..., None]) * scales[..., None], (q.shape[0], -1)), fw.bfloat16
    )


def smooth_quantised(x: Any, smooth: Any, w: Any) -> Any:
    """An RMS norm, smoothed, then 8-bit integers with a scale for each token."""
    y = fw.astype(x, fw.float32)
    y = y * fw.rsqrt(fw.mean(y * y, axis=-1, keepdims=True) + 1e-6) * w / smooth
    scale = fw.max(fw.abs(y), axis=-1, keepdims=True) / 127.0
    return fw.astype(fw.round(y / scale), fw.int8), scale[:, 0]


# --- images, signals and physics ------------------------------------------------------------------


def augmented(x: Any, flips: Any, brightness: Any, contrast: Any) -> Any:
    """Flipped where asked, brighter, in contrast to its own mean, channels first."""
    y = fw.astype(x, fw.float32) / 255.0
    y = (
        fw.where(flips[:, None, None, None], fw.flip(y, axis=2), y)
        * brightness[:, None, None, None]
    )
    grey = 0.299 * y[..., 0] + 0.587 * y[..., 1] + 0.114 * y[..., 2]
    mean = fw.mean(grey, axis=(1, 2))[:, None, None, None]
    return fw.permute_dims(
        fw.clip((y - mean) * contrast[:, None, None, None] + mean, 0.0, 1.0), (0, 3, 1, 2)
    )


def edges(x: Any) -> Any:
    """Sobel's gradients of a blurred image, as strength and angle."""
    p = fw.pad(x, ((0, 0), (2, 2), (2, 2)))
    blurred = (p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]) / 4
    blurred = (blurred[:, :, :-2] + 2 * blurred[:, :, 1:-1] + blurred[:, :, 2:]) / 4
    dx = blurred[:, :, 2:] - blurred[:, :, :-2]
    dy = blurred[:, 2:] - blurred[:, :-2]
    gx = dx[:, :-2] + 2 * dx[:, 1:-1] + dx[:, 2:]
    gy = dy[:, :, :-2] + 2 * dy[:, :, 1:-1] + dy[:, :, 2:]
    return fw.sqrt(gx * gx + gy * gy), fw.atan2(gy, gx)


def framed(x: Any) -> Any:
    """Frames of a signal, each without its mean, by a Hann window."""
    at = fw.arange(497)[:, None] * 128 + fw.arange(512)[None]
    window = 0.5 - 0.5 * fw.cos(2 * math.pi * fw.arange(512, dtype=fw.float32) / 512)
    frames = fw.take(x, at, axis=1)
    return (frames - fw.mean(frames, axis=-1, keepdims=True)) * window


def overlapping_rms(x: Any) -> Any:
    """The strength of a signal in windows of 64, by two reads of a sum of squares."""
    c = fw.cumulative_sum(x * x, axis=1)
    return fw.sqrt((c[:, 64:] - c[:, :-64]) / 64)


def wave(u: Any, before: Any, speed: Any) -> Any:
    """A step of the wave equation with absorbing edges."""
    p = fw.pad(u, ((1, 1), (1, 1)))
    lap = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u
    i, j = fw.arange(2048)[:, None], fw.arange(2048)[None]
    rim = fw.minimum(fw.minimum(i, 2047 - i), fw.minimum(j, 2047 - j))
    damp = fw.where(rim < 20, fw.exp(-((0.015 * (20 - fw.astype(rim, fw.float32))) ** 2)), 1.0)
    return damp * (2 * u - before * damp + speed * speed * lap), u * damp


def shallow_water(h: Any, u: Any, v: Any) -> Any:
    """A step of the shallow water equations with periodic edges."""

    def dx(f: Any) -> Any:
        return (fw.roll(f, -1, axis=1) - fw.roll(f, 1, axis=1)) / 2

    def dy(f: Any) -> Any:
        return (fw.roll(f, -1, axis=0) - fw.roll(f, 1, axis=0)) / 2

    new_u = u - 0.01 * (u * dx(u) + v * dy(u) + 9.8 * dx(h))
    new_v = v - 0.01 * (u * dx(v) + v * dy(v) + 9.8 * dy(h))
    return h - 0.01 * (dx(h * u) + dy(h * v)), new_u, new_v


# --- statistics -----------------------------------------------------------------------------------


def moments(x: Any) -> Any:
    """Mean, deviation, skewness and kurtosis of columns."""
    m = fw.mean(x, axis=0)
    d = x - m
    s = fw.sqrt(fw.mean(d * d, axis=0))
    return m, s, fw.mean(d**3, axis=0) / s**3, fw.mean(d**4, axis=0) / s**4 - 3


def regression(x: Any, y: Any) -> Any:
    """The slope, the intercept and r squared of each row."""
    mx, my = fw.mean(x, axis=1, keepdims=True), fw.mean(y, axis=1, keepdims=True)
    dx, dy = x - mx, y - my
    slope = fw.sum(dx * dy, axis=1) / fw.sum(dx * dx, axis=1)
    intercept = my[:, 0] - slope * mx[:, 0]
    rest = y - (slope[:, None] * x + intercept[:, None])
    return slope, intercept, 1 - fw.sum(rest * rest, axis=1) / fw.sum(dy * dy, axis=1)


def robust(x: Any) -> Any:
    """Rows without outliers: those further than three deviations from the mean are left out."""
    m, s = fw.mean(x, axis=1, keepdims=True), fw.std(x, axis=1, keepdims=True)
    kept = fw.abs(x - m) < 3 * s
    n = fw.sum(fw.astype(kept, fw.float32), axis=1)
    mean = fw.sum(fw.where(kept, x, 0.0), axis=1) / n
    return mean, fw.sum(fw.where(kept, (x - mean[:, None]) ** 2, 0.0), axis=1) / n


def drawdown(prices: Any) -> Any:
    """Returns, how far prices are below their peak, and the worst of it."""
    returns = fw.log(prices[:, 1:] / prices[:, :-1])
    below = prices / fw.cumulative_max(prices, axis=1) - 1
    return fw.std(returns, axis=1) * math.sqrt(252), below, fw.min(below, axis=1)


SCORES = S((2, 16, 1024, 1024), F)
LOGITS = S((2048, 32000), F)
MATRIX = S((2048, 1024), F)
PROGRAMS: dict[str, Program] = {
    "attention with bias and padding": Program(
        biased_attention,
        [*[S((4, 8, 512, 64), H)] * 3, S((8, 512, 512), F), S((4,), INT)],
    ),
    "softmax with a cap and sinks": Program(softcapped_scores, [SCORES, S((16,), F)]),
    "softmax with a relative bias": Program(relative_bias, [SCORES, S((64, 16), F)]),
    "norm and rotary of heads": Program(
        norm_and_rotary, [S((4, 1024, 32, 128), H), S((128,), F), *[S((1024, 1, 32), F)] * 2]
    ),
    "routing to experts": Program(routed, [S((4096, 64), F)]),
    "places in queues of experts": Program(places_of_tokens, [S((4096,), INT)]),
    "shares of experts": Program(
        gated_experts, [S((4096, 1024), F), S((4096, 2), F), S((4096, 2, 1024), F)]
    ),
    "penalties of repetition": Program(penalised, [S((64, 32000), F), S((64, 32000), INT)]),
    "sampling of the least p": Program(least_p, [S((64, 32000), F)] * 2),
    "sampling of the top k": Program(top_k_sample, [S((64, 32000), F), S((64,), F)]),
    "label smoothing by a gather": Program(smoothed_cross_entropy, [LOGITS, S((2048,), INT)]),
    "contrastive loss": Program(contrastive, [S((1024, 512), F)] * 2),
    "focal loss": Program(focal, [S((8192, 90), F)] * 2),
    "distillation": Program(distilled, [LOGITS, LOGITS]),
    "step of LAMB": Program(lamb, [MATRIX] * 4),
    "step of Adafactor": Program(adafactor, [MATRIX, MATRIX, S((2048,), F), S((1024,), F)]),
    "Adam in mixed precision": Program(
        mixed_adam, [MATRIX, S((2048, 1024), H), MATRIX, MATRIX, MATRIX, S((), F)]
    ),
    "quantised in groups": Program(quantised_groups, [S((4096, 4096), H)]),
    "from groups of four bits": Program(
        from_groups, [S((4096, 2048), U), S((4096, 32), F), S((4096, 32), F)]
    ),
    "norm and quantised tokens": Program(
        smooth_quantised, [S((4096, 4096), H), S((4096,), F), S((4096,), F)]
    ),
    "augmented images": Program(
        augmented, [S((32, 224, 224, 3), U), S((32,), FLAG), S((32,), F), S((32,), F)]
    ),
    "edges of images": Program(edges, [S((16, 512, 512), F)]),
    "frames of a signal": Program(framed, [S((16, 64000), F)]),
    "strength in windows by a scan": Program(overlapping_rms, [S((512, 8192), F)]),
    "wave with absorbing edges": Program(wave, [S((2048, 2048), F)] * 3),
    "shallow water": Program(shallow_water, [S((2048, 2048), F)] * 3),
    "moments of columns": Program(moments, [S((16384, 512), F)]),
    "regression of rows": Program(regression, [S((4096, 2048), F)] * 2),
    "statistics without outliers": Program(robust, [S((4096, 4096), F)]),
    "drawdown of prices": Program(drawdown, [S((1024, 2520), F)]),
}
