"""The version of the installed package."""


def version() -> str:
    """Its version, or `unknown` when run from sources that were never installed."""
    import importlib.metadata  # noqa: PLC0415 - takes a while, and nothing waits for it at the start

    try:
        return importlib.metadata.version("timerwheel")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
