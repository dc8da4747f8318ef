"""The command line: demo, explain, verify, bench."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import fusewright as fw
from fusewright.errors import FusewrightError, UserError
from fusewright.fusion.spec_text import parse_spec
from fusewright.report.explain import Report
from fusewright.report.text import PARTS
from fusewright.runtime.device import has_gpu


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 when a check failed, 2 for a bad request."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except FusewrightError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of the output went away; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fusewright", description=fw.__doc__)
    parser.add_argument("--version", action="version", version=f"fusewright {fw.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")

    def command(name: str, run: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    sub = command("demo", _demo, "compile three fusions, show them, run them, check them")
    _add_target(sub)
    sub = command("explain", _explain, "what a function becomes, and why")
    sub.add_argument(
        "function",
        metavar="module:function",
        help="found from the current directory; or file.py:function",
    )
    sub.add_argument(
        "--spec",
        nargs="+",
        action="extend",
        default=[],
        metavar="dtype[shape]",
        help="one per argument, such as 'f32[1024,1024]' or 'bf16[n,4096]'",
    )
    sub.add_argument("--show", choices=PARTS, help="details instead of the summary")
    sub.add_argument("--json", action="store_true", help="the summary as JSON")
    sub.add_argument("--html", metavar="path", help="write one HTML file instead of text")
    sub.add_argument("--trace", metavar="path", help="write a Chrome trace, which Perfetto opens")
    sub.add_argument(
        "--beside",
        metavar="module:function",
        help="another version, of the same specs: show both side by side",
    )
    _add_target(sub)
    sub = command("verify", _verify, "prove the syncs of the corpus needed and sufficient")
    sub.add_argument(
        "--cubin", action="store_true", help="also check machine code and traffic at full size"
    )
    sub.add_argument("--only", metavar="text", default="", help="entries whose name contains this")
    _add_target(sub)
    sub = command("bench", _bench, "run the benchmarks; needs a GPU")
    sub.add_argument("rest", nargs=argparse.REMAINDER, help="passed to the harness")
    return parser


def _add_target(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--target", default="sm_90a", help="architecture (default: %(default)s)")


# --- the commands -------------------------------------------------------------------------------
# The demo's and the corpus's fusions are loaded by the commands that run them.


def _demo(arguments: argparse.Namespace) -> int:
    from fusewright import demo

    return demo.run(target=arguments.target)


def _verify(arguments: argparse.Namespace) -> int:
    from fusewright import gates
    from fusewright.corpus import CORPUS

    return gates.run(CORPUS, target=arguments.target, cubin=arguments.cubin, only=arguments.only)


def _report(arguments: argparse.Namespace, function: str) -> Report:
    fusion = fw.trace(load_function(function), *map(parse_spec, arguments.spec))
    return Report(fw.compile(fusion, target=arguments.target), title=function)


def _explain(arguments: argparse.Namespace) -> int:
    report = _report(arguments, arguments.function)
    if arguments.beside is not None:
        beside = _report(arguments, arguments.beside)
        if arguments.html is None:
            print(report.compare(beside))
        else:
            print(report.to_html(arguments.html, beside=beside))
    elif arguments.html is not None or arguments.trace is not None:
        if arguments.html is not None:
            print(report.to_html(arguments.html))
        if arguments.trace is not None:
            print(report.to_trace(arguments.trace))
    elif arguments.json:
        print(json.dumps(report.to_dict(), indent=2))
    elif arguments.show:
        print(report.show(arguments.show))
    else:
        print(report)
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    if not has_gpu():
        print("bench needs a GPU: no CUDA device was found on this machine")
        return 0
    harness = Path(__file__).parents[2] / "bench"
    if not harness.is_dir():
        raise UserError(f"bench runs from a checkout of the sources: there is no folder {harness}")
    done = subprocess.run([sys.executable, harness / "run.py", *arguments.rest], check=False)
    return done.returncode


# --- arguments ----------------------------------------------------------------------------------


def load_function(path: str) -> Callable[..., Any]:
    """The function at `module:function`, found from the current directory too, or at
    `path/to/file.py:function`; what `fw.fuse` made of it is taken off.

    Raises UserError when the module or the function is not there, and when it cannot be imported.
    """
    module_name, _, name = path.rpartition(":")
    if not module_name or not name:
        raise UserError(
            f"{path!r}: write module:function, such as model:softmax or model.py:softmax"
        )
    module = _module(module_name, path)
    fn = getattr(module, name, None)
    if not callable(fn):
        there = [n for n, v in vars(module).items() if _is_own_function(v, n, module)]
        raise UserError(
            f"{path!r}: {module_name} has no function {name!r}; it has {', '.join(there) or 'none'}"
        )
    return inspect.unwrap(fn)


def _is_own_function(value: object, name: str, module: ModuleType) -> bool:
    own = getattr(value, "__module__", None) == module.__name__
    return own and callable(value) and not name.startswith("_")


def _module(name: str, path: str) -> ModuleType:
    """The module of a name or of a file. Raises UserError where it cannot be imported."""
    is_file = name.endswith(".py") or "/" in name or os.sep in name
    if is_file and not Path(name).is_file():
        raise UserError(f"{path!r}: there is no file {name}; write path/to/file.py:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return _from_file(Path(name)) if is_file else importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise UserError(f"{path!r}: {e}; run where {e.name} can be imported") from e
    except FusewrightError:
        raise
    except Exception as e:
        raise UserError(f"{path!r}: importing {name} fails: {type(e).__name__}: {e}") from e


def _from_file(file: Path) -> ModuleType:
    """The module of a file, which finds those beside it, as a script would."""
    sys.path.insert(0, str(file.resolve().parent))
    name = file.stem
    while name in sys.modules:  # json.py is called _json by Python itself, too
        name = f"_{name}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is no Python file: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
