from pathlib import Path

import pytest

from timerwheel.errors import SettingsError
from timerwheel.settings import Serving, Settings, address_of

DAY_MS = 24 * 60 * 60 * 1000
YEAR_MS = 365 * DAY_MS
MIB = 1024 * 1024

BOUNDS = {
    "flush_interval_ms": (1, 60_000),
    "gather_ms": (0, 1_000),
    "segment_size_bytes": (4096, 1 << 40),
    "index_interval_ms": (1, 60_000),
    "index_records_max": (1, 10_000_000),
    "index_map_size_bytes": (MIB, 1 << 46),
    "near_ms": (1_000, 60_000),
    "near_entries_max": (1, 100_000_000),
    "readahead_bytes_max": (0, 1 << 40),
    "cascade_entries_max": (1, 10_000_000),
    "fire_records_max": (1, 100_000),
    "batch_bytes_max": (1, 1 << 30),
    "max_delay_ms": (0, 1000 * YEAR_MS),
    "body_bytes_max": (0, 1 << 30),
    "properties_max": (0, 65_535),
    "properties_bytes_max": (0, 16 * MIB),
    "messages_per_request_max": (1, 1_000_000),
    "request_bytes_max": (1, 1 << 31),
    "in_progress_bytes_max": (1, 1 << 40),
    "queues_per_topic": (1, 1024),
    "topics_max": (1, 10_000_000),
    "slot_messages_max": (0, 1 << 40),
    "groups_max": (1, 1_000_000),
    "offset_commit_interval_ms": (1, 3_600_000),
    "group_items_max": (1, 10_000_000),
    "transaction_timeout_ms": (1, DAY_MS),
    "transaction_interval_ms": (1, DAY_MS),
    "transaction_checks_max": (1, 1_000_000),
    "redelivery_delay_ms": (0, 3_600_000),
    "retention_ms": (0, 1000 * YEAR_MS),
    "retention_interval_ms": (1, DAY_MS),
    "quarantine_retention_ms": (0, 1000 * YEAR_MS),
    "disk_reserve_bytes": (0, 1 << 50),
}


def settings(**values) -> Settings:
    return Settings(data=Path("data"), **values)


def test_defaults_are_in_range_and_check_returns_the_settings():
    found = settings()
    assert found.check() is found


def test_defaults_are_those_that_the_documents_state():
    found = settings()
    assert found.flush == "sync"
    assert found.max_delay_ms == 10 * YEAR_MS
    assert found.body_bytes_max == 4 * MIB
    assert (found.properties_max, found.properties_bytes_max) == (128, 32 * 1024)
    assert found.request_bytes_max == 64 * MIB
    assert found.messages_per_request_max == 10_000
    assert found.slot_messages_max == 0


def test_every_number_has_a_bound_and_a_unit_or_says_what_it_counts():
    numbers = [name for name in Settings.__struct_fields__ if type(getattr(settings(), name)) is int]
    assert sorted(numbers) == sorted(BOUNDS)


@pytest.mark.parametrize("name", BOUNDS)
def test_both_bounds_are_allowed(name):
    for value in BOUNDS[name]:
        assert getattr(settings(**{name: value}).check(), name) == value


@pytest.mark.parametrize("place", [0, 1], ids=["below", "above"])
@pytest.mark.parametrize("name", BOUNDS)
def test_value_out_of_bounds_is_refused_with_its_name_and_both_bounds(name, place):
    low, high = BOUNDS[name]
    value = (low - 1, high + 1)[place]
    with pytest.raises(SettingsError) as caught:
        settings(**{name: value}).check()
    assert str(caught.value) == f"{name} = {value}: must be from {low} to {high}"
    assert caught.value.code == "settings"


