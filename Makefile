# make run   answers to the built-in prompts; any override through ARGS='attention=triton prompt="Hello!"'
# make sweep a small study of drafts and backends, with a report; any narrowing through ARGS
# make test  ruff, format, mypy, pytest
# make setup the environment alone
# PYTHON: the interpreter to start from. PIP_ARGS: passed to every pip install. JOBS: test processes.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=
PIP_ARGS ?=
BIN := $(VENV)/bin

# As it was typed: make expands nothing in it, and no shell sees it, so `$` and `*` in a prompt survive.
export SYNCLESS_ARGS = $(value ARGS)

.PHONY: run sweep test setup lint clean
.DEFAULT_GOAL := run

run: $(VENV)/.ready-run
	@$(BIN)/python tools/run_args.py

sweep: $(VENV)/.ready-run
	@$(BIN)/python tools/run_args.py sweep=smoke

# Bytecode is kept, whatever the environment says: hundreds of tests start a process of their own.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.ready-test lint
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/.ready-test

$(VENV)/bin/python:
	@$(PYTHON) tools/check_machine.py
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_ARGS) -e .
	@touch $@

$(VENV)/.ready-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_ARGS) -e '.[test]'
	@touch $@ $(VENV)/.ready-run

clean:
	rm -rf build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
