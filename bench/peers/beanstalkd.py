"""beanstalkd: a work queue in one C process, with delayed jobs and a binlog."""

import shutil
import subprocess
from pathlib import Path

from bench.peers.system import HOST, System, answers, free_port

JOB_BYTES_MAX = 1 << 20


class Beanstalkd(System):
    """One process with a binlog, synced at most once every `fsync_ms`; 0 means after each write.

    It syncs only during a write: with 50 ms the last writes before a pause stay unsynced for the whole pause.
    """

    wire = work_wire = "beanstalk"
    absolute_dues = False  # delays are whole seconds from the put

    def __init__(self, directory: Path, fsync_ms: int = 0) -> None:
        super().__init__(directory)
        self.name = f"beanstalkd -f {fsync_ms}"
        self.settings = {
            "-f": str(fsync_ms),
            "-z": str(JOB_BYTES_MAX),
            "binlog": "files of 10 MiB, the default",
            "in consume": "reserve and delete; only the delete is written to the binlog",
        }
        self.port = free_port()

    @classmethod
    def missing(cls) -> str | None:
        """See `System`."""
        return None if shutil.which("beanstalkd") else "apt-get install -y beanstalkd"

    def version(self) -> str:
        """The version of the binary."""
        said = subprocess.run(["beanstalkd", "-v"], capture_output=True, text=True, check=True).stdout
        return said.removeprefix("beanstalkd").strip()

    async def start(self) -> float:
        """Wait until it answers, after reading its binlog."""
        binlog = self.directory / "binlog"
        binlog.mkdir(parents=True, exist_ok=True)
        flags = ["-b", str(binlog), "-f", self.settings["-f"], "-z", self.settings["-z"]]
        self.launch(["beanstalkd", "-l", HOST, "-p", str(self.port), *flags])
        return await self.ready(lambda: answers(self.port, b"list-tube-used\r\n", b"USING default"))
