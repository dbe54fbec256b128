from pathlib import Path

import pytest

from timerwheel.errors import SettingsError
from timerwheel.settings import Serving, Settings
from timerwheel.shards import layout


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
