"""Mutants of consumer groups: what they hold, and what becomes of it."""

from tests.mutants.mutant import Mutant

STATE = "tests/unit/state/test_groups.py"
GROUPS = "tests/integration/groups/test_groups.py"
RACES = "tests/integration/groups/test_groups_races.py"
DEAD = "tests/integration/groups/test_groups_dead.py"
RETENTION = "tests/integration/groups/test_groups_retention.py"

MUTANTS = [
    Mutant(
        "group-cursor-behind",
        "timerwheel/state/groups.py",
        "a message before the cursor is an item or done",
        "            self.cursors[item.queue] = item.queue_offset + 1",
        "            self.cursors[item.queue] = item.queue_offset",
        (STATE,),
    ),
    Mutant(
        "group-dead-moves-cursor",
        "timerwheel/state/groups.py",
        "a message that was taken back from the dead letters moves no cursor",
        "        if item.queue != DEAD_QUEUE and self.cursors",
        "        if self.cursors",
        (STATE,),
    ),
    Mutant(
        "group-lane-overtaken",
        "timerwheel/state/groups.py",
        "of a lane only the first may be leased",
        " or (item.lane and self.lanes[item.lane][0] != key):",
        ":",
        (STATE, GROUPS),
    ),
    Mutant(
        "group-lane-stops",
        "timerwheel/state/groups.py",
        "the next of a lane is ready when the first is done",
        "                self._offer(self.items[lane[0]])",
        "                pass",
        (STATE, GROUPS),
    ),
    Mutant(
        "group-restored-order",
        "timerwheel/state/groups.py",
        "what came back is received in that order after a start, too",
        "        for item in sorted(found, key=lambda item: (item.due_ms, item.root)):",
        "        for item in found:",
        (STATE,),
    ),
    Mutant(
        "group-ended-cleared",
        "timerwheel/state/groups.py",
        "a receipt that was given back stays ended when its timer is moved",
        "        item.ended = ended\n        item.root",
        "        item.root",
        (STATE, RACES),
    ),
    Mutant(
        "group-settles-in-flight",
        "timerwheel/groups/acknowledging.py",
        "an acknowledgement waits for the timer of its lease that is being fired or changed",
        "            if not under_way:\n                return\n            await asyncio.wait(under_way)",
        "            return",
        (RACES, GROUPS),
    ),
    Mutant(
        "exchange-no-second-look",
        "api/groups/handlers.py",
        "an acknowledgement lets the same call receive the next of its key",
        "        if not found and not wanted.wait_ms:\n",
        "        if False:\n",
        ("tests/e2e/api/test_http_groups.py",),
    ),
    Mutant(
        "worker-forgets-its-ack",
        "timerwheel/client/worker.py",
        "an acknowledgement that meets an outage is sent again after it",
        "            self._done = [*_unsettled(done), *self._done]\n            if not is_passing(error):",
        "            if not is_passing(error):",
        ("tests/e2e/client/test_client_outage.py",),
    ),
    Mutant(
        "group-last-attempt-one-more",
        "timerwheel/groups/acknowledging.py",
        "after its last attempt a message is a dead letter",
        "            and item.attempt >= config.max_attempts",
        "            and item.attempt > config.max_attempts",
        (GROUPS,),
    ),
    Mutant(
        "group-bury-in-flight",
        "timerwheel/groups/dead_lettering.py",
        "a lease that is being changed is not given up as well",
        "item.state == ItemState.LEASED and item.offset not in self._parts.core.in_flight",
        "item.state == ItemState.LEASED",
        (RACES, DEAD, GROUPS),
    ),
    Mutant(
        "group-handout-refusal-unseen",
        "timerwheel/groups/leasing.py",
        "what is chosen while an earlier unit is refused is chosen again",
        "            if self._refusals == refusals:\n                return choices",
        "            if True:\n                return choices",
        (RACES,),
    ),
    Mutant(
        "group-cursor-moves-back",
        "timerwheel/state/groups.py",
        "what a filter passed moves a cursor forward only",
        "max(group.cursors.get(int(queue), 0), offset)",
        "offset",
        (STATE,),
    ),
    Mutant(
        "group-dropped-keeps-items",
        "timerwheel/state/groups.py",
        "a group that is dropped is emptied",
        "            changed.items |= {(group.topic_id, key) for key in group.reset({})}",
        "            changed.items |= {(group.topic_id, key) for key in group.items}",
        (STATE, RACES),
    ),
    Mutant(
        "group-dead-letter-back",
        "timerwheel/state/groups.py",
        "a dead letter is dealt with once, in any order",
        "        return queue_offset >= self.low and queue_offset not in self.removed",
        "        return queue_offset >= self.low",
        (STATE, DEAD),
    ),
]
