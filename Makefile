# `make up` runs the product, `make test` proves it. Both set up everything they need.
PYTHON ?= $(shell tools/python)
BIN := .venv/bin
TOOLS := .cache/tools
export PATH := $(CURDIR)/$(TOOLS)/usr/bin:$(PATH)
# Where it is set, every process that the tests start compiles the sources anew, and every pytest the tests.
unexport PYTHONDONTWRITEBYTECODE
ONLY ?=
ARGS ?=
CLIENT ?= 5
KEPT ?= tests/simulation/seeds
# What a new data folder begins with, and how fast its cloud is; nothing begins by itself where machines cost money.
FIRST ?= examples/first examples/timetable
SPEED ?= 120
EXAMPLES = $(if $(filter aws --cloud=aws,$(ARGS) $(LCM_CLOUD)),,$(addprefix --first ,$(FIRST)))

.DEFAULT_GOAL := help
.PHONY: help up test quick check types rules fmt bench chaos soak sim planted topologies docs lock clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

up: .venv/run.stamp ## Run everything in one process (Ctrl-C stops it); ARGS='--port 8081 --speed 60'
	@exec env LCM_SIM_SPEED=$${LCM_SIM_SPEED:-$(SPEED)} $(BIN)/lcm up $(EXAMPLES) $(ARGS)

test: .venv/dev.stamp ## Run make check, then every test, and print the coverage table
	@$(MAKE) --no-print-directory -j3 types rules $(TOOLS)/etcd.stamp
	@rm -rf .cache/steps .cache/coverage && mkdir -p .cache/coverage
	LCM_WHOLE_SUITE=1 $(BIN)/python -m pytest -n 3 --dist worksteal --cov --cov-report= --ignore tests/test_tidy.py
	@$(BIN)/python tests/gates.py

quick: check ## Run make check and the unit tests, without coverage: within 3 minutes on 2 cores
	$(BIN)/python -m pytest -q -n 3 --dist worksteal tests/unit

check: .venv/dev.stamp ## Lint, types, import contracts, house rules
	@$(MAKE) --no-print-directory -j2 types rules

# On a busy machine mypy's helpers may come up too late for it: it ends with 2 then, and works without them.
types: .venv/dev.stamp
	$(BIN)/mypy -n 2 || { [ $$? = 2 ] && $(BIN)/mypy; }

# Every test is loaded and only those of the house rules are run: the rest is compiled by then, once and for all.
rules: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:randomly -k test_tidy

fmt: .venv/dev.stamp ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/dev.stamp $(TOOLS)/etcd.stamp ## Measure against bare baselines; ONLY=store runs one group
	@$(BIN)/python tests/bench/run.py $(ONLY)

chaos: .venv/dev.stamp $(TOOLS)/etcd.stamp ## Kill and cut far more often than make test does
	LCM_CHAOS=10 $(BIN)/python -m pytest -q tests/crash tests/simulation tests/conformance/system/test_api_schema.py \
		tests/conformance/system/test_stream_storm.py tests/unit/worker/test_deciders.py --timeout 1200

soak: .venv/dev.stamp ## Find what shows in the long run only; ONLY=bookings (a million, or LCM_SOAK) or sessions (2000)
	@case '$(ONLY)' in ''|bookings|sessions) ;; *) echo "no soak '$(ONLY)'; there are: bookings, sessions"; exit 2 ;; esac
	$(if $(filter sessions,$(ONLY)),,LCM_SOAK=$(or $(LCM_SOAK),1000000) $(BIN)/python -m pytest -q -n 2 --timeout 7200 \
		tests/simulation/test_bookings_at_random.py)
	$(if $(filter bookings,$(ONLY)),,PYTHONPATH=tests $(BIN)/python -m soak)

# Seeds that have failed once, bulk seeds, and CLIENT more that speak to CMLs by our client.
sim: .venv/dev.stamp ## Play simulated days in which everything goes wrong; SEEDS=50 HOURS=24 FIRST=n chooses them, ONE='…' one
	@PYTHONPATH=tests $(BIN)/python -m world $(if $(ONE),--one '$(ONE)') --seeds $(or $(SEEDS),50) --hours $(or $(HOURS),24) \
		--client-seeds $(CLIENT) $(addprefix --kept ,$(KEPT)) \
		$(if $(filter command environment,$(firstword $(origin FIRST))),--first $(FIRST))

planted: .venv/dev.stamp ## Plant faults in the code, one at a time, and see that the simulation finds each; ONLY=… by name
	@PYTHONPATH=tests $(BIN)/python -m world.planted.run $(if $(ONLY),"$(ONLY)")

topologies: .venv/run.stamp ## Check a folder of lab files: make topologies DIR=… ARGS='--node-size NAME=CPUS/MEMORY'
	@$(BIN)/python -m lcm.cli.documents.topologies "$(or $(DIR),tests/topologies)" $(ARGS)

docs: .venv/run.stamp ## Write the pages of docs/ that are made from tables
	$(BIN)/python -m lcm.model.kinds.registry > docs/states.md
	$(BIN)/python -m lcm.settings.page > docs/configuration.md
	$(BIN)/python -m lcm.api.openapi.page > docs/api.md

lock: ## Pin every dependency with its hashes
	tools/lock

clean: ## Remove what the other commands made, except the data
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/run.stamp: requirements/run.txt requirements/uv.txt pyproject.toml
	@tools/venv $(PYTHON) requirements/run.txt
	@touch $@

.venv/dev.stamp: requirements/dev.txt requirements/uv.txt pyproject.toml
	@tools/venv $(PYTHON) requirements/dev.txt
	@touch $@ .venv/run.stamp

$(TOOLS)/etcd.stamp: | .venv/dev.stamp
	@tools/etcd $(TOOLS)
	@touch $@
