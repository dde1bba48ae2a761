# Every target is complete by itself on a machine with python3 >= 3.11, pip and make:
#   make explore    make test    make test PYTHON=python3.12
# `pip install --target` needs neither root nor the venv package, also where Python is managed by
# the system; uv then makes the environment from the lock, by name, version and hash.

LOCK := requirements/dev.txt
DEFAULT_PYTHON := $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
PYTHON ?= $(DEFAULT_PYTHON)

# The interpreter that runs: PYTHON itself, or (a pyenv shim of a version that is not active fails)
# the newest one of that name that pyenv has.
PROBE = import sys; assert sys.version_info >= (3, 11); print(sys.executable)
PYENV_DIR := $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions
INTERPRETER := $(shell for python in "$(PYTHON)" \
	"$$(ls -d $(PYENV_DIR)/*/bin/$(PYTHON) 2>/dev/null | sort -V | tail -n 1)"; \
	do "$$python" -c '$(PROBE)' 2>/dev/null && break; done)

# One environment per interpreter, so that switching does not break the other one.
ifeq ($(PYTHON),$(DEFAULT_PYTHON))
VENV := .venv
else
VENV := .venv-$(shell $(INTERPRETER) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
endif

# The stamp carries the content of the lock: another lock (or other entry points) syncs again.
STAMP := $(VENV)/.synced-$(shell cat $(LOCK) pyproject.toml | cksum | cut -d ' ' -f 1)
# The system's certificates: behind a proxy of its own a machine knows no others.
UV := UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=1 .tools/bin/uv
BIN := $(VENV)/bin
# Two workers: the suite spends its time in XLA compiles, one core each.
WORKERS ?= 2
# Each process that a target starts would else compile jax and us anew: two seconds, a hundred times.
export PYTHONDONTWRITEBYTECODE :=
NOTEBOOKS ?= $(wildcard notebooks/*.ipynb)
ARGS ?=

REQUIRE_PYTHON = @test -n "$(INTERPRETER)" || { \
	echo "error: '$(PYTHON)' is no Python >= 3.11 that runs here; name one: PYTHON=/path/to/it" >&2; \
	exit 1; }

.PHONY: setup explore test test-slow proofs lint docs figures notebooks bench hardware oracle fuzz-algebra fuzz-operators fuzz-formulas fuzz-proofs fuzz-contractions fuzz-as-planned \
	aot mutate browser xla-merges xla-halos xla-completion xla-faithful xla-siblings xla-bytes xla-least reshards golden lock clean

setup: $(STAMP)

explore: $(STAMP)
	$(BIN)/shardalg explore $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

# What the suite only samples: minutes, not seconds.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m slow $(ARGS)

# Random operators: rows executed literally and in parts, then planned in random layouts, simulated,
# proved and (every tenth) lowered. FUZZ is seconds and the first seed.
FUZZ ?= 600 0
fuzz-operators: $(STAMP)
	$(BIN)/python -m tests.ops.fuzz $(FUZZ)
	$(BIN)/python -m tests.partition.fuzz $(FUZZ)

# Random contractions compiled for CPU devices with the default flags, in processes of their own,
# since a check that fails in XLA's compiler ends the process. Their number, and the seed.
CONTRACTIONS ?= 2000 0
fuzz-contractions: $(STAMP)
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.lower.contractions $(CONTRACTIONS)

# Formulas of random functions in random layouts, compared with plans made at other sizes. FORMULAS
# is how many functions, the seed, and how many points of each.
FORMULAS ?= 200 0 20
fuzz-formulas: export JAX_PLATFORMS = cpu
fuzz-formulas: $(STAMP)
	$(BIN)/python -m tests.costs.fuzz_formulas $(FORMULAS)

# The compiled collectives of random programs against the planned ones. Their number, and the seed.
AS_PLANNED ?= 300 0
fuzz-as-planned: $(STAMP)
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.lower.as_planned $(AS_PLANNED)

# Programs that are tampered with, each judged by `verify` alone; what it accepts is run. How many,
# and the seed; ONLY names one of them (name/seed/number) and shows it.
MUTANTS ?= 20000
SEED ?= 0
ONLY ?=
mutate: export JAX_PLATFORMS = cpu
mutate: $(STAMP)
	$(BIN)/python -m tests.mutate $(if $(ONLY),"$(ONLY)",$(MUTANTS) $(SEED))

# Programs at the edges (no elements, infinities, control flow, indices out of range) in five random
# layouts each, against one device. EDGES is their number and the first seed.
EDGES ?= 1000 0
edges: $(STAMP)
	$(BIN)/python -m tests.edges.fuzz $(EDGES)

# Every named merge, and every theorem that the library rests on, with ten seeds of the solver, and its wrong variants.
proofs: $(STAMP)
	$(BIN)/python -m tests.merge.proofs
	$(BIN)/shardalg lemmas --mutants --seeds 10 $(ARGS)

# Every statement for all sizes (merge, equal, refines, halo, lemma) against brute force at 50 other
# meshes. PROOFS is processor seconds and the seed.
PROOFS ?= 300 0
fuzz-proofs: export JAX_PLATFORMS = cpu
fuzz-proofs: $(STAMP)
	$(BIN)/python -m tests.merge.all_sizes $(PROOFS)

# Style and types, as a commit runs them.
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python tools/language.py

# What is drawn for a browser, in headless Chromium (Debian's package `chromium`).
browser: $(STAMP)
	$(BIN)/python -m pytest -q -rs tests/browser $(ARGS)

# The guides, the notebooks as committed and a page per public name, in out/docs; warnings are errors.
docs: $(STAMP)
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -q -W --keep-going -b html docs out/docs

# The pictures of the README and of the guides, from plans; the page of a plan by Chromium.
figures: $(STAMP)
	$(BIN)/python tools/figures.py $(ARGS)

notebooks: $(STAMP)
	@test -n "$(NOTEBOOKS)" || { echo 'error: no notebooks/*.ipynb here' >&2; exit 1; }
	$(BIN)/jupyter-execute --inplace $(NOTEBOOKS)

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

# This machine calibrated, then fifteen plans predicted beside measured, on what jax.devices() offers;
# kept in benchmarks/results/hardware by the kind of device. To be run on a machine that is quiet.
hardware: $(STAMP)
	$(BIN)/python -m benchmarks.hardware

# The paper's Transformers compiled by the TPU's own compiler, beside their plans: minutes of a core
# for each; LAYERS=0 is all of them. The compiler is large, and gets an environment of its own.
LAYERS ?= 4
# The version that JAX names: others decide otherwise, peaks of some columns differ by a fifth.
LIBTPU = $(shell $(BIN)/python -c 'import importlib.metadata as m; \
	print(next(r.partition(";")[0] for r in m.requires("jax") if r.startswith("libtpu")))')
TPU = out/$(LIBTPU)
aot: $(STAMP)
	test -d '$(TPU)/libtpu' || \
		.tools/bin/uv pip install -q --python $(BIN)/python --no-deps --target '$(TPU)' '$(LIBTPU)'
	PYTHONPATH='$(TPU)' JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.aot --layers $(LAYERS) $(ARGS)

# Only the programs with XLA's recorded answers.
oracle: $(STAMP)
	$(BIN)/python -m pytest -q tests/oracle $(ARGS)

# The algebra at full length: what the suite samples, 100,000 windows and 10,000 mutated texts among it.
fuzz-algebra: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m slow tests/algebra tests/merge $(ARGS)

# The structure of every plan (layouts, instructions, bytes, prices, claims) against the recorded
# ones; GOLDEN= records it anew.
GOLDEN ?= --check
golden: $(STAMP)
	JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 \
		$(BIN)/python -m tests.golden.record $(GOLDEN)

# Asks the installed XLA how it reshards every pair of layouts of three meshes (12 minutes), compares
# our path of each with its answer, and runs it (a quarter of an hour more).
reshards: $(STAMP)
	JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 \
		$(BIN)/python -m tests.oracle.record_reshards
	$(BIN)/python -m pytest -q -m "slow or not slow" tests/oracle/test_reshards.py
	JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 \
		$(BIN)/python -m tests.oracle.reshards

# Asks the installed XLA again for the merges that the suite compares with.
xla-merges: $(STAMP)
	$(BIN)/python -m tests.merge.record_xla

# The same for the halos that it exchanges: some minutes of compiles.
xla-halos: $(STAMP)
	JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 \
		$(BIN)/python -m tests.oracle.record_halos

# Completion beside XLA's, by both of its partitioners, on programs with random annotations: their
# number and the first seed, or on siblings of the recorded programs: seeds of each, and the first.
# A difference per line as it is found, and at the end (or when interrupted) all of them by cause.
COMPLETION ?= 500 1
SIBLINGS ?= 3 0
xla-completion xla-faithful xla-siblings xla-bytes xla-least: export JAX_PLATFORMS = cpu
xla-completion xla-faithful xla-siblings xla-bytes xla-least: export XLA_FLAGS = --xla_force_host_platform_device_count=8
xla-completion: $(STAMP)
	$(BIN)/python -m tests.propagate.harder $(COMPLETION)

# The same on fresh programs with loops, caches and variants of attention: their number, the first
# seed, and a folder for XLA's answers, which are asked for only once.
FAITHFUL ?= 500 1001 out/told
xla-faithful: $(STAMP)
	$(BIN)/python -m tests.faithful.agreement $(FAITHFUL)

xla-siblings: $(STAMP)
	$(BIN)/python -m tests.propagate.siblings $(SIBLINGS)

# Wire bytes and flops beside the better of XLA's partitioners, on programs that a seed draws: their
# number, the first seed, and a file for XLA's answers, if it is to be asked only once. A row per
# program above, with its cause. Minutes.
BYTES ?= 60 1000
xla-bytes: $(STAMP)
	$(BIN)/python -m tests.oracle.beside_xla $(BYTES)

# The lower bound of `plan.beside_jit()` against XLA's own bytes: on the recorded programs, then on
# programs that a seed draws (their number and the first seed). It fails where XLA sends less.
LEAST ?= 200 0
xla-least: $(STAMP)
	$(BIN)/python -m tests.xla.least recorded
	$(BIN)/python -m tests.xla.least $(LEAST)

.tools/bin/uv: requirements/tools.txt
	$(REQUIRE_PYTHON)
	$(INTERPRETER) -m pip install --quiet --disable-pip-version-check --upgrade --require-hashes \
		--target .tools -r requirements/tools.txt
	@touch $@

$(STAMP): .tools/bin/uv
	$(REQUIRE_PYTHON)
	$(UV) venv --quiet --allow-existing --python "$(INTERPRETER)" $(VENV)
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes $(LOCK)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.synced-* && touch $@

# Resolve again; run after a change of the dependencies in pyproject.toml.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate
lock: .tools/bin/uv
	$(COMPILE) pyproject.toml --group dev -o $(LOCK)
	echo uv | $(COMPILE) - -o requirements/tools.txt

clean:
	rm -rf .venv .venv-* .tools out build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
