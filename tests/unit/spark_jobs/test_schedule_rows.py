"""Rows of tables as messages: which column becomes what, and which rows are the same message."""

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.schedule.rows import RowMapping, alike, messages_of, row_text, slices, sort_out
from timerwheel.spark_jobs.schedule.table import open_table

AT = dt.datetime(2027, 1, 15, 8, 0, tzinfo=dt.UTC)
AT_MS = 1_800_000_000_000
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
MAPPING = RowMapping("due", "orders")


def one(mapping=MAPPING, **columns):
    batch = pa.record_batch({"due": [AT_MS], "body": ["b"]} | columns)
    mapping.check(batch.schema.names)
    [part] = alike(batch, mapping)
    [row] = messages_of(part, mapping).to_pylist()
    return row


def test_a_row_is_a_message_under_a_key_of_its_own():
    row = one()
    key = row.pop("dedup_key")
    assert row == {"topic": "orders", "body": "b", "deliver_at_ms": AT_MS}
    assert len(key) == 32


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (pa.array([AT_MS], pa.int64()), {"deliver_at_ms": AT_MS}),
        (pa.array([0], pa.uint32()), {"deliver_at_ms": 0}),
        (pa.array(["0"]), {"deliver_at_ms": 0}),
        (pa.array([str(AT_MS)]), {"deliver_at_ms": AT_MS}),
        (pa.array(["2027-01-15T08:00:00Z"]), {"deliver_at": "2027-01-15T08:00:00Z"}),
        (pa.array([AT], pa.timestamp("us", "UTC")), {"deliver_at": AT}),
        (pa.array([AT], pa.timestamp("s", "+01:00")), {"deliver_at": AT}),
        (pa.array([Decimal(AT_MS)], pa.decimal128(20)), {"deliver_at_ms": AT_MS}),  # MySQL's bigint unsigned
        (pa.array([Decimal(AT_MS)], pa.decimal128(38, 10)), {"deliver_at_ms": AT_MS}),  # Oracle's number
    ],
)
def test_a_due_time_is_a_timestamp_text_or_milliseconds(due, expected):
    row = one(due=due)
    assert {name: row[name] for name in row if name.startswith("deliver")} == expected


@pytest.mark.parametrize("text", ["tomorrow", "", "9" * 19, str(AT_MS // 1_000), "7", "2027-01-15 09:00:00"])
def test_a_text_that_is_no_due_time_changes_nothing_for_other_rows(text):
    rows = {"due": [str(AT_MS), text, "2027-01-15T08:00:00Z"], "body": ["1", "2", "3"]}
    parts = [messages_of(part, MAPPING).to_pylist() for part in alike(pa.record_batch(rows), MAPPING)]
    found = {row["body"]: row for part in parts for row in part}
    assert found["1"] == one(due=[str(AT_MS)], body=["1"])
    assert found["2"]["deliver_at"] == text
    assert found["3"] == one(due=["2027-01-15T08:00:00Z"], body=["3"])


def test_a_text_without_a_zone_is_a_time_of_the_zone_that_is_given():
    mapping = RowMapping("due", "orders", zone="Europe/Berlin")
    texts = ["2027-01-15 09:00:00", "2027-01-15T09:00", str(AT_MS), "2027-01-15T08:00:00Z", "2027"]
    batch = pa.record_batch({"due": texts, "body": texts})
    rows = [row for part in alike(batch, mapping) for row in messages_of(part, mapping).to_pylist()]
    found = {row["body"]: row.get("deliver_at", row.get("deliver_at_ms")) for row in rows}
    assert found == {
        "2027-01-15 09:00:00": AT,
        "2027-01-15T09:00": AT,
        str(AT_MS): AT_MS,
        "2027-01-15T08:00:00Z": "2027-01-15T08:00:00Z",
        "2027": "2027",
    }


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (pa.array([str(AT_MS)]).dictionary_encode(), AT_MS),
        (pa.array([str(AT_MS)], pa.string_view()), AT_MS),
        (pa.array([AT], pa.timestamp("us", "UTC")).dictionary_encode(), AT),
    ],
)
def test_columns_may_have_any_encoding(due, expected):
    body = pa.array([b"x"]).dictionary_encode()
    row = one(due=due, body=body, key=pa.array(["k"], pa.string_view()), mapping=MAPPING._replace(key="key"))
    assert (row.get("deliver_at", row.get("deliver_at_ms")), row["body"]) == (expected, b"x")


def test_a_key_does_not_depend_on_the_unit_of_the_due_time_and_any_time_has_one():
    def key(value, unit):
        batch = pa.record_batch({"due": pa.array([value], pa.timestamp(unit, "UTC")), "body": ["b"]})
        return messages_of(batch, MAPPING)["dedup_key"][0].as_py()

    seconds = AT_MS // 1_000
    times = {unit: seconds * 10**power for unit, power in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))}
    keys = {key(at, unit) for unit, at in times.items()}
    assert len(keys) == 1
    for value, unit in ((times["ns"] + 1, "ns"), (1 << 62, "s"), (-times["us"] - 1, "us")):
        keys.add(key(value, unit))
    assert len(keys) == 4


