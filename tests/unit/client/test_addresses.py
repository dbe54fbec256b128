"""A password in the address of a service, as a proxy may want one, stands in no message."""

import socket

import pytest

from timerwheel.client import AddressError, Client, UnreachableError
from timerwheel.client.connection import without_user


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8686", "http://127.0.0.1:8686"),
        ("https://user:secret@timers.example/a@b", "https://timers.example/a@b"),
        ("http://user@timers.example", "http://timers.example"),
        ("user:secret@timers.example", "timers.example"),
        ("http://[::1]:8686/@", "http://[::1]:8686/@"),
    ],
)
def test_an_address_is_shown_without_its_user(url, shown):
    assert without_user(url) == shown


async def test_what_cannot_be_reached_is_named_without_the_password():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with Client(f"http://user:secret@{address}", retry_ms=0) as client:
            with pytest.raises(UnreachableError, match=f"cannot reach http://{address}: ") as raised:
                await client.levels()
    assert "secret" not in str(raised.value)


def test_what_is_no_address_is_named_without_the_password():
    with pytest.raises(AddressError, match=r"did you mean http://timers\.example\?") as raised:
        Client("user:secret@timers.example")
    assert "secret" not in str(raised.value)
