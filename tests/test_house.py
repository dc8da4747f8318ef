"""The house: documents whose examples run, functions and files of a readable size."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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


GUIDES = (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")


def files_named(text: str) -> set[str]:
    """The files that a text names between backticks, with their folders if it says them."""
    return set(re.findall(r"`([\w./]+\.(?:py|md|cuh))`", text))


def names_in_sources() -> set[str]:
    """What functions, classes, fields, constants, files and folders of the sources are called."""
    found = {part for p in SOURCES for part in p.relative_to(ROOT).with_suffix("").parts}
    return found.union(*(facts(p.read_text(encoding="utf-8")).names for p in SOURCES))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda p: p.name)
def test_guides_name_files_and_names_of_today(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    files = [p.relative_to(ROOT).as_posix() for top in ("src", "tests", "bench", "docs")
             for p in (ROOT / top).rglob("*.*")]  # fmt: skip
    files += [p.name for p in ROOT.glob("*.*")]
    assert files_named(prose), "a guide leads to files"
    ends = {f"/{f}" for f in files}
    lost = [n for n in files_named(prose) if not any(e.endswith(f"/{n}") for e in ends)]
    assert lost == []
    words = {w for n in re.findall(r"`([A-Za-z_][\w./]*)`", prose) if n not in files_named(prose)
             for w in re.split(r"[./]", n)}  # fmt: skip
    marks = {"gpu", "fuzz"}
    assert sorted(words - names_in_sources() - marks - {"fw"}) == []


def test_the_list_of_operations_is_up_to_date() -> None:
    module = _load(ROOT / "docs" / "make_ops.py")
    written = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert written == module.render(), "run `make docs`"


def test_the_pages_of_the_api_are_up_to_date() -> None:
    module = _load(ROOT / "docs" / "make_api.py")
    for name, page in module.PAGES.items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == page(), "run `make docs`"


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions and classes, and the methods and properties that public classes define."""
    for room, names in (("fw", fw.__all__), ("fw.nn", fw.nn.__all__)):
        module = fw if room == "fw" else fw.nn
        for value in (getattr(module, n) for n in names):
            if inspect.isfunction(value):
                yield f"{room}.{value.__name__}", inspect.unwrap(value)
            elif inspect.isclass(value) and value.__module__.startswith("fusewright"):
                yield f"{room}.{value.__name__}", value
                for name, method in vars(value).items():
                    f = method.fget if isinstance(method, property) else method
                    f = getattr(f, "__func__", f)
                    if inspect.isfunction(f) and not name.startswith("_"):
                        yield f"{room}.{value.__name__}.{name}", inspect.unwrap(f)


PUBLIC = dict(public_functions())


def test_everything_public_has_a_docstring() -> None:
    assert len(PUBLIC) > 300
    assert [name for name, f in PUBLIC.items() if not inspect.getdoc(f)] == []


def raises_unsaid(name: str, f: Callable[..., Any]) -> set[str]:
    """The errors that a function raises in its own body, if neither its docstring nor that of its
    class speaks of errors."""
    around = PUBLIC.get(name.rpartition(".")[0])  # its class
    said = f"{inspect.getdoc(f)} {inspect.getdoc(around) if around else ''}"
    if re.search(r"\b(?:[Rr]aises|\w*Error)\b", said):
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(f)))
    made = [n.exc for n in ast.walk(tree) if isinstance(n, ast.Raise)]
    return {e.func.id for e in made if isinstance(e, ast.Call) and isinstance(e.func, ast.Name)}


def test_public_functions_say_what_they_raise() -> None:
    functions = {name: f for name, f in PUBLIC.items() if inspect.isfunction(f)}
    found = {name: raises_unsaid(name, f) for name, f in functions.items()}
    assert {name: errors for name, errors in found.items() if errors} == {}


def test_an_error_that_no_docstring_names_is_found() -> None:
    def silent(x: int) -> None:
        """Half of x."""
        if x % 2:
            raise ValueError("odd")

    def open_about_it(x: int) -> None:
        """Half of x. Raises ValueError where it is odd."""
        if x % 2:
            raise ValueError("odd")

    assert raises_unsaid("fw.silent", silent) == {"ValueError"}
    assert raises_unsaid("fw.open_about_it", open_about_it) == set()


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


