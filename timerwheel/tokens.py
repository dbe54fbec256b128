"""API tokens: who may call the service, for which topics, how often. In `tokens.json` of the data directory.

A secret is `tw_`, 43 base-62 characters with 256 random bits, and a checksum of 6 characters. So a scanner
for leaked secrets can recognize one, and a mistyped secret can be distinguished from an unknown one. The file
has the SHA-256 of each secret, not the secret. Unlike passwords, secrets need no slow hash: nobody can try
2^256 guesses.

1. After any crash the file is whole, old or new. Only the owner of the directory can read it.
2. Commands that change it at the same time take turns.
3. A reader gets tokens that follow every rule here, or `TokensError`.
"""

import enum
import fcntl
import fnmatch
import functools
import hashlib
import hmac
import os
import re
import secrets
import string
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from timerwheel.errors import TimerwheelError
from timerwheel.store.errors import NotAFileError
from timerwheel.store.files import DiskFiles, open_binary
from timerwheel.store.sealed_json import SealError, check_seal, seal

FILE = "tokens.json"
NEXT_FILE = FILE + ".tmp"  # as `Files.write_whole` calls it
VERSION = 1
FILE_BYTES_MAX = 1 << 24
TOKENS_MAX = 10_000
PATTERNS_MAX = 100
RATE_PER_S_MAX = 1_000_000.0

SECRET_START = "tw_"  # noqa: S105 - what each begins with is not secret
SHOWN_CHARACTERS = 9  # of a secret: enough to find out whose it is, 220 bits short of using it
_RANDOM_CHARACTERS = 43
_CHECK_CHARACTERS = 6
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_match_secret = re.compile(r"tw_[0-9A-Za-z]{49}", re.ASCII).fullmatch
_match_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII).fullmatch
_match_pattern = re.compile(r"[A-Za-z0-9_%|*?-]{1,127}", re.ASCII).fullmatch
_match_hash = re.compile(r"[0-9a-f]{64}", re.ASCII).fullmatch


class TokensError(TimerwheelError):
    """A token, or the file of tokens, breaks a rule; the message says which."""

    code = "tokens"


class Scope(enum.StrEnum):
    """What a token allows. `ADMIN` allows everything, on all topics."""

    SEND = "send"
    RECEIVE = "receive"
    ADMIN = "admin"


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One stored token. `starts` is the beginning of its secret; `rate_per_s` None means no limit."""

    name: str
    starts: str
    sha256: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...] = ()
    rate_per_s: float | None = None
    made_ms: int
    expires_ms: int | None = None

    def check(self) -> "Token":
        """Return self if it follows the rules; raises TokensError."""
        if _match_name(self.name) is None:
            raise TokensError(
                f"{self.name!r} is not a valid name: use 1 to 64 characters of A-Z a-z 0-9 _ . -, "
                "beginning with a letter or digit"
            )
        if _match_hash(self.sha256) is None:
            raise TokensError(f"{self.name}: sha256 is not 64 hexadecimal digits")
        if not self.scopes:
            raise TokensError(f"{self.name}: give a scope: send, receive or admin")
        if Scope.ADMIN in self.scopes and (len(self.scopes) > 1 or self.topics):
            raise TokensError(f"{self.name}: admin covers all calls and all topics; give it alone")
        if Scope.ADMIN not in self.scopes and not 0 < len(self.topics) <= PATTERNS_MAX:
            raise TokensError(f"{self.name}: give 1 to {PATTERNS_MAX} topics or patterns; * is all topics")
        for pattern in self.topics:
            if _match_pattern(pattern) is None:
                raise TokensError(
                    f"{self.name}: {pattern!r} is not a valid pattern: use 1 to 127 characters of "
                    "A-Z a-z 0-9 _ % | -, * for any characters, ? for one"
                )
        if self.rate_per_s is not None and not 0 < self.rate_per_s <= RATE_PER_S_MAX:
            raise TokensError(
                f"{self.name}: the rate must be more than 0 and at most {RATE_PER_S_MAX:.0f} per second"
            )
        return self

    def expired(self, now_ms: int) -> bool:
        """Whether it has expired."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    @functools.cached_property
    def has_all_topics(self) -> bool:
        """Whether it grants access to all topics, including the service's own."""
        return Scope.ADMIN in self.scopes or any(not pattern.strip("*") for pattern in self.topics)

    def has_topic(self, topic: str) -> bool:
        """Whether one of its patterns matches this topic, case-sensitively."""
        return self.has_all_topics or self._match(topic) is not None

    @functools.cached_property
    def _match(self) -> Callable[[str], re.Match[str] | None]:
        # A pattern cannot hold the brackets that `fnmatch` gives a meaning of their own.
        return re.compile("|".join(fnmatch.translate(pattern) for pattern in self.topics), re.ASCII).match


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    tokens: list[Token]
    checksum: str = ""  # `timerwheel.store.sealed_json`; a file of an earlier version has none


class Tokens:
    """The tokens of the file, with look-ups by name and secret."""

    def __init__(self, tokens: Sequence[Token] = ()) -> None:
        self.all = tuple(tokens)
        self._by_hash = {token.sha256: token for token in self.all}
        self._by_name = {token.name: token for token in self.all}

    def __bool__(self) -> bool:
        """Whether there are tokens; expired ones count, since they must not open the service to all."""
        return bool(self.all)

    def named(self, name: str) -> Token | None:
        """Return the token of this name, None if there is none."""
        return self._by_name.get(name)

    def of_secret(self, secret: str) -> Token | None:
        """Return the token with this secret, expired or not; None if there is none.

        The look-up is by hash, so its timing says nothing about the secret; the final comparison takes
        constant time.
        """
        digest = hash_of(secret)
        found = self._by_hash.get(digest)
        return found if found is not None and hmac.compare_digest(found.sha256, digest) else None


