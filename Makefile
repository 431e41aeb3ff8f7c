# One word for each job; `make` alone lists them. Nothing has to be installed first but Python 3.11
# or newer (with pip and venv): each target sets up what it needs in .venv and does so only once.

PYTHON ?= $(firstword $(foreach p,python3.11 python3 python,$(shell \
    $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8
#: dpnp finds its CPU driver by this variable.
ON_DPNP := OCL_ICD_FILENAMES=$(CURDIR)/.venv-dpnp/lib/libintelocl.so .venv-dpnp/bin/python -m pytest -m dpnp tests/dpnp
#: More arguments for pytest or the benchmarks: make test ARGS="tests/io -k fvecs"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-mutations test-dpnp coverage lint format docs bench clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 12

demo: .venv/.demo ## real sentence embeddings through every framework and into a search
	$(BIN)/matrix-interop demo

test: .venv/.test .venv/.native ## the quick tests
	$(PYTEST) -m "not slow and not gpu and not dpnp and not mutation" $(ARGS)

test-all: .venv/.test .venv/.native ## quick and slow tests, with more random examples
	MATRIX_INTEROP_HYPOTHESIS=wide $(PYTEST) -m "not gpu and not dpnp and not mutation" $(ARGS)

test-mutations: .venv/.test ## remove each wait in turn: the device test named for it must notice
	$(PYTEST) -m mutation tests/simulated $(ARGS)

test-dpnp: ## tests on a second device type: dpnp on the CPU (an environment of its own, 3 GB)
ifeq ($(wildcard tests/dpnp/test_*.py),)
	@echo "test-dpnp: nothing to run, because tests/dpnp holds no test"
else
	$(MAKE) .venv-dpnp/.ready
	$(ON_DPNP) $(ARGS)
endif

# What is counted, and by which tests. tests/dpnp runs in its own environment and counts dpnp's adapter. Left out is
# test_memory.py: it counts what is allocated, and under coverage the tracer allocates too.
COUNTED := src/matrix_interop/view.py,src/matrix_interop/frameworks/*,src/matrix_interop/exchange/*
COUNTING := tests/exchange tests/frameworks tests/test_device_matrix.py tests/test_matrix.py tests/test_view.py \
    --ignore tests/exchange/test_memory.py

coverage: .venv/.test .venv-dpnp/.ready ## what the tests run of view, frameworks and exchange: less than 95 % fails
	$(PYTEST) -q -m "not slow and not gpu and not dpnp" --cov --cov-report= $(COUNTING) $(ARGS)
	$(ON_DPNP) -q --cov --cov-append --cov-report=
	$(BIN)/python -m coverage report --include="$(COUNTED)" --fail-under=95 --no-skip-covered

lint: .venv/.lint ## style, strict types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/.lint ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.docs ## build the documentation in docs/_build
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build
	@echo "docs: docs/_build/index.html"

bench: .venv/.demo ## measure transfers, conversions and searches on this machine
	$(BIN)/matrix-interop bench $(ARGS)

clean: ## remove environments, builds and caches
	rm -rf .venv .venv-dpnp build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Environments -----------------------------------------------------------------------------------
# .venv/.NAME is the stamp of dependency group NAME of pyproject.toml; a change there installs anew.

.venv/.pip: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed; found none as python3.11, python3 or python (or give PYTHON=...)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade "pip>=25.1"
	@touch $@

.venv/.demo .venv/.test .venv/.lint .venv/.docs: .venv/.%: .venv/.pip
	@echo "make: installing dependency group $* into .venv (minutes the first time)"
	$(PIP) install --quiet --editable . --group $*
	@touch $@

# pip keeps the wheel it builds: without -march=native it still runs when the cache moves to another machine.
.venv/.native: .venv/.test
	@HNSWLIB_NO_NATIVE=1 $(PIP) install --quiet --group native && touch $@ || { \
	    echo "make: hnswlib could not be installed. It comes as source only and needs a C++ compiler" >&2; \
	    echo "      (on Debian: apt-get install g++). Its tests will be skipped." >&2; test -z "$$CI"; }

.venv-dpnp/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-dpnp
	.venv-dpnp/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-dpnp/bin/python -m pip install --quiet --editable . --group dpnp
	@touch $@
