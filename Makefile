# Everything runs in .venv, which the first target that needs it creates. A stamp file, older than
# pyproject.toml or not, says whether the environment is up to date.

PYTHON ?= python3
WORKERS ?= 2
SEEDS ?= 0:20000
TORCH ?= 2.13.0+cpu
EXAMPLES ?= 20
# What `make test`, where torch is not installed, leaves out.
TORCH_TESTS := $(sort $(shell grep -rlE '^(torch = )?pytest.importorskip."torch"' tests \
	--include='test_*.py' --exclude-dir=gpu)) \
	'tests/test_house.py::test_the_examples_of_a_document_run_in_order[torch.md]' \
	'tests/test_examples.py::test_an_example_runs[torch_model]'
PY := .venv/bin/python
# A test that takes more than LIMIT seconds ends its process, with the stacks of all its threads.
LIMIT ?= 300
GUARD := -o faulthandler_timeout=$(LIMIT) -o faulthandler_exit_on_timeout=true
# Workers share the processors, so that each computes with one thread; the arrays of simulated
# kernels come and go, and their memory is not given back to the system in between.
EACH_ALONE := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432
QUICK_TESTS := $(EACH_ALONE) $(PY) -m pytest $(GUARD) -n $(WORKERS) --dist worksteal \
	-m "not gpu and not slow and not fuzz"
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test torch jax array-api lint format fuzz campaign corpus bench gpu wheel docs site clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 11

demo: .venv/stamp-cuda  ## compile, show, run and check three fusions
	$(PY) -m fusewright demo

test: .venv/stamp-dev  ## the test suite, without what needs a GPU or minutes
	$(QUICK_TESTS)

torch: .venv/stamp-dev  ## the tests of the PyTorch backend, where pip finds a CPU build of torch
	@if $(PY) -c 'import torch' 2>/dev/null \
	|| $(INSTALL) 'torch==$(TORCH)' 2>/dev/null; \
	then $(QUICK_TESTS) $(TORCH_TESTS); \
	else echo 'torch $(TORCH) is not to be had by pip here: its tests are skipped'; fi

jax: .venv/stamp-dev  ## the tests with arrays of JAX, where pip finds it
	@if $(PY) -c 'import jax' 2>/dev/null \
	|| $(INSTALL) 'jax[cpu]' 2>/dev/null; \
	then $(PY) -m pytest $(GUARD) tests/runtime/test_jax_arrays.py; \
	else echo 'jax is not to be had by pip here: its tests are skipped'; fi

array-api: .venv/stamp-dev  ## the array API's own suite on oracle and kernels, from SUITE=/path
	@test -n '$(SUITE)' || { echo 'name a checkout of data-apis/array-api-tests: make array-api SUITE=/path'; exit 2; }
	$(INSTALL) 'ndindex>=1.8' pytest-json-report
	$(PY) -m tools.array_api '$(SUITE)' --examples $(EXAMPLES)

lint: .venv/stamp-dev  ## ruff and pyright
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright

format: .venv/stamp-dev  ## rewrite the sources as `make lint` wants them
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

fuzz: .venv/stamp-dev  ## the random campaigns and the slow tests; seeds are printed
	$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "fuzz or slow" -rA

campaign: .venv/stamp-dev  ## the wider random programs of SEEDS, as a table of what failed
	PYTHONPATH=. $(PY) tests/fuzz/fuzz_campaign.py --seeds $(SEEDS) --jobs $(WORKERS)

corpus: .venv/stamp-dev  ## verify every sync of the corpus, check its machine code and traffic
	$(PY) -m fusewright verify --cubin

bench: .venv/stamp-cuda  ## the benchmarks; needs a GPU
	$(PY) -m fusewright bench

gpu: .venv/stamp-dev  ## the tests that need a GPU
	$(PY) -m pytest -m gpu

wheel: .venv/stamp-dev  ## build the wheel and try it in a clean environment
	$(PY) -m pytest $(GUARD) -m slow tests/test_package.py

docs: .venv/stamp-dev  ## write the generated pages of docs/
	$(PY) docs/make_ops.py
	$(PY) docs/make_api.py

site: .venv/stamp-dev  ## the site of docs/, in build/site, where pip finds mkdocs-material
	@if $(PY) -c 'import material' 2>/dev/null \
	|| $(INSTALL) --editable '.[docs]' 2>/dev/null; \
	then NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet; \
	else echo 'mkdocs-material is not to be had by pip here: the site is not built'; fi

clean:  ## remove the environment and the caches
	rm -rf .venv build .pytest_cache .ruff_cache .hypothesis

.venv/stamp-cuda: pyproject.toml | .venv/bin/python
	$(INSTALL) --editable '.[cuda]'
	touch $@

.venv/stamp-dev: pyproject.toml | .venv/bin/python
	$(INSTALL) --editable '.[cuda,dev]'
	touch .venv/stamp-cuda $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fusewright needs Python 3.11 or later; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