def new_secret() -> str:
    """Generate a secret of 256 random bits."""
    bits = _base62(secrets.randbits(256), _RANDOM_CHARACTERS)
    return SECRET_START + bits + _checksum(bits)


def is_secret(text: str) -> bool:
    """Whether a text has the form of a secret, with a valid checksum."""
    if _match_secret(text) is None:
        return False
    bits = text[len(SECRET_START) : -_CHECK_CHARACTERS]
    return _checksum(bits) == text[-_CHECK_CHARACTERS:]


def hash_of(secret: str) -> str:
    """Return the SHA-256 of a secret as hexadecimal digits."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def read(data: Path) -> Tokens:
    """Read the tokens of a data directory, empty if it has no token file; TokensError if it breaks a rule."""
    path = data / FILE
    try:
        with open_binary(path) as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Tokens()
    except NotAFileError as error:
        raise TokensError(str(error)) from error
    except OSError as error:
        raise TokensError(f"{path} cannot be read: {error.strerror}") from error
    return _decoded(path, body)


def create(data: Path, token: Token) -> None:
    """Add a token; durable when this returns. TokensError if its name is taken or it breaks a rule."""
    token.check()
    with _changing(data) as tokens:
        if any(other.name == token.name for other in tokens):
            raise TokensError(f"token {token.name!r} already exists; revoke it or choose another name")
        tokens.append(token)


def revoke(data: Path, name: str) -> tuple[Token, int]:
    """Remove a token and return it, with how many are left; durable. TokensError if there is none."""
    with _changing(data) as tokens:
        for place, token in enumerate(tokens):
            if token.name == name:
                del tokens[place]
                return token, len(tokens)
    raise TokensError(f"there is no token {name!r}")


@contextmanager
def _changing(data: Path) -> Iterator[list[Token]]:
    """Yield the list of tokens to change; it is written at the end of the block, unless that raises."""
    files = DiskFiles()
    files.make_dir(data)
    owner = data.stat()
    with _turn(data / NEXT_FILE, owner):
        before = list(read(data).all)
        tokens = list(before)
        yield tokens
        if tokens != before:
            if len(tokens) > TOKENS_MAX:
                raise TokensError(f"more than {TOKENS_MAX} tokens; revoke some")
            with _as_owner(owner):
                _write(files, data / FILE, tokens)


@contextmanager
def _turn(path: Path, owner: os.stat_result) -> Iterator[None]:
    """Let one process at a time change the tokens: the one that has locked the next version of the file.

    The directory itself is locked by the service. If another process has renamed or removed the file in
    between, the lock is on the wrong file, and this tries again.
    """
    while True:
        with _as_owner(owner):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, path):
                yield
                if _is_at(fd, path):  # nothing was changed
                    path.unlink()
                return
        except BaseException:
            if _is_at(fd, path):
                path.unlink()
            raise
        finally:
            os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextmanager
def _as_owner(directory: os.stat_result) -> Iterator[None]:
    """Let root act as the directory's owner: the service could not read a file owned by root."""
    group = os.getegid()
    if os.geteuid() != 0 or directory.st_uid == 0:
        yield
        return
    os.setegid(directory.st_gid)
    os.seteuid(directory.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def _write(files: DiskFiles, path: Path, tokens: list[Token]) -> None:
    content = msgspec.json.encode({"version": VERSION, "tokens": tokens})
    body = seal(msgspec.json.format(content, indent=1))
    before = os.umask(0o077)  # never for a moment can the file be read by others
    try:
        files.write_whole(path, body)
    finally:
        os.umask(before)


def _decoded(path: Path, body: bytes) -> Tokens:
    if len(body) > FILE_BYTES_MAX:
        raise TokensError(f"{path} is over {FILE_BYTES_MAX} bytes")
    try:
        check_seal(body)
        content = msgspec.json.decode(body, type=_Content)
    except SealError as error:
        raise TokensError(
            f"{path}: {error}. Restore it from a backup; if it was edited by hand, remove its checksum"
        ) from None
    except (ValueError, RecursionError) as error:
        raise TokensError(f"{path} is not a token file: {error}") from None
    if content.version != VERSION:
        raise TokensError(f"{path} has version {content.version}; this program reads {VERSION}")
    for token in content.tokens:
        try:
            token.check()
        except TokensError as error:
            raise TokensError(f"{path}: {error}") from None
    tokens = Tokens(content.tokens)
    if len({token.name for token in tokens.all}) < len(tokens.all):
        raise TokensError(f"{path} has two tokens with the same name")
    if len({token.sha256 for token in tokens.all}) < len(tokens.all):
        raise TokensError(f"{path} has two tokens with the same secret")
    return tokens


def _base62(number: int, characters: int) -> str:
    text = ""
    for _ in range(characters):
        number, place = divmod(number, len(_ALPHABET))
        text = _ALPHABET[place] + text
    return text


def _checksum(bits: str) -> str:
    return _base62(zlib.crc32(bits.encode()), _CHECK_CHARACTERS)
