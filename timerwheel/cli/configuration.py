"""What `serve` is told, from four places: flags, then the environment, then a TOML file, then the defaults.

Every setting has one name in all of them. `retention_ms` of `Settings` is the option `retention`:
`--retention 3d`, `TIMERWHEEL_RETENTION=3d`, `retention = "3d"`. A new field of these structs is an option by
itself; only its help is written here.
"""

import difflib
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from timerwheel.cli.units import format_size, read_length_ms, read_size_bytes
from timerwheel.errors import AdmissionError, RangeError, SettingsError
from timerwheel.model.admission import Rules
from timerwheel.model.durations import format_duration
from timerwheel.settings import Serving, Settings, option_name

FILE_BYTES_MAX = 1 << 20  # of a file of settings; a device has no end

PREFIX = "TIMERWHEEL_"
CLIENT_VARIABLES = frozenset({"URL", "TOKEN", "CA", "CERT", "SPARK_MASTER", "CONFIG"})
HELP = {
    "data": "The data directory.",
    "host": "The address to listen on.",
    "port": "The port; 0 takes a free one.",
    "log_level": "What is logged: debug, info, warning, error.",
    "log_format": "How it is logged: console, a line to read; json, an object a line.",
    "tls_certificate": "Serve HTTPS with this certificate and its chain (PEM).",
    "tls_key": "The private key of the certificate (PEM).",
    "tls_client_ca": "Let in only clients with a certificate of these authorities (PEM).",
    "open_to_all": "Listen beyond this machine although there are no API tokens.",
    "rocketmq_metrics": "Give metrics under the names of RocketMQ, too.",
    "traces": "Where spans of traced messages go: off, nowhere; otlp, to a collector by OTLP.",
    "flush": "When a send is acknowledged: sync, once fsynced; async, before.",
    "flush_interval_ms": "With flush async: longest time until an fsync.",
    "gather_ms": "Time for which each write to the log gathers records; 0 is none.",
    "segment_size_bytes": "Size of a segment of the commit log.",
    "index_interval_ms": "Longest time between commits of the index.",
    "index_records_max": "Records after which the index is committed early.",
    "index_map_size_bytes": "Address space kept for the index: its upper limit.",
    "near_ms": "How far ahead timers are held in memory.",
    "near_entries_max": "How many timers are held in memory ahead of time.",
    "readahead_bytes_max": "Bodies read ahead of their due time.",
    "cascade_entries_max": "Timers moved down the wheel in one step.",
    "fire_records_max": "Due messages written in one step.",
    "batch_bytes_max": "Most that one group commit writes.",
    "max_delay_ms": "Longest delay accepted.",
    "levels": "Delay levels 1, 2, ... of the property DELAY.",
    "body_bytes_max": "Largest body of a message.",
    "properties_max": "Most properties of a message.",
    "properties_bytes_max": "Most that a message's properties may take.",
    "messages_per_request_max": "Most messages in one array.",
    "request_bytes_max": "Largest request.",
    "in_progress_bytes_max": "Requests and answers in memory at one time.",
    "queues_per_topic": "Queues of each topic.",
    "topics_max": "Most topics.",
    "slot_messages_max": "Most messages due in one second; 0 is no limit.",
    "groups_max": "Most consumer groups.",
    "group_items_max": "Most messages that one group holds: in flight or to come again.",
    "redelivery_delay_ms": "Least time before a message comes to a group again.",
    "push_private_targets": "Let push subscriptions reach private and loopback addresses.",
    "cors_origins": "Origins whose pages may call, apart by spaces; * is all.",
    "retention_ms": "How long delivered messages are kept.",
    "retention_interval_ms": "How often retention looks for segments to remove.",
    "retention_archived_only": "Remove only segments that `timerwheel archive` has archived.",
    "quarantine_retention_ms": "How long what was cut from a damaged log is kept.",
    "disk_reserve_bytes": "Free disk space below which new messages are refused.",
}
_WORDS = dict.fromkeys(("yes", "true", "on", "1"), True) | dict.fromkeys(("no", "false", "off", "0"), False)


