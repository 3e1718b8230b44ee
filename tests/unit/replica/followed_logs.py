"""Logs that lead and follow, without sockets: a leader answers a fetch from its log as Kafka's rules say."""

from __future__ import annotations

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.replica.follower.partition import FollowerPartition
from broker.replica.follower.state import FetchState, FollowerAction, FollowerState
from broker.replica.follower.truncation import NO_EPOCH
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.leader_epoch_end import LeaderEpochEnd
from kafka_ds.protocol.messages.data import FetchEpochEndOffset, FetchPartition, FetchPartitionData
from kafka_ds.records.batch import Record, build_batch
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.settings import log_settings

NOW_MS = 1_700_000_000_000
SMALL = log_settings(segment_bytes=600, index_interval_bytes=100)


def open_log(disk: MemoryDisk, folder: str = "/d/t-0", config: LogConfig = SMALL) -> Log:
    """A log in memory; with small segments, so that cuts meet their seams."""
    log = Log.open(folder, config, disk, ManualClock(), topic="t", partition=0, topic_id=b"t" * 16)
    log.update_high_watermark(0)
    return log


def append(log: Log, text: str, epoch: int, *, count: int = 1) -> None:
    """Append a batch as this epoch's leader."""
    log.assign_leader_epoch(epoch, log.log_end_offset)
    batch = build_batch([Record(i, NOW_MS, b"k", text.encode()) for i in range(count)])
    log.append(memoryview(bytearray(batch)), leader_epoch=epoch, now_ms=NOW_MS)


def content(log: Log, end: int | None = None) -> bytes:
    """The bytes of all batches below an offset."""
    upper = log.log_end_offset if end is None else end
    data, offset = bytearray(), log.local_log_start_offset
    while offset < upper:
        read = log.read(offset, max_bytes=1 << 20, upper_bound_offset=upper, min_one_batch=True)
        for part in read.slices:
            data += part.read()
        offset = read.upper_bound_offset
    return bytes(data)


def followed(log: Log, *, watermark: int = 0) -> FollowerPartition:
    """This log as a follower's."""
    return FollowerPartition(log, FollowerState(high_watermark=watermark))


def answer(log: Log, wanted: FetchPartition, *, watermark: int = 0) -> FetchPartitionData:
    """What the leader of this log says to a follower, at most one batch."""
    data = FetchPartitionData(
        partition_index=0,
        high_watermark=watermark,
        log_start_offset=log.log_start_offset,
        records=b"",
    )
    if wanted.last_fetched_epoch != NO_EPOCH:
        epoch, end = log.leader_epochs.end_offset_for(wanted.last_fetched_epoch, log.log_end_offset)
        if epoch == NO_EPOCH:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return data
        if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
            data.diverging_epoch = FetchEpochEndOffset(epoch=epoch, end_offset=end)
            return data
    if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
        data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        return data
    read = log.read(
        wanted.fetch_offset,
        max_bytes=1,
        upper_bound_offset=log.log_end_offset,
        min_one_batch=True,
    )
    data.records = bytearray(b"".join(part.read() for part in read.slices))
    return data


def step(partition: FollowerPartition, leader: Log, *, watermark: int = 0) -> bool:
    """One fetch, or one question for an epoch's end; False once there is nothing more to do."""
    follower = partition.follower
    if follower.state is FetchState.TRUNCATING:
        asked = follower.last_fetched_epoch
        if asked == NO_EPOCH:
            partition.truncate_to(partition.high_watermark)
            return True
        epoch, end = leader.leader_epochs.end_offset_for(asked, leader.log_end_offset)
        partition.truncate(LeaderEpochEnd(epoch=epoch, end_offset=end))
        return True
    data = answer(leader, partition.to_fetch_partition(1 << 20), watermark=watermark)
    diverging = data.diverging_epoch
    match follower.action_for(data.error_code, is_diverging=diverging is not None):
        case FollowerAction.APPEND:
            return bool(partition.append(data, follower.leader_epoch, NOW_MS))
        case FollowerAction.TRUNCATE:
            assert diverging is not None
            partition.truncate(
                LeaderEpochEnd(epoch=diverging.epoch, end_offset=diverging.end_offset)
            )
        case FollowerAction.OUT_OF_RANGE:
            partition.truncate_to(leader.log_end_offset)
        case verdict:
            raise AssertionError(f"nothing of the kind can happen: {verdict}")
    return True
