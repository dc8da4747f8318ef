"""The array API's own test suite on this package: through the oracle, through simulated kernels.

    python -m tools.array_api SUITE [--examples N] [--only TEXT]

SUITE is a checkout of github.com/data-apis/array-api-tests, with its submodule array-api. N random
examples are drawn a test. Exit status 1 when fewer than 99.5 % of the applicable tests pass in
either run. `array_api_skips.txt` lists what is not applicable; docs/array-namespace.md says why.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SKIPS = ROOT / "tools" / "array_api_skips.txt"
NEEDED = 0.995
RUNS = {"oracle": (), "kernels": ("-p", "tools.array_api_kernels")}


@dataclass(frozen=True)
class Counts:
    """How many tests of a run passed, did not, and were left out."""

    passed: int
    failed: int
    skipped: int

    @property
    def share(self) -> float:
        """The part of the applicable tests that passed."""
        return self.passed / max(self.passed + self.failed, 1)

    def __str__(self) -> str:
        return (
            f"{self.passed} of {self.passed + self.failed} applicable tests pass "
            f"({100 * self.share:.1f} %), {self.skipped} are left out"
        )


def check_suite(suite: Path) -> None:
    """Exits with a message where the sources are not complete."""
    if not (suite / "array_api_tests").is_dir():
        sys.exit(f"{suite} is no checkout of data-apis/array-api-tests: name one with SUITE=/path")
    if not (suite / "array-api" / "src").is_dir():
        sys.exit(
            f"{suite / 'array-api'} is empty: the suite reads signatures from its submodule; run "
            f"git -C {suite} submodule update --init, or unpack data-apis/array-api there"
        )


def run(suite: Path, plugin: tuple[str, ...], examples: int, only: str) -> Counts:
    """Runs the suite in a process of its own, with its output shown."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "ARRAY_API_TESTS_MODULE": "fusewright",
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
    }
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "tests.xml"
        # fmt: off
        subprocess.run(
            [sys.executable, "-m", "pytest", "array_api_tests", *plugin,
             "-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider",
             "--disable-deadline", "--derandomize", "--max-examples", str(examples),
             "--skips-file", str(SKIPS), "--junitxml", str(record), "-k", only],
            cwd=suite, env=environment, check=False,
        )
        # fmt: on
        if not record.exists():
            sys.exit(
                "the suite did not run, for the reason above; what it needs itself is in "
                f"{suite / 'requirements.txt'}: pip install -r it into this environment"
            )
        return counts_of(record.read_text(encoding="utf-8"))


def counts_of(xml: str) -> Counts:
    """The counts of pytest's record."""
    suites = ElementTree.fromstring(xml).iter("testsuite")
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for s in suites:
        for name in total:
            total[name] += int(s.get(name, "0"))
    failed = total["failures"] + total["errors"]
    return Counts(total["tests"] - failed - total["skipped"], failed, total["skipped"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--only", default="", help="a text for pytest's -k")
    options = parser.parse_args()
    suite = options.suite.resolve()
    check_suite(suite)
    found = {
        name: run(suite, plugin, options.examples, options.only) for name, plugin in RUNS.items()
    }
    for name, counts in found.items():
        print(f"{name}: {counts}")
    sys.exit(any(c.share < NEEDED for c in found.values()))


if __name__ == "__main__":
    main()
