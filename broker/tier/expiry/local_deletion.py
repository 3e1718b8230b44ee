"""Shell: local segments whose records are in the lake may go, `lake.local.grace.ms` after they got there.

Rules of this file: on a leader, a log's `highest_offset_in_remote_storage` moves here and nowhere else: after
COPY_SEGMENT_FINISHED is durable (KIP-405) and the grace time is over. The log's own retention then decides what goes.
One timer serves all partitions. A log that cannot delete now (a full disk has no room for its new segment) is one
partition's trouble: others, and the copy that told of it, go on. Its retention tries again.
"""

import asyncio
import logging
from collections.abc import Mapping

from broker.log.log import Log
from broker.seams import Clock
from broker.tier.copying.partitions import Key, Led
from broker.tier.copying.policy import CopyState
from kafka_ds.wire.errors import KafkaError

_LOGGER = logging.getLogger(__name__)


class LocalDeletion:
    """Tells the led logs which of their records are safe in the lake."""

    def __init__(self, clock: Clock, led: Mapping[Key, Led], *, grace_ms: int) -> None:
        self._clock = clock
        self._led = led
        self._grace_ms = grace_ms
        self._timer: asyncio.TimerHandle | None = None

    def advanced(self, led: Led) -> None:
        """More of a partition is FINISHED."""
        self._let_go(led)
        if self._timer is None:
            self._schedule()

    def stop(self) -> None:
        """Stop telling logs."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        """Set the timer to the first end of a grace time."""
        times = [led.state.next_deletable_ms(self._grace_ms) for led in self._led.values()]
        known = [at_ms for at_ms in times if at_ms is not None]
        if known:
            # Grouped: what ends its grace within the same second goes together.
            delay_ms = max(0, min(known) - self._clock.monotonic_ms()) + min(1_000, self._grace_ms)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._let_all_go)

    def _let_all_go(self) -> None:
        self._timer = None
        for led in list(self._led.values()):
            self._let_go(led)
        self._schedule()

    def _let_go(self, led: Led) -> None:
        """Let the log delete, by its local retention, what was FINISHED long enough ago."""
        let_go(led.log, led.state, self._clock, grace_ms=self._grace_ms)


def let_go(log: Log, state: CopyState, clock: Clock, *, grace_ms: int) -> None:
    """Have a log, of a leader or a follower, delete what was in the lake long enough ago; what fails is logged."""
    offset = state.deletable_offset(clock.monotonic_ms(), grace_ms)
    if offset > log.highest_offset_in_remote_storage:
        log.highest_offset_in_remote_storage = offset
        try:
            log.delete_local_segments(clock.now_ms())
        except (OSError, KafkaError) as error:
            _LOGGER.error("%s keeps what is in the lake for now: %s", log.name, error)
