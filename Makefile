# One runner for people and for CI; `make help` lists the targets.
#
# `run` and `test` set up all they need: a virtual environment in .venv and, for the tests, Debian's
# Mosquitto and C compiler. PYTHON=/path/to/python chooses the interpreter (3.11 or newer).

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS := 3
PYTEST := $(BIN)/python -m pytest -p tests.support.stages -n $(WORKERS) --max-worker-restart 2
STAGES := $(wildcard $(addprefix tests/,unit cases integration spark e2e deploy crash))

# What is installed has the hashes of a lock; `make lock` writes them.
INSTALL := $(PIP) install --quiet --require-hashes --no-build-isolation --use-pep517
PROJECT := $(PIP) install --quiet --no-deps --no-build-isolation -e .

RUNTIME := $(VENV)/.runtime-installed
DEVELOPMENT := $(VENV)/.development-installed
REPORT := $(VENV)/.report-installed
AZURE := $(VENV)/.azure/.installed
PEERS := $(VENV)/.peers/.installed

# Hundreds of processes are started by the tests: each compiling every module anew takes them a second.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run install report analytics test compile check docs fmt lint types layers bench peers lock soak debian java machines

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUNTIME) ## Watch a hub do its job for a minute; ARGS="--forever" goes on
	@$(BIN)/edgehub demo $(ARGS)

install: $(DEVELOPMENT) ## Set up .venv for development

report: $(REPORT) java ## Report on a day: DATE=2026-11-28 INPUT=export OUTPUT=results
	@$(BIN)/edgehub report '$(DATE)' --input '$(INPUT)' --output '$(OUTPUT)' $(ARGS)

analytics: | $(BIN)/python ## Make dist/analytics.zip for spark-submit --py-files
	@mkdir -p dist
	@find analytics -name __pycache__ -prune -exec rm -r {} +
	@$(BIN)/python -m zipfile -c dist/analytics.zip analytics

test: $(DEVELOPMENT) $(AZURE) debian java ## Run all tests but the long ones; ARGS="-k word" picks some
	$(PYTEST) -m "not soak" --session-timeout 1200 $(STAGES) $(ARGS)

# Else all processes of the tests compile them at the same time.
compile: $(DEVELOPMENT)
	@$(BIN)/python -m pytest --collect-only -qq $(STAGES) >$(VENV)/.found || { cat $(VENV)/.found; false; }

soak: $(DEVELOPMENT) $(AZURE) debian java machines ## Run scaled and long tests in full size: about two hours
	EDGEHUB_SOAK=1 $(PYTEST) -m "soak or scaled" --timeout=7200 $(STAGES) $(ARGS)

check: lint types layers ## Everything that needs no running: lint, types, layers, spelling, words
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/python .ci/check-words

docs: $(DEVELOPMENT) ## Write what the code states into the reference: settings, metrics, help
	$(BIN)/python docs/generate.py

lint: $(DEVELOPMENT) ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@git ls-files ':!tests/cases/data' 2>/dev/null | xargs -r .ci/file-hygiene

fmt: $(DEVELOPMENT) ## Rewrite the code in the one format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

types: $(DEVELOPMENT) ## Check types
	$(BIN)/mypy

layers: $(DEVELOPMENT) ## Check that imports go one way
	$(BIN)/lint-imports

bench: $(DEVELOPMENT) debian ## Measure throughput and latency; ARGS="--runs 1 ingest" shortens
	@.ci/need-debian strace:strace
	$(BIN)/python -m tests.bench.run $(ARGS)

peers: $(PEERS) ## Install what `make bench ARGS=peers` measures in addition to the hub
	@.ci/need-debian rabbitmqctl:rabbitmq-server

LOCK := $(VENV)/.lock/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate \
	--custom-compile-command "make lock"
HASHED := $(LOCK) --generate-hashes --constraint constraints.txt pyproject.toml

lock: | $(VENV)/.lock/bin/uv ## Write constraints.txt and the locks; ARGS="--upgrade" takes the newest versions
	$(LOCK) --all-extras --group build $(ARGS) pyproject.toml -o constraints.txt
	$(HASHED) --all-extras --group build -o requirements.lock
	$(HASHED) --extra lora --extra lora-js --extra redis --extra zstd -o deploy/hub.lock
	$(HASHED) --extra java --extra spark -o deploy/report.lock
	$(LOCK) --generate-hashes --constraint constraints.txt --group build -o deploy/build.lock
	$(LOCK) --generate-hashes --group azure $(ARGS) -o tests/azure.lock
	$(LOCK) --generate-hashes --group peers $(ARGS) -o tests/peers.lock

debian:
	@.ci/need-debian mosquitto:mosquitto mosquitto_sub:mosquitto-clients cc:gcc cc:libc6-dev faketime:faketime redis-server:redis-server \
		systemd-analyze:systemd chromium:chromium

java:
	@[ -n "$$JAVA_HOME" ] || .ci/need-debian java:default-jre-headless

machines:
	@.ci/need-debian debootstrap:debootstrap systemd-nspawn:systemd-container buildah:buildah

$(BIN)/python:
	.ci/make-venv $(VENV)

$(VENV)/.lock/bin/uv: | $(BIN)/python
	$(BIN)/python -m venv $(VENV)/.lock
	$(VENV)/.lock/bin/python -m pip --disable-pip-version-check install --quiet uv==0.13.9

$(RUNTIME): pyproject.toml deploy/build.lock deploy/hub.lock | $(BIN)/python
	$(INSTALL) -r deploy/build.lock
	$(INSTALL) -r deploy/hub.lock
	$(PROJECT)
	@touch $@

$(DEVELOPMENT): pyproject.toml deploy/build.lock requirements.lock | $(BIN)/python
	$(INSTALL) -r deploy/build.lock
	$(INSTALL) -r requirements.lock
	$(PROJECT)
	@touch $(RUNTIME) $(REPORT) $@

# The SDK of Azure, whose clients tests let in, and the programs that the bench measures in addition
# to the hub: they cannot share an environment with ours.
$(AZURE) $(PEERS): $(VENV)/.%/.installed: tests/%.lock | $(BIN)/python
	$(BIN)/python -m venv --clear $(VENV)/.$*
	$(VENV)/.$*/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r tests/$*.lock
	@touch $@

$(REPORT): pyproject.toml deploy/build.lock deploy/report.lock | $(BIN)/python
	$(INSTALL) -r deploy/build.lock
	$(INSTALL) -r deploy/report.lock
	$(PROJECT)
	@touch $(RUNTIME) $@
