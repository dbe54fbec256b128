"""Tables into a live service: each row once, whatever is repeated, refused or away for a while."""

import asyncio
import contextlib
import csv
import datetime as dt
import json
import signal
import socket
import threading
from collections.abc import Iterator
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions

from tests.harness.clock import LeapingClock
from tests.harness.processes import RunningService, serving, started, timerwheel
from timerwheel.cli.schedule import PASSWORD_VARIABLE, Database
from timerwheel.client import Client, Message
from timerwheel.clock import SystemClock
from timerwheel.errors import SettingsError
from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.schedule import sending
from timerwheel.spark_jobs.schedule.job import schedule_query, schedule_table, shared, tasks_at_a_time, turns
from timerwheel.spark_jobs.schedule.rows import RowMapping
from timerwheel.spark_jobs.schedule.sending import Target, send_rows
from timerwheel.spark_jobs.schedule.table import BLOCK_BYTES, batches_of, open_table
from timerwheel.spark_jobs.session import plain_errors

DUE_MS = 1_900_000_000_000  # in 2030
MAPPING = RowMapping("due", "orders")


@pytest.fixture
def service(tmp_path) -> Iterator[RunningService]:
    with serving(tmp_path / "data", "--messages-per-request-max", 50) as running:
        yield running


def table(count: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"due": [DUE_MS + n for n in numbers], "body": [f"row {n}" for n in numbers]})


def pending(service: RunningService) -> list[Message]:
    """All waiting messages."""

    async def ask() -> list[Message]:
        async with Client(service.url) as client:
            return [message async for message in client.pending()]

    return asyncio.run(ask())


def waiting(service: RunningService) -> list[str]:
    """The bodies of all waiting messages."""
    return [message.text for message in pending(service)]


def send(service: RunningService, rows: pa.Table, **target) -> sending.Sent:
    return send_rows(rows.to_batches(max_chunksize=700), MAPPING, Target(service.url, **target))


def test_each_row_is_scheduled_once_though_all_are_sent_again(service):
    assert (send(service, table(1_234)).stored, send(service, table(1_300)).duplicates) == (1_234, 1_234)
    assert sorted(waiting(service)) == sorted(f"row {n}" for n in range(1_300))


def test_a_row_whose_message_was_recalled_since_had_been_scheduled_before(service):
    """A stream that repeats a batch would stop at it each time."""
    rows = table(120)
    send(service, rows)
    gone = [message for message in pending(service) if message.text in {"row 3", "row 4", "row 119"}]

    async def recall() -> None:
        async with Client(service.url) as client:
            for message in gone:
                await client.recall(message.id)

    asyncio.run(recall())
    sent = send(service, rows)
    assert (sent.stored, sent.duplicates, sent.refused) == (0, 120, [])
    assert len(waiting(service)) == 117


def test_refused_rows_are_left_out_and_named(service):
    rows = table(120).to_pydict()
    rows["topic"] = ["orders"] * 120
    rows["topic"][7] = rows["topic"][119] = "no such topic!"
    rows["key"] = [f"k{n}" for n in range(120)]
    rows["key"][30] = "k29"  # whose message is another
    mapping = RowMapping("due", topic_column="topic", key="key")
    sent = send_rows(pa.table(rows).to_batches(), mapping, Target(service.url))
    assert (sent.stored, sent.duplicates, sent.rows) == (117, 0, 120)
    assert sorted((one.key, one.code) for one in sent.refused) == [
        ("k119", "illegal_topic"),
        ("k29", "key_reused"),
        ("k7", "illegal_topic"),
    ]
    assert len(waiting(service)) == 117


def test_a_refused_row_is_named_with_the_column_of_the_table(service):
    rows = pa.table({"when": ["2030-01-01T00:00:00Z", "soon"], "body": ["good", "bad"]})
    sent = send_rows(rows.to_batches(), RowMapping("when", "orders"), Target(service.url))
    [refused] = sent.refused
    assert refused.detail.startswith("column when: 'soon' is not an RFC 3339 time")
    assert waiting(service) == ["good"]


