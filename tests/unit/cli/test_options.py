"""What commands read from stdin."""

import io
import sys

import pytest
import typer

from timerwheel.cli import options


class Endless(io.RawIOBase):
    """A file of zeros without an end, which counts what was read."""

    def __init__(self) -> None:
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        self.size += len(buffer)
        return len(buffer)


def test_a_stdin_without_end_is_refused_once_no_service_would_take_so_much(monkeypatch):
    endless = Endless()
    monkeypatch.setattr(options, "BODY_BYTES_MAX", 3 << 20)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(endless)))
    with pytest.raises(typer.BadParameter, match="stdin has more than 3145728 bytes"):
        options.read_body("-")
    assert endless.size < 5 << 20


@pytest.mark.parametrize("size", [0, 1, (3 << 20) - 1, 3 << 20])
def test_a_body_from_stdin_is_read_to_its_end(monkeypatch, size):
    monkeypatch.setattr(options, "BODY_BYTES_MAX", 3 << 20)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * size)))
    assert options.read_body("-") == "x" * size