@pytest.mark.parametrize(
    "origins",
    [
        "",
        "*",
        "https://shop.example",
        " http://localhost:3000  https://a-b.example:8443 ",
        "http://[::1]:8080 http://127.0.0.1",
        "capacitor://localhost chrome-extension://abcdef",
    ],
)
def test_origins_as_browsers_write_them_are_allowed(origins):
    assert settings(cors_origins=origins).check().cors_origins == origins


@pytest.mark.parametrize(
    ("origins", "named"),
    [
        ("shop.example", "shop.example"),
        ("https://shop.example/", "https://shop.example/"),
        ("https://shop.example/path", "https://shop.example/path"),
        ("https://Shop.example", "https://Shop.example"),
        ("https://a.example, https://b.example", "https://a.example,"),
        ("https://*.example", "https://*.example"),
        ("https://shop.example:443", "https://shop.example:443"),
        ("http://shop.example:80", "http://shop.example:80"),
        ("https://shop.example:", "https://shop.example:"),
        ("https://user@shop.example", "https://user@shop.example"),
        ("null", "null"),
        ("* https://shop.example", "*"),
        ("https://a.example\nhttps://ä.example", "https://ä.example"),
    ],
)
def test_what_no_browser_sends_as_an_origin_is_refused_by_the_name_of_the_setting(origins, named):
    with pytest.raises(SettingsError) as caught:
        settings(cors_origins=origins).check()
    assert str(caught.value).startswith(f"cors_origins: {named!r} is not an origin")


@pytest.mark.parametrize(
    ("text", "address", "is_local"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876), True),
        ("localhost:0", ("localhost", 0), True),
        ("[::1]:65535", ("::1", 65_535), True),
        ("0.0.0.0:9876", ("0.0.0.0", 9876), False),
        ("broker.example:9876", ("broker.example", 9876), False),
    ],
)
def test_an_address_for_rocketmqs_clients_is_a_host_and_a_port(text, address, is_local):
    serving = Serving(rocketmq=text).check()
    assert address_of(serving.rocketmq) == address
    assert serving.is_local is is_local
    assert serving.is_loopback


@pytest.mark.parametrize(
    "text",
    ["9876", ":9876", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:9876", "http://a:1"],
)
@pytest.mark.parametrize("name", ["rocketmq", "rocketmq_address"])
def test_any_other_text_is_no_address(name, text):
    with pytest.raises(SettingsError, match=f"{name} = .* is not an address; give a host and a port"):
        Serving(**({"rocketmq": "127.0.0.1:9876"} | {name: text})).check()


def test_an_address_to_name_needs_one_to_listen_on():
    with pytest.raises(SettingsError, match="rocketmq_address: nothing listens"):
        Serving(rocketmq_address="127.0.0.1:9876").check()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka_inlet": "later"}, "kafka_inlet: nothing goes to Kafka .* give kafka too"),
        ({"kafka_outlets": "orders"}, "kafka_outlets: nothing goes to Kafka .* give kafka too"),
        (
            {"kafka_properties": Path("tls")},
            "kafka_properties: nothing connects to Kafka; give kafka or journal",
        ),
    ],
)
def test_settings_of_a_bridge_that_does_not_run_are_refused(given, said):
    with pytest.raises(SettingsError, match=said):
        Serving(**given).check()
    Serving(kafka="127.0.0.1:9092", **given).check()


def test_properties_of_kafka_are_for_a_journal_too():
    Serving(journal="kafka://127.0.0.1:9092/shop", kafka_properties=Path("tls")).check()


@pytest.mark.parametrize("url", ["https://t.example", "http://127.0.0.1:8686/", "http://[::1]:80/base/x"])
def test_a_public_url_is_the_base_url_of_a_service(url):
    assert Serving(public_url=url).check().public_url == url


@pytest.mark.parametrize(
    "url", ["t.example", "ftp://x", "http://", "http://x/?a", "http://u@x", "http://x y"]
)
def test_what_is_no_base_url_is_refused_as_public_url(url):
    with pytest.raises(SettingsError, match=r"^public_url = "):
        Serving(public_url=url).check()
