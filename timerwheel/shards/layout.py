"""Where the shards of a node are: directories, ports, URLs and journals; and what does not go with shards.

A node on port 8686 with its data in `data` has shard 0 on port 8687 in `data/shard-0`, shard 1 on port 8688
in `data/shard-1`, and so on. With the journal `kafka://.../shop` the log of shard 0 is in the topic
`shop-0-log`.
"""

import contextlib
import logging
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from timerwheel.errors import SettingsError
from timerwheel.model.shards import Shard, shard_of_log
from timerwheel.settings import PORT_MAX, Serving, Settings, journal_of, listens_to_all
from timerwheel.state.log_manifest import LOG_DIRECTORY, SHARD_DIRECTORY, SHARDS_FILE, shards_in
from timerwheel.store.errors import StoreError
from timerwheel.store.files import DiskFiles
from timerwheel.store.segment import read_header, segment_base, segment_name

DEFAULT_PORTS = {"http": 80, "https": 443}

logger = logging.getLogger(__name__)


def data_of(home: Path, shard: int) -> Path:
    """Return the data directory of a shard of the node with this directory."""
    return home / SHARD_DIRECTORY.format(shard)


def shard_url(node_url: str, shard: int) -> str:
    """Return the URL of a shard on the node with this URL: the next ports are those of its shards."""
    return _moved(node_url, 1 + shard)


def node_url(url: str, shard: int) -> str:
    """Return the URL of the node that has a shard at this URL."""
    return _moved(url, -1 - shard)


def _moved(url: str, by: int) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    return f"{parts.scheme}://{host}:{port + by}"


def settings_of(settings: Settings, serving: Serving, shard: int) -> tuple[Settings, Serving]:
    """Return the settings of one shard of a node with these settings."""
    journal = serving.journal and journal_of(serving.journal).of_shard(shard).text
    own = msgspec.structs.replace(serving, journal=journal)
    if serving.node_url:
        own = msgspec.structs.replace(own, node_url=shard_url(serving.node_url, shard))
    if serving.port:
        own = msgspec.structs.replace(own, port=serving.port + 1 + shard)
    # Receivers acknowledge later at the node, which passes that on; without a known port, at the shard.
    own = msgspec.structs.replace(own, public_url=public_url_of(serving))
    return msgspec.structs.replace(settings, data=data_of(settings.data, shard)), own


def public_url_of(serving: Serving) -> str:
    """Return the public URL of a node, for each of its shards; empty if it is not known before the start."""
    if serving.public_url or serving.node_url:
        return serving.public_url or serving.node_url
    if not serving.port or listens_to_all(serving.host):
        return ""
    name = f"[{serving.host}]" if ":" in serving.host else serving.host
    return f"{'http' if serving.tls_certificate is None else 'https'}://{name}:{serving.port}"


def shard_at(data: Path) -> Shard | None:
    """Return the shard whose log is in a data directory; None if there is none that can be read."""
    files, directory = DiskFiles(), data / LOG_DIRECTORY
    for base in _segments_in(data):
        path = directory / segment_name(base)
        with contextlib.suppress(OSError, StoreError), contextlib.closing(files.open_readonly(path)) as file:
            return shard_of_log(read_header(file, path, base))
    return None


def _segments_in(data: Path) -> list[int]:
    directory = data / LOG_DIRECTORY
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return sorted(base for base in map(segment_base, names) if base is not None)


def keep_number(home: Path, shards: int) -> None:
    """Take note in a node's directory that each of its shards has a log there."""
    try:
        DiskFiles().write_whole(home / SHARDS_FILE, f"{shards}\n".encode())
    except OSError as error:
        logger.warning("cannot write %s: %s", home / SHARDS_FILE, error)


def check(settings: Settings, serving: Serving) -> None:
    """Raise SettingsError for settings that do not go with shards, and for a directory of another service.

    Without shards, for a directory that has shards.
    """
    found = shards_in(settings.data)
    if serving.shards == 1:
        if found:
            raise SettingsError(
                f"shards: {settings.data} has shards ({found[0].name}, ...); start with the number of shards "
                "that it was made with"
            )
        return
    if (settings.data / LOG_DIRECTORY).exists():
        raise SettingsError(
            f"shards = {serving.shards}: {settings.data} has the log of a service without shards; shards "
            "need a directory of their own"
        )
    _check_logs(settings.data, serving, found)
    if serving.port + serving.shards > PORT_MAX:
        raise SettingsError(
            f"port = {serving.port}: the {serving.shards} ports behind it, for the shards, would go beyond "
            f"{PORT_MAX}"
        )
    for name in ("rocketmq", "rocketmq_grpc", "kafka"):
        if getattr(serving, name):
            raise SettingsError(
                f"{name}: it does not work with shards yet, because its clients know one service with all "
                "topics; leave it out, or start a service without shards beside this one"
            )


def _check_logs(home: Path, serving: Serving, found: list[Path]) -> None:
    """Raise SettingsError, before anything is made, for logs of other shards, and for one that is gone."""
    count = serving.shards
    for path in found:
        holds = shard_at(path)
        if holds is not None and (SHARD_DIRECTORY.format(holds.number), holds.of) != (path.name, count):
            raise SettingsError(
                f"shards = {count}: {path} holds shard {holds.number} of {holds.of}; the number of shards "
                "never changes, nor does the directory of one: start with what it was made with, or with "
                "another directory"
            )
    if serving.journal or not (home / SHARDS_FILE).exists():
        return  # a lost copy is copied again; and a first start may have been cut short
    for path in (data_of(home, shard) for shard in range(count)):
        if not _segments_in(path):
            raise SettingsError(
                f"{path} had a log, and now has none: is its disk mounted? If the log is lost, restore it "
                f"from a backup; to begin an empty one, remove {home / SHARDS_FILE}"
            )
