"""The states of tasks whose time has come: from their group, or from their outcomes."""

from collections.abc import Mapping, Sequence

from timerwheel.engine import Engine
from timerwheel.groups.config import UnknownGroupError
from timerwheel.groups.groups import Held
from timerwheel.model.ids import root_of
from timerwheel.model.messages import MessageView, State
from timerwheel.push.tasks.outcome import outcome_of
from timerwheel.push.tasks.runner import QueueRunner
from timerwheel.push.tasks.task import GROUP, log_topic_of, queue_in
from timerwheel.push.tasks.view import Standing


class Standings:
    """Asks the groups, the runners and the outcomes. Belongs to the event loop."""

    def __init__(self, engine: Engine, runners: Mapping[str, QueueRunner]) -> None:
        self._engine = engine
        self._runners = runners

    async def of(self, message: MessageView) -> Standing:
        """Return that of one task."""
        return (await self.of_all([message]))[0]

    async def of_all(self, messages: Sequence[MessageView]) -> list[Standing]:
        """Return those of tasks of one queue, in their order."""
        found = [self._before_end(message) for message in messages]
        done = [message for message, standing in zip(messages, found, strict=True) if standing is None]
        ends = await self._ends(done)
        return [
            standing or ends.get(message.id, Standing(state="ended"))
            for message, standing in zip(messages, found, strict=True)
        ]

    def _before_end(self, message: MessageView) -> Standing | None:
        """Return that of a task that has not ended; None if it has."""
        if message.state is State.SCHEDULED:
            return Standing(state="scheduled")
        if message.state is State.RECALLED:
            return Standing(state="cancelled", finished_ms=message.recalled_ms)
        assert message.queue_offset is not None
        place = (message.queue, message.queue_offset)
        try:
            held = self._engine.groups.held(message.topic, GROUP, place)
        except UnknownGroupError:
            return Standing(state="ended")
        return None if held.done else self._under_way(message, place, held)

    def _under_way(self, message: MessageView, place: tuple[int, int], held: Held) -> Standing:
        runner = self._runners.get(queue_in(message.topic) or "")
        last = None if runner is None else runner.last.get(place)
        running = runner is not None and place in runner.calling
        waits = held.waits_until_ms is not None
        return Standing(
            state="running" if running else "retrying" if waits else "ready",
            attempts=held.attempts,
            next_attempt_ms=held.waits_until_ms,
            last_status=None if last is None else last.status,
            last_error=None if last is None else last.reason,
        )

    async def _ends(self, messages: Sequence[MessageView]) -> dict[str, Standing]:
        if not messages:
            return {}
        queue = queue_in(messages[0].topic) or ""
        ids = {root_of(message.id): message.id for message in messages}
        since_ms = min(message.delivered_ms or 0 for message in messages)
        data = await self._engine.queues.newest_of(log_topic_of(queue), 0, list(ids), since_ms)
        if missing := ids.keys() - data.keys():  # the clock was stepped back before they ended
            data |= await self._engine.queues.newest_of(log_topic_of(queue), 0, missing, 0)
        outcomes = {ids[root]: outcome_of(one) for root, one in data.items() if isinstance(one, bytes)}
        return {task_id: Standing.of(one) for task_id, one in outcomes.items() if one is not None}
