"""S3 on the loopback address: moto's server, with a record of the requests that reached it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import boto3
from moto.backends import get_backend
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "timers"


class Request(NamedTuple):
    """What a client asked for: `copies` if it is a server-side copy."""

    method: str
    path: str
    copies: bool


class ObjectStore:
    """A running server with one bucket."""

    def __init__(self, endpoint: str, requests: list[Request]) -> None:
        self.endpoint = endpoint
        self.requests = requests
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        self.client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        self.client.create_bucket(Bucket=BUCKET)

    def names(self, prefix: str = "") -> list[str]:
        """The keys in the bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]


class _Quiet(WSGIRequestHandler):
    def log(self, *_arguments: Any) -> None:
        """Not on stderr."""


@contextmanager
def object_store(*, conditions: bool = True) -> Iterator[ObjectStore]:
    """A server that ends with the block; without `conditions` it ignores those of PUTs, as some do."""
    get_backend("s3").reset()  # moto keeps it in this process
    application = DomainDispatcherApplication(create_backend_app)
    requests: list[Request] = []

    def record(environ: dict[str, Any], start: Any) -> Any:
        if not conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        copies = "HTTP_X_AMZ_COPY_SOURCE" in environ
        requests.append(Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], copies))
        return application(environ, start)

    server = make_server("127.0.0.1", 0, record, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield ObjectStore(f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
