"""The port of the demo's service, the usual one if nobody has it; and what demos that were killed left."""

import contextlib
import os
import socket

from timerwheel.clock import SystemClock
from timerwheel.demo import service
from timerwheel.store.lock import DirectoryLock


def test_without_the_usual_port_the_service_chooses_one():
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another service of this machine may have it
            stack.enter_context(socket.create_server((service.HOST, service.USUAL_PORT)))
        assert service.free_port() == 0


def test_directories_of_demos_that_were_killed_go_and_all_others_stay(tmp_path):
    now_ms = SystemClock().now_ms()
    old_s = now_ms / 1000 - service.LEFT_MS_MIN / 1000 - 1

    def made(name, *parts):
        (tmp_path / name).mkdir()
        for part in parts:
            (tmp_path / name / part).mkdir()
        return tmp_path / name

    dead = made("timerwheel-demo-dead", "data")
    young = made("timerwheel-demo-young")
    running, of_before = made("timerwheel-demo-running"), made("timerwheel-demo-before", "data")
    other = made("timerwheel-data")
    file, link = tmp_path / "timerwheel-demo-file", tmp_path / "timerwheel-demo-link"
    file.touch()
    link.symlink_to(other)
    with (
        DirectoryLock(running, purpose="demo", now_text=""),
        DirectoryLock(of_before / "data", purpose="serve", now_text=""),
    ):
        for path in (dead, running, of_before, other, file):
            os.utime(path, (old_s, old_s))
        service.remove_leftovers(tmp_path, now_ms)
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in (young, running, of_before, other, file, link)
    }
