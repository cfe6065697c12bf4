# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test mutants lint clean

run: $(VENV)/.installed
	$(BIN)/python -m suite micro --only ceilings
	$(BIN)/python -m suite run scenarios/

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

mutants: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m mutants

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV)
