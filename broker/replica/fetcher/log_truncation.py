"""Shell: truncates a follower's log to what its leader has, or restarts it at another offset.

- A response counts only if the partition is still followed, at the offset and leader epoch of the request.
- After a truncation nothing is appended until the lowered recovery point is written. A new leader may have hundreds of
  logs truncated at once, so one write covers all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from broker.log.values import RemoteLogAuxState
from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.fetched_partitions import FetchedPartitions
from broker.replica.fetcher.leader_end_point import LeaderEndPoint
from broker.replica.fetcher.requests import epoch_request
from broker.replica.follower.partition import FollowerPartition
from broker.replica.follower.state import FetchPosition
from broker.replica.follower.truncation import NO_EPOCH, OutOfRangeAction, out_of_range_action
from kafka_ds.protocol.errors import check_code
from kafka_ds.protocol.leader_epoch_end import LeaderEpochEnd
from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)


class LogTruncation:
    """The positions of the partitions of one fetcher."""

    def __init__(
        self, leader: LeaderEndPoint, partitions: FetchedPartitions, context: FetcherContext
    ) -> None:
        self._leader = leader
        self._partitions = partitions
        self._context = context

    async def truncate(self, partition: FollowerPartition, truncate: Callable[[], None]) -> None:
        """Truncate a log; its recovery point on disk is lowered before anything is appended. Raises OSError."""
        self.truncate_now(partition, truncate)
        if partition.is_truncation_unwritten:
            await self.write_truncations([partition])

    def truncate_now(self, partition: FollowerPartition, truncate: Callable[[], None]) -> None:
        """Truncate a log; if its recovery point or its start has to change on disk, `write_truncations` must follow."""
        log = partition.log
        before, committed = log.log_end_offset, partition.high_watermark
        recovery_point, start = log.recovery_point, log.log_start_offset
        try:
            truncate()
        finally:  # The disk may have refused the rest of it.
            if log.recovery_point < recovery_point or log.log_start_offset < start:
                partition.truncation_begun()
        if log.log_end_offset != before:
            # Only an unclean election can truncate below a known high watermark.
            is_committed = log.log_end_offset < committed
            _LOGGER.log(
                logging.WARNING if is_committed else logging.INFO,
                "%s: Truncating to offset %d%s: the log ended at %d and begins at %d now; "
                "following broker %d in epoch %d",
                log.name, log.log_end_offset,
                f" below high watermark {committed}" if is_committed else "",
                before, log.log_start_offset, self._leader.broker_id, partition.follower.leader_epoch,
            )  # fmt: skip

    async def write_truncations(self, partitions: list[FollowerPartition]) -> None:
        """Write the lowered recovery points. Raises OSError; until that has worked the partitions accept nothing.

        A failing directory does not make the logs of others wait.
        """
        by_directory: dict[str, list[FollowerPartition]] = {}
        for partition in partitions:
            home = partition.log.directory.rpartition("/")[0]
            by_directory.setdefault(home, []).append(partition)
        writes = [
            asyncio.ensure_future(self._write_truncations(each)) for each in by_directory.values()
        ]
        for outcome in await asyncio.shield(asyncio.gather(*writes, return_exceptions=True)):
            if outcome is not None:
                raise outcome

    async def _write_truncations(self, partitions: list[FollowerPartition]) -> None:
        """The same for logs of one directory."""
        truncations = [(partition, partition.truncations) for partition in partitions]
        await self._context.logs.checkpoint_recovery_points(partitions[0].log.directory)
        for partition, known in truncations:
            partition.truncations_written(known)

    async def truncate_first(self, partitions: list[FollowerPartition]) -> None:
        """Ask where epochs end, and truncate there; a log without epochs is truncated to its high watermark."""
        fetched = self._partitions
        requested: dict[TopicPartition, tuple[FollowerPartition, FetchPosition]] = {}
        for partition in partitions:
            if not fetched.is_current(partition, partition.follower.fetch_position):
                continue
            if partition.follower.last_fetched_epoch != NO_EPOCH:
                requested[partition.key] = partition, partition.follower.fetch_position
                continue
            with fetched.guard(partition):
                await self.truncate(
                    partition, partial(partition.truncate_to, partition.high_watermark)
                )
        if not requested:
            return
        response = await self._leader.send(
            epoch_request([p for p, _ in requested.values()], self._context.node_id)
        )
        for topic in response.topics:
            for end in topic.partitions:
                found = requested.get(TopicPartition(topic.topic, end.partition))
                if found is None or not fetched.is_current(*found):
                    continue
                with fetched.guard(found[0]):
                    check_code(end.error_code)
                    leader = LeaderEpochEnd(epoch=end.leader_epoch, end_offset=end.end_offset)
                    await self.truncate(found[0], partial(found[0].truncate, leader))

    async def find(self, partition: FollowerPartition, position: FetchPosition) -> None:
        """The leader does not have the offset: truncate to its end, or restart at its start."""
        end, _ = await self._leader.fetch_offset(partition, LATEST)
        start, epoch = end, NO_EPOCH
        if end >= position.fetch_offset:
            start, epoch = await self._leader.fetch_offset(partition, EARLIEST)
        if not self._partitions.is_current(partition, position):
            return
        epochs = ((epoch, start),) if epoch > NO_EPOCH else ()
        match out_of_range_action(
            log_end_offset=position.fetch_offset, leader_end_offset=end, leader_start_offset=start
        ):
            case OutOfRangeAction.TRUNCATE:
                await self.truncate(partition, partial(partition.truncate_to, end))
            case OutOfRangeAction.RESTART:
                aux_state = RemoteLogAuxState(leader_epochs=epochs)
                await self.truncate(partition, partial(partition.restart_at, start, aux_state))
            case OutOfRangeAction.GO_ON:
                self._partitions.hold_back(partition)
