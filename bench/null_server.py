"""`python -m bench.null_server KIND`: a server that only answers; prints its port, runs until stopped.

`stored` answers each request with 201 without parsing it, so a load on it shows the limit of the generator.
`remoting` tells RocketMQ's clients that it has stored whatever they send: the limit of the generator in Java.
`aiohttp` is a bare aiohttp application on uvloop that reads the body and answers 201: the upper limit of any
service built on it.
"""

import asyncio
import json
import sys
from typing import Any

import uvloop
from aiohttp import web

from timerwheel.rocketmq.codes import FLAG_RESPONSE, Call, Result
from timerwheel.rocketmq.frame import Frame, FrameReader, encode_all

HOST = "127.0.0.1"
_STORED = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class _Stored(asyncio.Protocol):
    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - a transport that writes
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        begin = 0
        while (blank := data.find(b"\r\n\r\n", begin)) >= 0:
            size = int(data[begin:blank].rpartition(b"Content-Length: ")[2].partition(b"\r")[0])
            if blank + 4 + size > len(data):
                break
            self._transport.write(_STORED)
            begin = blank + 4 + size
        self._rest = data[begin:]


class _Remoting(asyncio.Protocol):
    def __init__(self) -> None:
        self._reader = FrameReader()

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as above
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answers = map(self._answer, self._reader.feed(data))
        self._transport.write(encode_all(answers))

    def _answer(self, frame: Frame) -> Frame:
        body = self._route() if frame.code == Call.ROUTE else b""
        place = {"msgId": "", "queueId": frame.fields.get("e", "0"), "queueOffset": "0"}
        return Frame(Result.SUCCESS, frame.opaque, place, body, FLAG_RESPONSE, None, frame.form)

    def _route(self) -> bytes:
        host, port = self._transport.get_extra_info("sockname")
        queues = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}
        broker = {"cluster": "null", "brokerName": "null", "brokerAddrs": {"0": f"{host}:{port}"}}
        return json.dumps({"brokerDatas": [broker], "queueDatas": [queues | {"brokerName": "null"}]}).encode()


async def _store(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(status=201, body=b"{}", content_type="application/json")


async def serve(kind: str) -> None:
    """Serve until the process is stopped."""
    if kind == "aiohttp":
        application = web.Application(client_max_size=16 * 2**20)
        application.router.add_post("/v1/messages", _store)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        print(runner.addresses[0][1], flush=True)
    else:
        protocol = _Remoting if kind == "remoting" else _Stored
        server = await asyncio.get_running_loop().create_server(protocol, HOST, 0)
        print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