def test_a_row_as_json_is_the_same_in_any_zone():
    rows = []
    for zone in ("UTC", "America/New_York", "+01:00"):
        at = pa.array([AT], pa.timestamp("us", zone))
        inside = pa.StructArray.from_arrays([at], ["at"])
        listed = pa.ListArray.from_arrays([0, 1], at)
        long = pa.LargeListArray.from_arrays([0, 1], at)  # as polars writes lists
        fixed = pa.FixedSizeListArray.from_arrays(at, 1)
        mapped = pa.MapArray.from_arrays([0, 1], pa.array(["at"]), at)
        columns = {"due": at, "inside": inside, "listed": listed, "long": long, "fixed": fixed}
        [part] = alike(pa.record_batch(columns | {"mapped": mapped}), MAPPING)
        rows += messages_of(part, MAPPING).select(["body", "dedup_key"]).to_pylist()
    assert rows[0] == rows[1] == rows[2]
    assert b'"due":"2027-01-15T08:00:00+00:00"' in rows[0]["body"]


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("microsecond", [0, 250_000, 1])
def test_a_row_as_json_is_the_same_in_any_unit(zone, microsecond):
    at = AT.replace(microsecond=microsecond, tzinfo=AT.tzinfo if zone else None)
    units = ["us", "ns"] if microsecond % 1_000 else ["ms", "us", "ns"]
    found = set()
    for unit in units:
        times = pa.array([at], pa.timestamp(unit, zone))
        lengths = pa.array([dt.timedelta(days=1, microseconds=microsecond)], pa.duration(unit))
        inside = pa.StructArray.from_arrays([times, lengths], ["at", "length"])
        batch = pa.record_batch({"due": [AT_MS], "at": times, "length": lengths, "inside": inside})
        [row] = messages_of(batch, MAPPING).to_pylist()
        found.add((row["body"], row["dedup_key"]))
    assert len(found) == 1
    [(body, _)] = found
    assert orjson.loads(body)["at"] == at.isoformat()


def test_a_row_as_json_has_the_nanoseconds_that_it_has():
    nanoseconds = AT_MS * 1_000_000 + 1
    at = pa.array([nanoseconds], pa.timestamp("ns", "UTC"))
    length = pa.array([7], pa.duration("ns"))
    [row] = messages_of(pa.record_batch({"due": [AT_MS], "at": at, "length": length}), MAPPING).to_pylist()
    assert orjson.loads(row["body"]) == {
        "due": AT_MS,
        "at": "2027-01-15T08:00:00.000000001+00:00",
        "length": "0:00:00 and 7 ns",
    }


def test_a_key_of_nanoseconds_is_that_of_microseconds_where_it_is_that_time():
    mapping = RowMapping("due", "orders", key="id")
    at = pa.array([AT_MS * 1_000_000, None, AT_MS * 1_000_000 + 1], pa.timestamp("ns", "UTC"))
    in_microseconds = one(mapping, id=pa.array([AT], pa.timestamp("us", "UTC")))["dedup_key"]
    assert one(mapping, id=at.slice(0, 1))["dedup_key"] == in_microseconds == "2027-01-15 08:00:00.000000Z"
    assert one(mapping, id=at.slice(2))["dedup_key"] == "2027-01-15 08:00:00.000000001Z"
    with pytest.raises(JobError, match="rows without a value"):
        one(mapping, id=at.slice(1, 1))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (pa.array(["a b"]), "a b"),
        (pa.array([["a", "b"]]), ["a", "b"]),
        (pa.array([["a", "b"]], pa.large_list(pa.large_string())), ["a", "b"]),
        (pa.array([[1, 2]]), ["1", "2"]),
        (pa.array([None], pa.list_(pa.string())), None),
    ],
)
def test_keys_are_text_or_arrays(keys, expected):
    assert one(MAPPING._replace(keys="names"), names=keys)["keys"] == expected


