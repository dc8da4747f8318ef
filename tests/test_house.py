"""The house: documents whose examples run, functions and files of a readable size."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import fusewright as fw
from fusewright.knobs import KNOBS

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 600

API_PAGES = ("api.md", "api-operations.md", "array-namespace.md")
_EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


# --- documents ----------------------------------------------------------------------------------


def examples(path: Path) -> Iterator[tuple[int, str]]:
    """The python blocks of a document, each with the line that it starts on."""
    text = path.read_text(encoding="utf-8")
    for found in _EXAMPLE.finditer(text):
        yield text.count("\n", 0, found.start(1)) + 1, found[1]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_the_examples_of_a_document_run_in_order(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fences = path.read_text(encoding="utf-8").count("```python")
    assert run_examples(path) == fences


def run_examples(path: Path) -> int:
    """Runs the examples of a document one after the other; how many there were."""
    scope: dict[str, object] = {"__name__": "example"}
    count = 0
    for line, source in examples(path):
        if "import torch" in source:
            pytest.importorskip("torch")
        # The padding makes tracebacks name the document's own lines.
        exec(compile("\n" * (line - 1) + source, str(path), "exec"), scope)
        count += 1
    return count


def test_an_example_that_fails_is_found_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run_examples(path)
    last = caught.traceback[-1]
    assert (last.path, last.lineno + 1) == (path, 6)


def test_the_documents_have_examples() -> None:
    assert sum(1 for path in DOCUMENTS for _ in examples(path)) >= 8


def test_examples_are_found_by_fence_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("text\n```python\nx = 1\n```\n```sh\nls\n```\n```python\ny = 2\n```\n")
    assert list(examples(path)) == [(3, "x = 1\n"), (9, "y = 2\n")]


def test_the_readme_says_the_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme and "make test" in readme


def test_every_make_target_of_the_documents_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, path.name


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_the_list_of_operations_is_up_to_date() -> None:
    module = _load(ROOT / "docs" / "make_ops.py")
    written = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert written == module.render(), "run `make docs`"


def test_the_pages_of_the_api_are_up_to_date() -> None:
    module = _load(ROOT / "docs" / "make_api.py")
    for name, page in module.PAGES.items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == page(), "run `make docs`"


def test_every_public_name_has_a_place_in_the_api() -> None:
    text = "".join((ROOT / "docs" / n).read_text(encoding="utf-8") for n in API_PAGES)
    words = set(re.findall(r"\w+", text))
    assert [n for n in fw.__all__ if n not in words and not n.startswith("__")] == []


def test_the_site_has_every_page() -> None:
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(p.name for p in (ROOT / "docs").glob("*.md"))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds(tmp_path: Path) -> None:
    options = ("build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site"))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *options], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "fw.kernel" in (tmp_path / "site" / "api.html").read_text(encoding="utf-8")


def test_every_knob_is_documented() -> None:
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    assert [k.name for k in KNOBS if f"`{k.name}`" not in text] == []


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- sources ------------------------------------------------------------------------------------


def oversized(name: str, source: str) -> list[str]:
    """The file if it is too long, and its functions that are."""
    found: list[str] = []
    nlines = source.count("\n")
    if nlines > MAX_FILE_LINES:
        found.append(f"{name} has {nlines} lines")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{name}:{node.lineno} {node.name} has {length} lines")
    return found


def _relative(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "fusewright").as_posix()


def test_functions_and_files_are_of_a_readable_size() -> None:
    found = {_relative(p): oversized(_relative(p), p.read_text(encoding="utf-8")) for p in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_size_is_counted_for_functions_and_files() -> None:
    body = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    assert oversized("a.py", body) == ["a.py:1 f has 61 lines"]
    assert oversized("a.py", body.replace("    x = 1\n", "    x = 1\n", 1)[:-10]) == []
    assert oversized("a.py", "x = 1\n" * 601) == ["a.py has 601 lines"]


def test_every_module_says_what_it_is() -> None:
    undocumented = [
        _relative(p) for p in SOURCES if (tree := _tree(p)).body and not ast.get_docstring(tree)
    ]
    assert undocumented == []


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_nothing_is_left_for_later() -> None:
    left = [
        f"{_relative(p)}:{number}"
        for p in SOURCES
        for number, line in enumerate(p.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line)
    ]
    assert left == []


def test_test_files_have_different_names() -> None:
    # pytest imports them by name; two of one name in different folders would clash.
    names = [
        p.name
        for p in (ROOT / "tests").rglob("*.py")
        if p.name not in ("__init__.py", "conftest.py")
    ]
    assert sorted(names) == sorted(set(names))


# --- the commands -------------------------------------------------------------------------------


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    listed = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith("make")]
    assert sorted(listed) == sorted(phony[1].split())


def test_the_ci_script_is_executable_and_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text and "make test" in text


# --- what users expect --------------------------------------------------------------------------


def _expected() -> list[tuple[str, str]]:
    """The rows of docs/expected.md."""
    text = (ROOT / "docs" / "expected.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert all(len(r) == 2 for r in rows), [r for r in rows if len(r) != 2]
    return [(a.strip(), b.strip()) for a, b in rows if a.strip() != "expected by users"]


def test_every_expectation_has_an_answer() -> None:
    rows = _expected()
    assert len(rows) > 50
    for expected, here in rows:
        assert expected and here not in ("", "-", "none", "no"), expected
        if here.startswith("none"):
            assert len(here) > 30, f"{expected}: say why, and what to do instead"


def test_what_is_said_to_be_here_is_here() -> None:
    for expected, here in _expected():
        for found in re.findall(r"fw((?:\.\w+)+)", here):
            value: object = fw
            for part in found[1:].split("."):
                assert hasattr(value, part), f"{expected}: there is no fw{found}"
                value = getattr(value, part)
        for found in re.findall(r"\b(FUSEWRIGHT_\w+)", here):
            assert any(k.name == found for k in KNOBS), f"{expected}: there is no {found}"
