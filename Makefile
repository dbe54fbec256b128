# The targets of this project; `make help` lists them. You need Python 3.11 or later with venv, make and git.

VENV := .venv
BIN := $(VENV)/bin
# The first Python that is new enough; `make PYTHON=/path/to/python test` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$python; break; fi; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=

# The tests start hundreds of processes: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run demo test lint format torture clients mutants bench pictures docs cluster dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed ## start the service: 127.0.0.1:8686, data in ./data; ARGS="--port 9000" changes that
	@exec $(BIN)/timerwheel serve --host 127.0.0.1 --port 8686 --data ./data $(ARGS)

demo: $(VENV)/.installed ## show a throw-away service with messages in it; ARGS="--rush 'in 2 minutes'"
	@exec $(BIN)/timerwheel demo $(ARGS)

# A test that does not end stops its process with the stacks of all threads, and counts as failed: else nobody would
# learn which one it was.
test: lint ## check style, types and layers, then run all tests but the long ones; ARGS go to pytest
	$(BIN)/python -m pytest -m "not torture and not clients" -n auto --maxprocesses 6 --dist loadfile --no-loadscope-reorder \
		-o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true --max-worker-restart 0 -rs $(ARGS)

lint: $(VENV)/.installed-dev ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## rewrite the code in its style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

torture: $(VENV)/.installed-dev ## run the long tests, SIGKILL loops among them; ARGS go to pytest
	$(BIN)/python -m pytest -m torture -rs $(ARGS)
	$(if $(ARGS),,TIMERWHEEL_TEST_FATES=all $(BIN)/python -m pytest -n auto tests/crash tests/property tests/integration/schedules)

clients: $(VENV)/.installed-dev ## run RocketMQ's own clients against the service: needs Java 17, Maven, Go
	$(BIN)/python -m pytest -m clients -rs $(ARGS)

mutants: $(VENV)/.installed-dev ## put known faults into a copy, one by one: a test must fail; ARGS="log- wheel" for some
	$(BIN)/python -m tests.mutants $(ARGS)

bench: $(VENV)/.installed-dev ## measure this service beside its peers, an hour or two; ARGS="fire --rounds 1" for a part
	$(BIN)/python -m bench $(ARGS)

pictures: $(VENV)/.installed-dev ## film the console for the README: needs Chromium
	$(BIN)/python -m bench.pictures $(ARGS)

docs: $(VENV)/.installed-dev ## build the documents as a site in ./site; ARGS=serve shows it and follows changes
	$(BIN)/python packaging/site.py $(ARGS)

cluster: $(VENV)/.installed-dev ## run three Kafka brokers and two nodes in three shards: ports 8686 and 8786; needs Java 17, Maven
	@$(BIN)/python -m tests.harness.kafka cluster

dist: $(VENV)/.installed-dev ## build the source distribution and the wheel into ./dist
	$(BIN)/python -m build --no-isolation

clean: ## remove the environment and everything built or cached; ./data stays
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are newer than pyproject.toml as long as the environment holds what it asks for.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later with venv is needed, and $$(python3 --version 2>&1) is not" \
		"enough or has no venv. Debian, Ubuntu: apt-get install python3-venv;" \
		"make PYTHON=/path/to/python run chooses another Python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old or no" \
		"Python: 3.11 or later is needed" >&2; exit 1; }
	@echo "Creating the environment $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.made
	@echo "Installing the service into $(VENV): about a minute, this time only"
	@$(PIP) install -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.made
	@echo "Installing everything that the tests need into $(VENV): some minutes, this time only"
	@$(PIP) install -e '.[dev]'
	@touch $(VENV)/.installed $@
