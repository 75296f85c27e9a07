# `make quickstart` and `make test` need Python 3.10+ and the package registry, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: quickstart test clean

# One thread: models this small lose time on more.
quickstart: $(VENV)/.installed
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
		examples/adapo.py --config configs/adapo/miniature.yaml

test: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow" -n logical --maxprocesses 8 --dist loadfile

# torch is named on pip's command line so that the pinned build is taken before anything can ask for a newer one
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade -c constraints.txt torch -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info
