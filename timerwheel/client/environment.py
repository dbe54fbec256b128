"""The service that the environment names: `TIMERWHEEL_URL`, `TIMERWHEEL_TOKEN`, as on the command line."""

import os
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8686"
URL = "TIMERWHEEL_URL"
TOKEN = "TIMERWHEEL_TOKEN"  # noqa: S105 - the name of a variable
_FILE_MARK = "@"


def url_of_environment() -> str:
    """Return the service's URL, by default that of a service on this machine."""
    return os.environ.get(URL) or DEFAULT_URL


def token_of_environment() -> str | None:
    """Return the token, or that in the file after an `@`; None without one. OSError if it cannot be read."""
    text = os.environ.get(TOKEN, "").strip()
    if text.startswith(_FILE_MARK):
        text = Path(text.removeprefix(_FILE_MARK)).read_text().strip()
    return text or None
