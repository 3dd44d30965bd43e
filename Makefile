# make demo         a fresh machine with Python >= 3.11: set up .venv and run the demonstration
# make test         all but the tests marked slow        make test-slow   those alone
# make test-all     every test                           make benchmark   measured comparisons
# make check        formatting, lint, types              make format      apply the formatter
# make notebooks    run the notebooks (ARGS: which) and store what they print
# make docs         the documentation as a site, in build/docs; any warning is an error
#                                                        make clean       remove what make made

PYTHON  ?= python3
WORKERS ?= 2
# Seconds for all tests together: a run that hangs ends with a failure, not never.
LIMIT   ?= 4800

VENV := .venv
BIN := $(VENV)/bin
# README.md and LICENSE travel inside the package.
SOURCES := pyproject.toml README.md LICENSE $(shell find fedbayes inference models theory -type f -not -name '*.pyc')

# JAX 0.10's CPU scheduler can deadlock on two independent batched LAPACK calls. XLA aborts on a flag it doesn't know, so
# the set-up below keeps this one only where the installed JAX starts with it.
SCHEDULER_FLAG := --xla_cpu_enable_concurrency_optimized_scheduler=false
ENVIRONMENT = XLA_FLAGS="$$XLA_FLAGS $$(cat $(VENV)/xla-flags)" \
              JAX_COMPILATION_CACHE_DIR="$${JAX_COMPILATION_CACHE_DIR:-$(CURDIR)/.jax-cache}" \
              JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0

# A worker that dies takes its tests with it: report that and stop, rather than wait for them.
# Files that take long come first: tests/conftest.py orders them.
PYTEST = $(BIN)/python tests/limited.py $(LIMIT) $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: demo test test-slow test-all check format benchmark notebooks docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed-demo
	$(ENVIRONMENT) $(BIN)/fedbayes demo

test: $(VENV)/.installed-test
	$(ENVIRONMENT) $(PYTEST) $(ARGS)

test-slow: $(VENV)/.installed-test
	$(ENVIRONMENT) $(PYTEST) -m slow $(ARGS)

test-all: $(VENV)/.installed-test
	$(ENVIRONMENT) $(PYTEST) -m "" $(ARGS)

# mypy prefers what it finds in the current directory, and the repository root is not the package: look from elsewhere.
check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cd $(VENV) && bin/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache -p fedbayes

format: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: $(VENV)/.installed-test
	$(ENVIRONMENT) $(BIN)/python benchmarks/run.py $(ARGS)

notebooks: $(VENV)/.installed-test
	$(ENVIRONMENT) $(BIN)/python tests/notebooks/execution.py $(ARGS)

# What is documented is the installed package, and not the checkout beside it.
docs: $(VENV)/.installed-docs
	rm -rf build/docs
	PYTHONSAFEPATH=1 $(BIN)/python -m sphinx -q -W --keep-going -c docs -b html . build/docs
	@echo "The site begins at build/docs/docs/index.html."

clean:
	rm -rf $(VENV) build dist fedbayes.egg-info .jax-cache .mypy_cache .pytest_cache .ruff_cache

# The package is installed, not linked: what is tested is what a user gets. A leftover build/ would bring back deleted files.
$(VENV)/.installed-%: $(VENV)/pyvenv.cfg $(SOURCES)
	rm -rf build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[$*]'
	rm -rf build
	@if JAX_PLATFORMS=cpu XLA_FLAGS=$(SCHEDULER_FLAG) $(BIN)/python -c 'import jax; jax.devices()' 2>/dev/null; \
	 then echo '$(SCHEDULER_FLAG)'; fi > $(VENV)/xla-flags
	@touch $@

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	 echo "fedbayes needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	 echo "Name a newer one, for instance: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed (see above)."; exit 1; }
