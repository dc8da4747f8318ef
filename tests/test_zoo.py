"""The zoo's times, generation and page, as far as they need no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench import zoo_times  # noqa: E402
from bench.zoo import architectures, generation, plain  # noqa: E402
from bench.zoo.page import speed, write_page  # noqa: E402

RUN = Path(__file__).parent.parent / "bench" / "zoo-2026-11-26-h100.json"


def test_a_page_has_all_models_and_figures(tmp_path: Path) -> None:
    run = json.loads(RUN.read_text())
    made = write_page([RUN], tmp_path / "page.html").read_text()
    assert "Training, mode default, 8 x 512" in made and "http" not in made
    for m in run["models"]:
        assert m["model"] in made
        own = speed(m)
        if own is not None:
            assert f">{own:.2f}</text>" in made
            assert f"{m['busy']['inductor']:.2f} / {m['busy']['fusewright']:.2f}" in made
            assert f"{m['peak_mib']['inductor']:.0f} / {m['peak_mib']['fusewright']:.0f}" in made
    assert run["cold_s"] and "cold s, all peers" in made


def test_a_page_tells_what_failed_and_what_was_generated(tmp_path: Path) -> None:
    generated = generation.Outcome("llama", 4, "static")
    generated.tokens_per_s["fusewright"] = 1234.0
    generated.compile_s["fusewright"] = generated.same["fusewright"] = 1.0
    generated.launches["fusewright"], generated.replays["fusewright"] = 0.2, 1.0
    generated.not_recorded["fusewright"] = ["x is on the host <here>"]
    generated.failures["inductor"] = "KeyError: 7"
    args = zoo_times.parser().parse_args(["--generate"])
    run = {
        "date": "today", "device": "a GPU", "torch": "2", "method": "turns", "cold_s": {},
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "models": [zoo_times._entry(generated)],
    }  # fmt: skip
    source = tmp_path / "run.json"
    source.write_text(json.dumps(run))
    made = write_page([source], tmp_path / "page.html").read_text()
    row = "<td>llama</td><td>4</td><td>static</td><td>fusewright</td><td>1234</td><td>0.2</td>"
    assert row + "<td>1.0</td>" in made
    assert "x is on the host &lt;here&gt;" in made
    assert "<td>inductor</td><td>KeyError: 7</td>" in made


def test_a_file_without_models_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "empty.json"
    source.write_text("{}")
    with pytest.raises(ValueError, match=r"empty.json has no models; measure some"):
        write_page([source], tmp_path / "page.html")


def test_small_is_one_text_or_one_image() -> None:
    asked = zoo_times.parser().parse_args(["--small", "--infer"])
    setting = zoo_times.setting_of(asked)
    assert (setting.train, setting.batch, setting.length, setting.images) == (False, 1, 64, 1)
    whole = zoo_times.setting_of(zoo_times.parser().parse_args([]))
    assert (whole.batch, whole.length, whole.images) == (8, 512, 64)


def test_outcomes_are_kept_with_four_digits() -> None:
    out = zoo_times.Outcome(plain.MODELS[0].name, {"eager": 1.23456789}, kernels={"eager": 12345})
    entry = zoo_times._entry(out)
    assert entry["model"] == plain.MODELS[0].name and "name" not in entry
    assert entry["milliseconds"] == {"eager": 1.235} and entry["kernels"] == {"eager": 12345}


@pytest.mark.parametrize(
    ("batch", "tokens"), [(2, 5), pytest.param(16, 24, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_generation_compiles_once_for_all_tokens(cache: str, batch: int, tokens: int) -> None:
    pytest.importorskip("transformers")
    (llama,) = (a for a in architectures("llama") if a.generates)
    case = generation.Case("llama", batch, cache, "cpu", torch.float32, prompt=7, tokens=tokens)
    out = generation.measure(llama, case, ("eager", "fusewright"))
    assert out.failures == {} and out.same == {"eager": 1.0, "fusewright": 1.0}
    assert out.late == {"eager": 0, "fusewright": 0}
    assert out.tokens_per_s.keys() == {"eager", "fusewright"}


def test_peers_replay_where_sizes_stay() -> None:
    def names(cache: str) -> list[str]:
        return [p.name for p in generation.Case("x", 1, cache).peers(("eager", "fusewright"))]

    assert names("static") == ["eager", "fusewright", "fusewright reduce-overhead"]
    assert names("dynamic") == ["eager", "fusewright"]
