"""The loop with two nodes: one is killed, the other one takes over, and clients go where the leader is."""

import asyncio
import signal
from dataclasses import dataclass, field
from time import monotonic

from tests.harness.ports import reserved_port
from tests.harness.relay import Relay
from tests.torture.killing import Loop
from tests.torture.process import Service

FROZEN_S = 8.0
"""How long a leader sleeps: longer than it takes to be replaced."""


@dataclass
class PairLoop(Loop):
    """`service` leads. The plan's kills are of leaders and standbys; some leaders are frozen for a while."""

    taken_over_s: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Run it all; raises AssertionError with everything that was wrong."""
        errors = self.directory / "stderr-2"
        with Service(self.directory / "data-2", reserved_port(), errors) as self.other:
            async with Relay() as self.relay:
                await super().run()
        text = errors.read_text(errors="replace")
        assert "Traceback" not in text, text[-6_000:]
        self.told(f"taken over within {sorted(round(s, 1) for s in self.taken_over_s)} s")

    def _address(self) -> str:
        return self.relay.url

    async def _up(self) -> None:
        await super()._up()
        self.relay.target = self.service.url

    async def _round(self) -> None:
        if not self.counts["rounds"]:
            self.service.start(*self._flags())
            await self._up()
            self.other.start(*self._flags())
        self.counts["rounds"] += 1
        await self._copied()
        await self._read_again()
        await self.service.running(self.dice.uniform(0.02, self.plan.up_s_max))
        draw = self.dice.random()
        if draw < 0.3:
            await self._end(self.other, signal.SIGKILL)
        elif draw < 0.4:
            await self._freeze()
        else:
            number = signal.SIGTERM if draw < 0.5 else signal.SIGKILL
            self.signals.up.clear()
            begun_s = monotonic()
            await self._end(self.service, number)
            self.service, self.other = self.other, self.service
            await self._up()
            self.taken_over_s.append(monotonic() - begun_s)
        self.other.start(*self._flags())

    async def _copied(self) -> None:
        """Wait until the other node stands by, but for one time in ten."""
        if self.dice.random() < 0.1:
            return
        while (await self.other.status(self.session)).get("role") != "standby":
            await self.other.running(0.05)

    async def _end(self, victim: Service, number: signal.Signals) -> None:
        victim.signal(number)
        leads = self.service
        if number is signal.SIGTERM:
            await victim.stopped()
        else:
            await victim.killed()
            self.counts["kills"] += 1
        self.service = victim
        await self._while_down("leader ended" if victim is leads else "standby killed", [])
        self.after_kill()
        self.service = leads

    async def _freeze(self) -> None:
        """The leader sleeps, is replaced, and wakes up as a standby."""
        self.signals.up.clear()
        self.service.signal(signal.SIGSTOP)
        begun_s = monotonic()
        self.service, self.other = self.other, self.service
        await self._up()
        self.taken_over_s.append(monotonic() - begun_s)
        await asyncio.sleep(max(FROZEN_S - (monotonic() - begun_s), 0))
        self.other.signal(signal.SIGCONT)
        self.counts["frozen"] += 1
        await self.other.running(1.0)
        await self._end(self.other, signal.SIGKILL)

    async def settle(self) -> None:
        self.other.signal(signal.SIGKILL)
        await self.other.killed()
        self.service.signal(signal.SIGTERM)
        await self.service.stopped()
        await super().settle()
