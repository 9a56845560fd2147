# The whole work is in scripts/ and in the `rackforge` command; this names it.
#
#   make run     set up, then serve, profile and speed up the reference model (Ctrl-C stops all of it)
#   make test    set up, then lint, type-check and test everything, on a real vLLM server too
#   make help    the rest

PYTHON3 := $(firstword $(shell command -v python3.11) $(shell command -v python3) $(shell command -v python))
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast up down status doctor lint format openapi lock clean distclean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

setup: ## check the machine and make both virtual environments
	@test -n "$(PYTHON3)" || { echo "Python 3.11 is needed and no Python was found. Debian: apt-get install python3.11 python3.11-venv python3.11-dev" >&2; exit 1; }
	@"$(PYTHON3)" scripts/bootstrap.py

run: setup ## set up, start everything and run the reference campaign
	@exec $(BIN)/rackforge run $(ARGS)

test: setup ## set up and run every check and test
	@exec $(BIN)/python scripts/check.py $(ARGS)

test-fast: setup ## the same without real vLLM servers
	@exec $(BIN)/python scripts/check.py --fast $(ARGS)

up: setup ## start database, broker, web and workers in the foreground (ARGS=--detach: in the background)
	@exec $(BIN)/rackforge up $(ARGS)

down: ## stop them
	@exec $(BIN)/rackforge down $(ARGS)

status: ## what runs
	@exec $(BIN)/rackforge status $(ARGS)

doctor: ## what this host can do, and what it lacks
	@exec $(BIN)/rackforge doctor $(ARGS)

lint: ## ruff, mypy, layers
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

format: ## let ruff mend style
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

openapi: ## write the API's description to docs/openapi.json
	@$(BIN)/python manage.py spectacular --format openapi-json --file docs/openapi.json

lock: ## compile the lock files from pyproject.toml and requirements/*.in (ARGS=--upgrade: newest versions)
	@$(BIN)/python scripts/locks.py $(ARGS)

clean: ## remove caches and build results
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## remove both virtual environments too (the data in var/ stays)
	@rm -rf .venv .venv-serving
