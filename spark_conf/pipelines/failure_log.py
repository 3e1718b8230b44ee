"""Shell: logs failures that may stay for days: when one begins or changes, each hour, and when it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from spark_conf.reasons import reason

LOGGER: Final = logging.getLogger("kafka_ds.pipelines")
REPEATED_S: Final = 3600.0


class FailureLog:
    """The failures that are logged, by what fails."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, tuple[str, float]] = {}

    def failed(self, what: str, problem: Exception) -> None:
        why, now = reason(problem), self._clock()
        last, logged_at = self._logged.get(what, (None, now))
        if last != why or now - logged_at >= REPEATED_S:
            self._logged[what] = why, now
            LOGGER.error("%s cannot be updated: %s", what, why)

    def succeeded(self, what: str) -> None:
        if self._logged.pop(what, None) is not None:
            LOGGER.info("%s can be updated again", what)
