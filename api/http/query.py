"""Query strings, read strictly: UTF-8, each name once, no unknown names, integers written plainly."""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from timerwheel.api.http.field_hints import with_hint
from timerwheel.api.http.problems import RequestError
from timerwheel.groups.config import check_group
from timerwheel.model.admission import check_key, check_topic_name
from timerwheel.schedules.spec import check_name

Q = TypeVar("Q", bound=msgspec.Struct)


class Name(NamedTuple):
    """How to check a name, and the error code if that fails."""

    check: Callable[[str], object]
    code: str


NAMES = {
    "topic": Name(check_topic_name, "illegal_topic"),
    "group": Name(check_group, "illegal_group"),
    "key": Name(check_key, "illegal_key"),
    "name": Name(check_name, "illegal_schedule"),
}
"""The parts of paths that are names."""
PLAIN_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
DIGITS_MAX = 19
"""Digits of an integer of 64 bits at most; `int` would raise for one with thousands."""
SHOWN_CHARACTERS = 40
ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})", re.ASCII)


def pairs(request: web.Request) -> dict[str, str]:
    """Return the query with `+` as space; raises `RequestError` for ambiguous or repeated names."""
    found: dict[str, str] = {}
    raw = request.rel_url.raw_query_string
    for part in raw.split("&") if raw else ():
        if not part:
            continue
        name, _, value = part.partition("=")
        name = unquote(name.replace("+", " "))
        if name in found:
            raise RequestError("invalid_parameter", f"{name!r} is given more than once")
        found[name] = unquote(value.replace("+", " "))
    return found


def unquote(text: str) -> str:
    """Percent-decode one name, value or path segment; raises `RequestError` if it is not UTF-8."""
    if ESCAPE.search(text):
        raise RequestError("invalid_parameter", f"{text!r}: write a % as %25")
    try:
        # A URL's bytes beyond ASCII reach us as surrogate escapes; they count like escaped ones.
        return unquote_to_bytes(text.encode(errors="surrogateescape")).decode()
    except UnicodeError:
        raise RequestError("invalid_parameter", f"{text!r} is not UTF-8") from None


def read(request: web.Request, kind: type[Q]) -> Q:
    """Return the query as `kind`; raises `RequestError` that names the invalid parameter."""
    return convert(pairs(request), kind)


def path(request: web.Request, kind: type[Q]) -> Q:
    """Return the variable parts of the path as `kind`; raises `RequestError` that names the invalid one.

    A malformed name is refused in every call: AdmissionError, IllegalGroupError, ScheduleError.
    """
    unquote(request.rel_url.raw_path)  # aiohttp passes on what it cannot decode: refuse it here
    found = convert(dict(request.match_info), kind)
    for name in _checked(kind):
        NAMES[name].check(getattr(found, name))
    return found


def check_range(from_name: str, from_ms: int | UnsetType, to_name: str, to_ms: int | UnsetType) -> None:
    """Refuse a range that ends before it begins; raises `RequestError` invalid_parameter."""
    if from_ms is not UNSET and to_ms is not UNSET and from_ms > to_ms:
        raise RequestError("invalid_parameter", f"{from_name} = {from_ms} is after {to_name} = {to_ms}")


def convert(given: dict[str, str], kind: type[Q]) -> Q:
    """Convert texts to the field types of `kind`, within its bounds and with its defaults."""
    for name in _integers(kind) & given.keys():
        text = given[name]
        if not PLAIN_INTEGER.fullmatch(text):
            raise RequestError("invalid_parameter", f"{name} = {text[:SHOWN_CHARACTERS]!r}: not an integer")
        if len(text.removeprefix("-")) > DIGITS_MAX:
            raise RequestError("invalid_parameter", f"{name} = {text[:SHOWN_CHARACTERS]}: out of range")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        detail = with_hint(str(error), kind).replace("Object contains unknown field", "unknown parameter")
        raise RequestError("invalid_parameter", detail) from None


@cache
def _checked(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.name in NAMES)


@cache
def _integers(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(
        field.encode_name for field in msgspec.structs.fields(kind) if _takes_integers(field.type)
    )


def _takes_integers(kind: object) -> bool:
    return _is_integer(msgspec.inspect.type_info(kind))


def _is_integer(found: msgspec.inspect.Type) -> bool:
    if isinstance(found, msgspec.inspect.Metadata):  # it has a description
        return _is_integer(found.type)
    if isinstance(found, msgspec.inspect.UnionType):  # it may be left out
        return any(map(_is_integer, found.types))
    return isinstance(found, msgspec.inspect.IntType)
