# make demo PIP_ARGS='--index-url …' passes arguments to pip, such as PyTorch's CPU index.
PIP_ARGS ?=
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

COMMA := ,
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The frameworks that relaxcomm plugs into have an environment of their own.
FRAMEWORKS_VENV := .venv-integrations
FRAMEWORKS := $(FRAMEWORKS_VENV)/bin
FRAMEWORKS_STAMP := $(FRAMEWORKS_VENV)/.installed
# So have the lab's rivals.
BENCH_VENV := .venv-bench
BENCH := $(BENCH_VENV)/bin
BENCH_STAMP := $(BENCH_VENV)/.installed
# And the documentation.
DOCS_VENV := .venv-docs
DOCS := $(DOCS_VENV)/bin
DOCS_STAMP := $(DOCS_VENV)/.installed

.PHONY: docs demo test test-slow test-faults test-gpu gpu-bundle test-integrations test-wheel prometheus check bench bench-compare soak clean FORCE

demo: $(STAMP)
	$(BIN)/relaxcomm demo

# Tests start hundreds of processes: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Three tests at a time: many wait, for processes to start or for a time limit to pass. In the order of their
# folders, since the files with the fewest tests, which would come last, have the longest.
TEST_ARGS ?= --numprocesses 3 --dist loadfile --no-loadscope-reorder
test: $(STAMP) prometheus
	$(BIN)/python -m pytest -m "not slow and not faults and not integrations" --durations=30 $(TEST_ARGS)

# Thousands of mutated inputs, and the fault matrix, which leaves a dated result.
test-faults: $(STAMP)
	$(BIN)/python -m pytest -m faults $(TEST_ARGS)

# What a machine with one GPU proves, in at most 8 minutes; it leaves a dated result.
test-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu

# All that a machine without a network needs for that beside its own PyTorch, for its version of Python.
GPU_PYTHON ?= 3.12
gpu-bundle: $(STAMP)
	$(BIN)/python -m benchmarks.gpu.bundle build/gpu-bundle --python-version $(GPU_PYTHON)

# The frameworks that people use, the real packages, on 2 and 3 ranks.
test-integrations: $(FRAMEWORKS_STAMP)
	$(FRAMEWORKS)/python -m pytest tests/integrations $(TEST_ARGS)

# The built wheel in fresh environments: make test-wheel WHEELS='python3.11=2.13.0 python3.13=2.15.0'; it leaves
# a dated table.
WHEELS ?= $(PYTHON)=2.13.0
test-wheel: $(STAMP)
	$(BIN)/python -m tests.wheel $(WHEELS)

test-slow: $(STAMP) prometheus
	$(BIN)/python -m pytest -m slow $(TEST_ARGS)

# Tests start a real Prometheus. RUNLEVEL keeps the package from starting a service of its own.
prometheus:
	@command -v prometheus >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq >/dev/null 2>&1 && \
		RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus \
			>/dev/null 2>&1; } || \
		echo "prometheus is missing, so tests that need it are skipped: install the package prometheus" >&2

# The slow-network lab, as root: the standard set, hours; BENCH_ARGS='--workloads digits' runs a part of it.
BENCH_ARGS ?=
SCALING_ARGS ?=
bench: $(BENCH_STAMP)
	RUST_LOG=error $(BENCH)/python -m benchmarks.lab $(BENCH_ARGS)
	$(BENCH)/python -m benchmarks.lab.scaling $(SCALING_ARGS)
	$(BENCH)/python -m benchmarks.lab.overview

# An hour of training in which a worker is killed, ended or stopped every minute.
soak: $(STAMP)
	$(BIN)/python -m benchmarks.goodput.soak

# make bench-compare BEFORE=benchmarks/results/lab-….jsonl AFTER=…
bench-compare: $(STAMP)
	$(BIN)/python -m benchmarks.lab.compare $(BEFORE) $(AFTER)

# The documentation site, in build/site: warnings are errors, and every link and anchor has to be there.
docs: $(DOCS_STAMP)
	rm -rf build/site
	$(DOCS)/python -m website.stage build/docs
	$(DOCS)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env -c website build/docs build/site
	$(DOCS)/python -m website.check_site build/site

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy -p relaxcomm -p relaxcomm_algorithms

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(FRAMEWORKS_VENV) $(DOCS_VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# $(call environment,FOLDER,what pip installs,what it follows besides)
define environment
$(1)/.installed: pyproject.toml constraints.txt $(3)
	@test -n "$$(PYTHON)" || { echo "Python 3.11 or newer was not found; name it: make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(1)/bin/python || $$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check $$(PIP_ARGS) --constraint constraints.txt $(2)
	@touch $$@
endef

# Strict editable mode lets mypy see the package, but links each file: a new one needs an installation.
$(eval $(call environment,$(VENV),--config-settings editable_mode=strict --editable '.[dev]',$(VENV)/.sources))
$(eval $(call environment,$(BENCH_VENV),--requirement benchmarks/lab/rivals.txt --editable '.[dev]',benchmarks/lab/rivals.txt))
$(eval $(call environment,$(DOCS_VENV),--editable '.[docs]'))
$(eval $(call environment,$(FRAMEWORKS_VENV),--editable '.[dev$(COMMA)integrations]'))

$(VENV)/.sources: FORCE
	@mkdir -p $(VENV)
	@find relaxcomm algorithms -type f ! -path '*/__pycache__/*' | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
