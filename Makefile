# Each target does its own set-up; a second run of it is a matter of a second and needs no network.
# Everything lives in .venv/ and .cache/.

PYTHON ?= python3
VENV := .venv/bin
# Arguments for pytest or the demo: make test ARGS="-k broker"
ARGS ?=

.PHONY: help setup demo test bench-smoke lint format typecheck lock-jars clean

help:
	@echo "make setup | demo | test | bench-smoke | lint | format | typecheck | clean    (see CONTRIBUTING.md)"

setup:
	@$(PYTHON) scripts/setup.py

demo: setup
	@$(VENV)/totalorder demo $(ARGS)

test: setup
	@$(VENV)/python -m pytest $(ARGS)

# Every benchmark at a size at which its figures mean nothing: it runs, and gives its JSON.
bench-smoke: setup
	@for name in kernel job shards peers; do $(VENV)/totalorder bench $$name --smoke --json || exit 1; done
	@for name in bytes growth figures partitions order; do \
		$(VENV)/totalorder bench $$name --smoke --json --out .cache/bench-smoke || exit 1; \
	done

lint: setup
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .

format: setup
	@$(VENV)/ruff check --fix .
	@$(VENV)/ruff format .

typecheck: setup
	@$(VENV)/python scripts/link_tree.py
	@$(VENV)/mypy

# After a change of a version in scripts/lock_jars.py; needs the network.
lock-jars: setup
	@$(VENV)/python scripts/lock_jars.py

clean:
	rm -rf .venv .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
