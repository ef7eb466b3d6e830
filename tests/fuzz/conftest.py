"""Number of examples: few in `make test`, `--examples` for each reader in `make fuzz`."""

import hypothesis


def pytest_addoption(parser):
    parser.addoption(
        "--examples", type=int, help="fuzz each reader with so many examples, others on each run"
    )


def pytest_configure(config):
    examples = config.getoption("--examples")
    hypothesis.settings.register_profile(
        "fuzz",
        max_examples=examples
        or 100,  # all tests have this profile: as in tests/helpers/shared_fixtures.py
        derandomize=examples is None,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("fuzz")
