"""Imports go one way: a module imports only from layers above its own, never at the cost of torch.

The test reads the sources; imports inside functions and under TYPE_CHECKING count like any other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src"
PACKAGE = ROOT / "fusewright"

# Top to bottom; layers on one line do not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("choice", "errors"),
    ("arguments",),
    ("collection", "knobs", "memory"),
    ("logs", "progress"),
    ("calibration", "dtypes"),
    ("target",),
    ("core",),
    ("fusion",),
    ("axes",),
    ("schedule",),
    ("kir",),
    ("sim",),
    ("cuda",),
    ("host",),
    ("runtime",),
    ("form_times",),
    ("forms",),
    ("kernel",),
    ("programs",),
    ("program",),
    ("finish",),
    ("spills",),
    ("driver",),
    ("verify",),
    ("report",),
    ("frontends",),
    ("public",),  # names the public things of all layers above
    ("",),
    ("corpus",),
    ("demo", "gates"),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

GUESTS = frozenset({"torch", "cupy", "jax"})
MAY_IMPORT_GUESTS = frozenset({"frontends.torch", "runtime.arrays"})
DEFAULT_DEPENDENCIES = frozenset({"numpy", "ml_dtypes"})


@dataclass(frozen=True)
class Import:
    """One imported module: who asks, on which line, whether it runs when `who` is loaded, and
    whether it stands inside of a function."""

    who: str
    line: int
    module: str
    at_load: bool
    in_function: bool

    def __str__(self) -> str:
        return f"{self.who}:{self.line} imports {self.module}"


def module_name(path: Path) -> str:
    """The dotted name within the package; '' for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


@dataclass(frozen=True)
class Read:
    """What the tests ask of a source. Its tree is not kept: those of all modules are a million
    nodes, through which each search for garbage would look."""

    imports: tuple[Import, ...]
    named: tuple[str, ...]
    environment: tuple[int, ...]


@cache
def read(source: str) -> Read:
    """Its imports, of nobody; the modules that it imports by `import_module("..")`; and the lines
    that name the environment."""
    tree = ast.parse(source)
    named: list[str] = []
    environment: list[int] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="environ" | "environb" | "getenv"):
                environment.append(node.lineno)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                named.append(name)
            case _:
                pass
    imports = _imports(tree.body, at_load=True, in_function=False)
    return Read(tuple(imports), tuple(named), tuple(environment))


def imports_of(who: str, source: str) -> list[Import]:
    """Every module that the source imports, `from a import b` as `a.b` where that is a module."""
    return [replace(i, who=who) for i in read(source).imports]


def _imports(body: list[ast.stmt], *, at_load: bool, in_function: bool) -> Iterator[Import]:
    for node in body:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import("", node.lineno, alias.name, at_load, in_function)
            case ast.ImportFrom(module=module, names=names, level=level):
                assert level == 0 and module, f"line {node.lineno}: relative import"
                for alias in names:
                    named = _resolved(module, alias.name)
                    yield Import("", node.lineno, named, at_load, in_function)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _imports(node.body, at_load=False, in_function=True)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _imports(node.body, at_load=False, in_function=in_function)
                yield from _imports(node.orelse, at_load=at_load, in_function=in_function)
            case _:
                for inner in _bodies(node):
                    yield from _imports(inner, at_load=at_load, in_function=in_function)


def _bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for child in (node, *ast.iter_child_nodes(node)):
        if isinstance(child, (ast.ExceptHandler, ast.match_case)) or child is node:
            for name in ("body", "orelse", "finalbody"):
                yield getattr(child, name, [])


def _resolved(module: str, name: str) -> str:
    path = ROOT.joinpath(*module.split("."), name)
    is_module = path.with_suffix(".py").exists() or (path / "__init__.py").exists()
    return f"{module}.{name}" if is_module else module


