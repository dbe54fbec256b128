"""What the models of an engine that Hypothesis drives have in common: its loop, files and crashes."""

import asyncio
import logging
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

from tests.harness.clock import ManualClock
from tests.harness.crashes import ALL_FATES
from tests.harness.drive import small_settings
from tests.harness.faulty import FaultyFiles
from tests.harness.scratch import scratch_root
from timerwheel.engine import Engine


class EngineMachine(RuleBasedStateMachine):
    """A state machine with an engine on its own loop, clock and faulty files."""

    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("timerwheel").setLevel(logging.CRITICAL)
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="timerwheel-model-", dir=scratch_root()))
        self.clock = ManualClock()
        self.files = FaultyFiles()

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def open_engine(self, **limits) -> None:
        config = small_settings(self.directory, **limits)
        self.engine = self.run(Engine.open(config, self.clock, self.files, threads=False))

    def crash(self, seed: int, index: str = "kept") -> None:
        """Crash the engine; its index is then kept, lost, garbage, or as it was before the first crash."""
        at, older = self.directory / "index", self.directory / "older"
        if not older.exists():
            shutil.copytree(at, older)
        self.run(self.engine.abandon())
        self.files = self.files.after_crash(random.Random(seed))
        if index == "older":
            shutil.rmtree(at)
            older.rename(at)
        elif index == "lost":
            shutil.rmtree(at)
        elif index == "garbage":
            (at / "data.mdb").write_bytes(b"\x5a" * 8192)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.run(self.engine.close())
        self.loop.close()
        shutil.rmtree(self.directory)
        logging.getLogger("timerwheel").setLevel(logging.NOTSET)


def thorough(examples: int) -> settings:
    """Settings for so many runs of a machine in `make torture`, two in five of them in `make test`.

    Each has 40 steps, however slow.
    """
    return settings(
        max_examples=examples if ALL_FATES else 2 * examples // 5,
        stateful_step_count=40,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
