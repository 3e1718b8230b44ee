"""The clocks of a log's writer, which a test moves."""


class ManualLogClock:
    """Begins some time after the machine did."""

    def __init__(self) -> None:
        self._ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self._ms

    def boot_ms(self) -> int:
        return self._ms

    def sleep(self, seconds: float) -> None:
        self.advance(int(seconds * 1000))

    def advance(self, ms: int) -> None:
        self._ms += ms
