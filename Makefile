# Every target makes .venv first, when it is missing or older than what it is made of.
# PYTHON chooses the interpreter, PIP_OPTIONS goes to pip (--index-url of PyTorch's CPU wheels, say).
PYTHON ?= python3
PIP_OPTIONS ?=
EXAMPLES ?= 2500
BIN := .venv/bin
AT_ONCE := -n 4 --dist loadgroup  # while the ranks of one test wait, those of another run
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)  # Jupyter asks for it

# A copy of MNIST that lies beside the checkout is used as it is; else see gradsync/data.py.
ifneq ($(wildcard ../shared/mnist),)
export GRADSYNC_DATA ?= $(abspath ../shared/mnist)
endif

.PHONY: demo test test-all notebooks bench truth soak kills fuzz lint bubblewrap chromium templates \
  notebook-outputs lock clean

demo: .venv/ready  ## grade three submissions, and see what a report says
	$(BIN)/gradsync demo

notebooks: .venv/ready  ## open the self-study notebooks in JupyterLab; prints its address
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/jupyter lab $(ALLOW_ROOT) notebooks

test: lint bubblewrap chromium  ## all rules and all parts of the code, in 8 minutes on 2 cores
	@echo "A part of each long list of cases is tested, drawn by commit $$(git rev-parse --short HEAD)."
	$(BIN)/pytest $(AT_ONCE) -m "not slow"

test-all: test  ## and then what `make test` leaves out
	$(BIN)/pytest $(AT_ONCE) -m slow

fuzz: .venv/ready  ## broken frames and archives for two minutes; EXAMPLES=25000 for twenty
	$(BIN)/pytest tests/fuzz --examples $(EXAMPLES)

bench: .venv/ready  ## the figures of README.md, measured side by side
	$(BIN)/python -m benchmarks

truth: .venv/ready  ## grade every known mistake and correct answer, for README.md (20 minutes)
	$(BIN)/python -m benchmarks.truth

soak: .venv/ready  ## 500 grades, half of them on a busy machine: takes an hour
	$(BIN)/python -m benchmarks.soak

kills: .venv/ready  ## kill the grader of a class at 50 random moments: takes half an hour
	$(BIN)/python -m benchmarks.kills

lint: .venv/ready  ## what pre-commit checks, too
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python checks/prose.py

bubblewrap:  ## what keeps other people's code apart: root gets it, others are told
	@command -v bwrap >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq --yes bubblewrap; } \
	  || echo "bubblewrap is not installed: the tests that need a sandbox will be skipped"

chromium:  ## the browser that tests look at notebooks with: root gets it, others are told
	@command -v chromium chromium-browser google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq --yes chromium; } \
	  || echo "Chromium is not installed: the tests that need a browser will be skipped"

templates: .venv/ready  ## phase*/template_*.py and notebooks/nbgrader/source from the solutions
	$(BIN)/gradsync templates

notebook-outputs: .venv/ready  ## run notebooks/*.py, and write each as .ipynb with its outputs
	$(BIN)/python notebooks/build.py

lock: .venv/ready  ## exact versions for every Python from 3.10 on
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.10 --all-extras \
	  --no-annotate --quiet --custom-compile-command 'make lock' --output-file constraints.txt

clean:
	rm -rf .venv grades build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(PIP_OPTIONS) --constraint constraints.txt --editable '.[dev]'
	touch $@
