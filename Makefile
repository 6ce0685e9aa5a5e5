# `make run` and `make test` do all set-up themselves; they need Python 3.11 and nothing else.
PRESET ?= laptop
JOBS ?= 1
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: setup run test test-slow lab check clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt setup.py $(wildcard quarl_lib/inference/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "QuaRL needs Python 3.11 (acme and reverb have no builds for others): install it, or call make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv: a few minutes, once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	@touch $@

run: setup  ## every study, then outputs/$(PRESET)/index.html; PRESET=smoke for a first look
	$(BIN)/quarl run all --preset $(PRESET) --jobs $(JOBS)

test: setup  ## what CI runs; two processes, a module's tests in one of them
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadscope

test-slow: setup  ## training runs and long measurements
	$(BIN)/python -m pytest -m slow

lab: setup  ## JupyterLab with this environment's kernel
	$(BIN)/jupyter lab --notebook-dir=.

check: setup  ## style, types, notebooks stripped and laid out alike
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_notebooks.py tests/test_params.py tests/test_imports.py

clean:
	rm -rf .venv build *.egg-info
