# Everything below runs in .venv, which `make setup` makes. Set VENV to use another environment.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup test lint rules golden docs fuzz compat bench

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make the virtual environment and install atcfuse with its tools
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -e '.[dev]'

test:  ## run all tests
	$(BIN)/pytest -n auto

lint:  ## style, types and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

rules:  ## check every rule file and run the examples in them
	$(BIN)/atcfuse rules check
	$(BIN)/atcfuse rules test

golden:  ## write the golden files anew, and show what changed
	$(BIN)/pytest --update-golden
	git diff --stat -- tests/golden

docs:  ## bring the reference pages and the pasted output in README.md up to date, then check the documents
	$(BIN)/pytest --update-golden tests/unit/test_docs.py
	$(BIN)/pytest tests/unit/test_docs.py

SEED    ?= 1
MINUTES ?= 5
fuzz:  ## random hostile and valid inputs, SEED=1 MINUTES=5; findings go to fuzz-out/
	$(BIN)/python tests/fuzz/run.py --seed $(SEED) --minutes $(MINUTES) --out fuzz-out

PYTHONS ?= $(PYTHON)
compat:  ## the suite with the lowest and the newest dependencies, for PYTHONS="python3.10 python3.13"
	for python in $(PYTHONS); do for set in lowest newest; do PYTHON=$$python bash .ci/compat $$set || exit 1; done; done

bench:  ## time and memory beside a plain load and save; writes bench/results.md
	$(BIN)/python bench/run.py
	$(BIN)/python bench/planning.py

bench-peers:  ## the same model through other optimizers, in an environment of their own; writes bench/peers.md
	$(BIN)/python bench/peers.py
