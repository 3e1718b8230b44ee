"""Shell: DescribeLogDirs 1-5: the partitions in the log directories, and the free room.

- Null topics mean all; partitions in a list that are not here are left out, as in Kafka.
- The answer has every directory, with the size of each partition in it, without what is in the lake. The lag of a
  replica is how far its log's end is behind its high watermark, which is 0 except for a follower that has just begun.
- A replica on the move is in both directories: in the new one as a future replica, whose lag is the number of offsets
  that are still to be copied (KIP-113).
- A failed directory has KAFKA_STORAGE_ERROR, and no partitions (KIP-113).
- The room is that of the whole file system (v4+), -1 if it is unknown.

Versions: 2 flexible; 3 an error of the whole answer; 4 room (KIP-827); 5 cordoned directories (KIP-1066).
"""

from __future__ import annotations

import os

from broker.log.log import Log
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from kafka_ds.protocol.messages.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_BYTES = -1

Topics = dict[str, list[DescribeLogDirsPartition]]


@serves(DescribeLogDirsRequest, versions="1-5")
def describe_log_dirs(
    request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """List the logs of each directory."""
    manager = context.broker.log_manager
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    by_directory: dict[str, Topics] = {path: {} for path in manager.directory_ids}

    def add(log: Log, lag: int, *, is_future: bool) -> None:
        topics = by_directory.get(os.path.dirname(log.directory))
        if topics is not None and (wanted is None or (log.topic, log.partition) in wanted):
            partition = DescribeLogDirsPartition(
                partition_index=log.partition,
                partition_size=log.size_bytes,
                offset_lag=lag,
                is_future_key=is_future,
            )
            topics.setdefault(log.topic, []).append(partition)

    for log in manager.logs():
        add(log, max(log.committed_offset - log.log_end_offset, 0), is_future=False)
    for future in manager.future_logs:
        add(future.log, context.broker.moves.lag(future), is_future=True)
    return DescribeLogDirsResponse(
        results=[
            _directory(path, by_directory[path], is_cordoned=path in manager.cordoned_log_dirs)
            if error is None
            else _failed(path)
            for path, error in manager.failures.items()
        ]
    )


def _directory(path: str, topics: Topics, *, is_cordoned: bool) -> DescribeLogDirsResult:
    total, usable = _room(path)
    return DescribeLogDirsResult(
        log_dir=os.path.abspath(path),
        topics=[
            DescribeLogDirsTopic(name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=is_cordoned,
    )


def _failed(path: str) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR,
        log_dir=os.path.abspath(path),
        topics=[],
        total_bytes=UNKNOWN_BYTES,
        usable_bytes=UNKNOWN_BYTES,
    )


def _room(path: str) -> tuple[int, int]:
    try:
        found = os.statvfs(path)
    except OSError:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
