# Every command sets up what it needs by itself; nothing else is needed but Python (>= 3.11) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; pip would compile every file there is.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check \
	-c constraints.txt
export HF_HUB_OFFLINE ?= 1
# Tests start many processes; each would compile again what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-gpu test-verl check pytest docs clean

quickstart: $(VENV)/.installed
	$(BIN)/acpo train recipes/quickstart.yaml

test: check pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n auto --dist loadfile $(PYTEST_ARGS)

# The site, in build/site; a link that leads nowhere is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

# Every test that needs CUDA, in an environment of yours with pytest and a CUDA build of torch.
GPU_TESTS = tests/head/kernel_cases.py tests/head/test_head.py tests/head/test_distribution.py \
	tests/sampling/kernel_cases.py tests/sampling/test_sampler.py tests/engines/test_gpu.py
test-gpu:
	PYTHONPATH=src:tests:$$PYTHONPATH $(PYTHON) -m pytest -q -p no:cacheprovider $(GPU_TESTS) $(PYTEST_ARGS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "acpo needs Python >= 3.11; found $$($(PYTHON) --version). Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing acpo into $(VENV) (a minute or two, once) ..."
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the test tools into $(VENV) ..."
	@$(PIP_INSTALL) -e ".[dev]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Installing the site's tools into $(VENV) ..."
	@$(PIP_INSTALL) -e ".[docs]"
	@touch $@

# verl cannot share an environment with TRL.
VERL := .venv-verl
VERL_PIP = $(VERL)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check

test-verl: $(VERL)/.installed
	$(VERL)/bin/python -m pytest -q -n auto --dist loadfile tests/engines/verl $(PYTEST_ARGS)

$(VERL)/.installed: pyproject.toml constraints-verl.txt
	@echo "Installing verl into $(VERL) (a few minutes, once) ..."
	@$(PYTHON) -m venv $(VERL)
	@$(VERL_PIP) -c constraints.txt torch
	@$(VERL_PIP) --no-deps -r constraints-verl.txt -e .
	@touch $@

clean:
	rm -rf $(VENV) $(VERL) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
