# `make up` runs the product, `make test` proves it. Both set up everything they need.
PYTHON ?= $(shell tools/python)
BIN := .venv/bin
PAGES = $(BIN)/python tools/pages.py
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
.PHONY: help up begin-pages test quick check types rules web pages fmt bench chaos soak sim weeks planted topologies docs lock clean screenshots

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

# The API answers at once; the pages are built beside it and beside its installation, and shown as soon as they are there.
up: begin-pages .venv/run.stamp ## Run everything in one process (Ctrl-C stops it); ARGS='--port 8081 --speed 60'
	@exec env LCM_SIM_SPEED=$${LCM_SIM_SPEED:-$(SPEED)} $(BIN)/lcm up $(EXAMPLES) $(ARGS)

begin-pages:
	@mkdir -p .cache; { $(PYTHON) tools/pages.py build >.cache/pages.log 2>&1 || [ $$? = 130 ] || \
		echo "The pages could not be built: see .cache/pages.log" >&2; } &

test: .venv/dev.stamp ## Run make check, then every test, and print the coverage table
	@$(MAKE) --no-print-directory -j4 types rules web pages $(TOOLS)/etcd.stamp $(TOOLS)/chromium.stamp
	@rm -rf .cache/steps .cache/coverage && mkdir -p .cache/coverage
	LCM_WHOLE_SUITE=1 $(BIN)/python -m pytest -n 3 --dist worksteal --cov --cov-report= --ignore tests/test_tidy.py
	@$(BIN)/python tests/gates.py

quick: check pages $(TOOLS)/etcd.stamp ## Run make check and the unit tests, without coverage: within 3 minutes on 2 cores
	$(BIN)/python -m pytest -q -n 3 --dist worksteal tests/unit

check: .venv/dev.stamp ## Lint, types, import contracts, house rules
	@$(MAKE) --no-print-directory -j3 types rules web

# On a busy machine mypy's helpers may come up too late for it: it ends with 2 then, and works without them.
types: .venv/dev.stamp
	$(BIN)/mypy -n 2 || { [ $$? = 2 ] && $(BIN)/mypy; }

# Every test is loaded and only those of the house rules are run: the rest is compiled by then, once and for all.
rules: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:randomly -k test_tidy

# Lint, types and unit tests of the web interface.
web: .venv/dev.stamp
	$(PAGES) check

pages: .venv/run.stamp ## Build the web interface, if its sources changed
	@$(PAGES) build

fmt: .venv/dev.stamp ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(PAGES) fmt

bench: .venv/dev.stamp $(TOOLS)/etcd.stamp ## Measure against bare baselines; ONLY=store runs one group
	@$(BIN)/python tests/bench/run.py $(ONLY)

chaos: .venv/dev.stamp $(TOOLS)/etcd.stamp ## Kill and cut far more often than make test does
	LCM_CHAOS=10 $(BIN)/python -m pytest -q tests/crash tests/simulation tests/conformance/system/test_api_schema.py \
		tests/conformance/system/test_stream_storm.py tests/conformance/system/test_quota_race.py tests/unit/worker/test_deciders.py --timeout 1200

# The web interface needs Chromium and its pages.
soak: .venv/dev.stamp ## Find what shows in the long run only; ONLY=bookings (a million, or LCM_SOAK), sessions (2000) or web
	@case '$(ONLY)' in ''|bookings|sessions|web) ;; *) echo "no soak '$(ONLY)'; there are: bookings, sessions, web"; exit 2 ;; esac
	$(if $(filter-out bookings,$(ONLY)),,LCM_SOAK=$(or $(LCM_SOAK),1000000) $(BIN)/python -m pytest -q -n 2 --timeout 7200 \
		tests/simulation/test_bookings_at_random.py)
	$(if $(filter-out sessions,$(ONLY)),,PYTHONPATH=tests $(BIN)/python -m soak)
	$(if $(filter-out web,$(ONLY)),,@$(MAKE) --no-print-directory pages $(TOOLS)/chromium.stamp)
	$(if $(filter-out web,$(ONLY)),,PYTHONPATH=tests $(BIN)/python -m soak.web)

screenshots: .venv/dev.stamp $(TOOLS)/chromium.stamp pages ## Take a picture of every page, into .cache/screenshots; ONLY=home, KEEP=home-light
	@PYTHONPATH=tests $(BIN)/python -m browser.screenshots --only '$(ONLY)' --keep '$(KEEP)'

# Seeds that have failed once, bulk seeds, and CLIENT more that speak to CMLs by our client.
sim: .venv/dev.stamp ## Play simulated days in which everything goes wrong; SEEDS=50 HOURS=24 FIRST=n chooses them, ONE='…' one
	@PYTHONPATH=tests $(BIN)/python -m world $(if $(ONE),--one '$(ONE)') --seeds $(or $(SEEDS),50) --hours $(or $(HOURS),24) \
		--client-seeds $(CLIENT) $(addprefix --kept ,$(KEPT)) \
		$(if $(filter command environment,$(firstword $(origin FIRST))),--first $(FIRST))

weeks: .venv/dev.stamp ## Play simulated weeks under every scaling policy, and print what each costs; ONLY=… by week or policy
	@PYTHONPATH=tests $(BIN)/python -m world.weeks.run $(if $(ONLY),"$(ONLY)")

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
	rm -rf .venv .cache web/node_modules web/made src/lcm/api/pages .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/run.stamp: requirements/run.txt requirements/uv.txt pyproject.toml
	@tools/venv $(PYTHON) requirements/run.txt
	@touch $@

.venv/dev.stamp: requirements/dev.txt requirements/uv.txt pyproject.toml
	@tools/venv $(PYTHON) requirements/dev.txt
	@touch $@ .venv/run.stamp

$(TOOLS)/chromium.stamp: | .venv/dev.stamp
	@tools/chromium
	@touch $@

$(TOOLS)/etcd.stamp: | .venv/dev.stamp
	@tools/etcd $(TOOLS)
	@touch $@
