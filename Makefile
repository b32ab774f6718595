# make demo   index the standard library with a fleet of two processes
# make test   run the tests
# make check  what .ci/run runs: lint, types, tests
#
# Needs Python 3.11 or newer and nothing else; everything goes into .venv.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$p; break; fi; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# As pip does with packages it copies: where Python may not write bytecode, every process would compile it anew.
COMPILE = $(BIN)/python -m compileall -q istos_worker supervisor
# Two workers keep two cores busy; a file's tests stay together, since those of one file may share a port.
PYTEST ?= $(BIN)/python -m pytest -n 2 --dist loadfile
TESTS ?=

.PHONY: demo test lint types check bench clean

demo: $(VENV)/.installed
	$(BIN)/python -m examples.index_sources

test: $(VENV)/.installed-dev
	$(PYTEST) $(TESTS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

check: lint types test

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed; name it: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps say what is installed, so that a second run starts at once.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	@$(COMPILE)
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
