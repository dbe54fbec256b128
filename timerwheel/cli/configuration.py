"""The configuration of `serve`: flags win, then the environment, then a TOML file, then the defaults.

Every setting has one name in all of them. `retention_ms` of `Settings` is the option `retention`:
`--retention 3d`, `TIMERWHEEL_RETENTION=3d`, `retention = "3d"`. Each field of `Settings` and `Serving` is an
option; nothing about it is repeated here.
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
from timerwheel.settings import Serving, Setting, Settings, declared, option_name

FILE_BYTES_MAX = 1 << 20  # a device such as /dev/zero never ends

PREFIX = "TIMERWHEEL_"
CLIENT_VARIABLES = frozenset({"URL", "TOKEN", "CA", "CERT", "SPARK_MASTER", "CONFIG"})
_WORDS = dict.fromkeys(("yes", "true", "on", "1"), True) | dict.fromkeys(("no", "false", "off", "0"), False)


class Option(NamedTuple):
    """One setting as users write it: in flags, variables and files."""

    name: str
    field: str
    kind: str
    """One of length, size, number, words, yes or no, path, text."""
    default: Any
    words: tuple[str, ...]
    """The allowed values of kind `words`; empty for other kinds."""
    setting: Setting

    @property
    def flag(self) -> str:
        """Flag of the command line, such as `--retention`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Environment variable, such as `TIMERWHEEL_RETENTION`."""
        return PREFIX + self.name.upper()

    def read(self, text: str) -> Any:  # noqa: ANN401 - of the field's type
        """Parse a value; raises SettingsError that says what is expected."""
        if self.words and text not in self.words:
            raise SettingsError(f"{text!r}: give {' or '.join(self.words)}")
        if self.kind == "path" and self.default is None and not text:
            return None  # `timerwheel config` writes an unset path as an empty text
        try:
            return _READERS[self.kind](text)
        except (AdmissionError, ValueError) as error:
            raise SettingsError(str(error)) from None

    def write(self, value: Any) -> str:  # noqa: ANN401 - of the field's type
        """Format a value so that `read` gives it back; None becomes an empty text."""
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
    """A value and its source: `--retention`, `TIMERWHEEL_RETENTION`, the path of a file, or `default`."""

    value: Any
    source: str


class Configuration(NamedTuple):
    """The effective settings; `ignored` lists TIMERWHEEL_ variables that name no setting."""

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
        raise SettingsError("give a path; this one is empty")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SettingsError(f"{text!r}: no such user") from None


_READERS: dict[str, Any] = {
    "length": read_length_ms,
    "size": read_size_bytes,
    "number": _whole,
    "words": str,
    "yes or no": _yes_or_no,
    "path": _path,
    "text": str,
}


def _option(field: msgspec.structs.FieldInfo) -> Option:
    kind, words = "text", ()
    annotated = get_args(field.type)[0]
    is_one_of = get_origin(annotated) in (typing.Union, types.UnionType)
    types_of = get_args(annotated) if is_one_of else (annotated,)
    if get_origin(annotated) is Literal:
        kind, words = "words", get_args(annotated)
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
    return Option(option_name(field.name), field.name, kind, default, words, declared(field))


OPTIONS: dict[str, Option] = {
    option.name: option
    for struct in (Serving, Settings)
    for option in map(_option, msgspec.structs.fields(struct))
}


def configure(
    flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Configuration:
    """Merge the sources and check the result; SettingsError names the setting and the source of its value.

    `flags` maps option names to parsed values; None means that the flag was not given.
    """
    environment = os.environ if environment is None else environment
    values = {option.name: Value(option.default, "default") for option in OPTIONS.values()}
    if file is not None:
        values |= {name: Value(value, str(file)) for name, value in read_file(file).items()}
    variables, ignored = _from_environment(environment)
    values |= variables
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
    """Refuse a path that cannot be a data directory now; later the error would be harder to read."""
    if data.exists() and not data.is_dir():
        raise SettingsError(f"data = {data} is a file; give a directory, which need not exist yet")
    for path in (data, data / "log", data / "index"):
        if path.is_symlink() and not path.exists():
            raise SettingsError(
                f"data = {data} cannot be used: {path} is a link that leads nowhere; is its disk mounted?"
            )
    for name in ("log", "index"):
        if (data / name).exists() and not (data / name).is_dir():
            raise SettingsError(
                f"data = {data} is not a data directory: its {name} is a file; give another or a new one"
            )


def _fields(struct: type[msgspec.Struct], values: Mapping[str, Value]) -> dict[str, Any]:
    return {field.name: values[option_name(field.name)].value for field in msgspec.structs.fields(struct)}


def _in_its_unit(error: RangeError) -> str:
    """The error in terms of the option: its name, and bounds with units, as a user writes them."""
    option = OPTIONS[option_name(error.field)]
    value, low, high = map(option.write, (error.value, error.low, error.high))
    return f"{option.name} = {value}: must be from {low} to {high}"


def _with_source(text: str, values: Mapping[str, Value]) -> str:
    """The text of a check, which begins with a field's name, with the source of that field's value added."""
    named = option_name(text.partition(":")[0].partition(" ")[0])
    source = values[named].source if named in values else "default"
    return text if source == "default" else f"{text} (from {source})"


def read_file(path: Path) -> dict[str, Any]:
    """Read the values of a TOML file by option name; SettingsError names the file and the wrong key."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise SettingsError(f"{path} is larger than {FILE_BYTES_MAX} bytes: not a configuration file")
        content = tomllib.loads(raw.decode())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    found: dict[str, Any] = {}
    for key, given in content.items():
        option = OPTIONS.get(key)
        if option is None:
            raise SettingsError(f"{path}: {key}: no such setting{_guess(key, OPTIONS)}")
        try:
            found[key] = _from_toml(option, given)
        except SettingsError as error:
            raise SettingsError(f"{path}: {key}: {error}") from None
    return found


def _from_toml(option: Option, raw: Any) -> Any:  # noqa: ANN401 - a TOML value in, a field value out
    if isinstance(raw, str):
        return option.read(raw)
    if option.kind == "yes or no" and isinstance(raw, bool):
        return raw
    if option.kind in ("number", "size") and isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if option.name == "cors_origins" and isinstance(raw, list) and all(isinstance(one, str) for one in raw):
        return " ".join(raw)
    wanted = {
        "length": 'a duration in quotes, such as "90s" or "3d"',
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
        # Kubernetes sets TIMERWHEEL_PORT=tcp://... in each pod when a service is named `timerwheel`.
        if option is None or (name == "PORT" and "://" in text):
            ignored.append(variable)
            continue
        try:
            found[option.name] = Value(option.read(text), variable)
        except SettingsError as error:
            raise SettingsError(f"{variable}: {error}") from None
    return found, ignored


def misspelt(variable: str) -> str:
    """A warning about a variable that looks like a misspelt setting; empty if it does not."""
    name = variable.removeprefix(PREFIX).lower()
    guess = "" if name in OPTIONS else _guess(name, OPTIONS)
    return f"{variable} is not a setting and is ignored{guess}" if guess else ""


def _guess(key: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), list(names), 1)
    return f"; did you mean {close[0]}?" if close else ""
