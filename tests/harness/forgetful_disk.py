"""A file system that forgets at a power cut what nobody synced: one flat directory, served by FUSE.

What a process writes is held in memory. `fsync` and `fdatasync` of a file bring its bytes to the *platter*,
an ordinary directory; `fsync` of the directory brings its names there. A power cut is the end of the serving
process: the next one begins with what the platter has, and all else is gone. A name that was synced before
its file's bytes leads to an empty file, as POSIX allows.

Needs /dev/fuse, the right to mount, and libfuse (Debian, Ubuntu: `apt-get install fuse3 libfuse2`).
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

READY_S_MAX = 60.0


class ForgetfulDisk:
    """A mounted directory, and the process that serves it."""

    def __init__(self, mount: Path, platter: Path) -> None:
        self.mount = mount
        self.platter = platter
        self.cuts = 0
        self._serving: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ForgetfulDisk":
        self.mount.mkdir(parents=True, exist_ok=True)
        self.platter.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve what the platter has; returns once it is mounted."""
        command = [
            sys.executable,
            "-m",
            "tests.harness.forgetful_serving",
            str(self.mount),
            str(self.platter),
        ]
        self._serving = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        deadline = time.monotonic() + READY_S_MAX
        while not self.mount.is_mount():
            assert self._serving.poll() is None, "the file system did not start"
            assert time.monotonic() < deadline, "the file system is not mounted"
            time.sleep(0.01)

    def stop(self) -> None:
        """End the serving process at once, whatever it holds, and unmount."""
        assert self._serving is not None
        self._serving.send_signal(signal.SIGKILL)
        self._serving.wait()
        subprocess.run(["fusermount3", "-u", "-z", str(self.mount)], check=True, capture_output=True)

    def power_cut(self) -> None:
        """Forget what was not synced. Processes with open files must have ended before."""
        self.stop()
        self.start()
        self.cuts += 1


def why_missing() -> str | None:
    """Why no such disk can be had here; None if it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "there is no /dev/fuse"
    try:
        import mfusepy  # noqa: F401, PLC0415 - looks for libfuse when it is imported
    except (ImportError, OSError) as error:
        return f"FUSE cannot be used: {error}"
    tried = subprocess.run(["fusermount3", "-V"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "fusermount3 is missing"
