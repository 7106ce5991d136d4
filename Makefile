# Everything runs in a virtual environment of this folder, with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help venv test lint bench sweep clean

help:
	@echo "make venv   virtual environment with pinned dependencies in $(VENV)"
	@echo "make test   all tests, the fast ones first"
	@echo "make lint   ruff and mypy (strict)"
	@echo "make bench  the benchmarks: every method's row, and the engine's overhead"
	@echo "make sweep  (comes with the next step)"

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("specfrontier needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

test: venv
	$(BIN)/python -m pytest -q $(PYTEST_ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: venv
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.overhead

sweep: venv
	@echo "The sweep (Optuna, Ray, MLflow and the speed-quality front) comes with the next step of this project."
	@echo "What works today is one setting at a time, for example:"
	@echo "  $(BIN)/specfrontier generate 'a large red circle on a striped green background' --preset lantern"

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
