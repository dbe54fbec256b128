"""What holds for every layer."""

import gc
import os
import signal
from functools import cached_property
from typing import Any

import pytest
from hypothesis import settings

from tests.harness.scratch import MEMORY, has_room

# A worker has some hundred MB there at a time: what a test that passed has left is removed at once.
TEMPORARY_BYTES = 4 << 30
SPARK, KAFKA = "tests/spark/", "tests/e2e/kafka/"
TOGETHER = (SPARK, KAFKA)
"""Directories whose tests share what is slow to start, Spark or a broker: each is one piece of work."""

settings.register_profile("any machine", deadline=None)  # what is slow shows in the benchmark
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the processes of tests, and let `tmp_path` lie in memory.

    A shell starts what runs in its background with Ctrl-C ignored.

    Engines sync all the time: on a disk, most tests would spend most of their time waiting for it. That each
    sync is asked for, and in which order, is proven by tests that watch the calls or play the disk. The long
    runs stay on a real disk.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.markexpr != "torture" and has_room(TEMPORARY_BYTES):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest pieces of work, or one worker would end with them alone."""
    items.sort(key=lambda item: [not item.nodeid.startswith(place) for place in TOGETHER])


def pytest_collection() -> None:
    """Spare the garbage collector what is made now: it stays until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare it, from now on too, ten thousand tests with their modules."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: three workers more than processors, as most tests wait for a process or a broker."""
    return len(os.sched_getaffinity(0)) + 3


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, and all files of a directory in `TOGETHER` to the same one.

    The tests of Kafka mostly wait, for elections and time-outs, while other workers compute. Without such
    others, each worker gets a broker of its own, and they wait side by side.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only where it is in use

    class ByFile(LoadFileScheduling):
        @cached_property
        def _together(self) -> tuple[str, ...]:
            is_all = all("/kafka/" in nodeid for nodeid in self.collection)
            return (SPARK,) if is_all else TOGETHER

        def _split_scope(self, nodeid: str) -> str:
            together = (place for place in self._together if nodeid.startswith(place))
            return next(together, None) or super()._split_scope(nodeid)

    return ByFile(config, log)