def test_a_row_as_json_has_maps_as_lists_of_pairs_and_null_for_what_is_no_number():
    batch = pa.record_batch(
        {"due": [AT_MS], "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "x": [float("nan")]}
    )
    [row] = messages_of(batch, MAPPING).to_pylist()
    assert orjson.loads(row["body"]) == {"due": AT_MS, "m": [["a", 1]], "x": None}


def test_a_row_that_json_cannot_say_needs_a_column_of_bodies():
    far = pa.record_batch({"due": pa.array([1 << 40], pa.timestamp("s", "UTC"))})
    with pytest.raises(JobError, match="name the column of bodies"):
        messages_of(far, MAPPING)


def test_a_time_without_a_zone_needs_one():
    naive = pa.array([AT.replace(hour=9, tzinfo=None)], pa.timestamp("us"))
    with pytest.raises(JobError, match="have no zone: say which, as in --zone"):
        one(due=naive)
    assert one(RowMapping("due", "orders", zone="Europe/Berlin"), due=naive)["deliver_at"] == AT
    with pytest.raises(JobError, match=r"'due'.*Nowhere"):
        one(RowMapping("due", "orders", zone="Nowhere"), due=naive)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"due": pa.array([None], pa.int64())},
            "column 'due' has 1 rows without a due time: filter them out",
        ),
        ({"due": pa.array([dt.date(2027, 1, 15)])}, "the times in column 'due' have no zone"),
        ({"due": pa.array([Decimal("1800000000000.5")])}, "column 'due': "),
        ({"due": pa.array([1.5])}, "a due time is a timestamp, text, or epoch milliseconds"),
        ({"due": pa.array([2**64 - 1], pa.uint64())}, "column 'due': "),
        (
            {"due": pa.array([AT_MS // 1_000])},
            "'due' has 1 rows such as 1800000000, which are not epoch",
        ),
        ({"due": pa.array([-1])}, "'due' has 1 rows such as -1, which are not epoch milliseconds"),
        ({"body": pa.array([5])}, "column 'body' is int64; a body is text or bytes: cast it"),
        ({"due": NOT_UTF8}, "column 'due' has text that is not UTF-8; only bodies may be such bytes"),
    ],
)
def test_what_no_message_can_be_made_of_is_refused(columns, message):
    with pytest.raises(JobError) as caught:
        one(**columns)
    assert message in str(caught.value)


def test_without_a_body_the_row_is_the_body():
    batch = pa.record_batch(
        {"due": [AT_MS], "user": ["u1"], "raw": [b"\xff"], "at": pa.array([AT], pa.timestamp("ms", "UTC"))}
    )
    [row] = messages_of(batch, MAPPING).to_pylist()
    assert orjson.loads(row["body"]) == {
        "due": AT_MS,
        "user": "u1",
        "raw": "/w==",
        "at": "2027-01-15T08:00:00+00:00",
    }


def test_other_columns_become_topic_tags_keys_and_properties():
    row = one(
        RowMapping("due", None, "where", "text", tags="kind", keys="names", properties=["colour", "size"]),
        where=["a"], text=[b"\x00"], kind=["t"], names=["k1 k2"], colour=["red"], size=pa.array([5]),
    )  # fmt: skip
    assert (row["topic"], row["body"], row["tags"], row["keys"]) == ("a", b"\x00", "t", "k1 k2")
    assert row["properties"] == {"colour": "red", "size": "5"}
    properties = pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string()))
    assert one(RowMapping("due", "orders", properties=["all"]), all=properties)["properties"] == [("a", "1")]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (RowMapping("send_at", "orders"), "the table has no column 'send_at'; it has due, body"),
        (RowMapping("due", "orders", properties=["body", "x"]), "no column 'x'"),
        (RowMapping("due", "orders", properties=["body", "body"]), "'body' is given twice"),
        (RowMapping("due", "orders", zone="Nowhere"), "Nowhere"),
        (RowMapping("due"), "give the topic of all rows, or the column"),
        (RowMapping("due", "orders", "body"), "give the topic of all rows, or the column"),
    ],
)
def test_a_mapping_that_does_not_fit_the_table_is_refused(mapping, message):
    with pytest.raises(JobError) as caught:
        mapping.check(["due", "body"])
    assert message in str(caught.value)


