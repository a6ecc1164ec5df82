# `make demo` and `make test` need Python 3.11+ and make, nothing else: the first call sets everything up in .venv.

# compiled once and kept beside the source in .venv: a variable against that would compile PyTorch in every process
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# every candidate is tried by running it: a name on the path may be too old, or a shim with nothing behind it
FIND_PYTHON = for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done
# searched once, and only when there is something to install
PYTHON ?= $(eval PYTHON := $(shell $(FIND_PYTHON)))$(PYTHON)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# what is imported is compiled then; most of what the extras bring along never is
INSTALL := $(PIP) install --no-compile
# of every trial; with tuning about 38 of them, two at a time. Tokens and not seconds, because on a busy machine equal
# seconds are not equal work
DEMO_BUDGET := 64k-tokens
DEMO_BATCH := --set training.batch_size=8 --set training.length=128 --set training.eval_batches=4
EXTRAS := data,log,tune,rl,translate,onnx,gguf,ray,slurm,serve,harness,bench,dev
# one thread per test process: two processes use two cores better than two threads do
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# what PyTorch, oneDNN, MKL and FBGEMM ask in order to use no more than AVX2
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 FBGEMM_ENABLE_INSTRUCTIONS=AVX2
# operators, learning, and what is chosen for a machine: what another set of instructions, or bf16, could change
NUMERIC := tests/ops tests/decoding/test_weight_layout.py tests/family/test_vision.py tests/family/test_precision.py tests/objectives/test_entities.py tests/train/test_precision.py
CHOOSING := tests/train/test_precision.py tests/train/test_loop.py tests/train/test_run.py tests/train/test_step.py tests/contests/test_plan.py tests/contests/test_run.py tests/train/finetune/test_run.py tests/contests/acting/test_run.py

# the rooms that everything else is built on
QUICK := tests/core tests/ops tests/layers tests/models tests/objectives tests/optim tests/decoding tests/family/test_relatives.py

.PHONY: demo test quick long machines check bench-check docs clean

demo: $(STAMP)  ## is ALiBi better than GPT-2 on the source of Python's own standard library? Matched, tuned, five seeds
	$(BIN)/kin compare gpt2 alibi --budget $(DEMO_BUDGET) $(DEMO_BATCH) --out runs/demo

test: check  ## everything: format, lint, types, all tests but the long ones
	$(TEST) -m "not long"

quick: check  ## the tests of the lower rooms that take less than five seconds each: about a minute
	$(TEST) -m "not slow and not long" $(QUICK)

long: $(STAMP)  ## tests that are studies, and further cases of others: some minutes
	$(TEST) -m long

machines: $(STAMP)  ## a sample of the numeric tests as on an AVX2 machine, and with bf16 fast and slow: two minutes
	$(AVX2) $(TEST) -m "not slow and not long" $(NUMERIC)
	KINFOLK_BF16=fast $(TEST) -m "not slow and not long" $(CHOOSING)
	KINFOLK_BF16=slow $(TEST) -m "not slow and not long" $(CHOOSING)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench-check: $(STAMP)  ## speed and memory as ratios, beside those kept for a machine like this one: an hour; stop other work first
	$(BIN)/kin bench train generate memory experts --rounds 3 --threads 1 --check docs/bench-history.jsonl
	$(BIN)/kin bench mixers --peers beside --lengths 4096 --rounds 3 --threads 1 --check docs/bench-history.jsonl

docs: $(STAMP)  ## write the pages that are read from the source, and build all pages as a site with search, offline
	$(BIN)/python docs/readme.py
	$(BIN)/python docs/build_site.py site

clean:  ## remove the environment and everything that was generated
	rm -rf $(VENV) build dist site runs/demo .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Kinfolk needs Python 3.11 or newer; none was found (set PYTHON=/path/to/python)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments (ensurepip is missing)." >&2; \
	  echo "On Debian or Ubuntu: sudo apt install python3-venv. Elsewhere: set PYTHON=/path/to/a/full/python" >&2; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) -V), once; this downloads PyTorch and takes some minutes"
	@$(PYTHON) -m venv $(VENV)
# torch first, at its exact version: resolved together with the rest it may come with gigabytes of CUDA packages
	$(INSTALL) torch==2.13.0
	$(INSTALL) -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $(STAMP)
