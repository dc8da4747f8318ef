"""What is installed: metadata, licence, types, and a wheel that works where nothing else is."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import fusewright as fw

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def test_the_version_is_one() -> None:
    assert PROJECT["version"] == fw.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {fw.__version__}" in changes


def test_the_licence_is_there() -> None:
    """Ours, and that of the library inside of the package; the SPDX expression says both."""
    assert PROJECT["license"] == "Apache-2.0 AND MIT"
    ours, *others = PROJECT["license-files"]
    assert "Apache License" in (ROOT / ours).read_text(encoding="utf-8")
    vendored = [p.parent.name for p in (ROOT / "src").rglob("vendor/*/LICENSE")]
    found = [p for pattern in others for p in ROOT.glob(pattern)]
    assert [p.parent.name for p in found] == vendored == ["dagre"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"vendor/{name}" in readme for name in vendored)


def test_the_package_is_typed() -> None:
    assert (ROOT / "src" / "fusewright" / "py.typed").exists()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_extras_are_packages_that_something_imports() -> None:
    """What nothing imports is not asked for."""
    extras = {x for k, v in PROJECT["optional-dependencies"].items() if k != "dev" for x in v}
    text = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    for name in ("cuda-core", "islpy"):
        module = name.replace("-", ".")
        assert (f"import {module}" in text) == any(x.startswith(name) for x in extras), name


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pip") is None, reason="needs pip")
def test_the_wheel_works_in_a_clean_environment(tmp_path: Path) -> None:
    built = subprocess.run(
        [*PIP, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip("the build backend is not to be had here")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "fusewright/py.typed" in names and any(n.endswith("licenses/LICENSE") for n in names)
    assert any(n.endswith(".cuh") for n in names)
    vendored = {n.rpartition("/vendor/dagre/")[2] for n in names if "/vendor/dagre/" in n}
    assert vendored == {"LICENSE", "README.md", "dagre.min.js"}
    assert "fusewright/report/flow.js" in names
    assert any(n.endswith("licenses/src/fusewright/report/vendor/dagre/LICENSE") for n in names)
    assert all(n.startswith("fusewright") for n in names)
    home = tmp_path / "env"
    venv.create(home, with_pip=True, system_site_packages=False)
    python = home / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", str(wheel)],
        check=True, timeout=300,
    )  # fmt: skip
    script = (
        "import fusewright as fw, numpy as np; f = fw.fuse(lambda x: x.sum(axis=0), device='sim');"
        "x = np.ones((3, 4), np.float32); assert f(x).tolist() == [3.0] * 4; print(fw.__file__);"
        "f.explain(x).to_html('a.html'); assert 'dagre' in open('a.html').read()"
    )
    done = subprocess.run(
        [python, "-c", script], cwd=tmp_path, capture_output=True, text=True, env={}, timeout=120
    )
    assert done.returncode == 0 and str(home) in done.stdout, done.stderr
    shown = subprocess.run(
        [home / "bin" / "fusewright", "--version"], capture_output=True, text=True, timeout=60
    )
    assert shown.stdout == f"fusewright {fw.__version__}\n"
