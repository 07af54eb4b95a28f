# The commands that people and CI use: install, check, test, run, smoke, claims.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
OMP_NUM_THREADS ?= $(shell nproc 2>/dev/null || echo 2)
export OMP_NUM_THREADS
LOCK := $(if $(GPU),locks/dev-gpu.txt,locks/dev-cpu.txt)
MODEL ?=
DOC ?=
QUESTION ?=
# Passed by environment, unexpanded: a path or question may hold quotes and dollars.
export CAKE_RUN_MODEL := $(value MODEL)
export CAKE_RUN_DOC := $(value DOC)
export CAKE_RUN_QUESTION := $(value QUESTION)
UP_OPTIONS = --with-engine $${CAKE_RUN_MODEL:+--model "$$CAKE_RUN_MODEL"} \
	$${CAKE_RUN_DOC:+--example-document "$$CAKE_RUN_DOC"} $${CAKE_RUN_QUESTION:+--question "$$CAKE_RUN_QUESTION"}

.PHONY: install check format test test-unit test-e2e run smoke claims golden bench-policies lock openapi
.DEFAULT_GOAL := run

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else f"Python 3.11 is needed, {v[0]}.{v[1]} found; set PYTHON=python3.11")'
	@echo "install: environment in $(VENV), packages from $(LOCK) (several GB the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@echo "install: packages are compiled once, about a minute; it halves every later start"
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --compile-bytecode -r $(LOCK)
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --editable .
	@touch $@

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: test-unit test-e2e

test-unit: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist worksteal --durations 8 -m "not e2e"

test-e2e: install
	$(BIN)/python -m pytest -q -m e2e

run: install
	@$(BIN)/cake-sglang up $(UP_OPTIONS)

smoke: install
	@$(BIN)/cake-sglang up $(UP_OPTIONS) --smoke

claims: install
	$(BIN)/cake-sglang claims $(if $(ONLY),--only $(ONLY))

# FILES: recorded outputs of reference implementations (.npz); one JSON line each, exit 1 on any difference.
FILES ?= tests/golden/recorded/*.npz

golden: install
	@$(BIN)/python -m cake_eval.golden $(FILES)

bench-policies: install
	@$(BIN)/python -m cake_eval.bench_policies

openapi: install
	$(BIN)/python -m cake_api.openapi

# Resolve all locks again; the hash of every wheel is kept. See docs/decisions/0003-install-size.md.
lock: install
	BIN=$(BIN) bash locks/resolve.sh