def test_a_time_that_the_clocks_skip_refuses_its_row_alone(service):
    rows = pa.table({"due": ["2030-03-31 02:30:00", "2030-03-31 12:30:00"], "body": ["gap", "good"]})
    mapping = RowMapping("due", "orders", zone="Europe/Berlin")
    sent = send_rows(rows.to_batches(), mapping, Target(service.url))
    [refused] = sent.refused
    assert (sent.stored, sent.rows, refused.code) == (1, 2, "no_such_time")
    assert "'2030-03-31 02:30:00' does not exist in Europe/Berlin" in refused.detail
    assert (refused.row, waiting(service)) == ('{"due":"2030-03-31 02:30:00","body":"gap"}', ["good"])


def test_a_refused_row_is_shown_by_its_own_columns_in_whatever_request_it_was(service):
    rows = table(120).to_pydict()
    rows["topic"] = ["orders"] * 120
    rows["topic"][7] = rows["topic"][119] = "no such topic!"
    sent = send_rows(
        pa.table(rows).to_batches(), RowMapping("due", topic_column="topic"), Target(service.url)
    )
    assert sorted(orjson.loads(one.row)["body"] for one in sent.refused) == ["row 119", "row 7"]


def test_rows_whose_second_is_full_are_refused_and_the_others_scheduled(tmp_path):
    dues = [DUE_MS + 1_000 * (number % 7) for number in range(70)]  # ten for each of seven seconds
    rows = pa.table({"due": dues, "body": [f"row {number}" for number in range(70)]})
    with serving(tmp_path / "data", "--slot-messages-max", 8) as running:
        sent = send(running, rows)
        assert (sent.stored, {one.code for one in sent.refused}, sent.rows) == (56, {"slot_congested"}, 70)
        kept = waiting(running)
    lost = [orjson.loads(one.row)["body"] for one in sent.refused]
    assert sorted([*kept, *lost]) == sorted(f"row {number}" for number in range(70))


def test_many_rows_without_a_time_end_the_task(service, monkeypatch):
    monkeypatch.setattr(sending, "REFUSED_MAX", 100)
    rows = table(200).set_column(0, "due", pa.array(["2030-03-31 02:30:00"] * 200))
    mapping = RowMapping("due", "orders", zone="Europe/Berlin")
    with pytest.raises(JobError, match=r"refused more than 100 rows of one task; the first: row \{"):
        send_rows(rows.to_batches(), mapping, Target(service.url))


def test_many_refused_rows_end_the_task(service, monkeypatch):
    monkeypatch.setattr(sending, "REFUSED_MAX", 100)
    rows = table(200).set_column(0, "due", pa.array(["next year"] * 200))
    with pytest.raises(JobError, match="refused more than 100 rows of one task; the first: key"):
        send_rows(rows.to_batches(max_chunksize=50), MAPPING, Target(service.url))


def test_a_service_that_stays_away_is_given_up_with_what_to_do():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        target = Target(f"http://127.0.0.1:{free.getsockname()[1]}", patience_ms=200)
        with pytest.raises(JobError, match=r"tried for up to 0.2 s.*run the job again, which schedules none"):
            send_rows(table(3).to_batches(), MAPPING, target)


@pytest.mark.parametrize("option", ["token", "ca", "cert"])
def test_a_file_that_the_executors_do_not_have_is_named(tmp_path, option):
    missing = str(tmp_path / "missing.pem")
    target = Target("https://127.0.0.1:1", **{option: "@" + missing if option == "token" else missing})
    with pytest.raises(JobError, match=rf"^{option} .*missing\.pem cannot be read on .*, where Spark runs"):
        send_rows(table(1).to_batches(), MAPPING, target)


def test_a_token_that_is_refused_is_no_reason_to_wait(tmp_path):
    data = tmp_path / "data"
    made = timerwheel(
        "tokens", "create", "other", "--scope", "receive", "--topic", "*", "--data", data, "--json"
    )
    with serving(data) as running, pytest.raises(JobError, match="denies it"):
        send(running, table(3), token=made.json["token"])


@pytest.mark.parametrize(("piece", "rate"), [(50, 100), (7, 10), (120, 40), (3, 1_000)])
def test_the_rate_holds_however_small_the_pieces_are(service, piece, rate):
    clock = LeapingClock()
    for number in range(6):
        rows = table(piece, number * piece)
        send_rows(rows.to_batches(), MAPPING, Target(service.url, rate=rate), clock)
    needed_ms = 1_000 * 6 * piece / rate
    assert needed_ms <= clock.mono_ms <= needed_ms + 6 * 2  # a task rounds up
    assert len(waiting(service)) == 6 * piece


