# `make` makes the control environment; `make rehearsal` and `make test` do all their set-up themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKS := group_data/locks
NAME ?= rehearsal
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder
SOURCES := aibox tasks tests deploy.py config.py inventory group_data

.DEFAULT_GOAL := env
.PHONY: env rehearsal rehearsal-down test test-unit test-long lint lock lock-model clean

env: $(VENV)/complete
	@$(if $(filter-out env,$(MAKECMDGOALS)),:,echo 'now: `. $(VENV)/bin/activate`, then `pyinfra inventory deploy.py --dry`')

# The machine's own pip fills a venv without one; where there is no pip, the venv brings its own.
$(VENV)/complete: $(LOCKS)/control.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "found $$($(PYTHON) --version), expected Python 3.11 or newer: make PYTHON=python3.12"; exit 1; }
	@rm -rf $(VENV)
	@echo "making the control environment in $(VENV) (hash-locked)"
	@if $(PYTHON) -m pip --version >/dev/null 2>&1; \
	  then $(PYTHON) -m venv --without-pip $(VENV); else $(PYTHON) -m venv $(VENV); fi
	@own="$(BIN)/python -m pip"; machine="$(PYTHON) -m pip --python $(BIN)/python"; \
	  test -e $(BIN)/pip && pip="$$own" || pip="$$machine"; $$pip install -qq --disable-pip-version-check \
	  --require-hashes --only-binary :all: -r $(LOCKS)/control.txt
	@touch $@

rehearsal: env
	@$(BIN)/python -m tests.rehearsal deploy $(NAME)

rehearsal-down: env
	@$(BIN)/python -m tests.rehearsal down --all

lint: env
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/mypy

test-unit: env
	@$(BIN)/python -m pytest tests/unit

test: lint
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations=60 --durations-min=5 -m "not long" \
	  tests/unit tests/stream tests/rehearsal

test-long: env
	@$(BIN)/python -m pytest -m long

# vLLM's lock is one per Python, for this platform; the others are universal. `make lock
# VLLM=0.32.0` makes those of another version, from the newest there is.
lock: env
	@test -z "$(VLLM)" || test -e $(LOCKS)/vllm-$(VLLM).in || \
	  sed 's/^vllm==.*/vllm==$(VLLM)/' $$(ls -v $(LOCKS)/vllm-*.in | tail -n 1) > $(LOCKS)/vllm-$(VLLM).in
	@for name in control aibox stream litellm monitoring; do \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate --upgrade $(LOCKS)/$$name.in -o $(LOCKS)/$$name.txt || exit 1; done
	@for in in $(LOCKS)/vllm-*.in; do for python in 11 12 13 14; do \
	  $(BIN)/uv pip compile -q --python-version 3.$$python --python-platform x86_64-manylinux_2_36 \
	    --generate-hashes --no-header --no-annotate --upgrade \
	    $$in -o $${in%.in}-py3$$python.txt || exit 1; done; done
	@$(BIN)/python -m tasks.lock_changes $(LOCKS)

# A model's files by commit, size and sum. OPTIONS: --revision COMMIT, --renew, see --help.
lock-model: env
	@test -n "$(MODEL)" || { echo "which model? make lock-model MODEL=<a card in group_data/models>"; exit 1; }
	@$(BIN)/python -m tasks.pin $(OPTIONS) "$(MODEL)"

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
