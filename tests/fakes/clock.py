"""The clock of all tests that have none of the machine's, nor the simulation's."""

from __future__ import annotations


class ManualClock:
    """A clock that goes on only when a test moves `ms`, or by `sleep`: that of a broker, and of a table's writer."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self.ms = ms
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return self.ms

    monotonic_ms = wall_ms = boot_ms = now_ms

    def monotonic(self) -> float:
        """In seconds, as the module `time` has it."""
        return self.ms / 1000

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ms += int(seconds * 1000)