@pytest.mark.parametrize(
    ("rate", "pieces", "slots", "tasks"),
    [
        (1_000, 8, 8, 1),  # one task is enough, so that no share of another is lost
        (10_000, 8, 8, 1),
        (25_000, 8, 8, 3),
        (25_000, 2, 8, 2),
        (1_000_000, 800, 2, 2),  # whatever spark.default.parallelism says
        (25_000, 8, 0, 3),  # before there are executors
    ],
)
def test_a_rate_is_divided_among_as_many_tasks_as_run_at_a_time(rate, pieces, slots, tasks):
    assert tasks_at_a_time(rate, pieces, slots) == tasks


def test_pieces_are_sent_in_turns_that_grow_while_they_are_short():
    clock = LeapingClock()
    found = []
    for begin, end in turns(20, 2, clock):
        found.append((begin, end))
        clock.advance(1_000 * (end - begin) * 2)
    assert found == [(0, 2), (2, 6), (6, 14), (14, 20)]


def test_a_connection_that_breaks_before_the_answer_is_tried_again_and_stores_nothing_twice(service):
    with _cutting(service.url, 3) as url:
        sent = send_rows(table(200).to_batches(max_chunksize=50), MAPPING, Target(url))
    assert sent.rows == 200
    assert sent.duplicates > 0  # what was stored although the answer was lost
    assert sorted(waiting(service)) == sorted(f"row {n}" for n in range(200))


