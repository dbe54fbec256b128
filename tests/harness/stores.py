"""Stores of files that are no local directory: a web server and an S3 server, both on loopback."""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import fsspec
import s3fs

BUCKET = "logs"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Refusing(_Quiet):
    def send_head(self) -> None:
        self.send_error(403)


class _Sizeless(_Quiet):
    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Content-Length":
            super().send_header(keyword, value)


class Gate:
    """Holds requests for files with a suffix until it is opened."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.reached = threading.Event()
        self.opened = threading.Event()


class _Gated(_Quiet):
    def __init__(self, *arguments: Any, gate: Gate, **named: Any) -> None:
        self._gate = gate
        super().__init__(*arguments, **named)

    def do_GET(self) -> None:
        if self.path.endswith(self._gate.suffix):
            self._gate.reached.set()
            self._gate.opened.wait()
        with contextlib.suppress(ConnectionError):  # who asked has been killed
            super().do_GET()


@contextmanager
def web_server(
    directory: Path, *, refuses: bool = False, tells_size: bool = True, gate: Gate | None = None
) -> Iterator[str]:
    """The URL of a server that lists this directory and serves its files, or refuses everything.

    Like many simple servers it answers no range requests.
    """
    kind = _Refusing if refuses else _Quiet if tells_size else _Sizeless
    handler = partial(kind, directory=str(directory))
    if gate is not None:
        handler = partial(_Gated, directory=str(directory), gate=gate)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            if gate is not None:
                gate.opened.set()
            server.shutdown()
            thread.join()


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """An S3 server with one empty bucket; the environment with which programs use it."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - takes long, and few tests need it

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        # All servers of a process share what they hold.
        urlopen(Request(f"{url}/moto-api/reset", method="POST")).close()
        environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": url}
        with using(environment):
            fsspec.filesystem("s3").mkdir(BUCKET)
        yield environment
    finally:
        server.stop()


class _RefusingS3(BaseHTTPRequestHandler):
    """Answers every request with one error of S3, whose code may be in the headers alone (HEAD)."""

    protocol_version = "HTTP/1.1"
    status, code, region = 403, "AccessDenied", ""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        region = f"<Region>{self.region}</Region>" if self.region else ""
        body = f"<Error><Code>{self.code}</Code><Message>refused: {self.code}</Message>{region}</Error>"
        self.send_response(self.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        if self.region:
            self.send_header("x-amz-bucket-region", self.region)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names of the base class

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        pass


@contextmanager
def refusing_s3(status: int, code: str, region: str = "") -> Iterator[dict[str, str]]:
    """An S3 server that refuses everything; the environment with which programs use it."""
    answers = {"status": status, "code": code, "region": region}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Refusing", (_RefusingS3,), answers)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def using(environment: dict[str, str]) -> Iterator[None]:
    """Lets this process use a server; what it remembers of another one is forgotten."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def upload(directory: Path, url: str) -> None:
    """Copy a directory to a URL."""
    fs, path = fsspec.core.url_to_fs(url)
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            name = f"{path}/{file.relative_to(directory)}"
            if fs.protocol == "memory":
                fs.makedirs(name.rpartition("/")[0], exist_ok=True)
            fs.pipe_file(name, file.read_bytes())


def names_below(url: str) -> list[str]:
    """All files below a URL, relative to it."""
    fs, path = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return sorted(name.removeprefix(path).lstrip("/") for name in fs.find(path))
