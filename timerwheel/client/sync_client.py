"""The synchronous client: `Client` for threads, with the same methods, types and errors.

    with SyncClient("http://127.0.0.1:8686") as client:
        client.send("orders", "close order 17", delay="30m")
        for lease in client.group("orders", "closers").messages():
            with lease:
                print(lease.text)

All threads may share one client. It works without `with` too: the first call opens it, and it is closed at
the end of the program. Calls run on the client's own event loop, in a thread of its own.
A call in a coroutine works, and blocks the coroutine's event loop until it returns. A forked child opens
connections of its own; a lease that its parent holds is not extended by the child.

What a method does, takes and says of itself is written once, in the asynchronous client: `waits`, `iterates`
and `leases` turn such a method into one that waits for it.
"""

import inspect
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, update_wrapper
from types import GenericAlias, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from timerwheel.client.acks import Acks
from timerwheel.client.blocking_consumer import run_consumer
from timerwheel.client.client import Client
from timerwheel.client.dead_letters import DeadLetters
from timerwheel.client.group import HOLD_MS_MAX, INVISIBLE_MS, RETRY_MS, Group
from timerwheel.client.lease import Lease, LeasedMessage
from timerwheel.client.loop_thread import LoopThread, Portal
from timerwheel.client.retries import SEND_RETRY_MS
from timerwheel.client.schedules import Schedules
from timerwheel.client.subscriptions import Subscriptions
from timerwheel.client.tasks import Tasks
from timerwheel.clock import Clock
from timerwheel.groups.config import Start

__all__ = [
    "SyncAcks",
    "SyncClient",
    "SyncDeadLetters",
    "SyncGroup",
    "SyncLease",
    "SyncSchedules",
    "SyncSubscriptions",
    "SyncTasks",
]

_Inner = TypeVar("_Inner")
_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")
# What docstrings call otherwise in a program without an event loop.
_WORDS = {"await ": "", "async with": "with", "async for": "for"}


class _Shell(Generic[_Inner]):
    """An object of the asynchronous client, and the way to the event loop that it lives on."""

    def __init__(self, loop: Portal, inner: _Inner) -> None:
        self._loop = loop
        self._inner = inner


def waits(
    method: Callable[Concatenate[_Inner, _Given], Coroutine[Any, Any, _Answer]],
) -> Callable[Concatenate[_Shell[_Inner], _Given], _Answer]:
    """Return the method that runs this one on the loop, and waits for what it returns."""

    def call(shell: _Shell[_Inner], /, *args: _Given.args, **named: _Given.kwargs) -> _Answer:
        return shell._loop.run(method(shell._inner, *args, **named))

    return _described(call, method)


def iterates(
    method: Callable[Concatenate[_Inner, _Given], AsyncIterator[_Answer]],
) -> Callable[Concatenate[_Shell[_Inner], _Given], Iterator[_Answer]]:
    """Return the method that yields what this one yields on the loop."""

    def call(shell: _Shell[_Inner], /, *args: _Given.args, **named: _Given.kwargs) -> Iterator[_Answer]:
        return shell._loop.iterate(method(shell._inner, *args, **named))

    returns = GenericAlias(Iterator, inspect.get_annotations(method)["return"].__args__)
    return _described(call, method, returns)


def leases(
    method: Callable[Concatenate[_Inner, _Given], AsyncIterator[Lease]],
) -> "Callable[Concatenate[_Shell[_Inner], _Given], Iterator[SyncLease]]":
    """Return what `iterates` does, for messages that are leased to the caller."""

    def call(shell: _Shell[_Inner], /, *args: _Given.args, **named: _Given.kwargs) -> "Iterator[SyncLease]":
        # `map` keeps no reference to what it has yielded; see the keeper of leases.
        yield from map(
            partial(SyncLease, shell._loop),
            shell._loop.iterate(method(shell._inner, *args, **named)),
        )

    return _described(call, method, Iterator[SyncLease])


def _described(call: _Answer, method: Callable[..., object], returns: object = None) -> _Answer:
    """Give a method the name, the docstring and the parameters of the asynchronous one."""
    update_wrapper(call, method)  # type: ignore[arg-type]  # a function, whatever its type says
    described: Any = call
    described.__module__ = __name__
    described.__qualname__ = f"Sync{method.__qualname__}"
    for word, other in _WORDS.items():
        described.__doc__ = described.__doc__.replace(word, other)
    if returns is not None:
        described.__signature__ = inspect.signature(method).replace(return_annotation=returns)
    return call


