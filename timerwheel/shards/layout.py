"""Where the shards of a node are: directories, ports, URLs and journals; and what does not go with shards.

A node on port 8686 with its data in `data` has shard 0 on port 8687 in `data/shard-0`, shard 1 on port 8688
in `data/shard-1`, and so on. With the journal `kafka://.../shop` the log of shard 0 is in the topic
`shop-0-log`.
"""

import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from timerwheel.errors import SettingsError
from timerwheel.settings import PORT_MAX, Serving, Settings, listens_to_all
from timerwheel.state.log_manifest import LOG_DIRECTORY

DIRECTORY = "shard-{}"
_match_directory = re.compile(r"shard-[0-9]+").fullmatch
DEFAULT_PORTS = {"http": 80, "https": 443}


def data_of(home: Path, shard: int) -> Path:
    """Return the data directory of a shard of the node with this directory."""
    return home / DIRECTORY.format(shard)


def shards_in(home: Path) -> list[Path]:
    """Return the directories of shards in a node's directory, in order."""
    if not home.is_dir():
        return []
    found = [path for path in home.iterdir() if _match_directory(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


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
    own = msgspec.structs.replace(serving, journal=serving.journal and f"{serving.journal}-{shard}")
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
