"""The engine's pytest plugin: the `ranks` fixture."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gradsync.records import Observation


class Hooks:
    """Hooks that other plugins may implement."""

    @pytest.hookspec(firstresult=True)
    def pytest_make_ranks(
        self,
        request: pytest.FixtureRequest,  # noqa: ARG002
    ) -> Callable[..., Observation] | None:
        """Return what the `ranks` fixture is for this test, or None for `gradsync.run_ranks`."""
        return None


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradsync", "functions on N ranks")
    group.addoption(
        "--ranks-launcher", choices=("fork", "spawn", "sandbox"), help="how ranks are started"
    )


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Callable[..., Observation]:
    """Run a function on N ranks: call it as `gradsync.run_ranks`."""
    made: Callable[..., Observation] = request.config.hook.pytest_make_ranks(request=request)
    return made


@pytest.hookimpl(trylast=True)
def pytest_make_ranks(request: pytest.FixtureRequest) -> Callable[..., Observation]:
    """Run functions with the launcher that the command line asks for."""
    from gradsync.ranks import run_ranks  # few of the tests that load this plugin need it

    return functools.partial(run_ranks, launcher=request.config.getoption("--ranks-launcher"))
