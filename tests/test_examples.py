"""The examples run, each as a program of its own, and are listed where readers look for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    if "import torch\n\n" in path.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=os.environ | {"FUSEWRIGHT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    notebook = json.loads((ROOT / "examples" / "tour.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(cells) >= 6 and all(not c.get("outputs") for c in notebook["cells"])
    scope: dict[str, object] = {"__name__": "notebook"}
    for number, source in enumerate(cells):
        exec(compile(source, f"cell {number}", "exec"), scope)
    assert str(getattr(scope["report"], "_repr_html_")()).startswith("<iframe ")  # noqa: B009


def test_there_are_ten_and_the_readme_lists_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) >= 10
    assert "examples/tour.ipynb" in readme
    assert [p.name for p in EXAMPLES if f"examples/{p.name}" not in readme] == []
