"""The cost of a load: wall time, and CPU time of the system's processes."""

import time

from bench.peers.system import System


class Cost:
    """Wall time and the system's CPU time since `begin`.

    CPU time depends less on other load of the machine.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self.begin()

    def begin(self) -> None:
        """Start counting."""
        self._began = time.perf_counter()
        self._cpu_s = self._system.usage().cpu_s

    @property
    def took_s(self) -> float:
        """Seconds since `begin`."""
        return time.perf_counter() - self._began

    def cpu_us(self, messages: int) -> float:
        """CPU time of all its processes per message."""
        return (self._system.usage().cpu_s - self._cpu_s) * 1e6 / max(messages, 1)

    def figures(self, messages: int) -> dict[str, float]:
        """The figures for this many messages since `begin`."""
        took_s = self.took_s
        return {"messages_per_s": messages / took_s, "service_cpu_us_per_message": self.cpu_us(messages)}
