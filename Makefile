# Every command of the project. `make` alone lists them.
PYTHON ?=
VENV := .venv
PY := $(VENV)/bin/python

# Runs a command as a stage: what it is, and how long it took.
STAGE := @bash scripts/stage
PARTS ?= all
DEMO_CMD := $(VENV)/bin/deeplink demo
BENCH_CMD := $(PY) benchmarks/bench_device.py
OPINFO_CMD := $(PY) -m tests.opinfo.run --all
PYTEST_ARGS ?=
TYPED := $(wildcard src benchmarks examples)
CPP = $(shell find src/op_tools/csrc -name '*.cpp' -o -name '*.h')

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build demo test lint format docs opinfo bench doctor clean distclean

help: ## List the commands
	@echo "deeplink: run PyTorch code written for CUDA on other accelerators"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv: pinned torch, this package, the tools (repeats in a second)
	@PYTHON="$(PYTHON)" bash scripts/setup

build: setup ## Build the native parts (cached): all, or PARTS="core" for those of the demo
	$(STAGE) build $(PY) -m deeplink.build $(PARTS)

demo: PARTS := core
demo: setup build ## Train on the reference device, find and fix a fault of it, show a page of it
	$(STAGE) demo $(DEMO_CMD)

test: setup build lint ## Set up, build, lint, and run the tests
	$(STAGE) test $(PY) -m pytest $(PYTEST_ARGS)

lint: setup ## ruff check, ruff format --check, clang-format, mypy --strict, licence lines, prose
	$(STAGE) lint $(VENV)/bin/ruff check .
	$(STAGE) lint $(VENV)/bin/ruff format --check .
	$(STAGE) lint $(PY) scripts/spdx --check
	$(STAGE) lint $(PY) scripts/prose --check
	$(STAGE) lint $(VENV)/bin/clang-format --dry-run -Werror $(CPP)
	$(STAGE) lint $(PY) -m mypy $(TYPED)

format: setup ## Let ruff fix and format the tree
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/clang-format -i $(shell find src/op_tools/csrc -name '*.cpp' -o -name '*.h')

docs: setup ## Build the site of the documentation into site/; a broken link is an error
	$(STAGE) docs $(PY) -m scripts.docs_site --install

opinfo: setup build ## Every operator of torch's own test database on the device (long)
	@$(OPINFO_CMD)

bench: setup build ## Cost of the device against plain CPU
	@$(BENCH_CMD)

doctor: setup ## What is installed, what is chosen and why, and a self-test
	@$(VENV)/bin/deeplink doctor

clean: ## Remove caches and build leftovers, keep .venv
	@rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## Remove .venv too
	@rm -rf $(VENV)
