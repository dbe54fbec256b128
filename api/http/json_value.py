"""A JSON value inside a request that is stored as it is meant: read without loss, written compactly.

Integers are exact within 64 bits. A number with a fraction or an exponent keeps its decimal value, digit by
digit, which a double would round. What no double can hold is refused, since most readers could not read it.
"""

from decimal import Decimal
from math import isinf
from typing import Any

import orjson

from timerwheel.api.http.problems import RequestError


def exact_number(text: str) -> float | Decimal:
    """Read a number with a fraction or an exponent; raises ValueError if it is beyond a double's range.

    To be used as `float_hook` of a decoder; that calls it for values whose type is open, and no others.
    """
    number = float(text)
    if repr(number) == text:
        return number
    if isinf(number):
        raise ValueError(f"the number {text[:40]} is beyond the range of a double")
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"the exponent of the number {text[:40]} is out of range") from None


def compact(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return the value as UTF-8 JSON without white space; raises `RequestError` invalid_field."""
    try:
        return orjson.dumps(value, default=_number)
    except TypeError as error:
        if "Recursion" in str(error):
            raise RequestError("invalid_field", "json: the value is nested too deeply") from None
        raise RequestError("invalid_field", "json: an integer is beyond 64 bits") from None


def _number(value: Decimal) -> orjson.Fragment:
    return orjson.Fragment(str(value))
