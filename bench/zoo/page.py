"""One HTML file of runs of the zoo: `python -m bench.zoo.page a.json b.json .. page.html`.

Of each run of `bench.zoo_times` a plot of times against inductor, and a table: milliseconds, how
long the GPU was busy, kernels, seconds to compile with full caches and without, peak memory, errors
of loss and gradients. Of runs of `--generate`: tokens a second, and what a token launches.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench.page import STYLE, escaped, html_table

Model: TypeAlias = Mapping[str, Any]
OURS, THEIRS = "fusewright", "inductor"
LABELS, WIDTH, BAR = 220, 520, 18
MOST = 2.5
"""Times inductor's speed at the right end of a plot."""


def write_page(sources: Sequence[Path], target: Path) -> Path:
    """Writes the page of runs; the path written. Raises ValueError for a file without models."""
    runs = [json.loads(p.read_text()) for p in sources]
    for p, run in zip(sources, runs, strict=True):
        if not run.get("models"):
            raise ValueError(
                f"{p} has no models; measure some with python -m bench.zoo_times --out"
            )
    target.write_text(page(runs))
    return target


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of runs, whole in itself."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Models</title>"
        f"<style>{STYLE}</style><body><h1>Models</h1>{''.join(map(section, runs))}</body></html>\n"
    )


def section(run: Mapping[str, Any]) -> str:
    """What one run measured."""
    models: Sequence[Model] = run["models"]
    arguments = run["arguments"]
    generates = arguments.get("generate") == "True"
    parts = [
        f"<h2>{escaped(title(arguments))}</h2>",
        f"<p>{escaped(run['date'])}, {escaped(run['device'])}, torch {escaped(run['torch'])}.</p>",
        f"<details><summary>Method</summary><p>{escaped(run['method'])}</p></details>",
        generation_table(models) if generates else summary(models) + bars(models) + times(run),
        failures(models),
    ]
    return "".join(parts)


def title(arguments: Mapping[str, str]) -> str:
    """What was run, in words."""
    if arguments.get("generate") == "True":
        return "Generation"
    kind = "Training" if arguments["train"] == "True" else "Inference"
    one = arguments.get("small") == "True"
    size = "one short text or image" if one else f"{arguments['batch']} x {arguments['length']}"
    return f"{kind}, mode {arguments['mode']}, {size}"


def speed(m: Model) -> float | None:
    """Times inductor's speed; None where one of the two is missing."""
    found = m["milliseconds"]
    return found[THEIRS] / found[OURS] if {OURS, THEIRS} <= found.keys() else None


def summary(models: Sequence[Model]) -> str:
    """The geometric mean of times inductor's speed, and the slowest model."""
    found = {m["model"]: s for m in models if (s := speed(m)) is not None}
    if not found:
        return ""
    mean = math.exp(sum(map(math.log, found.values())) / len(found))
    worst = min(found, key=lambda name: found[name])
    return (
        f"<p>{len(found)} models: {mean:.3f} times inductor in the geometric mean; the slowest is "
        f"{escaped(worst)} at {found[worst]:.2f}.</p>"
    )


def bars(models: Sequence[Model]) -> str:
    """A bar for each model, as SVG; the line stands at inductor's speed."""
    found = [(m["model"], s) for m in models if (s := speed(m)) is not None]
    height = 10 + (BAR + 4) * len(found)
    out = [f'<svg width="{LABELS + WIDTH + 60}" height="{height}" role="img">']
    for row, (name, share) in enumerate(found):
        y = 6 + row * (BAR + 4)
        width = WIDTH * min(share, MOST) / MOST
        colour = "#1b6ca8" if share >= 1 else "#d1603d"
        out.append(f'<text x="{LABELS - 8}" y="{y + 13}" text-anchor="end">{escaped(name)}</text>')
        out.append(
            f'<rect x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
            f'<text x="{LABELS + width + 4:.1f}" y="{y + 13}">{share:.2f}</text>'
        )
    one = LABELS + WIDTH / MOST
    out.append(f'<line x1="{one:.1f}" x2="{one:.1f}" y1="0" y2="{height}" stroke="#000"/>')
    return "".join([*out, "</svg>"])


_COLUMNS = (
    ("ms", "milliseconds", "{:.2f}"),
    ("busy", "busy", "{:.2f}"),
    ("kernels", "kernels", "{:.0f}"),
    ("compile s", "compile_s", "{:.1f}"),
    ("MiB", "peak_mib", "{:.0f}"),
    ("error of loss", "loss_error", "{:.1e}"),
    ("of gradients", "gradient_error", "{:.1e}"),
)


def times(run: Mapping[str, Any]) -> str:
    """All figures, peers one behind the other in a cell. Seconds to compile are those of full
    caches where the run was warmed up; the last column is all peers from empty ones."""
    models: Sequence[Model] = run["models"]
    cold = run.get("cold_s", {})
    peers = list(dict.fromkeys(p for m in models for p in m["milliseconds"]))
    rows = [
        [
            m["model"],
            *(_cell(m[key], peers, form) for _, key, form in _COLUMNS),
            *([f"{cold[m['model']]:.0f}" if m["model"] in cold else "-"] if cold else []),
        ]
        for m in models
    ]
    head = ["model", *(name for name, _, _ in _COLUMNS), *(["cold s, all peers"] if cold else [])]
    return f"<p>{escaped(' / '.join(peers))}</p>" + html_table(head, rows)


def _cell(found: Mapping[str, float], peers: Sequence[str], form: str) -> str:
    return " / ".join(form.format(found[p]) if p in found else "-" for p in peers)


def generation_table(models: Sequence[Model]) -> str:
    """A row for each model, batch, cache and peer."""
    rows: list[list[str]] = []
    for m in models:
        for peer, rate in m["tokens_per_s"].items():
            counts = (m[k].get(peer) for k in ("launches", "replays", "kernels"))
            rows.append(
                [
                    m["model"],
                    str(m["batch"]),
                    m["cache"],
                    peer,
                    f"{rate:.0f}",
                    *("-" if c is None else f"{c:.1f}" for c in counts),
                    f"{m['compile_s'][peer]:.1f}",
                    f"{m['same'][peer]:.0%}",
                    str(m["late"].get(peer, "-")),
                    "; ".join(m["not_recorded"].get(peer, [])),
                ]
            )
    head = ["model", "batch", "cache", "peer", "tokens/s", "launches a token", "replays", "kernels"]
    return html_table([*head, "warm-up s", "eager's tokens", "compiled late", "why no graph"], rows)


def failures(models: Sequence[Model]) -> str:
    """What did not run, and why."""
    rows = [[m["model"], peer, why] for m in models for peer, why in m["failures"].items()]
    return "<h3>Failures</h3>" + html_table(["model", "peer", "what"], rows) if rows else ""


if __name__ == "__main__":
    *given, last = map(Path, sys.argv[1:])
    print(write_page(given, last))
