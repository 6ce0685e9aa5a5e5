# make run and make test do all set-up themselves; they need Python 3.11 and nothing else.
PRESET ?= laptop
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: setup run test test-slow lab check clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt setup.py $(wildcard quarl_lib/inference/*.c quarl_lib/inference/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "QuaRL needs Python 3.11 (acme and reverb have no builds for others): install it, or call make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	@touch $@

run: setup
	$(BIN)/quarl run all --preset $(PRESET)

test: setup
	$(BIN)/python -m pytest -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest -m slow

lab: setup
	$(BIN)/jupyter lab --notebook-dir=.

check: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_notebooks.py

clean:
	rm -rf .venv build *.egg-info
