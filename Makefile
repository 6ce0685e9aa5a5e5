# `make run` and `make test` do all set-up themselves; they need Python 3.11 or later and nothing else.
PRESET ?= laptop
JOBS ?= 1
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# The tested set is Python 3.11's; later ones take the newest versions within the bounds.
CONSTRAINTS := $(shell $(PYTHON) -c 'import sys; sys.version_info[:2] == (3, 11) and print("-c constraints.txt")' 2>/dev/null)

.PHONY: setup run test test-slow lab check clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt setup.py $(wildcard quarl_lib/inference/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "QuaRL needs Python 3.11 or later: install it, or call make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import platform, sys; sys.exit((sys.platform, platform.machine()) != ("linux", "x86_64") or \
	  sys.version_info[:2] != (3, 11))' || echo "left out: Reverb and Acme, which have builds for Linux on x86-64 with \
	Python 3.11 alone; ActorQ uses its local replay, and studies leave the authors' recipe out"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv: a few minutes, once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[all]'
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
