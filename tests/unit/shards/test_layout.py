import shutil
from pathlib import Path

import pytest

from timerwheel.errors import SettingsError
from timerwheel.model.shards import Shard, log_id_of
from timerwheel.settings import Serving, Settings
from timerwheel.shards import layout
from timerwheel.state.log_manifest import SHARDS_FILE
from timerwheel.store.segment import encode_header, segment_name


@pytest.mark.parametrize(
    ("node", "shard", "url"),
    [
        ("http://127.0.0.1:8686", 0, "http://127.0.0.1:8687"),
        ("https://node-b.example:8686", 2, "https://node-b.example:8689"),
        ("http://[::1]:9000", 1, "http://[::1]:9002"),
    ],
)
def test_the_next_ports_of_a_node_are_those_of_its_shards(node, shard, url):
    assert layout.shard_url(node, shard) == url
    assert layout.node_url(url, shard) == node


def test_a_shard_has_a_directory_a_journal_and_a_url_of_its_own():
    settings = Settings(data=Path("data"))
    serving = Serving(shards=3, journal="kafka://a:1,b:2/shop", node_url="http://n:8686", port=8686)
    own, served = layout.settings_of(settings, serving, 2)
    assert own.data == Path("data/shard-2")
    assert served.journal == "kafka://a:1,b:2/shop-2"
    assert served.node_url == "http://n:8689"
    assert served.port == 8689
    alone, served = layout.settings_of(settings, Serving(shards=3, port=0), 1)
    assert (alone.data, served.journal, served.port) == (Path("data/shard-1"), "", 0)


@pytest.mark.parametrize(
    ("serving", "url"),
    [
        (
            {"public_url": "https://t.example/x", "node_url": "http://n:1", "port": 8686},
            "https://t.example/x",
        ),
        ({"node_url": "http://n:8686", "port": 8686}, "http://n:8686"),
        ({"port": 8686}, "http://127.0.0.1:8686"),
        ({"port": 8686, "host": "::1"}, "http://[::1]:8686"),
        ({"port": 0}, ""),
        ({"port": 8686, "host": "0.0.0.0"}, ""),
    ],
)
def test_receivers_acknowledge_at_the_node_not_at_its_shards(serving, url):
    _, served = layout.settings_of(Settings(data=Path("data")), Serving(shards=3, **serving), 1)
    assert served.public_url == url


@pytest.mark.parametrize("front", ["rocketmq", "rocketmq_grpc", "kafka"])
def test_protocols_that_know_one_service_are_refused_by_name(tmp_path, front):
    with pytest.raises(SettingsError, match=f"^{front}: it does not work with shards yet"):
        layout.check(Settings(data=tmp_path), Serving(shards=2, **{front: "127.0.0.1:9876"}))


def test_a_directory_of_a_service_without_shards_is_refused_and_the_other_way_round(tmp_path):
    (tmp_path / "one" / "log").mkdir(parents=True)
    (tmp_path / "many" / "shard-0").mkdir(parents=True)
    with pytest.raises(SettingsError, match="has the log of a service without shards"):
        layout.check(Settings(data=tmp_path / "one"), Serving(shards=2))
    with pytest.raises(SettingsError, match="has shards"):
        layout.check(Settings(data=tmp_path / "many"), Serving())
    layout.check(Settings(data=tmp_path / "one"), Serving())
    layout.check(Settings(data=tmp_path / "many"), Serving(shards=2))
    layout.check(Settings(data=tmp_path / "none"), Serving(shards=2))


def test_ports_of_shards_must_exist(tmp_path):
    with pytest.raises(SettingsError, match="beyond"):
        layout.check(Settings(data=tmp_path), Serving(shards=3, port=65_533))


def made(home: Path, *shards: Shard) -> Path:
    """A directory of a node, each of whose shards has a log."""
    for place, shard in enumerate(shards):
        directory = layout.data_of(home, place) / "log"
        directory.mkdir(parents=True)
        header = encode_header(0, log_id_of(shard, bytes(16)), 1)
        (directory / segment_name(0)).write_bytes(header)
    layout.keep_number(home, len(shards))
    return home


def test_a_directory_with_logs_of_other_shards_is_refused_before_anything_is_made(tmp_path):
    home = made(tmp_path / "two", Shard(0, 2), Shard(1, 2))
    layout.check(Settings(data=home), Serving(shards=2))
    for wrong in (3, 4):
        with pytest.raises(SettingsError, match=f"shards = {wrong}: .*shard-0 holds shard 0 of 2"):
            layout.check(Settings(data=home), Serving(shards=wrong))
    swapped = made(tmp_path / "swapped", Shard(1, 2), Shard(0, 2))
    with pytest.raises(SettingsError, match="shard-0 holds shard 1 of 2"):
        layout.check(Settings(data=swapped), Serving(shards=2))


def test_a_shard_whose_log_is_gone_does_not_start_empty_unless_its_journal_has_it(tmp_path):
    home = made(tmp_path, Shard(0, 2), Shard(1, 2))
    shutil.rmtree(home / "shard-1" / "log")
    with pytest.raises(SettingsError, match="shard-1 had a log, and now has none: is its disk mounted"):
        layout.check(Settings(data=home), Serving(shards=2))
    layout.check(Settings(data=home), Serving(shards=2, journal="kafka://a:1/shop"))
    (home / SHARDS_FILE).unlink()
    layout.check(Settings(data=home), Serving(shards=2))


def test_a_damaged_log_is_left_to_its_shard_to_refuse_or_salvage(tmp_path):
    home = made(tmp_path, Shard(0, 2), Shard(1, 2))
    (home / "shard-1" / "log" / segment_name(0)).write_bytes(b"?" * 64)
    layout.check(Settings(data=home), Serving(shards=2))
