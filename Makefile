# All of these need Python 3.10+ and the package registry, nothing else.
PYTHON ?= python3
VENV ?= .venv
ENGINES_VENV ?= .venv-engines
BIN := $(VENV)/bin

.PHONY: quickstart lint test test-all test-engines clean

# One thread: models this small lose time on more.
quickstart: $(VENV)/.installed
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python examples/adapo.py --config configs/adapo/miniature.yaml

PYTEST := $(BIN)/python -m pytest --ignore tests/engines -n logical --maxprocesses 8 --dist loadfile

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

# what one needs while working
test: lint
	$(PYTEST) -m "not slow and not full"

test-all: lint
	$(PYTEST) -m "not slow"

# vLLM, ZeRO and FSDP2, with the GPUs of this machine if it has any
test-engines: $(ENGINES_VENV)/.installed
	$(ENGINES_VENV)/bin/python -m pytest tests/engines -n auto --dist loadfile

# torch is named on pip's command line so that the pinned build is taken before anything can ask for a newer one.
# Modules are compiled when they are first imported: most never are, and compiling all takes longer than installing.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --upgrade -c constraints.txt torch -e ".[dev]"
	touch $@

$(ENGINES_VENV)/.installed: pyproject.toml constraints-engines.txt tests/engines/environment.py
	$(PYTHON) tests/engines/environment.py $(ENGINES_VENV)
	touch $@

clean:
	rm -rf $(VENV) $(ENGINES_VENV) runs build *.egg-info
