"""A ValueError of its own for an environment that makes no sense."""


class LaunchError(ValueError):
    """The launcher's variables do not fit together."""


def _integer(environ, name):
    try:
        return int(environ[name])
    except (KeyError, ValueError) as problem:
        raise LaunchError(f"{name}: {environ.get(name)!r} is no integer") from problem
