"""Shell: logs why clients' connections are closed: of each address and reason one line a minute, with a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from kafka_ds.process.amounts import counted

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
# Addresses and reasons that are remembered; with more the oldest is forgotten.
REASONS_MAX: Final = 1_000


class RefusalLog:
    """What was logged lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._logged)

    def closing(self, host: str, peer: str, why: str) -> None:
        """A connection is being closed."""
        now, key = self._clock(), (host, why)
        logged_at, more = self._logged.get(key, (now - INTERVAL_S, 0))
        if now - logged_at < INTERVAL_S:
            self._logged[key] = logged_at, more + 1
            return
        # In the order of the times they were logged.
        self._logged.pop(key, None)
        if len(self._logged) >= REASONS_MAX:
            self._forget_oldest()
        self._logged[key] = now, 0
        before = f" (and {counted(more, 'connection')} of this address before)" if more else ""
        log.info("closing %s: %s%s", peer, why, before)

    def _forget_oldest(self) -> None:
        host, why = oldest = next(iter(self._logged))
        _, more = self._logged.pop(oldest)
        if more:
            log.info("closed %s of %s: %s", counted(more, "more connection"), host, why)
