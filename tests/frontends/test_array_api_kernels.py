"""The runs of the array API's own suite: values of simulated kernels, and how results count."""

from __future__ import annotations

import numpy as np
import pytest
from tools import array_api, array_api_kernels as kernels

import fusewright as fw


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.install(monkeypatch)
    monkeypatch.setattr(kernels, "counts", dict.fromkeys(kernels.counts, 0))


@pytest.mark.usefixtures("installed")
def test_values_come_from_simulated_kernels_of_rank_0_too():
    assert float(fw.asarray(3.0) + fw.asarray(4.0)) == 7
    x = fw.asarray(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(np.asarray(fw.sum(x * 2, axis=1)), [6, 24])
    assert kernels.counts == {"simulated": 2, "compiled": 2, "oracle": 0}


@pytest.mark.usefixtures("installed")
def test_equal_programs_are_compiled_once_and_complex_ones_not_at_all():
    for _ in range(2):
        assert float(fw.sum(fw.asarray([1.0, 2.0]))) == 3
        assert complex(fw.asarray(1j) * fw.asarray(2.0)) == 2j
    assert kernels.counts == {"simulated": 2, "compiled": 1, "oracle": 2}


@pytest.mark.usefixtures("installed")
def test_data_that_is_read_twice_is_one_argument():
    x = fw.asarray([1.0, 2.0])
    np.testing.assert_array_equal(np.asarray(x * x), [1, 4])
    assert kernels.counts == {"simulated": 1, "compiled": 1, "oracle": 0}


@pytest.mark.usefixtures("installed")
def test_a_race_is_an_error(monkeypatch: pytest.MonkeyPatch):
    simulate = fw.Program.simulate

    def raced(self: fw.Program, *arrays: np.ndarray):
        found = simulate(self, *arrays)
        found.races.append("a race")
        return found

    monkeypatch.setattr(fw.Program, "simulate", raced)
    with pytest.raises(AssertionError, match="1 races, the first: a race"):
        float(fw.asarray([1.0])[0] + fw.asarray(2.0))


def test_the_share_is_of_the_applicable_tests():
    xml = '<testsuites><testsuite tests="10" failures="1" errors="1" skipped="4"/></testsuites>'
    counts = array_api.counts_of(xml)
    assert counts == array_api.Counts(passed=4, failed=2, skipped=4)
    assert str(counts) == "4 of 6 applicable tests pass (66.7 %), 4 are left out"


def test_sources_that_are_not_complete_are_named(tmp_path):
    with pytest.raises(SystemExit, match="is no checkout of data-apis/array-api-tests"):
        array_api.check_suite(tmp_path)
    (tmp_path / "array_api_tests").mkdir()
    with pytest.raises(SystemExit, match="reads signatures from its submodule"):
        array_api.check_suite(tmp_path)


def test_a_suite_that_does_not_start_is_told(tmp_path, capfd):
    (tmp_path / "array_api_tests").mkdir()
    (tmp_path / "conftest.py").write_text("raise ImportError('pytest-json-report is required')")
    with pytest.raises(SystemExit, match=r"did not run.*requirements\.txt"):
        array_api.run(tmp_path, (), 1, "nothing")
    assert "pytest-json-report is required" in "".join(capfd.readouterr())
