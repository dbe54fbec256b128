"""The memory of a job's driver, as the benchmark of whole logs reads it."""

import os
import subprocess
import sys

from bench.scenarios.logs import peaks_kib


def test_the_peak_of_a_process_is_read_until_it_has_ended() -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        assert peaks_kib(process.pid)[process.pid] > 0
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has noticed
        assert peaks_kib(process.pid) == {}