@contextlib.contextmanager
def _cutting(url: str, answers: int) -> Iterator[str]:
    """A way to the service on which the first few answers are lost."""
    host, port = url.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    left = [answers]

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=carry, args=(client,), daemon=True).start()

    def carry(client: socket.socket) -> None:
        with client, socket.create_connection((host, int(port))) as upstream, contextlib.suppress(OSError):
            threading.Thread(target=forward, args=(client, upstream), daemon=True).start()
            while data := upstream.recv(1 << 16):
                if left[0] > 0:
                    left[0] -= 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)

    def forward(client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                upstream.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


# ---------------------------------------------------------------------- with Spark


def files(directory, kind: str, count: int) -> str:
    """A table of several files, below directories that are a column."""
    for part in range(3):
        place = directory / f"region={part}"
        place.mkdir(parents=True)
        rows = table(count, part * count)
        if kind == "parquet":
            pq.write_table(rows, place / "part.parquet", row_group_size=40)
        elif kind == "csv":
            with (place / "part.csv").open("w", newline="") as file:
                csv.writer(file).writerows([rows.column_names, *zip(*rows.to_pydict().values(), strict=True)])
        else:
            (place / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    (directory / "_SUCCESS").touch()
    return str(directory)


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_are_scheduled_row_by_row(spark, progress, service, tmp_path, kind):
    mapping = RowMapping("due", "orders", properties=["region"])
    found = open_table(files(tmp_path / "rows", kind, 100), None)
    assert len(found.pieces) == (9 if kind == "parquet" else 3)
    target = Target(service.url)
    assert schedule_table(spark, progress, found, mapping, target).stored == 300
    again = schedule_table(spark, progress, found, mapping, target)
    assert (again.stored, again.duplicates, again.refused) == (0, 300, [])
    messages = pending(service)
    assert sorted(message.text for message in messages) == sorted(f"row {n}" for n in range(300))
    assert {message.properties["region"] for message in messages} == {"0", "1", "2"}


@pytest.mark.parametrize("rate", [200, 20_000])
def test_all_pieces_are_sent_within_a_rate_by_tasks_that_share_it(spark, progress, service, tmp_path, rate):
    pq.write_table(table(600), tmp_path / "rows.parquet", row_group_size=100)
    found = open_table(str(tmp_path / "rows.parquet"), None)
    target = Target(service.url, rate=rate)
    tasks, share = shared(spark, target, len(found.pieces))
    assert (tasks, share.rate) == ((1, 200) if rate == 200 else (2, 10_000))
    began_ms = SystemClock().now_ms()
    assert schedule_table(spark, progress, found, MAPPING, target).stored == 600
    messages = pending(service)
    assert sorted(message.text for message in messages) == sorted(f"row {n}" for n in range(600))
    # The last 100 rows are sent when 500 have had their time: a slow machine only takes longer.
    assert max(message.enqueue_ms for message in messages) - began_ms >= 1_000 * 500 / rate


def test_the_limit_of_refused_rows_is_that_of_a_task_however_small_its_pieces_are(
    spark, progress, service, tmp_path
):
    """The driver collects them: a table that is wrong throughout would fill its memory."""
    rows = table(1_800).set_column(0, "due", pa.array(["next year"] * 1_800))
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=600)
    found = open_table(str(tmp_path / "rows.parquet"), None)
    target = Target(service.url, rate=10_000)  # one task, which sends one piece and then two
    with pytest.raises(JobError, match="refused more than 1,000 rows of one task"), plain_errors():
        schedule_table(spark, progress, found, MAPPING, target)


@pytest.mark.parametrize("value", ["true", "True"])  # as Java reads them
def test_a_rate_is_refused_where_tasks_run_twice(spark, value):
    """Both would send, and nothing here would know."""
    conf = spark.sparkContext._conf
    conf.set("spark.speculation", value)
    try:
        with pytest.raises(JobError, match=r"spark\.speculation runs tasks twice at a time"):
            shared(spark, Target("http://127.0.0.1:1", rate=5), 3)
        assert shared(spark, Target("http://127.0.0.1:1"), 3)[0] == 3
    finally:
        conf.set("spark.speculation", "false")


def test_digits_of_a_csv_file_and_of_its_directories_stay_the_text_that_they_are(
    spark, progress, service, tmp_path
):
    place = tmp_path / "rows" / "region=007"
    place.mkdir(parents=True)
    (place / "a.csv").write_text(f"due,body,topic,id\n{DUE_MS},01,0010,00\n{DUE_MS},,0010,0\n")
    mapping = RowMapping("due", topic_column="topic", key="id", properties=["region"])
    found = open_table(str(tmp_path / "rows"), None)
    assert schedule_table(spark, progress, found, mapping, Target(service.url)).stored == 2
    assert [(one.topic, one.text, one.dedup_key, one.properties["region"]) for one in pending(service)] == [
        ("0010", "01", "00", "007"),
        ("0010", "", "0", "007"),
    ]


def read(place):
    """The rows of a table of files, as a task reads them."""
    found = open_table(str(place), None)
    batches = [batch for piece in found.pieces for batch in batches_of(piece, found.schema, MAPPING)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_values_of_a_csv_file_may_have_several_lines_wherever_they_are(tmp_path):
    rows = [[str(DUE_MS + n), f'line {n}\n"second", with\n{DUE_MS},a comma'] for n in range(500_000)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["due", "body"], *rows])
    assert (tmp_path / "a.csv").stat().st_size > 2 * BLOCK_BYTES
    assert [list(row.values()) for row in read(tmp_path / "a.csv")] == rows


def test_times_in_json_keep_their_zones_and_other_text_that_looks_like_one_its_form(tmp_path):
    row = {
        "due": "2031-01-01T00:00:00+01:00",
        "key": "2031-01-01",
        "more": {"at": ["2031-01-01 10:00:00"], "n": 1},
    }
    place = tmp_path / "region=007"
    place.mkdir()
    (place / "a.jsonl").write_text(json.dumps(row) + "\n")
    assert read(tmp_path) == [row | {"region": "007"}]


def test_a_row_that_cannot_be_read_is_named_with_its_file(tmp_path):
    lines = [f"{DUE_MS + n},{'x' * 100}\n" for n in range(200_000)]  # two blocks
    (tmp_path / "a.csv").write_text("due,body\n" + "".join(lines) + "1,2,3\n")
    with pytest.raises(JobError, match=r"a\.csv: CSV parse error: .* got 3.* rows before that may be"):
        read(tmp_path)


DERBY = "org.apache.derby.jdbc.EmbeddedDriver"


@pytest.fixture
def derby(spark, tmp_path) -> dict[str, str]:
    """The options of a database on disk."""
    # Derby would write its log to the working directory.
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", f"{tmp_path}/derby.log")
    return {"url": f"jdbc:derby:{tmp_path}/db;create=true", "driver": DERBY}


def test_a_query_is_scheduled_row_by_row(spark, progress, service, derby):
    options = derby
    rows = [(n, DUE_MS + n, f"row {n}") for n in range(60)]
    frame = spark.createDataFrame(rows, "id int, due bigint, body string").coalesce(1)
    frame.write.format("jdbc").options(**options, dbtable="orders").save()
    query = {**options, "query": 'select * from orders where "id" < 50'}
    sent = schedule_query(spark, progress, query, MAPPING, Target(service.url))
    assert (sent.stored, sent.refused) == (50, [])
    assert len(waiting(service)) == 50


def test_a_query_finds_its_columns_in_the_capitals_that_a_database_makes_of_them(
    spark, progress, service, derby
):
    """Without its body, the message would be the whole row as JSON."""
    frame = spark.createDataFrame([(DUE_MS, "one", "k1")], "due bigint, body string, id string")
    frame.coalesce(1).write.format("jdbc").options(**derby, dbtable="orders").save()
    query = {**derby, "query": 'select "due" as due, "body" as body, "id" as id from orders'}
    mapping = MAPPING._replace(key="id", properties=["id"])
    assert schedule_query(spark, progress, query, mapping, Target(service.url)).stored == 1
    [message] = pending(service)
    assert (message.text, message.dedup_key, message.properties["id"]) == ("one", "k1", "k1")


@contextlib.contextmanager
def java_in(spark, zone: str) -> Iterator[None]:
    """Java's process in another zone, as on a machine there."""
    zones = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(zone))
    try:
        yield
    finally:
        zones.setDefault(before)