def test_a_key_column_is_the_key_and_every_row_needs_one():
    mapping = RowMapping("due", "orders", key="id")
    assert one(mapping, id=pa.array([17]))["dedup_key"] == "17"
    with pytest.raises(JobError, match="column 'id' has rows without a value"):
        one(mapping, id=pa.array([None], pa.int64()))


FIELDS = st.fixed_dictionaries(
    {"due": st.sampled_from([0, AT_MS, AT_MS + 1]), "body": st.sampled_from(["", "a", "b"]),
     "a": st.sampled_from([None, "", "x"]),
     "b": st.sampled_from([None, "x"])}
)  # fmt: skip


@given(st.lists(FIELDS, min_size=1, max_size=20), st.integers(1, 5))
def test_equal_rows_have_one_key_however_they_are_cut_and_others_have_others(found, size):
    mapping = RowMapping("due", "orders", properties=["a", "b"])
    schema = pa.schema([("due", pa.int64()), ("body", pa.string()), ("a", pa.string()), ("b", pa.string())])
    batch = pa.RecordBatch.from_pylist(found, schema)
    whole = messages_of(batch, mapping)["dedup_key"].to_pylist()
    parts = [messages_of(part, mapping)["dedup_key"].to_pylist() for part in slices(batch, size, 1 << 20)]
    assert [key for part in parts for key in part] == whole
    texts = [orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in found]
    assert len(set(whole)) == len(set(texts))
    assert len(set(zip(whole, texts, strict=True))) == len(set(texts))


def test_the_key_of_a_row_is_the_same_whatever_type_its_columns_have():
    text = one()["dedup_key"]
    assert one(body=pa.array(["b"], pa.large_string()))["dedup_key"] == text
    assert one(body=pa.array([b"b"]))["dedup_key"] == text
    assert one(body=pa.array(["b"]).dictionary_encode())["dedup_key"] == text
    assert one(due=pa.array([AT_MS], pa.uint64()))["dedup_key"] == text
    micro, milli = (one(due=pa.array([AT], pa.timestamp(unit, "UTC")))["dedup_key"] for unit in ("us", "ms"))
    assert micro == milli
    assert one(RowMapping("due", "others"))["dedup_key"] != text


def test_slices_are_bounded_by_rows_and_about_by_bytes():
    batch = pa.record_batch({"body": ["x" * 1_000] * 100})
    assert [part.num_rows for part in slices(batch, 30, 1 << 20)] == [30, 30, 30, 10]
    assert {part.num_rows for part in slices(batch, 100, 10_500)} == {10}
    assert [part.num_rows for part in slices(batch.slice(0, 2), 100, 10)] == [1, 1]
    assert list(slices(batch.slice(0, 0), 100, 10)) == []


# ---------------------------------------------------------------------- times that are none in the zone

BERLIN = RowMapping("due", "orders", zone="Europe/Berlin")
GAP, TWICE, GOOD = map(
    dt.datetime.fromisoformat, ("2027-03-28 02:30", "2027-10-31 02:30", "2027-03-28 12:00")
)


@pytest.mark.parametrize("unit", ["text", "s", "us", "ns"])
def test_a_time_that_is_none_in_the_zone_is_taken_out_and_the_others_stay(unit):
    times = [GAP, GOOD, TWICE]
    due = pa.array([str(time) for time in times]) if unit == "text" else pa.array(times, pa.timestamp(unit))
    parts, left, reasons = sort_out(pa.record_batch({"due": due, "body": ["1", "2", "3"]}), BERLIN)
    assert [row["body"] for part in parts for row in messages_of(part, BERLIN).to_pylist()] == ["2"]
    assert left["body"].to_pylist() == ["1", "3"]
    assert "does not exist in Europe/Berlin" in reasons[0]
    assert "occurs twice in Europe/Berlin" in reasons[1]
    assert all(reason.startswith("column due: '2027-") for reason in reasons)


@pytest.mark.parametrize("text", ["2027-02-30 10:00:00", "2027-01-01 25:00"])
def test_a_day_or_an_hour_that_the_calendar_has_not_is_taken_out(text):
    rows = {"due": [str(AT_MS), text, str(GOOD), "soon", "2027-01-15T08:00:00Z"], "body": list("abcde")}
    parts, left, reasons = sort_out(pa.record_batch(rows), BERLIN)
    assert sorted(body for part in parts for body in part["body"].to_pylist()) == list("acde")
    assert (left["body"].to_pylist(), reasons) == (
        ["b"],
        [f"column due: '{text}' is not a time of the calendar"],
    )


