"""Set the number of examples: few in `make test`, `--examples` for each test in `make fuzz`."""

import hypothesis


def pytest_addoption(parser):
    parser.addoption(
        "--examples", type=int, help="number of examples per test, which differ in each run"
    )


def pytest_configure(config):
    examples = config.getoption("--examples")
    hypothesis.settings.register_profile(
        "fuzz",
        max_examples=examples or 50,  # other tests use it too
        derandomize=examples is None,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("fuzz")
