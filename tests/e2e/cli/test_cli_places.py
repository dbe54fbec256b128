"""Every command with a place that it cannot use: one line that names it, never a traceback."""

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from tests.harness.processes import started, timerwheel
from tests.harness.world import World
from timerwheel.offline.backup.backup import back_up
from timerwheel.store.files import DiskFiles


class Places(NamedTuple):
    root: Path
    data: Path
    backup: Path


async def _make(data: Path) -> None:
    world = World(data)
    world.files = DiskFiles()
    await world.open()
    await world.send(0, 5_000)
    await world.engine.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Places:
    """A data directory, a backup of it, and beside them what is neither."""
    root = tmp_path_factory.mktemp("places")
    asyncio.run(_make(root / "data"))
    back_up(root / "data", root / "backup", 1)
    (root / "a file").write_text("x")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to("nowhere/at/all")
    (root / "empty").mkdir()
    return Places(root, root / "data", root / "backup")


COMMANDS: dict[str, tuple[str, ...]] = {
    "fsck": ("fsck", "--data", "PLACE"),
    "slots": ("slots", "--data", "PLACE"),
    "log": ("log", "--data", "PLACE"),
    "explain": ("explain", "0" * 24, "--data", "PLACE"),
    "backup create into": ("backup", "create", "PLACE", "--data", "DATA"),
    "backup create of": ("backup", "create", "ROOT/other", "--data", "PLACE"),
    "backup verify": ("backup", "verify", "PLACE"),
    "backup restore of": ("backup", "restore", "PLACE", "--data", "ROOT/new"),
    "backup restore into": ("backup", "restore", "BACKUP", "--data", "PLACE"),
    "tokens create": ("tokens", "create", "a", "--scope", "admin", "--data", "PLACE"),
    "tokens list": ("tokens", "list", "--data", "PLACE"),
    "serve": ("serve", "--port", "0", "--data", "PLACE"),
    "serve --config": ("serve", "--port", "0", "--data", "ROOT/new", "--config", "PLACE"),
}
WHERE = {
    "a file": "ROOT/a file",
    "below a file": "ROOT/a file/below",
    "a link to itself": "ROOT/loop",
    "read-only": "/proc/nothing/here",
    "too long": "ROOT/" + "n" * 300,
    "an endless device": "/dev/full",
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_cannot_be_used_is_one_error_and_no_traceback(places, command, where):
    def filled(word: str) -> str:
        for name, path in (("ROOT", places.root), ("DATA", places.data), ("BACKUP", places.backup)):
            word = word.replace(name, str(path))
        return word

    before = sorted(places.root.rglob("*"))
    done = timerwheel(*(filled(word.replace("PLACE", WHERE[where])) for word in COMMANDS[command]))
    assert done.code in (1, 2), done.out
    assert done.out == ""
    assert done.err.strip()
    assert len(done.err.splitlines()) < 10
    assert sorted(places.root.rglob("*")) == before, "nothing is left behind"


@pytest.mark.parametrize("command", ["fsck", "slots", "log", "backup verify", "backup restore of"])
@pytest.mark.parametrize("where", ["ROOT/nothing", "ROOT/dangling", "ROOT/empty"])
def test_a_place_with_nothing_in_it_is_named(places, command, where):
    place = where.replace("ROOT", str(places.root))
    words = (word.replace("PLACE", place).replace("ROOT", str(places.root)) for word in COMMANDS[command])
    done = timerwheel(*words)
    assert (done.code, done.out) == (1, "")
    assert place in done.err
    assert done.err.count(os.linesep) == 1


@pytest.mark.parametrize("words", [("create", "a", "--scope", "admin"), ("list",), ("revoke", "a")])
def test_tokens_that_no_service_would_read_are_not_made_in_a_backup(places, words):
    done = timerwheel("tokens", *words, "--data", places.backup)
    assert (done.code, f"{places.backup} is a backup" in done.err) == (1, True)
    assert not (places.backup / "tokens.json").exists()


@pytest.mark.parametrize("below", ["", "/of/it"])
@pytest.mark.parametrize("command", ["serve", "tokens create", "backup create into", "backup restore into"])
def test_a_link_to_a_disk_that_is_not_mounted_is_named_before_anything_is_made_there(places, command, below):
    place = f"{places.root}/dangling{below}"
    names = {"PLACE": place, "DATA": places.data, "BACKUP": places.backup}
    done = timerwheel(*(names.get(word, word) for word in COMMANDS[command]))
    assert done.code in (1, 2)
    assert f"{places.root}/dangling is a link that leads nowhere; is its disk mounted?" in done.err
    assert not (places.root / "nowhere").exists()


def test_paths_that_are_not_utf_8_are_served_read_backed_up_and_printed(places):
    root = places.root / os.fsdecode(b"caf\xe9")  # Latin-1
    data, backup = root / "data", root / "backup"
    timerwheel("backup", "restore", places.backup, "--data", data)
    with started("serve", "--port", 0, "--data", data, "--disk-reserve", 0, "--json") as service:
        ready = orjson.loads(service.stdout.readline())
        assert ready["data"].endswith("caf?/data")
        sent = timerwheel("send", "orders", "a", "--delay", "1h", "--url", ready["url"], "--json").json
        assert timerwheel("slots", "--data", data, "--json").json["levels"]
        assert timerwheel("explain", sent["id"], "--data", data, "--json").json["state"] == "scheduled"
    made = timerwheel("backup", "create", backup, "--data", data, "--json").json
    assert made["backup"].endswith("caf?/backup")
    assert timerwheel("backup", "restore", backup, "--data", root / "again", "--json").json["segments"]
    (finding,) = timerwheel("fsck", "--data", root / "again", "--json").json["findings"]
    assert (finding["code"], finding["path"][-16:]) == ("index_missing", "caf?/again/index")
