# Every target sets up what it needs, from nothing: Python 3.11+, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help report test types ledger kills deep bench bench-history docs

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Python 3.11 or newer is needed, {v.major}.{v.minor} found; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable '.[dev]'
	@touch $@

report: $(STAMP) ## measure scaling laws and judge the claims on this machine, draw the committed GPU rows, write reports/index.html
	$(BIN)/helene scaling --preset standard --out reports --jobs $(JOBS)
	$(BIN)/helene llm pages --out reports
	OMP_NUM_THREADS=1 $(BIN)/pytest theory/ --reports reports -q

test: $(STAMP) ## everything: lint, types, unit tests, the ledger of claims, the docs' examples
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory --output-sync=target -j2 types $(SUITES:%=pytest/%)

types: $(STAMP)
	$(BIN)/mypy

# A process each, two at a time, the longest first. The tests of the ledger use what its claims came to.
LONG := tests/llm tests/optimizers tests/synthetic
SHORT := tests/kernels tests/lab tests/paths
SUITES := ledger-and-tests $(LONG) the-others $(SHORT)

pytest/ledger-and-tests: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q theory tests/theory

pytest/the-others: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $(filter-out $(LONG) $(SHORT) tests/theory %/__pycache__, $(wildcard tests/*))

pytest/%: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $*

ledger: pytest/theory ## theory/ alone: the verdict on every claim

kills: $(STAMP) ## 50 SIGKILLs of a sweep, then Ctrl-C at every line of a step: nothing is lost; some three minutes
	$(BIN)/python -m tests.lab.store.kills --kills 50
	HELENE_DEEP=1 $(BIN)/pytest -q tests/core/test_interrupts.py

DEEP := tests/core/test_interrupts.py tests/llm/models/test_memory.py tests/llm/models/test_plain_forward.py tests/synthetic/control_theory
deep: $(STAMP) ## what make test does in part, whole
	HELENE_DEEP=1 OMP_NUM_THREADS=1 $(BIN)/pytest -q $(DEEP)

bench: $(STAMP) ## every benchmark once, deterministic counts against the committed ones
	@test -f $$HOME/.asv-machine.json || $(BIN)/asv machine --yes
	$(BIN)/asv check --python=same
	HELENE_BENCH_PRELOAD=1 $(BIN)/asv run --python=same --quick --show-stderr --launch-method=forkserver
	$(BIN)/python -m benchmarks.run --check

# asv exits with 2 when a benchmark failed on some commit, which the site shows.
HISTORY ?= 10
bench-history: $(STAMP) ## build and measure the last HISTORY=10 commits, write the site
	@test -f $$HOME/.asv-machine.json || $(BIN)/asv machine --yes
	$(BIN)/asv run --steps $(HISTORY) --skip-existing-commits HEAD~$(HISTORY)..HEAD || [ $$? -eq 2 ]
	$(BIN)/asv publish
	$(BIN)/python tools/vendor_site.py

docs: $(STAMP) ## the site of docs/ and the docstrings: site/index.html, which opens without network
	@$(BIN)/python -c 'import furo, myst_parser' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx -q -W -d site/.doctrees docs site
	@echo site/index.html