class Option(NamedTuple):
    """One setting as flags, variables and files name it."""

    name: str
    field: str
    kind: str
    """One of length, size, number, words, yes or no, path, text."""
    default: Any
    words: tuple[str, ...]
    """The values that it may have, if these are few."""
    reloadable: bool

    @property
    def flag(self) -> str:
        """`--retention`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """`TIMERWHEEL_RETENTION`."""
        return PREFIX + self.name.upper()

    @property
    def help(self) -> str:
        """What it is."""
        return HELP[self.field]

    def read(self, text: str) -> Any:  # noqa: ANN401 - of the field's type
        """The value that a text means; SettingsError says what it should be."""
        if self.words and text not in self.words:
            raise SettingsError(f"{text!r}: give {' or '.join(self.words)}")
        if self.kind == "path" and self.default is None and not text:
            return None  # as `timerwheel config` writes it
        try:
            return _READERS[self.kind](text)
        except (AdmissionError, ValueError) as error:
            raise SettingsError(str(error)) from None

    def write(self, value: Any) -> str:  # noqa: ANN401 - of the field's type
        """The text that means a value; empty for none."""
        if value is None:
            return ""
        if self.kind == "length":
            return format_duration(value)
        if self.kind == "size":
            return format_size(value)
        if self.kind == "yes or no":
            return "yes" if value else "no"
        return str(value)


class Value(NamedTuple):
    """A value and where it was found: `--retention`, `TIMERWHEEL_RETENTION`, a file, or `default`."""

    value: Any
    source: str


class Configuration(NamedTuple):
    """What holds; `ignored` are variables that look meant for the service but name no setting."""

    values: dict[str, Value]
    settings: Settings
    serving: Serving
    ignored: list[str]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a whole number") from None


def _yes_or_no(text: str) -> bool:
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise SettingsError(f"{text!r}: give yes or no") from None


def _path(text: str) -> Path:
    if not text:
        raise SettingsError("a path is missing")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SettingsError(f"{text!r}: there is no such user") from None


_READERS: dict[str, Any] = {
    "length": read_length_ms,
    "size": read_size_bytes,
    "number": _whole,
    "words": str,
    "yes or no": _yes_or_no,
    "path": _path,
    "text": str,
}


def _option(field: msgspec.structs.FieldInfo, reloadable: frozenset[str]) -> Option:
    kind, words = "text", ()
    is_one_of = get_origin(field.type) in (typing.Union, types.UnionType)
    types_of = get_args(field.type) if is_one_of else (field.type,)
    if get_origin(field.type) is Literal:
        kind, words = "words", get_args(field.type)
    elif Path in types_of:
        kind = "path"
    elif bool in types_of:
        kind = "yes or no"
    elif field.name.endswith("_ms"):
        kind = "length"
    elif "_bytes" in field.name:
        kind = "size"
    elif int in types_of:
        kind = "number"
    default = Path("data") if field.name == "data" else field.default
    return Option(option_name(field.name), field.name, kind, default, words, field.name in reloadable)


OPTIONS: dict[str, Option] = {
    option.name: option
    for struct in (Serving, Settings)
    for option in (_option(field, struct.RELOADABLE) for field in msgspec.structs.fields(struct))
}


def configure(
    flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Configuration:
    """Join the sources and check the whole; SettingsError names the setting and where its value is from.

    `flags` has values as typed, by option name; those that are None were not given.
    """
    environment = os.environ if environment is None else environment
    values = {option.name: Value(option.default, "default") for option in OPTIONS.values()}
    if file is not None:
        values |= {name: Value(value, str(file)) for name, value in read_file(file).items()}
    told, ignored = _from_environment(environment)
    values |= told
    for name, value in flags.items():
        if value is not None:
            values[name] = Value(value, OPTIONS[name].flag)
    settings = Settings(**_fields(Settings, values))
    serving = Serving(**_fields(Serving, values))
    try:
        Rules.of(settings)
        _check_data(settings.data)
        return Configuration(values, settings.check(), serving.check(), ignored)
    except RangeError as error:
        raise SettingsError(_with_source(_in_its_unit(error), values)) from None
    except SettingsError as error:
        raise SettingsError(_with_source(str(error), values)) from None


def _check_data(data: Path) -> None:
    """Raise SettingsError for what is no directory, which would fail later and with less said."""
    if data.exists() and not data.is_dir():
        raise SettingsError(f"data = {data}: this is a file; give a directory, which need not be there yet")
    for name in ("log", "index"):
        if (data / name).exists() and not (data / name).is_dir():
            raise SettingsError(
                f"data = {data}: its {name} is a file, so it is no data directory; give another or a new one"
            )


def _fields(struct: type[msgspec.Struct], values: Mapping[str, Value]) -> dict[str, Any]:
    return {field.name: values[option_name(field.name)].value for field in msgspec.structs.fields(struct)}


def _in_its_unit(error: RangeError) -> str:
    """As somebody writes the setting, who knows neither the name of its field nor its unit."""
    option = OPTIONS[option_name(error.field)]
    value, low, high = map(option.write, (error.value, error.low, error.high))
    return f"{option.name} = {value}: must be from {low} to {high}"


def _with_source(text: str, values: Mapping[str, Value]) -> str:
    """The error of a check, which begins with a field's name, and who set that field."""
    named = option_name(text.partition(":")[0].partition(" ")[0])
    source = values[named].source if named in values else "default"
    return text if source == "default" else f"{text} (from {source})"


