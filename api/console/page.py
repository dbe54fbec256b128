"""The console's files, as they lie in the package: read once, served by their exact names, never from a path.

The page runs under a policy that allows scripts, styles and connections of its own origin only: nothing
inline, and no text made into markup. Whatever a message says, it cannot become a part of the page. See
`doc/console.md`.
"""

import hashlib
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from aiohttp import hdrs, web
from multidict import CIMultiDict

from timerwheel.api.http.route import Need, call

# They hold no data and are not part of the API.
_serves = partial(
    call, "GET", needs=Need.OPEN, needs_engine=False, answer=str, described=False, compresses=False
)

PAGE = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

File = tuple[bytes, CIMultiDict[str]]  # what a name is answered with: body and headers


class Pages:
    """Handlers for `/` and `/console/{file}`. They need no engine, since the page itself shows its state."""

    def __init__(self) -> None:
        self._files = _files()

    @_serves("/", "console", summary="The console")
    @_serves("/console/{file}", "consoleFile", pattern="/console/{file:.+}")
    async def file(self, request: web.Request) -> web.Response:
        """A file of the console's page.

        The page, one of its files or a licence; 404 for any other name.
        """
        found = self._files.get(request.match_info.get("file", PAGE))
        if found is None:
            raise web.HTTPNotFound
        body, headers = found
        if headers[hdrs.ETAG] in request.headers.get(hdrs.IF_NONE_MATCH, ""):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, headers=headers)


@cache
def _files() -> dict[str, File]:
    """The files of this package, which do not change while a process runs."""
    return dict(_read(resources.files("timerwheel.api.console") / "static"))


def _read(folder: Traversable, prefix: str = "") -> list[tuple[str, File]]:
    """Return every file of a known type below a folder, by its name in URLs, with its response."""
    found = []
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            found += _read(entry, f"{name}/")
        elif PurePosixPath(name).suffix in KINDS:
            body = entry.read_bytes()
            found.append((name, (body, _headers(name, body))))
    return found


def _headers(name: str, body: bytes) -> CIMultiDict[str]:
    return CIMultiDict(
        {
            "Content-Type": KINDS[PurePosixPath(name).suffix],
            "Content-Security-Policy": POLICY,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            # Asked about each time, so that a page is never made of files of two versions.
            "Cache-Control": "no-cache",
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        }
    )
