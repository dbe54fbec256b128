"""The loop with a node in front of shards: the process of one shard is killed, or the whole node."""

import asyncio
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import Any

import orjson

from tests.harness.processes import COMMAND, environment
from tests.torture.killing import Loop
from timerwheel.offline.fsck import FsckReport, fsck
from timerwheel.state.log_manifest import shards_in

SHARDS = 3
BACK_S_MAX = 60.0


@dataclass
class ShardsLoop(Loop):
    """`service` is the node. Clients go on while a shard is away; three kills of four are of one shard.

    `after_kill` is called when a node and its shards are gone.
    """

    def _flags(self) -> list[object]:
        return [*super()._flags(), "--shards", SHARDS]

    async def _round(self) -> None:
        if not self.counts["nodes started"] or self.dice.random() < 0.25:
            if self.counts["nodes started"]:
                self.signals.up.clear()
                self.service.signal(signal.SIGKILL)
                await self.service.killed()
                await self._free()
                self.after_kill()
                self.counts["kills"] += 1
                await self._while_down("node killed", [])
            self.service.start(*self._flags())
            self.counts["nodes started"] += 1
            await self._up()
        await self._read_again()
        await self.service.running(self.dice.uniform(0.02, self.plan.up_s_max))
        victim = self.dice.randrange(SHARDS)
        pid = self._pid_of(victim)
        os.kill(pid, signal.SIGKILL)
        self.counts["kills"] += 1
        self.counts[f"shard {victim} killed"] += 1
        self.told(f"{self.counts['kills']:4} shard {victim} killed; {len(self.books.entries)} sent")
        await self.service.running(self.dice.uniform(0.0, 0.5))
        await self._all_back(victim, pid)
        for sender in self.senders:
            sender.begin_round()

    async def settle(self) -> None:
        """Stop the node, which still runs, and go on as with any service."""
        self.signals.up.clear()
        await self._stop("after the last kill")
        await super().settle()

    def _pid_of(self, shard: int) -> int:
        """The process of a shard, 0 while it writes that down."""
        raw = (self.service.data / f"shard-{shard}" / "lock").read_bytes()
        pid: int = orjson.loads(raw)["pid"] if raw else 0
        return pid

    async def _all_back(self, victim: int, killed: int) -> None:
        async with asyncio.timeout(BACK_S_MAX):
            while self._pid_of(victim) in (killed, 0):
                await self.service.running(0.02)
            while True:
                try:
                    async with self.session.get(f"{self.service.url}/readyz?for=send") as answer:
                        if answer.status == 200:
                            return
                except OSError:
                    pass
                await self.service.running(0.02)

    async def _free(self) -> None:
        """Wait until the shards of a killed node have stopped."""
        async with asyncio.timeout(BACK_S_MAX):
            while any(_runs(self._pid_of(shard) or os.getpid()) for shard in range(SHARDS)):
                await asyncio.sleep(0.02)

    async def _fsck(self, when: str) -> FsckReport | None:
        report = None
        for data in shards_in(self.service.data):
            report = await asyncio.to_thread(fsck, data)
            if not report.ok:
                self.books.wrong(f"fsck of {data.name} {when}: {report.findings[:5]}")
        return report

    def _fsck_command(self) -> dict[str, Any]:
        report: dict[str, Any] = {}
        for data in shards_in(self.service.data):
            command = [*COMMAND, "fsck", "--data", str(data), "--json"]
            done = subprocess.run(command, capture_output=True, env=environment(), timeout=60, check=False)
            report = orjson.loads(done.stdout)
            if not report["ok"]:
                break
        return report


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