def read_file(path: Path) -> dict[str, Any]:
    """The values of a TOML file by option name; SettingsError names the file, and the key that is wrong."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise SettingsError(f"{path} has more than {FILE_BYTES_MAX} bytes: it is not a file of settings")
        content = tomllib.loads(raw.decode())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    found: dict[str, Any] = {}
    for key, given in content.items():
        option = OPTIONS.get(key)
        if option is None:
            raise SettingsError(f"{path}: {key}: there is no such setting{_guess(key, OPTIONS)}")
        try:
            found[key] = _from_toml(option, given)
        except SettingsError as error:
            raise SettingsError(f"{path}: {key}: {error}") from None
    return found


def _from_toml(option: Option, raw: Any) -> Any:  # noqa: ANN401 - what TOML has, what the field takes
    if isinstance(raw, str):
        return option.read(raw)
    if option.kind == "yes or no" and isinstance(raw, bool):
        return raw
    if option.kind in ("number", "size") and isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if option.name == "cors_origins" and isinstance(raw, list) and all(isinstance(one, str) for one in raw):
        return " ".join(raw)
    wanted = {
        "length": 'a length of time in quotes, such as "90s" or "3d"',
        "size": 'a number of bytes, or a size in quotes such as "256MiB"',
        "number": "a whole number",
        "yes or no": "true or false",
    }.get(option.kind, "a text in quotes")
    raise SettingsError(f"{raw!r} is not {wanted}")


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
    found: dict[str, Value] = {}
    ignored: list[str] = []
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in CLIENT_VARIABLES:
            continue
        option = OPTIONS.get(name.lower())
        text = environment[variable]
        # Kubernetes tells each pod of a service named `timerwheel` in a variable of just this name.
        if option is None or (name == "PORT" and "://" in text):
            ignored.append(variable)
            continue
        try:
            found[option.name] = Value(option.read(text), variable)
        except SettingsError as error:
            raise SettingsError(f"{variable}: {error}") from None
    return found, ignored


def misspelt(variable: str) -> str:
    """What to say of a variable that names no setting but looks like one; empty if it does not."""
    name = variable.removeprefix(PREFIX).lower()
    guess = "" if name in OPTIONS else _guess(name, OPTIONS)
    return f"{variable} names no setting and is ignored{guess}" if guess else ""


def _guess(key: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), list(names), 1)
    return f"; did you mean {close[0]}?" if close else ""
