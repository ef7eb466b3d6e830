# Most targets first create .venv if it is missing or older than pyproject.toml or constraints.txt.
# PYTHON chooses the interpreter. PIP_OPTIONS is passed to pip (such as --index-url of CPU wheels).
PYTHON ?= python3
PIP_OPTIONS ?=
EXAMPLES ?= 2500
VERSIONS ?= 3.10 3.11 3.12 3.13  # of Python, for `make matrix`
BIN := .venv/bin
AT_ONCE := -n 5  # while the ranks of one test wait, those of another run
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)  # Jupyter requires it for root

.PHONY: demo test quick-tests test-all test-cluster matrix notebooks bench truth soak kills fuzz \
  docs pictures lint bubblewrap slurm chromium templates notebook-outputs lock clean

demo: .venv/ready  ## grade three submissions and show their reports
	$(BIN)/gradsync demo

notebooks: .venv/ready  ## open the self-study notebooks in JupyterLab, or print its address
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/jupyter lab $(ALLOW_ROOT) notebooks

test: bubblewrap chromium  ## run the linters and the tests, except slow ones (12 minutes on 2 cores)
	$(MAKE) --no-print-directory --jobs=2 lint quick-tests

quick-tests: .venv/ready
	@echo "A part of each long list of cases is tested, drawn by commit $$(git rev-parse --short HEAD)."
	$(BIN)/pytest $(AT_ONCE) -m "not slow"
	@echo "The same for a few tests, without the engine's optimisations (gradsync/ranks/fast):"
	GRADSYNC_SLOW=all $(BIN)/pytest $(AT_ONCE) -q -m "not slow" tests/engine/ranks/test_correct_programs.py

test-all: test  ## `make test`, then the slow tests
	$(BIN)/pytest -n 4 --dist loadgroup -m slow

test-cluster: .venv/ready slurm  ## train on a real Slurm and on two network namespaces (as root, 4 minutes)
	$(BIN)/pytest tests/cluster

matrix:  ## the engine's tests with each supported Python that is installed here
	sh checks/matrix.sh $(VERSIONS)

fuzz: .venv/ready  ## malformed frames and archives; EXAMPLES=25000: ten times as many
	$(BIN)/pytest tests/fuzz --examples $(EXAMPLES)

bench: .venv/ready .venv-otter/ready  ## measure the figures in docs/figures.md
	$(BIN)/python -m benchmarks

truth: .venv/ready  ## grade all known mistakes and correct answers, update docs/figures.md (half an hour)
	$(BIN)/python -m checks.truth

soak: .venv/ready  ## 500 grades, half of them on a busy machine (an hour)
	$(BIN)/python -m checks.soak

kills: .venv/ready  ## kill graders of classes at 50 random moments, and 10 workers of a cluster (an hour)
	$(BIN)/python -m checks.kills
	$(BIN)/python -m checks.cluster_kills

docs: .venv/ready  ## build the documentation in build/docs; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs . build/docs

pictures: .venv/ready chromium  ## take the pictures of the documentation anew
	$(BIN)/python docs/pictures.py

lint: .venv/ready  ## the checks that pre-commit runs too
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bubblewrap:  ## the sandbox: root installs it; other users get a message if it is missing
	@command -v bwrap >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq --yes bubblewrap; } \
	  || echo "bubblewrap is not installed: the tests that need a sandbox will be skipped"

slurm:  ## a cluster of one machine, and network namespaces: root installs it; others get a message
	@command -v slurmctld slurmd munged ip >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq \
	       && apt-get install -qq --yes slurm-wlm munge iproute2; } \
	  || echo "Slurm is not installed: the tests that need it will be skipped"

chromium:  ## a browser for tests of notebooks: root installs it; others get a message
	@command -v chromium chromium-browser google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq --yes chromium; } \
	  || echo "Chromium is not installed: the tests that need a browser will be skipped"

templates: .venv/ready  ## write phase*/template_*.py and notebooks/nbgrader/source from the solutions
	$(BIN)/gradsync templates

notebook-outputs: .venv/ready  ## run notebooks/*.py and write each as .ipynb with its outputs
	$(BIN)/python notebooks/build.py

lock: .venv/ready  ## choose exact versions for Python 3.10 and later
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.10 --all-extras \
	  --no-annotate --quiet --custom-compile-command 'make lock' --output-file constraints.txt

clean:
	rm -rf .venv .venv-matrix .venv-otter grades build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(PIP_OPTIONS) --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv-otter/ready:  # benchmarks compare otter-grader with gradsync
	$(PYTHON) -m venv .venv-otter
	.venv-otter/bin/pip install --quiet $(PIP_OPTIONS) 'otter-grader[grading]==7.0.0'
	touch $@