@dataclass(slots=True)
class Facts:
    """What the tests ask of a source: what its functions, classes, fields and variables are called;
    the lines and lengths of its functions; its calls (see `calls`); the lines that read or write
    text without an encoding; its first docstring. Trees are not kept: those of all sources are a
    million nodes, through which each search for garbage would look."""

    docstring: str | None
    is_empty: bool
    names: set[str] = field(default_factory=set)
    functions: list[tuple[int, str, int]] = field(default_factory=list)
    calls: list[tuple[int, str]] = field(default_factory=list)
    without_encoding: list[int] = field(default_factory=list)

    def note(self, node: ast.AST) -> None:
        """Take in one node of the tree."""
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.names.add(name)
                assert node.end_lineno is not None
                self.functions.append((node.lineno, name, node.end_lineno - node.lineno + 1))
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                self.names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Store()):
                self.names.add(name)
            case ast.Call(func=function, keywords=keywords):
                self.calls += calls_of(node)
                name = function.attr if isinstance(function, ast.Attribute) else None
                is_text = name in ("read_text", "write_text")
                if is_text and "encoding" not in {k.arg for k in keywords}:
                    self.without_encoding.append(node.lineno)
            case _:
                pass


@cache
def facts(source: str) -> Facts:
    """The facts of a source, which is parsed once for all tests."""
    tree = ast.parse(source)
    found = Facts(ast.get_docstring(tree), not tree.body)
    for node in ast.walk(tree):
        found.note(node)
    return found


def oversized(name: str, source: str) -> list[str]:
    """The file if it is too long, and its functions that are."""
    found: list[str] = []
    nlines = source.count("\n")
    if nlines > MAX_FILE_LINES:
        found.append(f"{name} has {nlines} lines")
    for line, function, length in facts(source).functions:
        if length > MAX_FUNCTION_LINES:
            found.append(f"{name}:{line} {function} has {length} lines")
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
    found = {_relative(p): facts(p.read_text(encoding="utf-8")) for p in SOURCES}
    assert [name for name, f in found.items() if not f.is_empty and not f.docstring] == []


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


def calls_of(node: ast.Call) -> Iterator[tuple[int, str]]:
    """The name of the builtin function or the method that is called, with its line: `print`,
    `.unlink`, `os.replace`; and `open for writing`, whatever the file is opened by."""
    match node.func:
        case ast.Name(id="open") | ast.Attribute(attr="open" | "fdopen"):
            modes = [*node.args, *(k.value for k in node.keywords)]
            if any(isinstance(m, ast.Constant) and _writes(m.value) for m in modes):
                yield node.lineno, "open for writing"
        case ast.Name(id=name):
            yield node.lineno, name
        case ast.Attribute(value=ast.Name(id="os" | "tempfile" as module), attr=name):
            yield node.lineno, f"{module}.{name}"
        case ast.Attribute(attr=name):
            yield node.lineno, f".{name}"
        case _:
            pass


def _writes(mode: object) -> bool:
    return (
        isinstance(mode, str)
        and re.fullmatch(r"[rwaxbt+]{1,3}", mode) is not None
        and bool(set(mode) & set("wax+"))
    )


ONLY_IN: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "text that is run as a program": (
        frozenset({"eval", "exec"}),
        # Formulas of sizes; the call of a graph, and of one shape, written out.
        frozenset(
            {"core/compiled.py", "runtime/specialised_call.py", "frontends/torch/written.py"}
        ),
    ),
    "what is printed": (
        frozenset({"print"}),
        # Commands, and a process whose output is its answer.
        frozenset({"cli.py", "demo.py", "gates/__init__.py", "frontends/ahead_worker.py"}),
    ),
    "files that may be read half written": (
        frozenset({".write_text", ".write_bytes", "open for writing"}),
        # Files of their own folder, for people: dumps, reproducers, a report, a disassembler's
        # input. What programs read again is written by `write_whole`.
        frozenset(
            {
                "kir/pipeline.py", "host/refused.py", "frontends/torch/reproducer.py",
                "report/explain.py", "cuda/sass.py", "runtime/files.py",
                "frontends/ahead_worker.py", "frontends/torch/report.py",
            }
        ),
    ),
    "names of files that are moved": (
        frozenset({"os.replace", "os.rename", ".rename", "tempfile.mkstemp"}),
        frozenset({"runtime/files.py"}),
    ),
}  # fmt: skip
"""Calls that only some files may make."""


