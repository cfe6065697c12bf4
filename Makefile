# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDER := .venv-older
OLDER_TESTS := $(addprefix tests/, \
	test_architecture.py runner/kernels arms/test_triton_runs.py runner/test_checkpoints.py \
	suite/test_oracle.py suite/test_model_source.py)

.PHONY: run test older mutants lint clean

run: $(VENV)/.installed
	$(BIN)/python -m suite micro --only ceilings
	$(BIN)/python -m suite run scenarios/

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

# The product with the oldest transformers and triton that pyproject.toml allows.
older: $(OLDER)/.installed
	$(OLDER)/bin/python tools/pins.py constraints-older.txt
	$(OLDER)/bin/python -m pytest -n 2 --dist loadfile $(OLDER_TESTS)
	out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
		$(OLDER)/bin/python -m suite run scenarios/smoke.yaml --rounds 1 -o "$$out"

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

# Packages of its own come before those of $(VENV), which has all the others: made anew in seconds.
$(OLDER)/.installed: $(VENV)/.installed-test constraints-older.txt
	rm -rf $(OLDER)
	$(BIN)/python -m venv --without-pip $(OLDER)
	$(BIN)/python -m pip --python $(OLDER)/bin/python install --quiet --disable-pip-version-check \
		--no-deps --no-compile -r constraints-older.txt
	$(BIN)/python -c 'import site; print("import site;", *(f"site.addsitedir({folder!r});" for folder in site.getsitepackages()))' \
		>"$$($(OLDER)/bin/python -c 'import site; print(site.getsitepackages()[0])')/everything-else.pth"
	touch $@

clean:
	rm -rf $(VENV) $(OLDER)
