#!/bin/sh
# Run the engine's tests with each version of Python that is named and installed, each in its own
# environment in .venv-matrix. PIP_OPTIONS is passed to pip. Fails if a test fails, or if no version
# is installed.
set -u
cd "$(dirname "$0")/.."
if command -v pyenv >/dev/null; then  # its commands refuse to run versions that are not selected
  PYENV_VERSION=$(pyenv versions --bare | paste -sd : -)
  export PYENV_VERSION
fi
passed= failed= missing=
for version in "$@"; do
  if ! "python$version" -c "" 2>/dev/null; then
    missing="$missing $version"
    continue
  fi
  environment=.venv-matrix/$version
  echo "--- Python $version"
  if "python$version" -m venv "$environment" \
    && "$environment/bin/pip" install --quiet ${PIP_OPTIONS:-} --constraint constraints.txt \
      --editable '.[course]' coverage hypothesis pytest-xdist \
    && "$environment/bin/pytest" -n 2 -m "not slow" tests/engine
  then passed="$passed $version"
  else failed="$failed $version"
  fi
done
echo "--- Passed:${passed:- none}. Failed:${failed:- none}."
[ -z "$missing" ] || echo "!!! NOT TESTED, because not installed: Python$missing"
[ -n "$passed" ] && [ -z "$failed" ]
