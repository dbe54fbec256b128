"""What a load costs a system: time on the clock, and CPU time of its processes."""

import time

from bench.peers.system import System


class Cost:
    """Wall time and the system's CPU time since `begin`.

    CPU time depends less on what else the machine does.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._began = time.perf_counter()
        self._cpu_s = self._system.usage().cpu_s

    @property
    def took_s(self) -> float:
        """Seconds since `begin`."""
        return time.perf_counter() - self._began

    def cpu_us(self, messages: int) -> float:
        """CPU time of all its processes for each of so many messages."""
        return (self._system.usage().cpu_s - self._cpu_s) * 1e6 / max(messages, 1)

    def figures(self, messages: int) -> dict[str, float]:
        """What so many messages were, from `begin` until now."""
        took_s = self.took_s
        return {"messages_per_s": messages / took_s, "service_cpu_us_per_message": self.cpu_us(messages)}
