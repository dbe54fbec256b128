"""This service over HTTP/1.1: `doc/http-api.md`.

With `group` in its spec, a consumer receives as a member of the group and acknowledges; without it, it reads
the topic's queue with long polls, which need no acknowledgement and allow one consumer.
"""

import re
from collections.abc import Sequence

from bench.wires.wire import Finished, Received, RefusedError, Spec
from timerwheel.wire.arrow import MEDIA_TYPE, load, stream_of

RECEIVE_MAX = 1_000
WAIT_MS = 5_000
_BODY = re.compile(rb'"body":"([0-9]{12} [0-9]{16} )')
_RECEIPT = re.compile(rb'"receipt":"([0-9a-f]+)"')
_UNKNOWN = b'"code":"unknown_topic"'
_NEXT = re.compile(rb'"next_offset":([0-9]+)')


class Answers:
    """Splits received bytes into the bodies of complete responses."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies of the complete responses so far. Raises RefusedError for a status other than 2xx.

        An unknown topic is not an error for a waiting consumer.
        """
        data = self._rest + data if self._rest else data
        begin, found = 0, []
        while (blank := data.find(b"\r\n\r\n", begin)) >= 0:
            head = data[begin:blank].lower()
            end = blank + 4 + int(head.partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
            if end > len(data):
                break
            is_early = head.startswith(b"http/1.1 404") and _UNKNOWN in data[blank:end]
            if not head.startswith(b"http/1.1 2") and not is_early:
                raise RefusedError(data[begin:end].decode(errors="replace"))
            found.append(data[blank + 4 : end])
            begin = end
        self._rest = data[begin:]
        return found


def request(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """Encodes an HTTP request whose body, and answer, are of this kind."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nAccept: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _stream(topic: str, bodies: Sequence[bytes], dues_ms: Sequence[int]) -> bytes:
    pa = load()
    table = pa.table(
        {
            "topic": pa.DictionaryArray.from_arrays(pa.array(bytes(len(bodies)), pa.int8()), [topic]),
            "body": pa.array(bodies, pa.binary()),
            "deliver_at_ms": pa.array(dues_ms, pa.int64()),
        }
    )
    return stream_of(table)


class Sender:
    """One request for all messages: an object, or an array if there are several.

    With `arrow` in its spec it is an Arrow stream, and so is the answer.
    """

    def __init__(self, spec: Spec) -> None:
        self._answers = Answers()
        self._arrow_topic = spec["topic"] if spec.get("arrow") else None
        self._message = b'{"topic":"%b","deliver_at_ms":%%d,"body":"%%b"}' % spec["topic"].encode()

    def greeting(self) -> bytes:
        """Nothing to send."""
        return b""

    def request(self, bodies: Sequence[bytes], dues_ms: Sequence[int], now_ms: int) -> bytes:  # noqa: ARG002
        """See `SendWire`."""
        if self._arrow_topic is not None:
            stream = _stream(self._arrow_topic, bodies, dues_ms)
            return request("POST", "/v1/messages", stream, MEDIA_TYPE)
        message = self._message
        if len(bodies) == 1:
            return request("POST", "/v1/messages", message % (dues_ms[0], bodies[0]))
        parts = [message % pair for pair in zip(dues_ms, bodies, strict=True)]
        return request("POST", "/v1/messages", b"[%b]" % b",".join(parts))

    def feed(self, data: bytes) -> int:
        """See `SendWire`."""
        return len(self._answers.feed(data))


class Receiver:
    """Long polls of a queue, or a member of a group: each receive acknowledges what the last one brought."""

    def __init__(self, spec: Spec) -> None:
        self._answers = Answers()
        topic, group = spec["topic"], spec.get("group")
        self._grouped = group is not None
        self._read = f"/v1/topics/{topic}/queues/0/messages?max={RECEIVE_MAX}&wait_ms={WAIT_MS}&offset="
        self._receive_path = f"/v1/topics/{topic}/groups/{group}/receive"
        self._wanted = b'"max":%d,"wait_ms":%d,"invisible_ms":600000,"create":true' % (RECEIVE_MAX, WAIT_MS)

    def begin(self) -> bytes:
        """See `ReceiveWire`."""
        return self._receive([]) if self._grouped else request("GET", f"{self._read}0")

    def feed(self, data: bytes) -> Received:
        """See `ReceiveWire`."""
        bodies: list[bytes] = []
        replies: list[bytes] = []
        for answer in self._answers.feed(data):
            bodies += _BODY.findall(answer)
            if self._grouped:
                if b'"ok":false' in answer:
                    raise RefusedError(answer.decode())
                messages_end = answer.rfind(b'"results":[')
                receipts = _RECEIPT.findall(answer, 0, messages_end if messages_end >= 0 else len(answer))
                replies.append(self._receive(receipts))
            elif _UNKNOWN in answer:
                replies.append(request("GET", f"{self._read}0"))
            else:
                following = _NEXT.search(answer, max(0, len(answer) - 200))
                assert following is not None, answer[-200:]
                replies.append(request("GET", self._read + following[1].decode()))
        return Received(bodies, b"".join(replies))

    def _receive(self, receipts: list[bytes]) -> bytes:
        ack = b',"ack":["%b"]' % b'","'.join(receipts) if receipts else b""
        return request("POST", self._receive_path, b"{%b%b}" % (self._wanted, ack))


class Worker:
    """See `WorkWire`: a member of a group. The next receive may carry the receipts of the last one."""

    def __init__(self, spec: Spec) -> None:
        self._answers = Answers()
        path = f"/v1/topics/{spec['topic']}/groups/{spec['group']}"
        self._receive_path, self._ack_path = f"{path}/receive", f"{path}/ack"
        self._wanted = b'"max":%d,"wait_ms":%d,"invisible_ms":600000' % (spec["count_max"], WAIT_MS)
        self._receive = request("POST", self._receive_path, b"{%b}" % self._wanted)
        self._ack_with_next = spec["ack_with_next"]
        self._held: list[bytes] = []
        """Bodies of the messages that are being acknowledged."""

    def begin(self) -> bytes:
        """Receive the first messages."""
        return self._receive

    def feed(self, data: bytes) -> Finished:
        """See `WorkWire`. A connection has one request in flight."""
        finished: list[bytes] = []
        reply = b""
        for answer in self._answers.feed(data):
            messages_end = len(answer)
            if self._held:
                messages_end = answer.rfind(b'"results":[')
                if answer.count(b'"ok":true', messages_end) != len(self._held):
                    raise RefusedError(answer.decode())
                finished, self._held = self._held, []
            receipts = _RECEIPT.findall(answer, 0, messages_end)
            reply = self._following(receipts) if receipts else self._receive
            if receipts:
                self._held = _BODY.findall(answer, 0, messages_end)
        return Finished(finished, reply)

    def _following(self, receipts: list[bytes]) -> bytes:
        joined = b'","'.join(receipts)
        if self._ack_with_next:
            return request("POST", self._receive_path, b'{%b,"ack":["%b"]}' % (self._wanted, joined))
        return request("POST", self._ack_path, b'{"receipts":["%b"]}' % joined)
