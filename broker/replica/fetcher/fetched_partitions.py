"""Shell: the partitions of one fetcher, and what holds one of them back.

An error holds back its partition alone, and is logged when it begins and ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from broker.replica.fetcher.context import FetcherContext
from broker.replica.follower.partition import FollowerPartition
from broker.replica.follower.state import FetchPosition
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)


class FetchedPartitions:
    """In the order in which they are asked for; `changed` is set when one may be due earlier than before."""

    def __init__(self, context: FetcherContext, failed: set[TopicPartition]) -> None:
        """`failed` is the broker's: partitions that cannot be followed until metadata change."""
        self._context = context
        self._failed = failed
        self._partitions: dict[TopicPartition, FollowerPartition] = {}
        # Added since the last round.
        self.unchecked: dict[FollowerPartition, None] = {}
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[FollowerPartition]:
        return iter(self._partitions.values())

    def add(self, partition: FollowerPartition) -> None:
        """Fetch this one, too."""
        self._partitions[partition.key] = partition
        self.unchecked[partition] = None

    def remove(self, partition: FollowerPartition) -> None:
        """Stop fetching this one."""
        self.unchecked.pop(partition, None)
        if self._has(partition):
            del self._partitions[partition.key]

    def clear(self) -> None:
        """Stop fetching all."""
        self._partitions.clear()

    def put_last(self, partition: FollowerPartition) -> None:
        """Move these to the front: they got nothing for longer."""
        self._partitions[partition.key] = self._partitions.pop(partition.key)

    def _has(self, partition: FollowerPartition) -> bool:
        return self._partitions.get(partition.key) is partition

    def is_current(self, partition: FollowerPartition, position: FetchPosition) -> bool:
        """Whether an answer to this fetch is still relevant."""
        is_followed = self._has(partition) and not partition.is_lost
        return is_followed and partition.follower.is_current(position)

    # -- errors -------------------------------------------------------------------------------

    def hold_back(
        self, partition: FollowerPartition, error_code: int = ErrorCode.UNKNOWN_SERVER_ERROR
    ) -> None:
        """Hold the partition back for a while after this answer, unless another fetcher has it by now."""
        if not self._has(partition):
            return
        now_ms = self._context.clock.monotonic_ms()
        longest_ms = max(self._context.settings.replica_fetch_backoff_ms, 1)
        partition.follower.delay(now_ms + partition.follower.backoff_ms(error_code, longest_ms))
        # It may be due sooner than what is waited for.
        self.changed.set()

    def go_on(self, partition: FollowerPartition) -> None:
        """Fetch it again at once."""
        partition.follower.retry()
        self.changed.set()

    def guard(self, partition: FollowerPartition) -> _Guard:
        """Confines an error to one partition."""
        return _Guard(self, partition)

    def failed(self, partition: FollowerPartition, error: Exception) -> bool:
        """Hold a partition back for its error, or give it up; False if the error is the connection's."""
        if isinstance(error, PeerUnreachable):
            return False
        is_fenced = isinstance(error, KafkaError) and error.code is ErrorCode.FENCED_LEADER_EPOCH
        if not isinstance(error, KafkaError | OSError):
            _LOGGER.error("%s: unexpected error while fetching", partition.key, exc_info=error)
            self.give_up(partition, str(error))
        elif is_fenced or partition.log.storage_error is not None:
            self.give_up(partition, str(error))
        else:
            # Usually damage in transit or a full disk: the same bytes are fetched again.
            self.log_trouble(partition, logging.ERROR, str(error))
            self.hold_back(partition)
        return True

    def log_trouble(self, partition: FollowerPartition, level: int, what: str) -> None:
        """Log what holds a partition back, once, however often it is tried."""
        if partition.set_error(level, what):
            _LOGGER.log(level, "Error for partition %s: %s", partition.key, what)

    def log_recovery(self, partition: FollowerPartition) -> None:
        """What held the partition back is over."""
        trouble = partition.recovered()
        if trouble is not None:
            level, what = trouble
            if level >= logging.ERROR:
                _LOGGER.info("%s: fetching again after the error: %s", partition.key, what)

    def give_up(self, partition: FollowerPartition, why: str) -> None:
        """Stop fetching the partition until its metadata change."""
        if not self._has(partition):
            return
        _LOGGER.error("Partition %s marked as failed: %s", partition.key, why)
        partition.follower.fail()
        self.remove(partition)
        self._failed.add(partition.key)


class _Guard:
    """An error inside concerns one partition, unless the connection is lost."""

    __slots__ = ("_partition", "_partitions")

    def __init__(self, partitions: FetchedPartitions, partition: FollowerPartition) -> None:
        self._partitions = partitions
        self._partition = partition

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, Exception) and self._partitions.failed(self._partition, error)
