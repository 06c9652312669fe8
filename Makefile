# SPDX-License-Identifier: Apache-2.0
# A thin front of meson and ninja. `make help` lists the targets.

BUILD ?= build
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SEEDS ?= 1-1000000

.DEFAULT_GOAL := build
.PHONY: help build demo test lint format docs sim bench bench-postgres bench-brokers bench-mongodb scenario scenario-outages fuzz services services-stop install clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' Makefile
	@echo
	@echo 'variables: BUILD=$(BUILD) JOBS=$(JOBS) SEEDS=$(SEEDS) PREFIX=$(PREFIX) DESTDIR= CC='
	@echo 'OUTBOX_NO_INSTALL=1: print missing packages instead of installing them'

build: ## build build/outbox and the library (default)
	@tools/deps build
	@tools/configure $(BUILD)
	@tools/compile $(BUILD) $(JOBS) products

demo: build ## show a relay at work: outages and a kill, nothing lost
	@$(BUILD)/outbox demo $(DEMO_ARGS)

test: ## build with gcc, clang, ASan+UBSan and TSan, and run every test
	@tools/deps build test
	@$(PYTHON) tests/run.py --jobs $(JOBS) $(TEST_ARGS)

lint: ## layout, static analysis, include directions, documentation
	@tools/deps build test lint
	@$(PYTHON) tools/lint --jobs $(JOBS)

format: ## lay the code out
	@tools/deps lint
	@find src include tests examples bench -name '*.[ch]' -print0 | xargs -0 clang-format -i

docs: build ## write the pages that come from the program's tables
	@tools/compile $(BUILD) $(JOBS) gen-docs
	@$(PYTHON) tools/check-docs --write $(BUILD)

sim: ## simulate the flow, e.g. make sim SEEDS=1-1000000
	@tools/deps build test
	@tools/configure $(BUILD) -Dtests=enabled
	@tools/compile $(BUILD) $(JOBS) tests/sim/sim
	@$(BUILD)/tests/sim/sim --seeds $(SEEDS) --jobs $(JOBS)

bench: build ## measure, beside the raw limits of this machine
	@$(BUILD)/outbox bench $(BENCH_ARGS)

bench-postgres: build ## measure on a PostgreSQL of its own, beside the raw limits
	@tools/deps build test
	@tools/compile $(BUILD) $(JOBS) bench/pg-bench
	@$(PYTHON) bench/postgres.py --build $(BUILD) $(BENCH_ARGS)

bench-brokers: build ## measure sinks on brokers of their own, beside bare loops on the same libraries
	@tools/deps build test
	@tools/compile $(BUILD) $(JOBS) bench/kafka-bench bench/nats-bench bench/rabbit-bench bench/pg-bench
	@$(PYTHON) bench/brokers.py --build $(BUILD) $(BENCH_ARGS)

bench-mongodb: build ## measure on a MongoDB of its own, beside the same statements by libmongoc alone
	@tools/deps build test
	@tools/compile $(BUILD) $(JOBS) bench/mongo-bench
	@$(PYTHON) bench/mongodb.py --build $(BUILD) $(BENCH_ARGS)

scenario: build ## ten minutes of faults and operator actions in each mode and to each broker: MODE= SINK= SCENARIO_SECONDS=600 SEED= SCENARIO_ARGS= (docs/scenario.md)
	@tools/deps build test
	@$(PYTHON) tests/scenario/scenario.py $(foreach m,$(MODE),--mode $(m)) $(foreach k,$(SINK),--sink $(k)) --seconds $(or $(SCENARIO_SECONDS),600) \
		$(if $(SEED),--seed $(SEED)) $(SCENARIO_ARGS)

scenario-outages: build ## each broker hangs for OUTAGE_SECONDS (45), is killed, cut off, or has a full disk
	@tools/deps build test
	@OUTBOX_BIN=$(abspath $(BUILD))/outbox OUTBOX_TEST_OUTAGE=$(or $(OUTAGE_SECONDS),45) $(PYTHON) -m pytest -q -rs \
		tests/e2e/test_broker_outage.py tests/e2e/test_kafka_outage.py $(OUTAGE_ARGS)

fuzz: ## fuzz YAML, templates and JSON for FUZZ_SECONDS (60) each
	@tools/deps build test fuzz
	@tools/fuzz $(or $(FUZZ_SECONDS),60)

services: ## start PostgreSQL, MongoDB, NATS, RabbitMQ and Kafka, as far as they can be had; prints addresses
	@tests/services/all start $(BUILD)/services

services-stop: ## stop them
	@tests/services/all stop $(BUILD)/services

install: build ## install program, library and headers under PREFIX (DESTDIR is heeded)
	@meson configure $(BUILD) -Dprefix=$(PREFIX)
	@tools/compile $(BUILD) $(JOBS) products
	@meson install -C $(BUILD) --no-rebuild

clean: ## remove what was built
	rm -rf build build-*
