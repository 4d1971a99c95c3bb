# Each target does its own set-up; a second run of it is a matter of a second and needs no network.
# Everything lives in .venv/ and .cache/.

PYTHON ?= python3
VENV := .venv/bin
# Arguments for pytest or the demo: make test ARGS="-k broker"
ARGS ?=
# What makes random choices repeat.
SEED ?=

# Of make simulate: how many worlds, from which seed on, and what else scripts/simulate.py takes
SEEDS ?= 1000
FROM ?= 0
STEPS ?=
WITHOUT ?=
JOBS ?=

# For how long `make fuzz` runs, on which decoders, and which engine leads: seed or atheris.
SECONDS ?= 600
ONLY ?=
ENGINE ?= seed

.PHONY: help setup demo test test-long simulate torture mutants vectors api bench-smoke checks lint format typecheck fuzz audit-deps lock-jars clean

help:
	@echo "make setup | demo | test | test-long | simulate | torture | mutants | vectors | api | bench-smoke | lint | format | typecheck | fuzz | audit-deps | clean    (see CONTRIBUTING.md)"

setup:
	@$(PYTHON) scripts/setup.py

demo: setup
	@$(VENV)/totalorder demo $(ARGS)

# Two processes, each with a broker and a Spark of its own, which take the next test as they are ready.
test: setup
	@$(VENV)/python -m pytest -n 2 --maxschedchunk 1 -m "not long" $(ARGS)

# What CI has no time for, before a release and after a change of what it is about.
test-long: setup
	@$(VENV)/python -m pytest -n 2 --maxschedchunk 1 -m long $(ARGS)
	@$(MAKE) --no-print-directory -j 2 $(addprefix smoke-,$(SMOKED_LONG) $(SMOKED_LONG_WITH_FILES))

# Faults against a real job, for as long as it takes: make torture FAULTS=100 SEED=7
FAULTS ?= 20
torture: setup
	@$(VENV)/python tests/support/torture.py --faults $(FAULTS) $(if $(SEED),--seed $(SEED))

# Small faults in a copy of the tree, on all cores, for an hour: some test must find each. ARGS="--only delivery --jobs 1"
mutants: setup
	@$(VENV)/python scripts/mutants.py $(ARGS)

# The examples in tests/vectors, after a change of a format; ARGS="--keep NAME" keeps them for later releases too.
vectors: setup
	@$(VENV)/python tests/support/format_vectors.py $(ARGS)

# docs/api.md, after a change of what is public or of its docstrings.
api: setup
	@$(VENV)/python scripts/api.py

# Worlds with faults, on all cores; stops with the command that repeats the smallest form of what failed.
simulate: setup
	@$(VENV)/python scripts/simulate.py --from=$(FROM) --seeds=$(SEEDS) --without=$(WITHOUT) \
		$(if $(STEPS),--steps=$(STEPS)) $(if $(JOBS),--jobs=$(JOBS))

# Benchmarks at a size at which its figures mean nothing: it runs, and gives its JSON. Two at a time.
SMOKED := kernel job peers subscriber
SMOKED_WITH_FILES := bytes growth figures
# Those that start Spark to use it in the way of the others: make test-long
SMOKED_LONG := shards start
SMOKED_LONG_WITH_FILES := partitions order
bench-smoke: setup
	@$(MAKE) --no-print-directory -j 2 $(addprefix smoke-,$(SMOKED) $(SMOKED_WITH_FILES))

smoke-%:
	@$(VENV)/totalorder bench $* --smoke --json $(if $(filter $*,$(SMOKED_WITH_FILES) $(SMOKED_LONG_WITH_FILES)),--out .cache/bench-smoke)

# What CI runs before the tests, two at a time: types keep one core busy, and benchmarks wait now and then. All of
# them, even when one fails.
checks: setup
	@$(MAKE) --no-print-directory -k -j 2 lint typecheck $(addprefix smoke-,$(SMOKED) $(SMOKED_WITH_FILES))

lint: setup
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .

format: setup
	@$(VENV)/ruff check --fix .
	@$(VENV)/ruff format .

typecheck: setup
	@$(VENV)/python scripts/link_tree.py
	@$(VENV)/mypy

# Hostile input to all that is decoded, for so long; tests have a short one.
fuzz: setup
	@if [ "$(ENGINE)" = atheris ]; then $(VENV)/python -m pip install --quiet atheris==3.0.0 || exit 1; fi
	@$(VENV)/python scripts/fuzz.py --seconds $(SECONDS) --seed $(or $(SEED),1) --only "$(ONLY)" --engine $(ENGINE)

# What is known against the packages that are pinned; needs the network, and PyPI itself.
audit-deps: setup
	@$(VENV)/python scripts/audit_deps.py

# After a change of a version in scripts/lock_jars.py; needs the network.
lock-jars: setup
	@$(VENV)/python scripts/lock_jars.py

clean:
	rm -rf .venv .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
