# Two commands: `make demo` shows what vitrail does, `make test` checks it. Both set everything up on a fresh machine.

PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/pip install --quiet --constraint constraints.txt
WORKERS ?= 2

.PHONY: demo test test-slow lint

demo: $(VENV)/.core
	$(VENV)/bin/vitrail demo --out vitrail-demo

test: lint
	$(VENV)/bin/python -m pytest -n $(WORKERS) -m "not slow"

test-slow: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m slow

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[dev]"
	touch $@