def test_rows_without_a_due_time_and_zones_that_are_none_are_errors_as_before():
    rows = pa.record_batch({"due": pa.array([str(GOOD), None]), "body": ["a", "b"]})
    [_, other] = sort_out(rows, BERLIN).parts
    with pytest.raises(JobError, match="1 rows without a due time"):
        messages_of(other, BERLIN)
    with pytest.raises(JobError, match=r"column 'due': .*Mars"):
        sort_out(rows, BERLIN._replace(zone="Mars/Olympus"))


def test_a_row_is_shown_by_its_columns_whatever_they_hold():
    columns = {
        "n": [7],
        "big": pa.array([2**63], pa.uint64()),
        "text": ["x" * 100],
        "bytes": [b"\xff!"],
        "far": pa.array([2**60], pa.timestamp("s")),
        "none": pa.nulls(1),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "not": [float("nan")],
    }
    shown = orjson.loads(row_text(pa.record_batch(columns)))
    assert (shown["n"], shown["big"], shown["bytes"], shown["none"]) == (7, str(2**63), "\ufffd!", None)
    assert shown["text"] == "x" * 59 + "…"
    assert shown["far"] == "(not shown)"
    assert len(row_text(pa.record_batch({f"c{n}": ["x" * 50] for n in range(90)}))) == 300


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            os.mkfifo,
            "it is neither a file nor a directory; copy what a pipe or a device gives into a file first",
        ),
        (lambda path: path.symlink_to("nowhere"), "there is no such file or directory"),
        (Path.mkdir, "there are no files in this directory"),
    ],
)
def test_what_is_no_table_is_named(tmp_path, make, reason):
    place = tmp_path / "rows.csv"
    make(place)
    with pytest.raises(JobError) as refused:
        open_table(str(place), "csv")
    assert str(refused.value) == f"{place}: {reason}"


def test_a_date_is_midnight_in_the_zone_as_its_text_is():
    mapping = RowMapping("due", "orders", zone="Europe/Berlin")
    days = [dt.date(2027, 1, 15), dt.date(2027, 7, 15)]
    for due in (pa.array(days), pa.array([f"{day}" for day in days])):
        batch = pa.record_batch({"due": due, "body": ["winter", "summer"]})
        [part] = sort_out(batch, mapping).parts
        found = [row["deliver_at"].timestamp() for row in messages_of(part, mapping).to_pylist()]
        assert found == [
            dt.datetime(2027, 1, 14, 23, tzinfo=dt.UTC).timestamp(),
            dt.datetime(2027, 7, 14, 22, tzinfo=dt.UTC).timestamp(),
        ]


def test_a_midnight_that_the_clocks_skip_takes_out_its_date():
    days = pa.array([dt.date(2018, 11, 4), dt.date(2018, 11, 5)])
    batch = pa.record_batch({"due": days, "body": ["a", "b"]})
    found = sort_out(batch, RowMapping("due", "orders", zone="America/Sao_Paulo"))
    assert found.reasons == [
        "column due: '2018-11-04' does not exist in America/Sao_Paulo: the clocks skip it"
    ]


def test_a_body_that_is_not_utf_8_stays_the_bytes_that_it_is():
    """Nothing checks the text of a Parquet file that another program wrote."""
    for kind in (pa.string(), pa.large_string()):
        body = pa.array([b"\xff\xfe"]).cast(pa.large_binary() if kind == pa.large_string() else pa.binary())
        body = pa.Array.from_buffers(kind, 1, body.buffers())
        assert one(body=body)["body"] == b"\xff\xfe"
        assert one(body=body)["dedup_key"] == one(body=pa.array([b"\xff\xfe"]))["dedup_key"]


@pytest.mark.parametrize("field", ["topic_column", "key", "tags", "keys", "properties"])
def test_other_text_that_is_not_utf_8_is_named_by_its_column(field):
    value = ["bad"] if field == "properties" else "bad"
    mapping = RowMapping("due", **({} if field == "topic_column" else {"topic": "orders"}), **{field: value})
    batch = pa.record_batch({"due": [AT_MS], "body": ["b"], "bad": NOT_UTF8})
    with pytest.raises(JobError, match="column 'bad' has text that is not UTF-8"):
        messages_of(batch, mapping)


def test_a_column_without_any_value_has_bodies_without_one():
    assert one(body=pa.nulls(1)) == one(body=pa.array([None], pa.string()))


def test_columns_of_one_name_are_refused():
    with pytest.raises(JobError, match="the table has several columns 'n': give each a name of its own"):
        MAPPING.check(["due", "n", "body", "n"])