def layer_of(name: str) -> int:
    """The rank of a module: that of its longest prefix in LAYERS."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        rank = RANK.get(".".join(parts[:n]))
        if rank is not None:
            return rank
    raise AssertionError(f"fusewright.{name} is in no layer; add it to LAYERS where it belongs")


def upward(found: Import) -> bool:
    """Whether an import of a fusewright module goes against the layers."""
    if not found.module.startswith("fusewright"):
        return False
    target = found.module.removeprefix("fusewright").removeprefix(".")
    if target.split(".")[0] == found.who.split(".")[0]:
        return layer_of(target) > layer_of(found.who)
    return layer_of(target) >= layer_of(found.who)


SOURCES = {module_name(p): p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py"))}


@cache
def all_imports() -> tuple[Import, ...]:
    """The imports of all modules, found when a test asks for them: each process that collects tests
    loads this file."""
    return tuple(i for who, source in SOURCES.items() for i in imports_of(who, source))


def test_every_module_is_in_a_layer() -> None:
    assert {who: layer_of(who) for who in SOURCES}


def test_no_module_imports_upward() -> None:
    assert [str(i) for i in all_imports() if upward(i)] == []


@pytest.mark.parametrize(
    ("who", "line", "wrong"),
    [
        ("core.expr", "from fusewright.errors import UserError", False),
        ("core.expr", "from fusewright.core.node import Node", False),
        ("core.expr", "from fusewright.fusion import ir", True),
        ("schedule.schedule", "from fusewright.kir.lower import lower", True),
        ("sim.machine", "import fusewright", True),
        ("demo", "import fusewright as fw", False),
        ("", "from fusewright.frontends.fuse import fuse", False),
        ("", "from fusewright.corpus import CORPUS", True),
        ("kir.lower", "def f():\n    from fusewright import driver", True),
        ("kir.lower", "if TYPE_CHECKING:\n    from fusewright.cuda import emit", True),
        ("errors", "from fusewright import knobs", True),
    ],
)
def test_the_rule_itself(who: str, line: str, wrong: bool) -> None:
    assert any(map(upward, imports_of(who, line))) is wrong


def test_a_module_without_a_layer_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"fusewright\.miscellany\.things is in no layer"):
        layer_of("miscellany.things")


def test_only_knobs_reads_the_environment() -> None:
    readers = [
        f"{who}:{line}" for who, source in SOURCES.items() for line in read(source).environment
    ]
    assert [r for r in readers if not r.startswith("knobs:")] == []
    assert "os.environ" not in [f"{i.module}" for i in all_imports()]


def test_guests_are_imported_where_their_arrays_are_met_and_never_at_load() -> None:
    guests = [i for i in all_imports() if i.module.split(".")[0] in GUESTS]
    assert [str(i) for i in guests if i.who not in MAY_IMPORT_GUESTS] == []
    assert [str(i) for i in guests if i.at_load and i.who != "frontends.torch"] == []


IMPORTS_IN_FUNCTIONS = {
    "cli": "commands load what they alone need",
    "kir.ir": "a kernel prints as text, whose templates name its classes",
    "runtime.cache": "Windows has no fcntl",
}
"""Who may import inside of a function, and why; elsewhere that would hide a cycle."""


def imports_in_functions(source: str) -> list[int]:
    """The lines of imports that stand inside of functions."""
    return sorted({i.line for i in read(source).imports if i.in_function})


def test_imports_stand_where_modules_begin() -> None:
    found = {who: imports_in_functions(source) for who, source in SOURCES.items()}
    assert {who for who, lines in found.items() if lines} == set(IMPORTS_IN_FUNCTIONS), found
    assert imports_in_functions("import a\ndef f():\n    if x:\n        from b import c") == [4]


SERIALISERS = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})
"""Reading what these wrote runs code of whoever wrote it."""
NETWORKS = frozenset(
    {"socket", "socketserver", "ssl", "urllib", "http", "ftplib", "smtplib", "xmlrpc", "asyncio",
     "requests", "httpx", "aiohttp"}
)  # fmt: skip


def named_modules(source: str) -> set[str]:
    """The first word of every module that a source imports, by `import_module("..")` too."""
    found = read(source)
    names = (*found.named, *(i.module for i in found.imports))
    return {name.split(".")[0] for name in names}


def test_nothing_is_unpickled_and_nothing_is_sent() -> None:
    found = {
        who: named_modules(source) & (SERIALISERS | NETWORKS) for who, source in SOURCES.items()
    }
    assert {who: names for who, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", "pickle"),
        ("def f():\n    from urllib.request import urlopen", "urllib"),
        ('import importlib\nx = importlib.import_module("http.client")', "http"),
        ('from importlib import import_module as m, import_module\nimport_module("dill")', "dill"),
    ],
)
def test_modules_are_found_however_they_are_imported(source: str, found: str) -> None:
    assert found in named_modules(source)


def test_cuda_packages_are_imported_in_cuda_and_runtime_only_and_late() -> None:
    cuda = [i for i in all_imports() if i.module.split(".")[0] == "cuda"]
    assert [str(i) for i in cuda if i.who.split(".")[0] not in ("cuda", "runtime")] == []
    assert [str(i) for i in cuda if i.at_load] == []


def test_importing_the_package_loads_only_the_default_dependencies() -> None:
    script = (
        "import sys; before = set(sys.modules); import fusewright; fusewright.fuse\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names) - {'fusewright'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {m for m in done.stdout.split() if not m.startswith("_")}
    assert loaded <= DEFAULT_DEPENDENCIES


def test_importing_the_package_loads_nothing_until_a_name_is_asked_for() -> None:
    script = (
        "import sys, time; before = time.process_time(); import fusewright as fw\n"
        "seconds = time.process_time() - before; assert 'numpy' not in sys.modules\n"
        "assert fw.__version__ and 'fusewright.public' not in sys.modules\n"
        "assert not hasattr(fw, '__wrapped__') and 'numpy' not in sys.modules\n"
        "from fusewright.verify import random_cases\n"
        "assert fw.verify.__name__ == 'verify' and callable(fw.verify)\n"
        "assert fw.bool.name == 'bool' and 'softmax' in fw.nn.__all__\n"
        "assert set(fw.__all__) <= set(dir(fw)) and not hasattr(fw, 'nothing')\n"
        "assert fw.__array_api_version__ and fw.__array_namespace_info__()\n"
        "from fusewright import *; print(TensorSpec((2,), 'int8'), seconds)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    *spec, seconds = done.stdout.split()
    assert " ".join(spec) == "TensorSpec((2,), int8)" and float(seconds) < 0.15
