# Everything runs in a virtual environment of this folder, with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A path file, not a finder: a folder `specfrontier`, such as this one, in the working directory is no package then.
EDITABLE := --config-settings editable_mode=compat
# Processes that share the tests, file by file: what a file makes (a sweep, a browser, a cluster) is made once. Four
# for two cores: tests of Ray, servers and browsers mostly wait.
TEST_WORKERS ?= 4

.PHONY: help venv test lint docs bench sweep clean

help:
	@echo "make venv   virtual environment with pinned dependencies in $(VENV)"
	@echo "make test   the tests, in four processes (TEST_WORKERS=N)"
	@echo "make lint   ruff and mypy (strict)"
	@echo "make docs   the documentation as a site in site/"
	@echo "make bench  the benchmarks: every method's row, and the engine's overhead"
	@echo "make sweep  the quick start's sweep on the built-in model, on this machine"

venv: $(VENV)/.installed

# Not compiled: Python compiles a module when it is first imported, and most of them never are.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("specfrontier needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned packages into $(VENV): a few minutes, about 4 GB"
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $(EDITABLE) -e '.[sweep,dev]' -c constraints.txt
	touch $@

test: export PYTHONDONTWRITEBYTECODE = # if it is set, every process of a test compiles everything again
test: venv
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

docs: export NO_MKDOCS_2_WARNING = 1 # a line of the theme's authors on its successor
docs: venv
	$(BIN)/python -m mkdocs build --strict

bench: venv
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.driver

sweep: venv
	$(BIN)/specfrontier launch quickstart --resume $(SWEEP_ARGS)

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache
