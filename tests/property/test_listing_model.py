"""Listings by state, tag and key against a dictionary of what was sent, whatever happens in between."""

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec import structs

from tests.harness.drive import read_all, settle
from tests.harness.engine_machine import EngineMachine, thorough
from timerwheel.errors import DeletedMessageError, UnknownMessageError
from timerwheel.model.admission import HALF_DUE_MS
from timerwheel.model.listing import Listing, Times
from timerwheel.model.messages import MessageView, Outgoing, State
from timerwheel.model.tags import TagFilter
from timerwheel.runtime.bulk_changes import shifted
from timerwheel.runtime.recall_filter import RecallFilter

TOPICS = ("orders", "tickets")
OWN = "%TASK%mail"
ALL_TOPICS = (*TOPICS, OWN)
KEYS = ("4711", "17", "a")
TAGS = ("vip", "plain")
DELAYS_MS = st.one_of(
    st.just(0), st.integers(1, 3_000), st.integers(1, 400_000), st.integers(1, 40 * 86_400_000)
)
ADVANCES_MS = st.one_of(st.integers(1, 1_500), st.integers(1, 300_000), st.integers(1, 90_000_000))
ENDED = (State.DELIVERED, State.RECALLED)


@st.composite
def listings(draw: st.DrawFn) -> Listing:
    """A listing that the service would take."""
    key = draw(st.sampled_from((None, *KEYS)))
    newest = draw(st.booleans())
    choices = tuple(State) if key is not None or not newest else ENDED
    states = frozenset(draw(st.lists(st.sampled_from(choices), min_size=1)))
    topic = draw(st.sampled_from(ALL_TOPICS if key is None and states & set(ENDED) else (None, *ALL_TOPICS)))
    tag = draw(st.sampled_from(("*", "vip", "vip || plain")))
    return Listing(
        topic=topic,
        states=states,
        tags=TagFilter.parse(tag),
        key=key,
        newest=newest,
        reserved=draw(st.booleans()),
    )


class Walk:
    """A listing under way: its cursor, what it has shown, and what was wanted ever since it began."""

    def __init__(self, listing: Listing, limit: int, wanted: dict[str, MessageView]) -> None:
        self.listing = listing
        self.limit = limit
        self.cursor: str | None = None
        self.seen: list[tuple[str, State]] = []
        self.always = {message_id: view.state for message_id, view in wanted.items()}


class ListingModel(EngineMachine):
    """Sends, ends, moves, removes and forgets messages, and takes pages of listings in between."""

    @initialize()
    def start(self) -> None:
        self.sent: dict[str, Outgoing] = {}
        self.walks: list[Walk] = []
        self.open()

    def open(self) -> None:
        self.open_engine(retention_ms=100_000, transaction_checks_max=1_000_000)
        self.run(settle(self.engine))

    # ------------------------------------------------------------------ what should be listed

    def views(self) -> dict[str, MessageView]:
        """Every message that other calls show."""
        found = {m.id: m for topic in ALL_TOPICS for m in self.run(read_all(self.engine, topic))}
        for view in self.run(self.engine.messages.pending(limit=100_000)).messages:
            found[view.id] = view
        for message_id in self.sent.keys() - found.keys():
            try:
                view = self.run(self.engine.messages.get(message_id))
            except (UnknownMessageError, DeletedMessageError):
                continue
            if view.state is State.RECALLED:
                found[message_id] = view
        return found

    def wanted(self, listing: Listing, views: dict[str, MessageView]) -> dict[str, MessageView]:
        found = {}
        for message_id, view in views.items():
            sent = self.sent[message_id]
            keys = {*sent.properties.get("KEYS", "").split(), sent.dedup_key}
            at_ms = {State.SCHEDULED: view.due_ms, State.DELIVERED: view.delivered_ms}.get(
                view.state, view.recalled_ms
            )
            if (
                view.state in listing.states
                and listing.topic in (None, sent.topic)
                and (sent.topic != OWN or listing.reserved or listing.topic or listing.key)
                and (listing.key is None or listing.key in keys)
                and (listing.tags.tags is None or sent.properties.get("TAGS") in listing.tags.tags)
                and listing.at.from_ms <= at_ms < listing.at.until_ms
                and listing.due.from_ms <= view.due_ms < listing.due.until_ms
            ):
                found[message_id] = view
        return found

    def whole(self, listing: Listing, limit: int) -> list[MessageView]:
        found, cursor = [], None
        while True:
            page = self.run(self.engine.listings.page(listing, limit, cursor))
            assert len(page.messages) <= limit
            found += page.messages
            cursor = page.cursor
            if cursor is None:
                return found

    # ------------------------------------------------------------------ what happens

    @rule(
        topic=st.sampled_from(ALL_TOPICS),
        delays_ms=st.lists(DELAYS_MS, min_size=1, max_size=6),
        keys=st.lists(st.sampled_from(KEYS), max_size=2),
        tag=st.sampled_from((None, *TAGS)),
        dedup=st.booleans(),
    )
    def send(self, topic: str, delays_ms: list[int], keys: list[str], tag: str | None, dedup: bool) -> None:
        own = {"KEYS": " ".join(keys)} if keys else {}
        if tag is not None:
            own["TAGS"] = tag
        messages = [
            Outgoing(
                topic,
                b"x" * (delay_ms % 50),
                {**own, "TIMER_DELAY_MS": str(delay_ms)},
                dedup_key=f"d{len(self.sent)}" if dedup and not place else None,
                to_reserved=topic == OWN,
            )
            for place, delay_ms in enumerate(delays_ms)
        ]
        for message, receipt in zip(messages, self.run(self.engine.sender.send(messages)), strict=True):
            self.sent[receipt.id] = message

    @rule(topic=st.sampled_from(TOPICS), keys=st.sampled_from(KEYS))
    def begin(self, topic: str, keys: str) -> None:
        half = Outgoing(topic, b"half", {"KEYS": keys})
        self.sent[self.run(self.engine.transactions.begin(half)).id] = half

    @precondition(lambda self: self.engine.transactions.page().transactions)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, commit: bool) -> None:
        transactions = self.engine.transactions
        one = data.draw(st.sampled_from(sorted(one.id for one in transactions.page().transactions)))
        self.run(transactions.commit(one) if commit else transactions.rollback(one))
        self.moved(one)

    def scheduled(self) -> list[str]:
        found = self.run(self.engine.messages.pending(limit=100_000)).messages
        return [view.id for view in found if view.due_ms < HALF_DUE_MS]

    @precondition(lambda self: self.scheduled())
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        self.run(self.engine.recalls.recall(data.draw(st.sampled_from(self.scheduled()))))

    @precondition(lambda self: self.scheduled())
    @rule(data=st.data(), delay_ms=DELAYS_MS)
    def reschedule(self, data: st.DataObject, delay_ms: int) -> None:
        message_id = data.draw(st.sampled_from(self.scheduled()))
        self.run(self.engine.recalls.reschedule(message_id, {"TIMER_DELAY_MS": str(delay_ms)}))
        self.moved(message_id)

    def moved(self, message_id: str) -> None:
        """A scheduled message is listed by its due time, which has changed."""
        for walk in self.walks:
            if walk.listing.key is None:
                walk.always.pop(message_id, None)

    @precondition(lambda self: self.scheduled())
    @rule(
        topic=st.sampled_from((None, *ALL_TOPICS)),
        tag=st.sampled_from((None, "vip", "vip || plain")),
        reserved=st.booleans(),
        moves=st.booleans(),
        data=st.data(),
    )
    def change_where(
        self, topic: str | None, tag: str | None, reserved: bool, moves: bool, data: st.DataObject
    ) -> None:
        """What a bulk call counts, what it changes and what is listed are the same messages."""
        self.run(settle(self.engine))
        dues_ms = sorted(view.due_ms for view in self.views().values() if view.due_ms < HALF_DUE_MS)
        low, high = sorted(data.draw(st.tuples(st.sampled_from(dues_ms), st.sampled_from(dues_ms))))
        listed = self.whole(
            Listing(
                topic=topic,
                states=frozenset({State.SCHEDULED}),
                tags=TagFilter.parse(tag or "*"),
                due=Times(low, high),
                reserved=reserved,
            ),
            limit=100,
        )
        condition = RecallFilter(topic=topic, tag=tag, due_from_ms=low, due_to_ms=high, reserved=reserved)
        calls = self.engine.bulk_recalls
        before = self.views()
        if moves:
            dry = self.run(calls.reschedule_where(condition, shifted(86_400_000), dry_run=True))
            done = self.run(calls.reschedule_where(condition, shifted(86_400_000)))
            assert (done.missed, done.refused, done.rescheduled) == (0, 0, len(listed))
        else:
            dry = self.run(calls.recall_where(condition, dry_run=True))
            done = self.run(calls.recall_where(condition))
            assert (done.missed, done.recalled) == (0, len(listed))
        assert dry.matched == done.matched
        after = self.views()
        assert {one for one in before if before[one] != after.get(one)} == {view.id for view in listed}
        for view in listed:
            self.moved(view.id)

    @rule(duration_ms=ADVANCES_MS)
    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.run(settle(self.engine))

    @rule(by_ms=st.sampled_from((-3_600_000, -1_500, 1_500)))
    def step_clock(self, by_ms: int) -> None:
        self.clock.step(by_ms)
        self.run(self.engine.watch_once())
        self.run(settle(self.engine))

    @rule()
    def retention_turn(self) -> None:
        self.run(self.engine.retention.turn())
        self.run(settle(self.engine))

    @rule(topic=st.sampled_from(TOPICS))
    def purge(self, topic: str) -> None:
        if topic in self.engine.queues.topic_names():
            self.run(self.engine.topic_purges.purge(topic, scheduled=False, delivered=True))

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        if topic in self.engine.queues.topic_names():
            self.run(self.engine.topic_deletions.delete(topic))
            self.run(settle(self.engine))

    @rule(seed=st.integers(0, 1 << 30), index=st.sampled_from(("kept", "lost")))
    def crash_and_reopen(self, seed: int, index: str) -> None:
        self.crash(seed, index)
        self.open()

    @rule(how=st.sampled_from(("removed", "cut", "garbage")), reopened=st.booleans())
    def harm_registers(self, how: str, reopened: bool) -> None:
        for name, data in self.files.contents().items():
            if name.endswith(".keys"):
                garbage = data[:100] + b"\x5a" * (len(data) - 100)
                other = {"removed": None, "cut": data[:70], "garbage": garbage}[how]
                self.files.replace(Path(name), other)
        if reopened:
            self.run(self.engine.close())
            self.open()

    # ------------------------------------------------------------------ listings

    @rule(listing=listings(), limit=st.integers(1, 7), data=st.data())
    def list_at_once(self, listing: Listing, limit: int, data: st.DataObject) -> None:
        views = self.views()
        times = sorted({t for v in views.values() for t in (v.due_ms, v.delivered_ms, v.recalled_ms) if t})
        if times and data.draw(st.booleans()):
            low, high = sorted(data.draw(st.tuples(st.sampled_from(times), st.sampled_from(times))))
            span = Times(low, high + data.draw(st.integers(0, 1)))
            listing = structs.replace(listing, **{data.draw(st.sampled_from(("at", "due"))): span})
        wanted = self.wanted(listing, views)
        found = self.whole(listing, limit)
        assert sorted(view.id for view in found) == sorted(wanted)
        for view in found:
            assert view == wanted[view.id]
        for states in ((State.SCHEDULED,), ENDED):
            self.check_order(listing, [view for view in found if view.state in states])

    def check_order(self, listing: Listing, found: list[MessageView]) -> None:
        order = [view.id for view in found]
        if listing.key is not None:
            assert order == sorted(order, reverse=listing.newest)  # an id begins with the root
        elif found and found[0].state is State.SCHEDULED:
            assert order == [view.id for view in sorted(found, key=lambda one: (one.due_ms, one.id))]

    @rule(listing=listings(), limit=st.integers(1, 4))
    def begin_walk(self, listing: Listing, limit: int) -> None:
        self.walks.append(Walk(listing, limit, self.wanted(listing, self.views())))

    @precondition(lambda self: self.walks)
    @rule(data=st.data())
    def next_page(self, data: st.DataObject) -> None:
        walk = data.draw(st.sampled_from(self.walks))
        page = self.run(self.engine.listings.page(walk.listing, walk.limit, walk.cursor))
        wanted = self.wanted(walk.listing, self.views())
        for view in page.messages:
            assert view == wanted[view.id]
        walk.seen += [(view.id, view.state) for view in page.messages]
        walk.cursor = page.cursor
        if page.cursor is None:
            self.walks.remove(walk)
            self.check_walk(walk)

    def check_walk(self, walk: Walk) -> None:
        ids = [message_id for message_id, _ in walk.seen]
        for message_id, state in walk.always.items():
            assert (message_id, state) in walk.seen or ids.count(message_id)
        if walk.listing.key is not None:
            assert len(ids) == len(set(ids))
        else:
            ended = [one for one in walk.seen if one[1] is not State.SCHEDULED]
            assert len(ended) == len(set(ended))
            for message_id in walk.always:
                if walk.always[message_id] is not State.SCHEDULED:
                    assert ids.count(message_id) == 1

    @invariant()
    def what_left_the_wanted_states_need_not_be_listed(self) -> None:
        if not self.walks:
            return
        views = self.views()
        for walk in self.walks:
            wanted = self.wanted(walk.listing, views)
            walk.always = {one: state for one, state in walk.always.items() if one in wanted}


ListingModel.TestCase.settings = thorough(80)


class TestListingsAgreeWithTheModel(ListingModel.TestCase):
    """Hypothesis drives it."""
