# Every target builds what it needs: a bare checkout with Python 3.11 or newer is enough.
# Another Python: make test PYTHON=python3.13

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
JOBS ?= 2

# pyright is pinned: it need not ask the network for a newer one
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help env demo test check bench docs format lint types layers lock

help: ## say what each target does
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do printf '%-14s %s\n' "$$target" "$$text"; done

env: ## build .venv from the hashed lock (a no-op when that is done)
	@$(PYTHON) scripts/env.py

demo: env ## watch one hardened queue at work: refusals, kills, recovery, quarantine, audit
	@$(BIN)/benteng demo $(ARGS)

test: env ## run the tests (ARGS="-k name" for some, BENTENG_TEST_LONG=1 for the sweeps too)
	$(BIN)/pytest -n $(JOBS) $(ARGS)

check: env ## all that must hold before a commit: format, lint, types, layers, docs, lock, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/docs.py --check
	$(BIN)/python -m scripts.lock --check
	$(BIN)/python scripts/lengths.py
	$(MAKE) --no-print-directory test

bench: env ## list the benchmarks and how to run each
	@$(BIN)/python scripts/benches.py

docs: env ## regenerate what the docs take from the code
	$(BIN)/python scripts/docs.py --write

format: env ## format the code and fix what can be fixed safely
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: env ## ruff: format and rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: env ## pyright, strict on src
	$(BIN)/pyright

layers: env ## import-linter: layers and security contracts
	$(BIN)/lint-imports --no-cache

lock: ## resolve the dependencies again (ARGS=--upgrade for the newest)
	$(PYTHON) -m scripts.lock $(ARGS)
