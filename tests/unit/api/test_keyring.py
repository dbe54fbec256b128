"""The tokens in force follow their file."""

import errno
import os

import pytest

from tests.harness.guarded import grant
from timerwheel import tokens
from timerwheel.api.security.keyring import Keyring
from timerwheel.tokens import Scope


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_a_revocation_that_could_not_be_read_at_once_is_read_later(tmp_path, monkeypatch, code):
    grant(tmp_path, "kept", Scope.ADMIN)
    grant(tmp_path, "gone", Scope.ADMIN)
    keyring = Keyring(tmp_path)
    tokens.revoke(tmp_path, "gone")
    with monkeypatch.context() as broken:

        def fails(*_: object, **__: object) -> None:
            raise OSError(code, "no")

        broken.setattr(os, "open", fails)
        assert not keyring.look()
        assert keyring.tokens.named("gone") is not None
    assert keyring.look()
    assert keyring.tokens.named("gone") is None
    assert keyring.tokens.named("kept") is not None
