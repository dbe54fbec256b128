"""RocketMQ's own `mqadmin`, unmodified, against the real process: see `tests/clients/rocketmq-mqadmin`."""

import itertools
import socket
import subprocess
import urllib.error
import urllib.request

import orjson
import pytest

from tests.harness import maven
from tests.harness.ports import reserved_address
from tests.harness.processes import PATIENCE_S, QUICK_JAVA_FLAGS, ROOT, serving, timerwheel
from timerwheel.rocketmq import properties_text
from timerwheel.rocketmq.codes import Call, Result
from timerwheel.rocketmq.frame import Frame, FrameReader, encode

PROJECT = ROOT / "tests" / "clients" / "rocketmq-mqadmin"
PROGRAM = "org.apache.rocketmq.tools.command.MQAdminStartup"
CLUSTER = ("-c", "DefaultCluster")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(maven.is_missing(), reason="needs Java 17 and Maven"),
]


@pytest.fixture
def service(tmp_path):
    """The URL of a service, and a function that runs a command of mqadmin against it."""
    address = reserved_address()

    def mqadmin(command: str, *flags: str) -> str:
        """Run a command; returns what it printed. Errors are printed too, and the exit code is 0 then."""
        java = ["java", "-Xmx128m", f"-Duser.home={tmp_path}", "-cp", maven.class_path(PROJECT), PROGRAM]
        done = subprocess.run(
            [*java, command, "-n", address, *flags],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        printed = done.stdout + done.stderr
        assert "Exception" not in printed, printed
        return printed

    with serving(tmp_path / "data", "--rocketmq", address) as running:
        yield running.url, mqadmin


def call(url, method, path, body=None):
    data = None if body is None else orjson.dumps(body)
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as answer:
        return orjson.loads(answer.read() or b"null")


def status_of(url, path):
    try:
        with urllib.request.urlopen(url + path) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_mqadmin_makes_a_topic_and_deletes_it_whole(service):
    url, mqadmin = service
    assert "success" in mqadmin("updateTopic", *CLUSTER, "-t", "orders", "-r", "4", "-w", "4")
    sent = call(url, "POST", "/v1/messages", {"topic": "orders", "body": "x", "delay_ms": 3_600_000})
    assert "orders" in mqadmin("topicList")
    assert "success" in mqadmin("deleteTopic", *CLUSTER, "-t", "orders")
    assert "orders" not in mqadmin("topicList")
    assert status_of(url, f"/v1/messages/{sent['id']}") == 404


def test_mqadmin_deletes_a_group_with_its_offsets_only_if_asked_to(service):
    url, mqadmin = service
    call(url, "POST", "/v1/messages", {"topic": "orders", "body": "x", "delay_ms": 0})
    call(url, "PUT", "/v1/topics/orders/groups/closers", {"kind": "offsets"})
    mqadmin("deleteSubGroup", *CLUSTER, "-g", "closers")
    assert call(url, "GET", "/v1/topics/orders/groups/closers")["group"] == "closers"
    assert "success" in mqadmin("deleteSubGroup", *CLUSTER, "-g", "closers", "-r", "true")
    assert status_of(url, "/v1/topics/orders/groups/closers") == 404


COMMANDS = "mqadmin.Commands"
END = "-- end --\n"
KEYS = [f"7F0000011092776C7D8C94C4E0D8000{number}" for number in range(7)]


class Client:
    """A client of the remoting protocol, which says that it is written in Rust."""

    def __init__(self, address: str, token: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._reader = FrameReader()
        self._opaques = itertools.count(1)
        self._token = token

    def ask(self, code, fields, body=b""):
        frame = Frame(code, next(self._opaques), {"AccessKey": self._token} | fields, body)
        said = encode(frame).replace(b'"JAVA"', b'"RUST"').replace(b'"version":479', b'"version":399')
        self._socket.sendall(said)
        while True:
            data = self._socket.recv(1 << 16)
            assert data, "the service closed the connection"
            for found in self._reader.feed(data):
                if found.is_response:
                    assert found.code == Result.SUCCESS, found
                    return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def operated(tmp_path):
    """A function that runs a command of mqadmin with a token, the service's address, the first message's id.

    The service has seven messages and a consumer. All commands run in one JVM; the function returns what one
    printed, with single spaces.
    """
    home, address = tmp_path, reserved_address()
    made = timerwheel("tokens", "create", "ops", "--scope", "admin", "--data", home / "data", "--json")
    token = made.json["token"]
    (home / "conf").mkdir()
    (home / "conf" / "tools.yml").write_text(f"accessKey: {token}\nsecretKey: unused\n")
    homes = (f"-Duser.home={home}", f"-Drocketmq.home.dir={home}")
    java = ["java", *QUICK_JAVA_FLAGS, "-Xmx128m", *homes, "-cp", maven.class_path(PROJECT), COMMANDS]
    with (
        serving(home / "data", "--rocketmq", address),
        subprocess.Popen(java, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        client = Client(address, token)
        ids = [sent(client, key, queue=number // 5) for number, key in enumerate(KEYS)]
        place = {"topic": "orders", "consumerGroup": "closers"}
        reads = {"groupName": "closers", "subscriptionDataSet": [{"topic": "orders", "subString": "*"}]}
        client.ask(Call.HEARTBEAT, {}, orjson.dumps({"clientID": "one", "consumerDataSet": [reads]}))
        for queue, offset in enumerate(("5", "2")):
            client.ask(Call.UPDATE_OFFSET, place | {"queueId": str(queue), "commitOffset": offset})

        def mqadmin(command: str) -> str:
            name, *flags = command.split()
            process.stdin.write("\t".join((name, "-n", address, *flags)) + "\n")
            process.stdin.flush()
            lines = [" ".join(line.split()) for line in iter(process.stdout.readline, END) if line]
            return "\n".join(lines)

        try:
            yield mqadmin, address, ids[0]
        finally:
            client.close()
            process.kill()


def sent(client, key, queue):
    """Send a message of order 7; returns its offset id."""
    text = properties_text.encode({"UNIQ_KEY": key, "KEYS": "order-7"})
    numbers = {"e": str(queue), "f": "0", "g": "1", "h": "0"}
    return client.ask(Call.SEND_V2, {"a": "p", "b": "orders", "i": text} | numbers, b"x").fields["msgId"]


REFUSED = "CODE: 3 DESC: "
OF_CLUSTER = "-c DefaultCluster"


TABLE = [
    (f"updateTopic {OF_CLUSTER} -t made", ["success", "perm=RW-"]),
    (f"updateTopic {OF_CLUSTER} -t made -r 9 -w 2", [f"{REFUSED}9 queues to read and 2 to write"]),
    (f"updateTopicPerm {OF_CLUSTER} -t orders -p 4", [f"{REFUSED}perm = 4"]),
    (f"updateSubGroup {OF_CLUSTER} -g closers", ["success"]),
    (f"updateSubGroup {OF_CLUSTER} -g closers -r 3", [f"{REFUSED}retryMaxTimes = 3"]),
    ("topicStatus -t orders", ["timerwheel 0 0 5 ", "timerwheel 1 0 2 ", "timerwheel 3 0 0"]),
    ("topicRoute -t orders", ['"brokerName":"timerwheel"', '"perm":6', '"readQueueNums":4']),
    ("clusterList", ["DefaultCluster timerwheel 0 {broker} timerwheel"]),
    ("consumerProgress -g closers", ["orders timerwheel 0 5 5 0", "orders timerwheel 1 2 2 0"]),
    ("consumerProgress", ["closers 1 V4_9_3 PUSH CLUSTERING 0 0"]),
    ("consumerConnection -g closers", ["RUST V4_9_3", "orders *", "CONSUME_PASSIVELY"]),
    ("resetOffsetByTime -g closers -t orders -s 0 -b {broker} -q 0 -o 3", ["reset consumer offset to 3"]),
    ("consumerProgress -g closers", ["orders timerwheel 0 5 3 2", "orders timerwheel 1 2 2 0"]),
    ("resetOffsetByTime -g closers -t orders -s 0", ["timerwheel 0 0", "timerwheel 1 0", "timerwheel 3 0"]),
    ("consumerProgress", ["closers 1 V4_9_3 PUSH CLUSTERING 0 7"]),
    ("queryMsgById -t orders -i {id}", ["OffsetID: {id}", "Keys: [order-7]", "Queue Offset: 0"]),
    ("queryMsgByKey -t orders -k order-7", [f"{KEYS[0]} 0 0", f"{KEYS[6]} 1 1"]),
    (f"queryMsgByUniqueKey -t orders -i {KEYS[1]}", ["Queue Offset: 1", "consumerGroup=closers"]),
]
"""Commands in this order, and what each prints at the least."""


def test_mqadmin_shows_what_is_and_says_what_it_cannot_do(operated):
    run, address, first = operated
    for command, wanted in TABLE:
        printed = run(command.format(id=first, broker=address))
        missing = [text for text in wanted if text.format(id=first, broker=address) not in printed]
        assert not missing, f"{command}: {missing}\n{printed}"
        is_refused = any(text.startswith(REFUSED) for text in wanted)
        assert is_refused == ("Exception" in printed), f"{command}: {printed}"
