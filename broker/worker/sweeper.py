"""Shell: the worker's side of retention in the lake: examines ranges, removes what lies below the log start.

The order is the protocol. First the log start becomes durable in the table (KIP-405: others must see it even if this
leader fails next). DELETE_SEGMENT_STARTED comes before the commit that removes files, that commit before residue files
are deleted, and DELETE_SEGMENT_FINISHED is last. The table's log start counts, whoever moved it: so a deposed leader
removes only what is below it already, and its commit is fenced besides. The process may die between any two steps: the
next one finds the ranges in their last state and continues.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from broker.worker.copier import Copier
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.delta.tiered_extent import TieredExtent
from broker.worker.errors import StorageError
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.rpc import RetentionResult, Swept
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.expiration import (
    ExpirationDecision,
    HeldRange,
    Retention,
    decide,
    is_of_this_history,
)
from kafka_ds.topic.remote_log_segment import RemoteLogSegment, RemoteLogSegmentState

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class Sweeper:
    """Moves log starts in the tables, and removes what lies below. One thread."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        copier: Copier,
        crash_points: CrashPoints,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._copier = copier
        self._crash_points = crash_points

    def check_retention(
        self,
        partition: TopicIdPartition,
        retention: Retention,
        *,
        lineage: Sequence[tuple[int, int]],
        copied_offset: int,
        is_to_count: bool = False,
    ) -> RetentionResult:
        """The log start that retention asks for. In the lake only ranges up to `copied_offset` count: the rest is still
        among the local bytes. Raises StorageError, FateUnknown.
        """
        began = time.monotonic()
        key = partition.topic_id, partition.partition
        extent = self._storage.extent(partition)
        retention = replace(
            retention, log_start_offset=max(retention.log_start_offset, extent.log_start_offset)
        )
        is_deleting = self._metadata.is_deleting(*key)
        if not is_deleting and not is_to_count and _nothing_can_be_due(extent, retention):
            kept = ExpirationDecision(
                log_start_offset=retention.log_start_offset, oldest_ms=extent.oldest_ms
            )
            return RetentionResult(decision=kept, is_counted=False)
        segments = self._metadata.list_segments(*key)
        reach = min(copied_offset, extent.highest_offset_in_remote_storage)
        below = [each for each in segments if _may_go(each, extent.horizon)]
        return RetentionResult(
            decision=decide(
                held(
                    [each for each in segments if each.end_offset >= retention.log_start_offset],
                    lineage,
                    reach,
                ),
                retention,
            ),
            segments=len(segments),
            size_bytes=sum(each.size_bytes for each in segments if each.state is FINISHED),
            below=len(below),
            below_bytes=sum(each.size_bytes for each in below),
            has_files_below=extent.has_files_below,
            held_up=sum(
                each.state is DELETING and each.end_offset >= extent.horizon for each in segments
            ),
            milliseconds=round((time.monotonic() - began) * 1000),
        )

    def delete_topic(self, topic: str, topic_id: bytes) -> None:
        """Remove everything of a deleted topic; in the end every segment of it is marked deleted.

        Also attempts that never won. Raises StorageError, FateUnknown; then call it again.
        """
        going = self._metadata.list_topic(topic_id)
        self._begin_deletion([each for each in going if each.state is FINISHED])
        self._crash_points.at("after_topic_delete_started")
        self._storage.delete_topic(topic, topic_id)
        self._crash_points.at("after_topic_deleted")
        # This broker's own attempts, whose files are deleted with the topic: none can win any more.
        self._copier.recover()
        self._begin_deletion([each for each in going if each.state is STARTED])
        if going:
            self._metadata.update([replace(each, state=DELETED) for each in going])
        self._metadata.forget_topic(topic_id)

    def _begin_deletion(self, segments: Sequence[RemoteLogSegment]) -> None:
        if segments:
            self._metadata.update([replace(each, state=DELETING) for each in segments])

    def sweep(self, partition: TopicIdPartition, leader_epoch: int) -> Swept:
        """Remove what lies wholly below the table's log start. Raises StorageError, FateUnknown."""
        # An attempt of this broker with an unknown outcome may be among them.
        key = partition.topic_id, partition.partition
        failed = self._copier.recover()
        if key in failed:
            raise StorageError(failed[key][0])
        extent = self._storage.extent(partition)
        segments = self._metadata.list_segments(*key)
        self._give_up_lost(segments)
        going = [each for each in segments if _may_go(each, extent.horizon)]
        self._begin_deletion([each for each in going if each.state is FINISHED])
        self._crash_points.at("after_delete_started")
        files = self._storage.remove_below(
            partition, leader_epoch=leader_epoch, offset=extent.horizon
        )
        if going:
            self._metadata.update([replace(each, state=DELETED) for each in going])
        self._crash_points.at("after_delete_finished")
        return Swept(
            segments=len(going), size_bytes=sum(each.size_bytes for each in going), files=files
        )

    def _give_up_lost(self, segments: Sequence[RemoteLogSegment]) -> None:
        """Mark other brokers' attempts as deleted if another attempt holds one of their offsets.

        Each offset is in the table once, so they have not won and never will. Their broker may never come back to mark
        them; if it does, it marks them again. Done before winners are deleted: without them it cannot be shown.
        """
        own = {each.segment_id for each in self._metadata.unfinished()}
        winners = [each for each in segments if each.state in (FINISHED, DELETING)]
        lost = [
            each
            for each in segments
            if each.state is STARTED and each.segment_id not in own and _meets(each, winners)
        ]
        if lost:
            self._metadata.given_up(lost)


def held(
    segments: Sequence[RemoteLogSegment], lineage: Sequence[tuple[int, int]], reach: int
) -> list[HeldRange]:
    """The ranges up to an offset, by start offset.

    A range in the table that was never marked FINISHED, because its broker died and is not back yet, is known by its
    attempts: an attempt counts if nothing else holds its offsets.
    """
    found = [each for each in segments if each.state is FINISHED and each.end_offset <= reach]
    covered = sorted(found, key=lambda each: each.start_offset)
    for each in segments:
        if each.state is STARTED and each.end_offset <= reach and not _meets(each, covered):
            covered.append(each)
            covered.sort(key=lambda one: one.start_offset)
    return [
        HeldRange(
            start_offset=each.start_offset,
            end_offset=each.end_offset,
            size_bytes=each.size_bytes,
            newest_ms=each.max_timestamp_ms if each.max_timestamp_ms >= 0 else each.event_time_ms,
            is_ours=is_of_this_history(each.leader_epochs, lineage, each.end_offset),
        )
        for each in covered
    ]


def _meets(segment: RemoteLogSegment, others: Sequence[RemoteLogSegment]) -> bool:
    return any(
        each.start_offset <= segment.end_offset and segment.start_offset <= each.end_offset
        for each in others
    )


def _may_go(segment: RemoteLogSegment, horizon: int) -> bool:
    """Whether a range lies wholly below, and is not deleted yet.

    STARTED attempts are left to `Copier.recover`, other brokers' lost ones to `_give_up_lost`.
    """
    return segment.state in (FINISHED, DELETING) and segment.end_offset < horizon


def _nothing_can_be_due(extent: TieredExtent, retention: Retention) -> bool:
    """Whether the table alone shows that nothing is due: then the many events need not be read."""
    if extent.has_files_below or retention.retention_bytes >= 0:
        return False
    if retention.retention_ms < 0:
        return True
    horizon_ms = retention.now_ms - retention.retention_ms
    return extent.oldest_ms is not None and extent.oldest_ms > horizon_ms
