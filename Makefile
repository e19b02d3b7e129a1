# Needs python3 (3.11 or newer) with venv, and make. What each target runs is in README.md, for use without make.

PYTHON ?= python3
VENV   ?= .venv
# Where to get torch first, so that its default wheel with its CUDA libraries is not fetched:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PYTEST ?=
# Processes that run tests: one for each core. None, to see a test's output as it comes: make test WORKERS=0
WORKERS ?= auto

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
TORCH := $(shell grep '^torch==' constraints.txt)
SOURCES := src tests benchmarks

.PHONY: demo test test-fast test-sweeps lint format bench clean

demo: $(VENV)/.demo
	$(BIN)/manyheads xray

test: $(VENV)/.demo $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST)

# While working: what takes a compiler, a real model or a browser to show is left out.
test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not real and not browser" $(PYTEST)

# All inputs of the sweeps (tests/support/sweeps.py), where `make test` takes some of each.
test-sweeps: $(VENV)/.demo $(VENV)/.dev
	MANYHEADS_SWEEPS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/.demo
	$(BIN)/python benchmarks/startup.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis xray.html xray.json
	find $(SOURCES) -name __pycache__ -type d -exec rm -rf {} +

# Each stamp says: installed as these files ask.

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  "manyheads needs Python 3.11 or newer; %s is %d.%d (another: make PYTHON=/path/to/python3)" % (sys.executable, v[0], v[1]))'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.python constraints.txt
	$(if $(TORCH_INDEX),$(PIP) install --quiet --index-url $(TORCH_INDEX) $(TORCH))
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml constraints.txt requirements-demo.txt
	$(PIP) install --quiet -c constraints.txt -e '.[models]'
	$(PIP) install --quiet --require-hashes --no-deps --only-binary :all: -r requirements-demo.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[models,dev]'
	@touch $@
