#!/bin/sh
# Run the engine's tests with each named version of Python that is installed, each in a separate
# environment in .venv-matrix. PIP_OPTIONS is passed to pip. The script fails if a test fails, or if
# none of the versions is installed.
set -u
cd "$(dirname "$0")/.."
if command -v pyenv >/dev/null; then  # pyenv runs only the selected versions
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