def zoneless(spark, options: dict[str, str]) -> dict[str, str]:
    """A query of times without a zone, and how to read it."""
    frame = spark.sql("select timestamp_ntz'2030-06-01 09:00:00' as due, 'nine' as body").coalesce(1)
    frame.write.format("jdbc").options(**options, dbtable="times").save()
    return {**options, "query": "select * from times"}


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_times_of_a_database_without_a_zone_are_those_of_the_zone_that_is_given(
    spark, progress, service, derby, zone
):
    mapping = MAPPING._replace(zone=zone)
    with java_in(spark, "America/New_York"):
        query = zoneless(spark, derby)
        assert schedule_query(spark, progress, query, mapping, Target(service.url)).stored == 1
    [message] = pending(service)
    local = dt.datetime(2030, 6, 1, 9, tzinfo=ZoneInfo(zone))
    assert message.due_ms == int(local.timestamp() * 1_000)


def test_times_of_a_database_without_a_zone_need_one(spark, progress, service, derby):
    query = zoneless(spark, derby)
    with pytest.raises(JobError, match="the times in column 'due' have no zone: say which"), plain_errors():
        schedule_query(spark, progress, query, MAPPING, Target(service.url))
    assert waiting(service) == []


def test_a_database_without_a_driver_is_named_with_what_to_give(spark, progress):
    for more in ({}, {"driver": "org.nowhere.Driver"}):
        options = {"url": "jdbc:nowhere://h/db", "query": "select 1", **more}
        with pytest.raises(JobError, match="no driver for jdbc:nowhere: give the jar and the class"):
            schedule_query(spark, progress, options, MAPPING, Target("http://127.0.0.1:1"))


def test_a_query_keeps_to_the_rate(spark, progress, service, derby):
    frame = spark.createDataFrame([(DUE_MS + n, f"row {n}") for n in range(300)], "due bigint, body string")
    frame.coalesce(1).write.format("jdbc").options(**derby, dbtable="orders").save()
    parts = {"dbtable": "orders", "partitionColumn": "due", "numPartitions": "8"}
    bounds = {"lowerBound": str(DUE_MS), "upperBound": str(DUE_MS + 300)}
    target = Target(service.url, rate=100)
    began_ms = SystemClock().now_ms()
    assert schedule_query(spark, progress, {**derby, **parts, **bounds}, MAPPING, target).stored == 300
    # One task sends all: the last of three requests waits for the time of the others.
    assert max(message.enqueue_ms for message in pending(service)) - began_ms >= 2_000


