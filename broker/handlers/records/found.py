"""Shell: what a Fetch request finds in one partition before anything is read, and who asks.

Rules of this file: values and what follows from them. `reading` fills them in.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.cluster.events import NO_BROKER_EPOCH
from broker.log.values import LogRead
from broker.replica.follower.followed import FollowedPartition
from broker.replica.leader.hosted import HostedPartition
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages import FetchRequest
from kafka_ds.wire.messages.data import FetchEpochEndOffset, FetchPartition, FetchPartitionData

NO_RECORDS = b""

Replica = HostedPartition | FollowedPartition


class Found:
    """What there is for one partition of the request."""

    __slots__ = (
        "changes",
        "cold_bytes",
        "data",
        "is_shed",
        "is_throttled",
        "is_urgent",
        "look_again",
        "part",
        "partition",
        "wanted",
    )

    def __init__(self, wanted: FetchPartition, data: FetchPartitionData) -> None:
        self.wanted = wanted
        self.data = data
        self.partition: Replica | None = None
        self.part: LogRead | None = None
        # How much to read from the lake, or from parts of the disk that must be waited for; 0 where nothing.
        self.cold_bytes = 0
        # Finds the part in a thread, where the disk is needed even for that.
        self.look_again: Callable[[], LogRead] | None = None
        # Whether waiting for more would be wrong: an error, a divergence, more behind than fits.
        self.is_urgent = False
        # Whether what is given of it counts for the leader's throttle.
        self.is_throttled = False
        # Whether it lies in the lake, of which too much was read lately (KIP-956).
        self.is_shed = False
        # `HostedPartition.changes` at the look, if one like it would find the same until something happens there.
        self.changes: int | None = None

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing, and will be nothing until the partition advances."""
        return not (
            self.is_urgent or self.is_throttled or self.is_shed or self.part or self.cold_bytes
        )

    @property
    def at_rest(self) -> HostedPartition | None:
        """The partition, if there is nothing, and nothing has happened since the look."""
        partition = self.partition
        if self.changes is None or not isinstance(partition, HostedPartition):
            return None
        return partition if partition.changes == self.changes else None

    @property
    def size_bytes(self) -> int:
        """Bytes of records that are found."""
        return self.part.size_bytes if self.part is not None else self.cold_bytes


def nothing(index: int, code: ErrorCode = ErrorCode.NONE) -> FetchPartitionData:
    """An answer without records; the high watermark is not known, as with every error of Kafka's."""
    return FetchPartitionData(
        partition_index=index, error_code=code, high_watermark=-1, records=NO_RECORDS
    )


def replica_of(request: FetchRequest) -> tuple[int, int]:
    """The fetching replica's id (-1 for a consumer) and its broker epoch (-1 if not given, KIP-903)."""
    state = request.replica_state
    if state is not None:
        return state.replica_id, state.replica_epoch
    return request.replica_id, NO_BROKER_EPOCH


def divergence(partition: Replica, wanted: FetchPartition) -> FetchEpochEndOffset | None:
    """Where the reader's log parts from this one, if it does (KIP-595)."""
    epoch, end_offset = partition.end_of_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if wanted.fetch_offset < partition.log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return FetchEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None
