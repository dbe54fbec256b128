"""The version of the installed package."""

import importlib.metadata


def version() -> str:
    """Its version, or `unknown` when run from sources that were never installed."""
    try:
        return importlib.metadata.version("timerwheel")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
