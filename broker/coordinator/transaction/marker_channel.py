"""Shell: what follows a committed decision: a marker into each partition, then the record that completes it.

- Markers that can be written at once are written before the answer goes out: so the next transaction of the same
  producer finds this one complete and need not ask twice. The others, for partitions led elsewhere, are retried until
  they are done: a decision is never given up while its coordinator is led here.
- Once it is not, the next leader of the coordinator's partition finds the decision and does this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeAlias

from broker.coordinator.runtime import CoordinatorContext
from broker.coordinator.transaction.markers import FENCED, Marker, MarkerSender, is_settled
from broker.coordinator.transaction.shard import TransactionShard
from broker.coordinator.transaction.values import Transaction, WriteMarkers
from broker.crash_points import CrashPoints
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)

MARKER_RETRY_SECONDS = 0.1
# How many markers are written before others get their turn.
MARKERS_AT_ONCE = 100

Outcome: TypeAlias = ErrorCode | Awaitable[ErrorCode]
Context: TypeAlias = CoordinatorContext[TransactionShard]


class TransactionMarkerChannel:
    """Completes the decided transactions of all coordinators of this broker."""

    def __init__(self, markers: MarkerSender, crash_points: CrashPoints) -> None:
        self._markers = markers
        self._crash_points = crash_points
        self._tasks: set[asyncio.Task[None]] = set()
        # What decided transactions still want, for the metrics.
        self.markers_left = 0
        self.ends_left = 0

    def perform(self, context: Context, effect: WriteMarkers) -> None:
        """Write what can be written at once, and go on with the rest in a task."""
        self._crash_points.at("after_prepare")
        if not context.is_active:
            return
        decided = effect.transaction
        marker = Marker.of(decided, context.coordinator_epoch)
        listed = sorted(decided.partitions)
        outcomes = self._write_some(marker, listed[:MARKERS_AT_ONCE])
        left = listed[MARKERS_AT_ONCE:]
        if left or any(code is not ErrorCode.NONE for code in outcomes.values()):
            self._begin(self._write_all(context, decided, marker, outcomes, left))
        else:
            self._complete(context, decided)

    def stop(self) -> None:
        """Write nothing more."""
        for task in tuple(self._tasks):
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOGGER.error("transaction markers: internal error", exc_info=task.exception())

    def _write_some(
        self, marker: Marker, listed: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Outcome]:
        outcomes: dict[TopicPartition, Outcome] = {}
        for where in listed:
            outcome = self._markers.write(marker, where)
            if not isinstance(outcome, ErrorCode):
                outcome = asyncio.ensure_future(outcome)
            outcomes[where] = outcome
            self._crash_points.at("after_marker")
        return outcomes

    async def _write_all(
        self,
        context: Context,
        decided: Transaction,
        marker: Marker,
        outcomes: dict[TopicPartition, Outcome],
        left: list[TopicPartition],
    ) -> None:
        """Ask every partition until it has its marker; then the transaction is complete."""
        while True:
            await asyncio.sleep(0)
            while left and context.is_active:
                outcomes |= self._write_some(marker, left[:MARKERS_AT_ONCE])
                left = left[MARKERS_AT_ONCE:]
                await asyncio.sleep(0)
            for where, outcome in outcomes.items():
                code = outcome if isinstance(outcome, ErrorCode) else await outcome
                if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    # Another broker coordinates this: it has found the decision, and completes it.
                    self._fenced(decided, where, code)
                    return
                if code in FENCED:
                    self._fenced(decided, where, code)
                elif not is_settled(code):
                    left.append(where)
            if not left or not context.is_active:
                break
            outcomes = {}
            await self._wait_with(left)
        self._complete(context, decided)

    async def _wait_with(self, left: list[TopicPartition]) -> None:
        self.markers_left += len(left)
        try:
            await asyncio.sleep(MARKER_RETRY_SECONDS)
        finally:
            self.markers_left -= len(left)

    def _fenced(self, decided: Transaction, where: TopicPartition, code: ErrorCode) -> None:
        """A newer producer or coordinator has ended this there: nothing is left to do for this partition."""
        _LOGGER.warning("%s in %s-%d: %s", decided.transactional_id, *where, code.name)

    def _complete(self, context: Context, decided: Transaction, *, is_again: bool = False) -> None:
        self._crash_points.at("after_markers")
        error = context.run(lambda shard, now_ms: shard.markers_written(decided, now_ms))
        if error is not None:
            if not is_again:
                _LOGGER.warning("%s cannot be completed yet: %s", decided.transactional_id, error)
            self._begin(self._complete_later(context, decided))

    async def _complete_later(self, context: Context, decided: Transaction) -> None:
        self.ends_left += 1
        try:
            await asyncio.sleep(MARKER_RETRY_SECONDS)
        finally:
            self.ends_left -= 1
        self._complete(context, decided, is_again=True)
