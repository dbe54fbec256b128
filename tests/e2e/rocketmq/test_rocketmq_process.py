"""The port for RocketMQ's clients on the real process: sockets, signals, HTTP beside it."""

import json
import signal
import socket
import urllib.request

from tests.harness.ports import reserved_port
from tests.harness.processes import serving, started, timerwheel
from tests.harness.remoting import properties_of
from tests.harness.stored_messages import decode_all
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import Call, Result
from timerwheel.rocketmq.frame import Frame, FrameReader, encode
from timerwheel.rocketmq.stored_message import StoredMessage


def asked(port: int, *frames: Frame) -> list[Frame]:
    """The answers to requests of one connection, in the order of the requests."""
    reader, found = FrameReader(), {}
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"".join(map(encode, frames)))
        while len(found) < len(frames):
            data = client.recv(1 << 16)
            assert data, "the service closed the connection"
            found |= {frame.opaque: frame for frame in reader.feed(data)}
    return [found[frame.opaque] for frame in frames]


def send(opaque: int, topic: str = "orders", **properties: str) -> Frame:
    fields = {
        "a": "p",
        "b": topic,
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": properties_text.encode(properties),
    }
    return Frame(Call.SEND_V2, opaque, fields, b"body %d" % opaque)


def pull(opaque: int) -> Frame:
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
    return Frame(Call.PULL, opaque, fields)


def test_messages_are_seen_over_http_and_survive_a_kill(tmp_path):
    port = reserved_port()
    flags = ("--rocketmq", f"127.0.0.1:{port}")
    with serving(tmp_path / "data", *flags) as service:
        answers = asked(port, send(1, KEYS="k"), send(2, TIMER_DELAY_MS="3600000", UNIQ_KEY="7F"), send(3))
        assert [answer.code for answer in answers] == [Result.SUCCESS] * 3
        with urllib.request.urlopen(f"{service.url}/v1/topics/orders/queues/0/messages") as response:
            bodies = [message["body"] for message in json.load(response)["messages"]]
        assert bodies == ["body 1", "body 3"]
        service.end(signal.SIGKILL)
    with serving(tmp_path / "data", *flags) as service:
        [answer] = asked(port, pull(9))
        found = decode_all(answer.body)
        assert [(one.body, properties_of(one).get("KEYS")) for one in found] == [
            (b"body 1", "k"),
            (b"body 3", None),
        ]
        assert service.end(signal.SIGTERM).code == 0


def pop(opaque: int) -> Frame:
    fields = {
        "consumerGroup": "poppers",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "10000",
        "bornTime": "0",
        "initMode": "0",
    }
    return Frame(Call.POP, opaque, fields)


def acknowledgement(opaque: int, message: StoredMessage) -> Frame:
    fields = {
        "consumerGroup": "poppers",
        "topic": "orders",
        "queueId": str(message.queue),
        "offset": str(message.queue_offset),
        "extraInfo": properties_of(message)["POP_CK"],
    }
    return Frame(Call.ACKNOWLEDGE, opaque, fields)


def test_what_was_popped_and_not_acknowledged_comes_again_after_a_kill(tmp_path):
    port = reserved_port()
    flags = ("--rocketmq", f"127.0.0.1:{port}")
    with serving(tmp_path / "data", *flags) as service:
        asked(port, *[send(n, UNIQ_KEY=f"7F{n}") for n in range(1, 4)])
        [popped] = asked(port, pop(9))
        first, *_ = found = decode_all(popped.body)
        assert len(found) == 3
        [done] = asked(port, acknowledgement(10, first))
        assert done.code == Result.SUCCESS
        service.end(signal.SIGKILL)
    with serving(tmp_path / "data", *flags) as service:
        [popped] = asked(port, pop(11))
        again = decode_all(popped.body)
        assert {one.body for one in again} == {one.body for one in found} - {first.body}
        answers = asked(port, *[acknowledgement(20 + n, one) for n, one in enumerate(again)])
        assert [answer.code for answer in answers] == [Result.SUCCESS] * 2
        with urllib.request.urlopen(f"{service.url}/v1/topics/orders/groups/poppers") as response:
            counts = json.load(response)
        assert (counts["lag"], counts["in_flight"], counts["waiting"]) == (0, 0, 0)


def test_a_stop_with_open_connections_is_an_orderly_end(tmp_path):
    port = reserved_port()
    with (
        serving(tmp_path / "data", "--rocketmq", f"127.0.0.1:{port}") as service,
        socket.create_connection(("127.0.0.1", port), timeout=60) as client,
    ):
        client.sendall(encode(send(1)))
        assert client.recv(1 << 16)
        result = service.end(signal.SIGTERM)
        assert client.recv(1 << 16) == b""
    assert result.code == 0
    assert "Traceback" not in result.err


def test_a_port_in_use_is_found_before_the_data_is_touched(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = timerwheel(
            "serve", "--port", 0, "--data", tmp_path / "data", "--rocketmq", f"127.0.0.1:{port}"
        )
    assert done.code == 1
    assert (
        f"cannot listen on 127.0.0.1:{port} for RocketMQ's clients: another program uses this port"
        in done.err
    )
    assert not (tmp_path / "data").exists()


def test_a_port_for_everyone_needs_tokens(tmp_path):
    done = timerwheel("serve", "--port", 0, "--data", tmp_path / "data", "--rocketmq", "0.0.0.0:0")
    assert done.code == 2
    assert "rocketmq = '0.0.0.0:0': there are no API tokens" in done.err


def test_the_first_line_names_the_port_that_was_chosen(tmp_path):
    flags = ("--port", 0, "--data", tmp_path / "data", "--rocketmq", "127.0.0.1:0", "--json")
    with started("serve", *flags) as process:
        host, _, port = json.loads(process.stdout.readline())["rocketmq"].partition(":")
        assert host == "127.0.0.1"
        assert asked(int(port), send(1))[0].code == Result.SUCCESS
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