def test_times_that_spark_writes_to_parquet_by_default_are_times_in_utc(spark, progress, service, tmp_path):
    """INT96, which says nothing of a zone. Nanoseconds end in 2262."""
    frame = spark.sql(
        "select timestamp'2030-06-01 09:00:00' as due, "
        "named_struct('at', array(timestamp'3000-01-01')) as more"
    )
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        frame.coalesce(1).write.parquet(str(tmp_path / "rows"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    found = open_table(str(tmp_path / "rows"), None)
    mapping = MAPPING._replace(zone="Europe/Berlin")  # of times without one
    assert schedule_table(spark, progress, found, mapping, Target(service.url)).stored == 1
    [message] = pending(service)
    assert message.due_ms == int(dt.datetime(2030, 6, 1, 9, tzinfo=dt.UTC).timestamp() * 1_000)
    assert orjson.loads(message.body) == {
        "due": "2030-06-01T09:00:00+00:00",
        "more": {"at": ["3000-01-01T00:00:00+00:00"]},
    }


def test_a_frame_is_written_and_written_again(spark, service):
    frame = spark.range(0, 500, 1, 4).select(
        functions.timestamp_millis(functions.col("id") + DUE_MS).alias("send_at"),
        functions.concat(functions.lit("row "), "id").alias("text"),
    )
    options = {"url": service.url, "topic": "orders", "due": "send_at", "body": "text"}
    for _ in range(2):
        frame.write.format("timerwheel").mode("append").options(**options).save()
    assert sorted(waiting(service)) == sorted(f"row {n}" for n in range(500))


def test_a_frame_with_rows_that_are_refused_fails_when_the_others_are_scheduled(spark, service):
    frame = spark.range(0, 100, 1, 4).select(
        functions.when(functions.col("id") % 25 == 3, "soon").otherwise("2030-03-17T17:46:40Z").alias("due"),
        functions.concat(functions.lit("row "), "id").alias("body"),
    )
    writing = frame.write.format("timerwheel").mode("append").options(url=service.url, topic="orders")
    refused = "4 rows were refused, all others are scheduled; the first: key"
    with pytest.raises(JobError, match=refused), plain_errors():
        writing.option("due", "due").save()
    assert len(waiting(service)) == 96


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "orders"}, "name the column of due times"),
        ({"due": "id"}, "give the topic of all rows, or the column"),
        ({"due": "id", "topic": "orders", "colour": "red"}, "no such option: colour"),
        ({"due": "id", "topic": "orders", "rate": "fast"}, "rate = fast: give rows a second"),
        ({"due": "id", "topic": "orders", "refused": "log"}, "refused = log: give fail or skip"),
        ({"due": "at", "topic": "orders"}, "the table has no column 'at'; it has id"),
    ],
)
def test_wrong_options_of_a_write_are_named(spark, options, message):
    with pytest.raises(JobError) as caught, plain_errors():
        spark.range(3).write.format("timerwheel").mode("append").options(**options).save()
    assert message in str(caught.value)


def test_a_frame_of_delivered_messages_may_be_scheduled_again(spark, service):
    """Its keys are arrays, and its properties a map."""
    frame = spark.sql(
        "select '2030-03-17T17:46:40Z' as due, 'x' as body, array('a', 'b') as keys, "
        "map('user', 'u1') as properties"
    )
    options = {"url": service.url, "topic": "orders", "due": "due"}
    options |= {"keys": "keys", "properties": "properties"}
    frame.write.format("timerwheel").mode("append").options(**options).save()
    [message] = pending(service)
    assert (message.keys, message.properties["user"]) == (["a", "b"], "u1")


def streamed(spark, place, options, *, mode="append", count=False):
    """Run a stream of the Parquet files in a directory up to its end."""
    rows = spark.readStream.schema("due string, body string").parquet(str(place))
    rows = rows.groupBy("due").agg(functions.count("body").alias("n")) if count else rows
    writing = rows.writeStream.format("timerwheel").outputMode(mode).options(**options)
    with plain_errors():
        writing.trigger(availableNow=True).start().awaitTermination()


def test_a_stream_that_would_replace_its_rows_is_refused(spark, service, tmp_path):
    (tmp_path / "source").mkdir()
    rows = pa.table({"due": ["2030-03-17T17:46:40Z"], "body": ["x"]})
    pq.write_table(rows, tmp_path / "source" / "a.parquet")
    options = {"url": service.url, "topic": "orders", "due": "due", "checkpointLocation": str(tmp_path / "c")}
    with pytest.raises(JobError, match=r'cannot be overwritten: use outputMode\("append"\)'):
        streamed(spark, tmp_path / "source", options, mode="complete", count=True)
    assert waiting(service) == []