@pytest.mark.parametrize("what", ONLY_IN)
def test_calls_that_few_files_may_make(what: str) -> None:
    names, allowed = ONLY_IN[what]
    found = {
        _relative(p): sorted(
            line for line, name in facts(p.read_text("utf-8")).calls if name in names
        )
        for p in SOURCES
    }
    assert {f: lines for f, lines in found.items() if lines and f not in allowed} == {}
    assert [f for f in sorted(allowed) if not found[f]] == [], "allowed, but not needed"


def test_text_files_are_utf_8_whatever_the_locale_is() -> None:
    # Names of a caller's program are in what dumps and reproducers show.
    unsaid = [
        f"{_relative(p)}:{line}"
        for p in SOURCES
        for line in facts(p.read_text(encoding="utf-8")).without_encoding
    ]
    assert unsaid == []


def test_calls_are_found_by_name() -> None:
    source = """
        print(1); x.print(2); os.replace(a, b); "a".replace("b", "c")
        with open(p) as f, open(p, "wb") as g, p.open(mode="a") as h, os.fdopen(3, "r") as k:
            exec(t)
    """
    found = [name for _, name in facts("if 1:" + source).calls]
    assert sorted(found) == [
        ".print", ".replace", "exec", "open for writing", "open for writing", "os.replace", "print",
    ]  # fmt: skip


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


def asked_of_make(*arguments: str) -> str:
    """What make prints; it runs nothing of the project."""
    done = subprocess.run(
        ["make", "--silent", *arguments], cwd=ROOT, capture_output=True, text=True, check=True,
        timeout=30,
    )  # fmt: skip
    return done.stdout


def makefile_variable(name: str) -> list[str]:
    """The words of a variable of the Makefile."""
    return shlex.split(asked_of_make("--eval", f"shown: ; $(info $({name}))", "shown"))


NEEDS_TORCH = re.compile(r"^(?:torch = )?pytest.importorskip\(\"torch\"", re.M)


def test_what_needs_torch_is_run_with_it_and_nothing_else_twice() -> None:
    """`make test` runs without torch, and `make torch` what that left out."""
    listed = makefile_variable("TORCH_TESTS")
    scripts = sorted((ROOT / "examples").glob("*.py"))
    run = (
        ("tests/test_house.py::test_the_examples_of_a_document_run_in_order", "name", DOCUMENTS),
        ("tests/test_examples.py::test_an_example_runs", "stem", scripts),
    )
    wanted = [
        f"{test}[{getattr(path, part)}]"
        for test, part, paths in run
        for path in paths
        if re.search(r"^import torch$", path.read_text(encoding="utf-8"), re.M)
    ]
    assert sorted(x for x in listed if "::" in x) == sorted(wanted)
    files = {ROOT / x for x in listed if "::" not in x}
    found = {f for f in (ROOT / "tests").rglob("test_*.py") if f.parent.name != "gpu"}
    assert len(files) > 30
    assert files == {f for f in found if NEEDS_TORCH.search(f.read_text(encoding="utf-8"))}


def test_a_test_that_hangs_fails_and_shows_where(tmp_path: Path) -> None:
    path = tmp_path / "test_hanging.py"
    path.write_text("import time\n\ndef test_hangs():\n    time.sleep(60)\n", encoding="utf-8")
    guard = [o.replace("=300", "=0.5") for o in makefile_variable("GUARD")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", *guard, str(path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert 'test_hanging.py", line 4 in test_hangs' in done.stderr


def test_ci_runs_no_tests_without_the_guard_against_hangs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", script, re.M)
    lines = asked_of_make("--dry-run", *targets).splitlines()
    runs = [line for line in lines if "-m pytest" in line]
    guard = " ".join(makefile_variable("GUARD"))
    assert len(runs) == 4, targets
    assert [line for line in runs if guard not in line] == []


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
