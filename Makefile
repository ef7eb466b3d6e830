# Every target makes .venv first, when it is missing or older than what it is made of.
# PYTHON chooses the interpreter, PIP_OPTIONS goes to pip (--index-url of PyTorch's CPU wheels, say).
PYTHON ?= python3
PIP_OPTIONS ?=
EXAMPLES ?= 2500
BIN := .venv/bin

# A copy of MNIST that lies beside the checkout is used as it is; else see gradsync/data.py.
ifneq ($(wildcard ../shared/mnist),)
export GRADSYNC_DATA ?= $(abspath ../shared/mnist)
endif

.PHONY: demo test bench truth soak kills fuzz lint bubblewrap templates lock clean

demo: .venv/ready  ## grade three submissions, and see what a report says
	$(BIN)/gradsync demo

test: lint bubblewrap  ## everything that must hold before a change lands
	$(BIN)/pytest

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

bubblewrap:  ## what keeps other people's code apart: root gets it, others are told
	@command -v bwrap >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq --yes bubblewrap; } \
	  || echo "bubblewrap is not installed: the tests that need a sandbox will be skipped"

templates: .venv/ready  ## phase*/template_*.py from the solutions
	$(BIN)/gradsync templates

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
