# Needs Python 3.11 or newer with venv and pip, make and a network; the lock files provide everything
# else. To use another Python: make install PYTHON=python3.12

ifndef PYTHON
PYTHON := $(shell .ci/python)
endif
VENV := .venv
OLDEST := .venv-oldest
PYTHON311 := .venv-3.11
NEWEST := .venv-newest
BIN := $(VENV)/bin
DEMO := runs/numerals
# They take minutes: .ci/run runs them on the locked versions, make nightly on the oldest.
NOTEBOOKS := tests/system/test_notebooks.py
# Users' programs are optimized, so smoke tests' are, too.
SMOKE := env JAX_DISABLE_MOST_OPTIMIZATIONS=0
# One process per core: most of the work is compiling, which uses one core. A process that dies ends
# the tests, because with another in its place xdist may wait forever.
PYTEST := pytest --numprocesses auto --maxprocesses 4 --max-worker-restart 0 --dist loadfile \
  --no-loadscope-reorder --durations 20
# Lock files apply to every platform and every newer Python, and have the hash of each file.
COMPILE := build/uv/bin/uv pip compile --quiet --universal --generate-hashes \
  --custom-compile-command "make lock"
TESTS := test test-changed test-ci nightly smoke-oldest smoke-3.11 smoke-newest
# Compiled programs are kept between runs of tests: the second takes half as long.
$(TESTS): export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/build/programs
$(TESTS): export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo notebooks $(TESTS) programs lint docs check lock clean

help:  ## List all targets
	@sed -n 's/^\([a-z0-9.-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name what; do \
	  printf '  make %-14s %s\n' "$$name" "$$what"; done

install: $(VENV)/installed  ## Set up .venv from requirements.lock

demo: $(or $(wildcard $(VENV)/installed),$(VENV)/demo)  ## Train on number words, then translate, score and plot (minutes)
	@echo; echo "== Training configs/numerals.py: English number words to German ones"
	$(BIN)/python train.py --config=configs/numerals.py --workdir=$(DEMO)
	@echo; echo "== Scoring numbers that training never saw"
	$(BIN)/python -m jaxformer.data.numerals held_out --directory=$(DEMO)/held_out
	$(BIN)/jaxformer evaluate --workdir $(DEMO) \
	  --source $(DEMO)/held_out/held_out.en --reference $(DEMO)/held_out/held_out.de
	@echo; echo "== Translating three of them"
	sed -n '1p;50p;100p' $(DEMO)/held_out/held_out.en > $(DEMO)/held_out/three.en
	$(BIN)/jaxformer translate --workdir $(DEMO) \
	  < $(DEMO)/held_out/three.en > $(DEMO)/held_out/three.de
	@paste -d '|' $(DEMO)/held_out/three.en $(DEMO)/held_out/three.de | sed 's/^/  /; s/|/  ->  /'
	@echo; echo "== Plotting the learning curve and an attention map"
	$(BIN)/jaxformer plot --workdir $(DEMO)
	$(BIN)/jaxformer attention --workdir $(DEMO) "two hundred and forty-seven"
	@echo; echo "== Done. All files are in $(DEMO):"
	@ls -1 $(DEMO) | sed 's/^/  /'
	@echo "Translate more: echo 'ninety-nine' | $(BIN)/jaxformer translate --workdir $(DEMO)"

notebooks: $(VENV)/installed  ## Build and run notebooks/*.ipynb from the scripts beside them (minutes)
	$(BIN)/python notebooks/build.py

test: $(VENV)/installed  ## Run the tests (about 10 minutes on two cores)
	$(BIN)/$(PYTEST)

test-changed: $(VENV)/installed  ## Run the tests nearest to what is not committed, at most 90 seconds
	@tests="$$($(BIN)/python tests/changed.py $(SINCE))" && \
	if [ -n "$$tests" ]; then $(BIN)/$(PYTEST) $$tests; else echo "no test imports what changed"; fi

test-ci: $(VENV)/installed  ## Run one real case of every kind of fault, the pages and the notebooks
	$(BIN)/$(PYTEST) -m "ci and not nightly"