class SyncLease(_Shell[Lease], LeasedMessage):
    """One leased message, to be finished with `ack` or `nack`.

    As a context manager it is acknowledged at the end of the block, or returned with the error that ended the
    block.
    """

    def __init__(self, loop: Portal, lease: Lease) -> None:
        super().__init__(loop, lease)
        self.message = lease.message

    @property
    def settled(self) -> bool:
        """Acknowledged or returned by this consumer."""
        return self._inner.settled

    @property
    def lost(self) -> bool:
        """The lease ended before it was finished: the message is, or will be, leased to another consumer."""
        return self._inner.lost

    ack = waits(Lease.ack)
    nack = waits(Lease.nack)
    extend = waits(Lease.extend)

    def __enter__(self) -> Self:
        """Enter the block; calls nothing."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Acknowledge or return the message, unless the block did."""
        self._loop.run(self._inner.__aexit__(kind, error, trace))


class SyncGroup(_Shell[Group]):
    """One group of one topic; created by `Client.group`, which calls nothing."""

    def __init__(self, loop: Portal, group: Group) -> None:
        super().__init__(loop, group)
        self.topic = group.topic
        self.name = group.name

    @property
    def created(self) -> bool:
        """Whether a call of this object created the group because it was not there."""
        return self._inner.created

    receive = waits(Group.receive)
    receive_arrow = waits(Group.receive_arrow)
    ack_and_receive = waits(Group.ack_and_receive)
    ack = waits(Group.ack)
    nack = waits(Group.nack)
    extend = waits(Group.extend)
    info = waits(Group.info)
    etag = waits(Group.etag)
    put = waits(Group.put)
    delete = waits(Group.delete)
    rewind = waits(Group.rewind)
    messages = leases(Group.messages)
    stream = leases(Group.stream)

    def consume(
        self,
        handler: Callable[[SyncLease], object],
        *,
        concurrency: int = 1,
        stop: threading.Event | None = None,
        retry_ms: int = RETRY_MS,
        tags: str | None = None,
        start: Start | None = None,
        create: bool | None = None,
        invisible_ms: int = INVISIBLE_MS,
        hold_ms_max: int = HOLD_MS_MAX,
    ) -> None:
        """Run `handler` in a thread on each message, up to `concurrency` at a time, until `stop` is set.

        A message is acknowledged when the handler returns, and returned with the group's backoff when it
        raises. In an outage this retries every `retry_ms`. When stopped, it takes no more messages and waits
        for the handlers; Ctrl-C does the same. A second Ctrl-C leaves them to be redelivered.

        The other parameters are those of `messages`.
        """
        consume = partial(
            self._inner.consume,
            concurrency=concurrency,
            retry_ms=retry_ms,
            tags=tags,
            start=start,
            create=create,
            invisible_ms=invisible_ms,
            hold_ms_max=hold_ms_max,
        )
        run_consumer(
            self._loop,
            lambda handle, stopping: consume(handle, stop=stopping),
            lambda lease: handler(SyncLease(self._loop, lease)),
            concurrency,
            stop,
        )


class SyncDeadLetters(_Shell[DeadLetters]):
    """Dead letters; created by `Client.dead_letters`, which calls nothing."""

    page = waits(DeadLetters.page)
    all = iterates(DeadLetters.all)
    redrive = waits(DeadLetters.redrive)
    drop = waits(DeadLetters.drop)


class SyncSchedules(_Shell[Schedules]):
    """The schedules of a service, by name."""

    all = waits(Schedules.all)
    get = waits(Schedules.get)
    etag = waits(Schedules.etag)
    put = waits(Schedules.put)
    pause = waits(Schedules.pause)
    resume = waits(Schedules.resume)
    run = waits(Schedules.run)
    delete = waits(Schedules.delete)
    runs = waits(Schedules.runs)


class SyncSubscriptions(_Shell[Subscriptions]):
    """The subscriptions of a service, by id."""

    all = waits(Subscriptions.all)
    get = waits(Subscriptions.get)
    etag = waits(Subscriptions.etag)
    add = waits(Subscriptions.add)
    update = waits(Subscriptions.update)
    delete = waits(Subscriptions.delete)
    pause = waits(Subscriptions.pause)
    resume = waits(Subscriptions.resume)
    test = waits(Subscriptions.test)
    rotate_secret = waits(Subscriptions.rotate_secret)
    finish_rotation = waits(Subscriptions.finish_rotation)
    attempts = waits(Subscriptions.attempts)
    send_again = waits(Subscriptions.send_again)
    stats = waits(Subscriptions.stats)


