"""Shell: completes committed decisions: a marker in each partition, then the completing record.

- A decision is never given up while its coordinator is led here: a partition that cannot take its marker is asked
  again, a deleted one needs none. Otherwise the next leader does it.
- What can be written at once is written before the answer goes out: the next transaction finds this one complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, TypeAlias

from broker.coordinator.runtime import CoordinatorContext
from broker.coordinator.transaction.marker_sender import (
    FENCED,
    MarkerOutcome,
    MarkerSender,
    TxnMarkerEntry,
    is_settled,
)
from broker.coordinator.transaction.shard import TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    WriteMarkers,
)
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)

MARKER_RETRY_SECONDS = 0.1
# After an internal error, which may repeat.
BEGIN_AGAIN_SECONDS = 1.0
# How many markers are written before other tasks get their turn.
MARKERS_AT_ONCE = 100

Context: TypeAlias = CoordinatorContext[TransactionCoordinatorShard]


class TransactionMarkerChannelManager:
    """Completes the decided transactions of all coordinators of this broker."""

    def __init__(self, markers: MarkerSender, crash_points: CrashPoints) -> None:
        self._markers = markers
        self._crash_points = crash_points
        self._tasks: set[asyncio.Task[None]] = set()
        # What decided transactions still need, for the metrics.
        self.markers_left = 0
        self.ends_left = 0

    def perform(self, context: Context, effect: WriteMarkers) -> None:
        """Write what can be written at once, and the rest in a task; after an error it starts again."""
        self._crash_points.at("after_prepare")
        try:
            self._write(context, effect.transaction)
        except Exception:
            self._begin_again(context, effect.transaction)
            raise

    def _write(self, context: Context, decided: TransactionMetadata) -> None:
        if not context.is_active:
            return
        marker = TxnMarkerEntry.of(decided, context.coordinator_epoch)
        listed = sorted(decided.partitions)
        outcomes = self._write_some(marker, listed[:MARKERS_AT_ONCE])
        left = listed[MARKERS_AT_ONCE:]
        if left or any(code is not ErrorCode.NONE for code in outcomes.values()):
            work = self._write_all(context, decided, marker, outcomes, left)
            self._begin(context, decided, work)
        else:
            self._complete(context, decided)

    def stop(self) -> None:
        """Write nothing more."""
        for task in tuple(self._tasks):
            task.cancel()

    def _begin(
        self, context: Context, decided: TransactionMetadata, work: Coroutine[Any, Any, None]
    ) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, context, decided))

    def _ended(
        self, context: Context, decided: TransactionMetadata, task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        where, error = context.partition.log.name, task.exception()
        _LOGGER.error(
            "%s: Unexpected error while performing an effect for %s",
            where, decided.transactional_id, exc_info=error,
        )  # fmt: skip
        self._begin_again(context, decided)

    def _begin_again(self, context: Context, decided: TransactionMetadata) -> None:
        """Only this broker completes it, until another one leads the coordinator's partition."""

        async def again() -> None:
            await asyncio.sleep(BEGIN_AGAIN_SECONDS)
            self._write(context, decided)

        if context.is_active:
            self._begin(context, decided, again())

    def _write_some(
        self, marker: TxnMarkerEntry, listed: Iterable[TopicPartition]
    ) -> dict[TopicPartition, MarkerOutcome]:
        outcomes: dict[TopicPartition, MarkerOutcome] = {}
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
        decided: TransactionMetadata,
        marker: TxnMarkerEntry,
        outcomes: dict[TopicPartition, MarkerOutcome],
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
                    # Another broker coordinates this: it has loaded the decision, and completes it.
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

    def _fenced(self, decided: TransactionMetadata, where: TopicPartition, code: ErrorCode) -> None:
        """A newer producer or coordinator has ended this there: nothing is left to do for this partition."""
        _LOGGER.warning(
            "Sending %s's transaction marker for partition %s has permanently failed with error %s",
            decided.transactional_id, where, code.name,
        )  # fmt: skip

    def _complete(
        self, context: Context, decided: TransactionMetadata, *, is_again: bool = False
    ) -> None:
        self._crash_points.at("after_markers")
        error = context.run(lambda shard, now_ms: shard.markers_written(decided, now_ms))
        if error is not None:
            if not is_again:
                _LOGGER.warning("%s cannot be completed yet: %s", decided.transactional_id, error)
            self._begin(context, decided, self._complete_later(context, decided))

    async def _complete_later(self, context: Context, decided: TransactionMetadata) -> None:
        self.ends_left += 1
        try:
            await asyncio.sleep(MARKER_RETRY_SECONDS)
        finally:
            self.ends_left -= 1
        self._complete(context, decided, is_again=True)
