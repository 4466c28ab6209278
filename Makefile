# `make` alone prints this help. `make demo` and `make test` set everything up first.

SHELL := bash
.DEFAULT_GOAL := help
VENV_PYTHON := .venv/bin/python

.PHONY: help
help: ## print this help
	@printf 'Tidegate: Apache Kafka'"'"'s client quotas in Python\n\n'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nFirst time here? `make demo` takes a few minutes to set up and less than two to run.\n'

.PHONY: setup
setup: ## make .venv, install what is pinned, check Java and the other tools
	@scripts/setup.sh

.PHONY: demo
demo: setup ## see all of it: a broker, three clients, quotas, and what other quotas would have done
	@.venv/bin/tidegate demo

.PHONY: test
test: export PYTHONDONTWRITEBYTECODE := # hundreds of tests start a process
test: setup ## run every test (a skipped test is a failure)
	@$(VENV_PYTHON) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: e2e-long
e2e-long: setup ## run what takes long: tests in files long_*.py (ARGS='-k differing' for a part)
	@$(VENV_PYTHON) -m pytest $$(find tests -name 'long_*.py' | sort) $(ARGS)

.PHONY: soak
soak: setup ## simulate a node for 10^6 steps, kill a broker 100 times (ARGS='simulation', 'kills --kills 20', '--help')
	@$(VENV_PYTHON) -m tests.soak $(ARGS)

.PHONY: lint
lint: setup ## ruff, mypy --strict, layers of ARCHITECTURE.md
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo

.PHONY: check
check: lint test ## lint, then test: what .ci/run runs

.PHONY: bench
bench: setup ## run the benchmarks and print their numbers with the machine's (docs/performance.md)
	@scripts/bench.sh

.PHONY: bench-kafka
bench-kafka: setup ## run the same load against a real Apache Kafka and `tidegate serve`, in turn
	@scripts/kafka-jars.sh >/dev/null
	@$(VENV_PYTHON) -m bench.ladder

.PHONY: bench-gateway
bench-gateway: setup ## run the same load against a real Apache Kafka and, in turn, through `tidegate gateway`
	@scripts/kafka-jars.sh >/dev/null
	@$(VENV_PYTHON) -m bench.bench_gateway

.PHONY: codecs
codecs: setup ## make the table of Kafka's message definitions anew
	@$(VENV_PYTHON) scripts/make_codecs.py

.PHONY: older-messages
older-messages: setup ## make the table of message versions that only older brokers speak anew (JDK, Maven Central)
	@$(VENV_PYTHON) scripts/make_older_messages.py

.PHONY: request-logs
request-logs: setup ## record the request logs of real brokers of several versions anew (JDK, Maven Central)
	@$(VENV_PYTHON) -m tests.request_log.make_logs

.PHONY: bundle
bundle: setup ## make the script that draws the charts of `tidegate report` anew
	@scripts/report-bundle.sh

.PHONY: pins
pins: setup ## make constraints/*.txt anew (ARGS=--upgrade moves the versions on)
	@scripts/pins.sh $(ARGS)

.PHONY: clean
clean: ## delete what the tools left behind; keeps .venv
	@rm -rf build dist demo-out spark-warehouse .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