nightly: $(VENV)/installed $(OLDEST)/installed  ## Run all cases in random order, with checks of shapes, coverage and mutants (hours)
	JAXFORMER_TESTS=nightly $(BIN)/$(PYTEST) -p randomly -m "" --timeout 3600 --cov --cov-report=json
	$(BIN)/python .ci/coverage
	$(BIN)/python tests/mutants.py --count 12
	$(SMOKE) $(OLDEST)/bin/$(PYTEST) -m smoke $(NOTEBOOKS)
	make smoke-3.11 smoke-newest  # not $(MAKE), which runs with --dry-run, too

programs: $(VENV)/installed  ## Compare the programs that XLA gets now and in the commit SINCE
	$(BIN)/python tests/lowered_programs.py --since $(or $(SINCE),HEAD)

lint: $(VENV)/installed  ## Check style, formatting, types, imports and language
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tests/language.py

docs: $(VENV)/installed  ## Build the documentation site, build/site; warnings are errors
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir docs . build/site

check: lint test  ## Lint and run the tests

smoke-oldest: $(OLDEST)/installed  ## Run the smoke tests on the oldest supported versions, Colab's
	$(SMOKE) $(OLDEST)/bin/$(PYTEST) -m smoke --ignore $(NOTEBOOKS)

smoke-3.11: $(PYTHON311)/installed  ## Run the smoke tests on Python 3.11 and its newest JAX
	$(SMOKE) $(PYTHON311)/bin/$(PYTEST) -m smoke --ignore $(NOTEBOOKS)

smoke-newest: $(NEWEST)/installed  ## Run the smoke tests on today's newest versions, not the locked ones
	$(NEWEST)/bin/pip install --quiet --upgrade --upgrade-strategy eager --editable '.[test]'
	$(SMOKE) $(NEWEST)/bin/$(PYTEST) -m smoke --ignore $(NOTEBOOKS)

lock:  ## Update the lock files; delete one first to upgrade all its packages
	$(PYTHON) -m venv build/uv
	build/uv/bin/pip install --quiet uv
	$(COMPILE) --python-version 3.11 --extra dev pyproject.toml --output-file requirements.lock
	$(COMPILE) --python-version 3.11 --extra test pyproject.toml .ci/oldest.in \
	  --output-file .ci/oldest.lock

clean:  ## Remove environments and caches, but not runs/
	rm -rf $(VENV) $(OLDEST) $(PYTHON311) $(NEWEST) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis \
	  .import_linter_cache .coverage* coverage.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/installed: requirements.lock pyproject.toml
$(PYTHON311)/installed: requirements.lock pyproject.toml
$(PYTHON311)/installed: PYTHON := $(shell .ci/python 3.11)
$(OLDEST)/installed: .ci/oldest.lock pyproject.toml
$(NEWEST)/installed: requirements.lock pyproject.toml

# $(@D) is the environment, $< its lock. Without --no-deps pip refuses an extra, such as coverage[toml],
# once there is a newer version than the locked one (pip 23.2.1, 2026-11-24).
%/installed: SIZE := a minute, 2 GB
%/installed:
	$(create)
	$(@D)/bin/pip install --quiet --use-pep517 --no-deps --require-hashes --requirement $<
	$(@D)/bin/pip install --quiet --no-deps --editable .
	@touch $@

# What the demo needs, in the locked versions; $(VENV)/installed adds the rest.
$(VENV)/demo: SIZE := a minute, 0.9 GB
$(VENV)/demo: requirements.lock pyproject.toml
	$(create)
	@sed '/--hash/d; s/ *\\$$//' $< > $(@D)/constraints.txt
	$(@D)/bin/pip install --quiet --constraint $(@D)/constraints.txt --editable '.[plots]'
	@touch $@

define create
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "jaxformer needs Python 3.11 or newer: '$(PYTHON)' is missing or older;" \
	    "name another, as in: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' lacks venv or pip; install them (Debian, Ubuntu:" \
	    "apt install python3-venv)" >&2; exit 2; }
	@echo "Installing $< into $(@D) with $$($(PYTHON) --version), $(PYTHON): about $(SIZE)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
	  echo "Python 3.12 or 3.13 would be faster: the newest JAX needs it"
	@[ "$$($(@D)/bin/python --version 2> /dev/null)" = "$$($(PYTHON) --version)" ] || \
	  $(PYTHON) -m venv --clear $(@D)
endef
