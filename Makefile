# Two commands: `make demo` shows what vitrail does, `make test` checks it. Both set everything up on a fresh machine.

PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/pip install --quiet --constraint constraints.txt
WORKERS ?= 2
OLDEST ?= .venv-oldest
CORE = tests/test_front_door.py tests/test_front.py tests/explanation tests/cli tests/model/test_view.py \
  tests/method/test_contract.py tests/metric/test_contract.py tests/bench/test_runner.py tests/bench/report

.PHONY: demo test test-slow test-oldest lint

demo: $(VENV)/.core
	$(VENV)/bin/vitrail demo --out vitrail-demo

test: lint
	$(VENV)/bin/python -m pytest -n $(WORKERS) -m "not slow"

test-slow: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m slow

# The core of the tests with the oldest versions that pyproject.toml allows; they have wheels for Python 3.11 and 3.12.
test-oldest: $(OLDEST)/.dev
	$(OLDEST)/bin/python -m pytest -n $(WORKERS) -m "not slow" $(CORE)

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

$(OLDEST)/.dev: pyproject.toml tools/oldest.py
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) tools/oldest.py > $(OLDEST)/oldest.txt
	$(OLDEST)/bin/pip install --quiet --constraint $(OLDEST)/oldest.txt --editable ".[bench,dev]"
	touch $@