class SyncTasks(_Shell[Tasks]):
    """The tasks of a service, by id, and their queues, by name."""

    create = waits(Tasks.create)
    get = waits(Tasks.get)
    page = waits(Tasks.page)
    all = iterates(Tasks.all)
    reschedule = waits(Tasks.reschedule)
    cancel = waits(Tasks.cancel)
    run = waits(Tasks.run)
    queues = waits(Tasks.queues)
    get_queue = waits(Tasks.get_queue)
    put_queue = waits(Tasks.put_queue)
    rotate_secret = waits(Tasks.rotate_secret)
    finish_rotation = waits(Tasks.finish_rotation)


class SyncAcks(_Shell[Acks]):
    """Settles attempts by the URL that came with them in the header `timerwheel-ack-url`; see `Acks`."""

    acknowledge = waits(Acks.acknowledge)
    give_back = waits(Acks.give_back)
    extend = waits(Acks.extend)


class SyncClient(_Shell[Client]):
    """One connection pool to one service; safe to share between threads."""

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout_ms: int = 30_000,
        retry_ms: int = SEND_RETRY_MS,
        clock: Clock | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """The parameters are those of `Client`. Raises `AddressError` as it does."""
        client = Client(
            url, timeout_ms=timeout_ms, retry_ms=retry_ms, clock=clock, token=token, ssl_context=ssl_context
        )
        self._thread = LoopThread(client)
        super().__init__(self._thread, client)
        self.url = client.url
        self.schedules = SyncSchedules(self._loop, client.schedules)
        self.subscriptions = SyncSubscriptions(self._loop, client.subscriptions)
        self.tasks = SyncTasks(self._loop, client.tasks)
        self.acks = SyncAcks(self._loop, client.acks)

    def __enter__(self) -> Self:
        """Open the client; does not call the service yet."""
        self._thread.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close every connection: running calls fail with `UnreachableError`, leases are not extended."""
        self._thread.close()

    def group(self, topic: str, group: str) -> SyncGroup:
        """Return a consumer group, to receive from and to manage. Calls nothing."""
        return SyncGroup(self._loop, self._inner.group(topic, group))

    def dead_letters(self, group: str, topic: str | None = None) -> SyncDeadLetters:
        """Return the dead letters of a topic's group, or of all groups with this name. Calls nothing."""
        return SyncDeadLetters(self._loop, self._inner.dead_letters(group, topic))

    send = waits(Client.send)
    send_many = waits(Client.send_many)
    send_arrow = waits(Client.send_arrow)
    begin = waits(Client.begin)
    commit = waits(Client.commit)
    roll_back = waits(Client.roll_back)
    transactions = iterates(Client.transactions)
    get = waits(Client.get)
    etag = waits(Client.etag)
    history = waits(Client.history)
    story = history  # its older name
    recall = waits(Client.recall)
    reschedule = waits(Client.reschedule)
    get_key = waits(Client.get_key)
    key_etag = waits(Client.key_etag)
    recall_key = waits(Client.recall_key)
    reschedule_key = waits(Client.reschedule_key)
    recall_many = waits(Client.recall_many)
    recall_where = waits(Client.recall_where)
    reschedule_many = waits(Client.reschedule_many)
    reschedule_where = waits(Client.reschedule_where)
    messages = iterates(Client.messages)
    pending = iterates(Client.pending)
    receive = iterates(Client.receive)
    read_arrow = waits(Client.read_arrow)
    groups = waits(Client.groups)
    topics = waits(Client.topics)
    topic = waits(Client.topic)
    topic_etag = waits(Client.topic_etag)
    set_ordered = waits(Client.set_ordered)
    change_topic = waits(Client.change_topic)
    pause_topic = waits(Client.pause_topic)
    resume_topic = waits(Client.resume_topic)
    purge_topic = waits(Client.purge_topic)
    delete_topic = waits(Client.delete_topic)
    wheel = waits(Client.wheel)
    peak = waits(Client.peak)
    slots = waits(Client.slots)
    watch = iterates(Client.watch)
    live_history = waits(Client.live_history)
    token = waits(Client.token)
    cluster = waits(Client.cluster)
    move_leader = waits(Client.move_leader)
    levels = waits(Client.levels)
