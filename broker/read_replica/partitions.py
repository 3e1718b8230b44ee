"""Pure: the partitions of a read-only broker: what handlers of reads ask of a leader, answered from the lake.

- High watermark and last stable offset are the offset after the lake's last one: what is in the lake is committed.
- A reader beyond the high watermark waits: its records are on their way, as far as can be known here, and
  OFFSET_OUT_OF_RANGE would have it start over. Epochs end where a leader said last that its log ends.
- Neither end nor log start goes back. Whoever waits for a partition is woken when its high watermark moves.
- Until the lake has said once where a partition ends, this broker does not lead it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

from broker.log.config import LogConfig
from broker.log.epochs import LeaderEpochs
from broker.metadata.image import MetadataImage, TopicImage
from broker.replica.topic_metrics import topic_metrics
from broker.replica.watcher import Watcher
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicIdPartition

NO_EPOCH = -1
OFFSET_MAX = 2**63 - 1
_NOT_KNOWN = "the lake has not said yet what it holds of the partition"


class LakeLog:
    """A partition's log as the lake has it: nothing of it is on a disk here."""

    def __init__(self, where: TopicIdPartition, config: LogConfig) -> None:
        self.topic_id_partition = where
        self.config = config
        self.log_start_offset = 0
        self.high_watermark = 0
        self.leader_epochs = LeaderEpochs()
        # Up to where `leader_epochs` was read.
        self.epochs_end = 0
        self.published_end = 0

    # The first offset that no record can have: any may be on its way.
    log_end_offset = OFFSET_MAX

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that is not read from the lake."""
        return self.high_watermark

    def offset_for_timestamp(self, timestamp_ms: int) -> None:
        """The record on the disk: there is none."""

    def max_timestamp_offset(self) -> None:
        """The same."""

    def read(self, offset: int, **_: object) -> NoReturn:
        """What is not in the lake cannot be read."""
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)


class LakePartition:
    """A partition that this broker leads, for its clients."""

    # A leader's view that lags behind its own log (KIP-207): here there is none.
    is_high_watermark_behind = False
    # A leader that compares its log with the lake: here there is none.
    recovery = None

    def __init__(self, log: LakeLog, leader_epoch: int) -> None:
        self.log = log
        self.topic_id, self.topic, self.partition = log.topic_id_partition
        self.leader_epoch = leader_epoch
        self.is_known = False
        self._watchers: dict[Watcher[LakePartition], None] = {}

    @property
    def leader(self) -> LakePartition:
        """The leader's view of it."""
        return self

    @property
    def high_watermark(self) -> int:
        """Everything below is in the lake."""
        return self.log.high_watermark

    def last_stable_offset(self) -> int:
        """The same: no open transaction is in the lake."""
        return self.log.high_watermark

    def fetchable_end(self, isolation_level: int) -> int:
        """How far a consumer may read."""
        return self.log.high_watermark

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above this one and where it ends; -1 and -1 where none is known."""
        log = self.log
        return log.leader_epochs.end_offset_for(epoch, max(log.published_end, log.high_watermark))

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset belongs to, or -1."""
        return self.log.leader_epochs.epoch_for_offset(offset)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a reader that names another leader epoch (KIP-320)."""
        if not self.is_known:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _NOT_KNOWN)
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def watch(self, watcher: Watcher[LakePartition]) -> None:
        """Notify this watcher when more can be read."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher[LakePartition]) -> None:
        """Stop notifying this watcher."""
        self._watchers.pop(watcher, None)

    def reaches(self, next_offset: int, log_start_offset: int) -> None:
        """The lake holds everything from the log start up to this offset."""
        log, self.is_known = self.log, True
        log.log_start_offset = max(log.log_start_offset, log_start_offset)
        end = max(next_offset, log.log_start_offset)
        if end > log.high_watermark:
            log.high_watermark = end
            for watcher in tuple(self._watchers):
                watcher.advanced(self)

    def ended_at(self, published_end: int) -> None:
        """The leader of the first region has published where its log ended."""
        self.log.published_end = max(self.log.published_end, published_end)

    def epochs_found(self, entries: tuple[tuple[int, int], ...], end: int) -> None:
        """The lake's leader epochs up to this offset, which is not among them."""
        if end > self.log.epochs_end:
            self.log.leader_epochs = LeaderEpochs(entries)
            self.log.epochs_end = end

    def lose(self) -> None:
        """The topic is deleted, or has no table any more."""
        watchers = tuple(self._watchers)
        self._watchers.clear()
        for watcher in watchers:
            watcher.lost(self)


class LakePartitions:
    """All partitions that this broker serves: what `ReplicaManager` is to others' handlers."""

    def __init__(
        self, image: MetadataImage, here: int, config_of: Callable[[TopicImage], LogConfig]
    ) -> None:
        """`image` is the one that clients see, `here` this broker's id."""
        self._image = image
        self._here = here
        self._config_of = config_of
        self._topics: dict[bytes, dict[int, LakePartition]] = {}
        self.topic_metrics = topic_metrics()

    def __iter__(self) -> Iterator[LakePartition]:
        return iter([each for topic in self._topics.values() for each in topic.values()])

    def topic_changed(self, topic_id: bytes) -> None:
        """The topic was created, changed or deleted."""
        topic = self._image.topics_by_id.get(topic_id)
        served = {} if topic is None else topic.partitions
        known = self._topics.setdefault(topic_id, {})
        for number, registration in served.items():
            if registration.leader != self._here or topic is None:
                continue
            config, partition = self._config_of(topic), known.get(number)
            if partition is None:
                log = LakeLog(TopicIdPartition(topic_id, topic.name, number), config)
                known[number] = LakePartition(log, registration.leader_epoch)
            else:
                partition.log.config = config
                partition.leader_epoch = registration.leader_epoch
        for number in list(known):
            if number not in served or served[number].leader != self._here:
                known.pop(number).lose()
        if not known:
            del self._topics[topic_id]
            self.topic_metrics.keep({each.topic for each in self})

    def of_id(self, topic_id: bytes, number: int) -> LakePartition | None:
        """The partition of the topic with this id, if it is served here."""
        return self._topics.get(topic_id, {}).get(number)

    def find(self, topic: str, number: int) -> LakePartition | None:
        """The partition, if it is served here."""
        known = self._image.topics.get(topic)
        return None if known is None else self.of_id(known.topic_id, number)

    def replica(self, topic: str, number: int) -> None:
        """The partition, if it is followed here: none is."""

    def get(self, topic: str, number: int) -> LakePartition:
        """The partition, or the error by which a client finds it."""
        found = self.find(topic, number)
        if found is None:
            raise KafkaError(self.why_absent(topic, number))
        return found

    def why_absent(self, topic: str, number: int) -> ErrorCode:
        """Why this broker does not serve the partition."""
        if self._image.partition(topic, number) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