def test_a_refused_row_stops_a_stream_until_it_may_be_skipped(spark, service, tmp_path):
    (tmp_path / "source").mkdir()
    rows = pa.table({"due": ["2030-03-17T17:46:40Z", "soon"], "body": ["good", "bad"]})
    pq.write_table(rows, tmp_path / "source" / "a.parquet")
    options = {"url": service.url, "topic": "orders", "due": "due", "checkpointLocation": str(tmp_path / "c")}
    for _ in range(2):
        with pytest.raises(JobError, match="1 rows were refused, all others are scheduled; the first: key"):
            streamed(spark, tmp_path / "source", options)
    streamed(spark, tmp_path / "source", {**options, "refused": "skip"})
    more = pa.table({"due": ["2030-03-17T17:46:40Z"], "body": ["next"]})
    pq.write_table(more, tmp_path / "source" / "b.parquet")
    streamed(spark, tmp_path / "source", options)
    assert sorted(waiting(service)) == ["good", "next"]


def test_a_stream_is_scheduled_once_across_a_restart(spark, service, tmp_path):
    source = tmp_path / "source"
    source.mkdir()

    def run() -> None:
        rows = spark.readStream.schema("due bigint, body string").parquet(str(source))
        query = (
            rows.writeStream.format("timerwheel")
            .options(url=service.url, topic="orders", due="due", checkpointLocation=str(tmp_path / "done"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    pq.write_table(table(40), source / "a.parquet")
    run()
    pq.write_table(table(40, 30), source / "b.parquet")
    run()
    assert sorted(waiting(service)) == sorted(f"row {n}" for n in range(70))


# ---------------------------------------------------------------------- the command


@pytest.mark.torture
def test_the_command_schedules_a_table_and_says_what_came_of_it(service, tmp_path):
    rows = table(90).to_pydict()
    rows["due"] = ["2030-03-17T17:46:40Z"] * 89 + ["one day"]
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    command = ("schedule", "--from", tmp_path / "rows.parquet", "--topic", "orders", "--due-column", "due")
    first = timerwheel(*command, "--url", service.url, "--master", "local[1]")
    assert first.code == 1
    assert first.out.startswith("90 rows: 89 scheduled, 0 had been scheduled before, 1 refused\n")
    assert "illegal_delay" in first.out or "one day" in first.out
    second = timerwheel(*command, "--url", service.url, "--master", "local[1]", "--rate", 1_000, "--json")
    found = orjson.loads(second.out)
    assert (found["rows"], found["stored"], found["duplicates"], found["refused"]) == (90, 0, 89, 1)


def test_a_password_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the environment")
    plain = {"url": "jdbc:x", "query": "select 1", "fetchsize": "1000"}
    found = Database("me", None, None, None).options("jdbc:x", "select 1")
    assert found == {**plain, "user": "me", "password": "of the environment"}
    (tmp_path / "password").write_text("of the file\n")
    found = Database(None, tmp_path / "password", "org.x.Driver", 5).options("jdbc:x", "select 1")
    assert found == {**plain, "fetchsize": "5", "password": "of the file", "driver": "org.x.Driver"}
    ended = Database(None, None, None, None).options(
        "jdbc:x", "select 1 ;\n"
    )  # as from a shell of the database
    assert ended["query"].strip() == "select 1"
    with pytest.raises(SettingsError, match=r"--jdbc-password-file .*/missing: No such file"):
        Database(None, tmp_path / "missing", None, None).options("jdbc:x", "select 1")


@pytest.mark.torture
def test_the_command_reads_a_database_as_the_user_that_it_is_given(spark, service, derby, tmp_path):
    zoneless(spark, derby)
    with pytest.raises(Py4JJavaError, match="shutdown"):  # another process is to open it
        spark._jvm.org.apache.derby.jdbc.EmbeddedDriver().connect(
            f"jdbc:derby:{tmp_path}/db;shutdown=true", spark._jvm.java.util.Properties()
        )
    words = ("schedule", "--from", f"jdbc:derby:{tmp_path}/db", "--query", "select * from times")
    flags = ("--topic", "orders", "--due-column", "due", "--zone", "Europe/Berlin", "--url", service.url)
    log = f"spark.driver.extraJavaOptions=-Dderby.stream.error.file={tmp_path}/derby.log"
    database = ("--jdbc-driver", DERBY, "--fetch-size", 10, "--master", "local[1]", "--conf", log)
    refused = timerwheel(*words, *flags, *database, "--jdbc-user", "me")
    assert (refused.code, refused.out) == (1, "")
    assert "Schema 'ME' does not exist" in refused.err
    found = timerwheel(*words, *flags, *database, "--jdbc-user", "app", "--json", TZ="America/New_York").json
    assert (found["stored"], found["refused"]) == (1, 0)
    [message] = pending(service)
    local = dt.datetime(2030, 6, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))
    assert message.due_ms == int(local.timestamp() * 1_000)


@pytest.mark.torture
def test_a_job_that_is_killed_in_the_midst_and_run_again_schedules_each_row_once(service, tmp_path):
    count = 4_000
    pq.write_table(table(count), tmp_path / "rows.parquet", row_group_size=500)
    command = ("schedule", "--from", tmp_path / "rows.parquet", "--topic", "orders", "--due-column", "due")
    flags = ("--url", service.url, "--master", "local[2]", "--json")
    with started(*command, *flags, "--rate", 1_000) as process:
        while len(waiting(service)) < 500:
            assert process.poll() is None
        process.kill()
    before = len(waiting(service))
    assert before < count
    found = timerwheel(*command, *flags).json
    assert (found["rows"], found["refused"]) == (count, 0)
    assert found["duplicates"] >= before
    assert sorted(waiting(service)) == sorted(f"row {n}" for n in range(count))


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--topic", "orders"), 2, "--due-column"),
        (("--topic", "orders", "--due-column", "at"), 1, "has no column 'at'; it has due, body"),
        (("--due-column", "due"), 2, "--topic"),
        (("--topic", "a", "--due-column", "due", "--query", "select"), 2, "--query belongs to"),
        (("--topic", "a", "--due-column", "due", "--format", "orc"), 2, "parquet, csv, json"),
        (("--topic", "a", "--due-column", "due", "--jdbc-user", "me"), 2, "belong to --from jdbc:..."),
        (("--topic", "a", "--due-column", "due", "--fetch-size", "5"), 2, "belong to --from jdbc:..."),
        (("--topic", "a", "--due-column", "due", "--rate", "nan"), 2, "give a number of rows a second"),
        (("--topic", "a", "--due-column", "due", "--rate", "inf"), 2, "give a number of rows a second"),
        (
            ("--topic", "a", "--due-column", "due", "--from", "jdbc:x:y", "--query", "q", "--format", "csv"),
            2,
            "--format belongs to a table of files",
        ),
    ],
)
def test_wrong_use_is_said_before_spark_starts(tmp_path, flags, code, message):
    pq.write_table(table(3), tmp_path / "rows.parquet")
    done = timerwheel("schedule", "--from", tmp_path / "rows.parquet", *flags, "--url", "http://127.0.0.1:9")
    assert done.code == code
    assert message in done.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.parquet", "none.parquet"),
        ("rows.txt", "give --format"),
        ("broken.parquet", "broken.parquet"),
        ("nowhere://a/b", "nowhere"),
        ("short.csv", "Expected 2 columns, got 1"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_without_a_traceback(tmp_path, name, message):
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "broken.parquet").write_text("x")
    (tmp_path / "short.csv").write_text("due,body\n1\n")
    place = name if "://" in name else tmp_path / name
    done = timerwheel("schedule", "--from", place, "--topic", "orders", "--due-column", "due")
    assert done.code == 1
    assert message in done.err
    assert "check the URL" not in done.err or "://" in name


def test_a_service_that_is_not_there_is_said_before_spark_starts(tmp_path, service):
    pq.write_table(table(3), tmp_path / "rows.parquet")
    service.end(signal.SIGTERM)
    command = ("schedule", "--from", tmp_path / "rows.parquet", "--topic", "orders", "--due-column", "due")
    assert timerwheel(*command, "--url", service.url).code == 3
