# make demo   convert a bundled model, validate it, show its accuracy before and after
# make test   everything that CI checks
# make docs   build the documentation into site/, strictly
# All make their own environment in .venv and reuse it while pyproject.toml and constraints.txt do not change.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
DEMO := build/demo
SAMPLE := samples/digits_transformer.onnx
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test docs lint types imports unit models lowest table bench clean help

help:
	@sed -n '1,4s/^# //p' Makefile

$(VENV)/.base: pyproject.toml constraints.txt hatch_build.py
	@test -n "$(PYTHON)" || { echo "fp16conv needs Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

# torch comes as its CPU wheel where there is one; it serves tests/fx, which are skipped without it.
$(VENV)/.test: $(VENV)/.base
	$(PIP) -e '.[test]'
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[torch]'
	@touch $@

demo: $(VENV)/.base
	@mkdir -p $(DEMO)
	$(BIN)/fp16conv analyze $(SAMPLE) --data samples/digits_calibration.npz
	$(BIN)/fp16conv convert $(SAMPLE) -o $(DEMO)/digits.fp16.onnx --data samples/digits_calibration.npz
	$(BIN)/fp16conv validate $(SAMPLE) $(DEMO)/digits.fp16.onnx --data samples/digits_test.npz --labels labels
	@printf '\nThe converted model is %s; accuracy before and after is above.\n' $(DEMO)/digits.fp16.onnx
	@printf 'Next, with a model of your own:\n\n    %s analyze MODEL.onnx\n\n' $(BIN)/fp16conv

test: lint types imports unit models lowest

lint: $(VENV)/.test
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy

imports: $(VENV)/.test
	$(BIN)/lint-imports --no-logo

unit: $(VENV)/.test
	$(BIN)/python -m pytest -m 'not models' -n $(JOBS) --dist worksteal --doctest-modules tests fp16conv

models: $(VENV)/.test
	$(BIN)/python -m pytest -m models tests/models

# The oldest versions that pyproject.toml admits. ONNX Runtime 1.22 does not load the case that is left out.
LOWEST := $(VENV)-lowest
$(LOWEST)/.done: pyproject.toml lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet -c lowest.txt -e . pytest pytest-xdist hypothesis
	@touch $@

lowest: $(LOWEST)/.done
	$(LOWEST)/bin/python -m pytest -q -n $(JOBS) tests/conformance/test_cases.py \
	  --deselect 'tests/conformance/test_cases.py::test_case_converts_and_stays_right[b_contrib_attention_opset23]'

$(VENV)/.docs: $(VENV)/.base
	$(PIP) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

# Speed and memory beside other converters, cp and plain inference: docs/benchmarks.md.
bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.speed

# The table of real models in benchmarks/README.md.
table: $(VENV)/.test
	$(BIN)/python -m benchmarks.real_models

clean:
	rm -rf $(VENV) $(LOWEST) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
