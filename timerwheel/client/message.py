"""Messages as the service tells of them, in the shape of the API's JSON."""

import msgspec

from timerwheel.model.messages import State, TopicInfo


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it stands; what does not apply is None or empty."""

    id: str
    topic: str
    queue: int
    state: State
    due_ms: int
    enqueue_ms: int
    properties: dict[str, str]
    level: int = 0
    tags: str | None = None
    keys: list[str] = []
    dedup_key: str | None = None
    body_text: str | None = msgspec.field(default=None, name="body")
    body_base64: bytes | None = None
    delivered_ms: int | None = None
    lateness_ms: int | None = None
    offset: int | None = None
    recalled_ms: int | None = None
    problem: str | None = None

    @property
    def body(self) -> bytes:
        """The body's bytes."""
        return (self.body_text or "").encode() if self.body_base64 is None else self.body_base64

    @property
    def text(self) -> str:
        """The body as UTF-8; raises UnicodeDecodeError if it is not."""
        return self.body.decode()


class Delivery(Message, frozen=True, kw_only=True):
    """A message that a consumer of a group holds by `receipt` until `invisible_until_ms`.

    `attempt` counts from 1.
    """

    receipt: str
    attempt: int
    invisible_until_ms: int


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group gave up after `attempts`, and why; `offset` is its place among them."""

    offset: int
    reason: str
    attempts: int
    dead_ms: int
    origin_topic: str
    origin_id: str
    message: Message


class DeadPage(msgspec.Struct, frozen=True):
    """Dead letters, oldest first; `next_offset` is where the next page begins, None on the last."""

    letters: list[DeadLetter]
    next_offset: int | None


class RecallResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one id of `recall_many`; `code` says why not."""

    id: str
    ok: bool
    code: str | None = None


class RecallCount(msgspec.Struct, frozen=True):
    """How many waiting messages met the conditions, and what became of them.

    `missed` fired before they could be recalled; of a dry run nothing was recalled.
    """

    matched: int
    recalled: int
    missed: int
    dry_run: bool


class Topic(TopicInfo, frozen=True):
    """One topic; if it is `ordered`, groups get the messages of one sharding key one after the other."""

    ordered: bool = False
