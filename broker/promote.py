"""Shell: `kafka-ds promote`: a copy of a lake takes the place of the first one, whose brokers may write no more.

Each step may be repeated, and is when the command is run again: 1. a fence in the first lake's metadata, by
put-if-absent, and one in each of its tables, above all its leaders' epochs; 2. what the copy lacks is copied; 3. the
copy's tables end at their last whole versions (`ArrivedStore`), and its write-ahead logs claim no more (`CopiedWals`):
that takes something away only with `is_forced`; 4. one commit in the copy's metadata: the fence is lifted, no broker is
live, each partition has no leader and an epoch above all that wrote. Replication has stopped before; next: `restore`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from broker.diskless.copied_wals import CopiedWals
from broker.diskless.wal_object import CorruptWalObject
from broker.diskless.wal_reader import wals_in
from broker.membership.lease import LEASE_PATH
from broker.metadata.events import (
    NO_LEADER,
    BrokerUnregistered,
    ClusterFenced,
    ClusterPromoted,
    Event,
    FenceBroker,
    PartitionChanged,
)
from broker.metadata.image import MetadataImage, TopicImage
from broker.metadata.log import MetadataLog, begins_with_snapshot
from kafka_ds.delta.arrived_store import ArrivedStore
from kafka_ds.delta.commit import CommitError, Conflict
from kafka_ds.delta.log import DeltaLog, ForeignTable
from kafka_ds.delta.names import LOG_FOLDER
from kafka_ds.delta.snapshot import NoSuchTable
from kafka_ds.delta.store.store import Store
from kafka_ds.process.amounts import counted
from kafka_ds.process.crash_points import PROMOTION_POINTS, armed_from_environment
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.topic_partition import PartitionId, TopicPartition
from kafka_ds.protocol.types import uuid_from_text
from kafka_ds.topic.commit_rules import Intent, PartitionIntent
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH
from kafka_ds.topic.names import (
    CLUSTER_METADATA,
    OFFSETS,
    REMOTE_LOG_METADATA,
    TOPICS,
    TYPED_TABLES,
    topic_table,
)
from kafka_ds.topic.offsets import PARTITION_KIND, OffsetsTable, present
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable

log = logging.getLogger(__name__)

FENCE = "FENCE"
TRIES_MAX = 10
# Brokers that stop publish their groups' offsets: until nothing was published for so long, but not for ever.
SETTLED_SECONDS, SETTLING_SECONDS_MAX = 4.0, 30.0
# A controller renews its lease more often.
LEASE_SECONDS = 6.0
_VERSION_DIGITS = 20

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Cut:
    """Versions that a table of the copy loses, since something that they need has not arrived."""

    table: str
    whole: int
    newest: int
    waits_for: str


@dataclass(slots=True)
class Promotion:
    """One copy on its way to be the cluster's lake; `first` is None where the first lake cannot be reached."""

    copy: Store
    first: Store | None
    say: Say
    is_forced: bool = False
    sleep: Callable[[float], object] = time.sleep
    crash: Callable[[str], None] = field(
        default_factory=lambda: armed_from_environment(PROMOTION_POINTS).at
    )

    def run(self) -> None:
        """Promote. Raises ConfigError where something is missing or wrong, OSError where a store does not answer."""
        where = self.copy.uri("")
        here = self._image_of(self.copy, is_copy=True)
        if here is not None and here.promoted_in == where and here.fenced_by is None:
            self.say(f"{where}: cluster {here.cluster_id} was promoted here before")
            if self.first is not None:
                self._fence(self.first, where, here)  # Perhaps it could not be reached then.
            return
        self._refuse_writers()
        if self.first is None and not self.is_forced:
            raise ConfigError(
                "without the first lake's address it cannot be fenced: its brokers may still write there, and what "
                "they acknowledge is lost. Name it (--from), or give it up (--force)"
            )
        if self.first is not None:
            self._fence(self.first, where, here)
            self._copy_missing(self.first)
        self.crash("after_missing_objects")
        self._cut()
        put_in = self._cut_wals()
        self.crash("after_cut")
        self._promote(where, put_in)
        self.crash("after_promotion")
        self.copy.delete(LEASE_PATH)
        self._report()

    def _refuse_writers(self) -> None:
        """Refuse a copy to which somebody writes: its own controller, or the replication."""
        before = self._lease()
        if before is None:
            return
        self.sleep(LEASE_SECONDS)
        if self._lease() != before:
            raise ConfigError(
                f"{self.copy.uri(LEASE_PATH)} changes: stop the replication, and promote no lake on which brokers run"
            )

    def _lease(self) -> bytes | None:
        try:
            return self.copy.read(LEASE_PATH)
        except FileNotFoundError:
            return None

    def _image_of(self, store: Store, *, is_copy: bool = False) -> MetadataImage | None:
        """The cluster as the lake knows it; None if it knows none (yet)."""
        if is_copy:
            store = ArrivedStore(store, is_beginning=begins_with_snapshot)
        image = MetadataLog(store).load(begins=False)
        return None if image.cluster_id is None else image

    # -- the first lake ---------------------------------------------------------------------------

    def _fence(self, first: Store, successor: str, here: MetadataImage | None) -> None:
        image = self._image_of(first)
        if image is None:
            raise ConfigError(f"--from {first.uri('')}: holds no cluster")
        if here is not None and here.cluster_id != image.cluster_id:
            raise ConfigError(
                f"--from {first.uri('')}: is of cluster {image.cluster_id}, the copy of {here.cluster_id}"
            )
        if image.fenced_by not in (None, successor):
            raise ConfigError(
                f"--from {first.uri('')}: the cluster goes on in {image.fenced_by} already"
            )
        is_new = image.fenced_by is None
        if is_new:
            image = self._commit(first, lambda _: [ClusterFenced(successor=successor)])
            self.say(f"fenced {first.uri('')}: its brokers stop, and commit nothing more")
        self.crash("after_fence")
        count = sum(self._fence_table(first, topic) for topic in image.topics.values())
        self.say(f"fenced {counted(count, 'table')}")
        self.crash("after_table_fences")
        if is_new:
            self._wait_for_last_offsets(first)

    def _fence_table(self, first: Store, topic: TopicImage) -> bool:
        """Let no leader of this cluster commit to the topic's table any more; False if there is none."""
        table = TopicTable(first, topic.name)
        for _ in range(TRIES_MAX):
            try:
                snapshot = table.read()
            except NoSuchTable:
                return False
            if snapshot.topic_id != topic.topic_id:
                return False
            parts = tuple(
                PartitionIntent(partition=number, leader_epoch=epoch)
                for number, state in topic.partitions.items()
                if (snapshot.leader_epoch(number) or 0) < (epoch := state.leader_epoch + 1)
            )
            if not parts:
                return True
            intent = Intent(operation=FENCE, topic_id=topic.topic_id, partitions=parts)
            try:
                table.commit(intent, begun_ms=table.begin_ms())
            except Conflict as conflict:
                log.info("%s: fence it again: %s", table.folder, conflict)
            except CommitError as error:
                raise OSError(f"{table.folder}: {error}") from error
        raise OSError(f"{first.uri(table.folder)}: others keep committing to it; run this again")

    def _wait_for_last_offsets(self, first: Store) -> None:
        offsets = DeltaLog(first, OFFSETS)
        known, still, waited = offsets.latest_version(), 0.0, 0.0
        while known >= 0 and still < SETTLED_SECONDS and waited < SETTLING_SECONDS_MAX:
            self.sleep(1.0)
            waited, still = waited + 1.0, still + 1.0
            if (version := offsets.latest_version()) != known:
                known, still = version, 0.0

    def _commit(
        self, store: Store, decide: Callable[[MetadataImage], list[Event]]
    ) -> MetadataImage:
        """Commit what is decided on the newest state; returns that state."""
        metadata_log = MetadataLog(store)
        for _ in range(TRIES_MAX):
            image = metadata_log.load(begins=False)
            try:
                metadata_log.commit(metadata_log.begin(decide(image), image))
            except Conflict:
                continue  # A controller was faster.
            except CommitError as error:
                raise OSError(f"{metadata_log.folder}: {error}") from error
            return image
        raise OSError(f"{metadata_log.folder}: others keep committing to it; run this again")

    # -- the copy ---------------------------------------------------------------------------------

    def _copy_missing(self, first: Store) -> None:
        """Copy what the copy lacks: files before the logs that name them, the cluster's metadata last."""
        count = size_bytes = 0
        for folder in _folders(first):
            there = {each.path: each.size for each in self.copy.list(folder)}
            listed = first.list(folder)
            for entry in sorted(listed, key=lambda each: f"/{LOG_FOLDER}/" in each.path):
                known = there.get(entry.path)
                if known == entry.size or entry.path == LEASE_PATH:
                    continue
                if known is not None and _version_of(entry.path) is not None:
                    raise ConfigError(
                        f"{self.copy.uri(entry.path)} differs from that of the first lake: something else has "
                        "written there, or the replication goes on"
                    )
                self.copy.put_durable(entry.path, first.read(entry.path))
                count, size_bytes = count + 1, size_bytes + entry.size
        self.say(f"copied {counted(count, 'object')} that had not arrived, {size_bytes} bytes")

    def _cut(self) -> None:
        """Let each table end at its last whole version."""
        cuts = [cut for name in self._tables() if (cut := self._cut_of(name)) is not None]
        if cuts and not self.is_forced:
            raise ConfigError(
                "\n".join(
                    f"{_lost(cut)}; copy it, or give these versions up (--force)" for cut in cuts
                )
            )
        for cut in cuts:
            folder = f"{cut.table}/{LOG_FOLDER}"
            names = [each.path for each in self.copy.list(folder)]
            # From the end on: a kill between two leaves no hole behind it.
            for path in sorted(names, reverse=True):
                version = _version_of(path)
                if version is not None and version > cut.whole:
                    self.copy.delete(path)
            self.copy.delete(f"{folder}/_last_checkpoint")
            self.say(_lost(cut))

    def _cut_wals(self) -> dict[PartitionId, int]:
        """Let diskless partitions begin where their tables end, whatever these have had in the first lake.

        Returns the latest leader epochs in their write-ahead logs.
        """
        image = self._image_of(self.copy, is_copy=True)
        assert image is not None, "there is a whole version"
        diskless = [t for t in image.topics.values() if t.has_diskless_partitions]
        tables = {topic.name: self._snapshot_of(topic) for topic in diskless}
        try:
            wals = CopiedWals(
                self.copy, diskless, lambda topic, number: _end_of(tables[topic.name], number)
            )
        except CorruptWalObject as error:
            raise ConfigError(str(error)) from error
        lost = [
            f"{each.where}: offsets {each.first} to {each.last} were acknowledged, and are neither in the topic's "
            "table, which ends before, nor in write-ahead logs"
            for each in wals.lost
        ]
        if lost and not self.is_forced:
            raise ConfigError(
                "\n".join(
                    f"{each}; bring the table's newest commits, or give them up (--force)"
                    for each in lost
                )
            )
        wals.give_up()
        for each in lost:
            self.say(f"{each}: they are lost, and their offsets will be used again")
        return wals.leader_epochs

    def _cut_of(self, name: str) -> Cut | None:
        stores = [ArrivedStore(self.copy)]
        if name == CLUSTER_METADATA:
            stores.append(ArrivedStore(self.copy, is_beginning=begins_with_snapshot))
        found = []
        for store in stores:
            DeltaLog(store, name).latest_version()
            found += store.arrivals()
        least = min(found, key=lambda each: each.version)
        newest = max(each.newest for each in found)
        if least.version >= newest:
            return None
        return Cut(name, least.version, newest, least.waits_for)

    def _tables(self) -> Iterator[str]:
        """The tables that brokers write, the cluster's metadata last."""
        for topic in self.copy.folders(TOPICS):
            yield topic_table(topic)
        there = self.copy.folders("")
        yield from (each for each in (REMOTE_LOG_METADATA, OFFSETS) if each in there)
        if CLUSTER_METADATA not in there:
            raise ConfigError(f"{self.copy.uri('')} holds no cluster: nothing to promote")
        yield CLUSTER_METADATA

    def _promote(self, where: str, put_in: dict[PartitionId, int]) -> None:
        def decide(image: MetadataImage) -> list[Event]:
            if image.cluster_id is None:
                raise ConfigError(f"{where} holds no cluster: nothing to promote")
            events: list[Event] = [ClusterPromoted(lake=where)]
            # The registration of a log's broker may not have arrived: nobody may get the same log again.
            used = max((each.broker_epoch for each in wals_in(self.copy)), default=NO_BROKER_EPOCH)
            if used > image.last_broker_epoch:
                events.append(BrokerUnregistered(broker_id=-1, broker_epoch=used))
            events += [
                FenceBroker(broker_id=each.broker_id, broker_epoch=each.broker_epoch)
                for each in image.brokers.values()
                if not each.fenced
            ]
            for topic in image.topics.values():
                events += self._without_leaders(topic, put_in)
            return events

        image = self._commit(self.copy, decide)
        self.say(f"promoted {where}: cluster {image.cluster_id} goes on there")

    def _without_leaders(
        self, topic: TopicImage, put_in: dict[PartitionId, int]
    ) -> Iterator[PartitionChanged]:
        """The topic's partitions, each with an epoch above all that wrote to its table and its write-ahead logs.

        Nobody can take over batches of a later epoch than its own.
        """
        snapshot = self._snapshot_of(topic)
        for number, state in topic.partitions.items():
            written = -1 if snapshot is None else snapshot.leader_epoch(number)
            put = put_in.get((topic.topic_id, number), -1)
            epoch = max(state.leader_epoch, -1 if written is None else written, put) + 1
            yield PartitionChanged(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=number,
                registration=replace(
                    state,
                    leader=NO_LEADER,
                    leader_epoch=epoch,
                    partition_epoch=state.partition_epoch + 1,
                ),
            )

    def _snapshot_of(self, topic: TopicImage) -> TopicSnapshot | None:
        """The topic's table; None if it has none, or that of an earlier topic of the name."""
        try:
            snapshot = TopicTable(self.copy, topic.name).read()
        except NoSuchTable:
            return None
        except ForeignTable as error:
            raise ConfigError(str(error)) from error
        return snapshot if snapshot.topic_id == topic.topic_id else None

    # -- the report -------------------------------------------------------------------------------

    def _report(self) -> None:
        image = self._image_of(self.copy)
        assert image is not None, "it was promoted just now"
        rows = [
            each
            for each in present(OffsetsTable(self.copy).read())
            if each["kind"] == PARTITION_KIND
        ]
        snapshots: dict[bytes, TopicSnapshot | None] = {}
        for row in sorted(rows, key=lambda each: (each["topic"], each["partition"])):
            topic = image.topics_by_id.get(uuid_from_text(row["topic_id"]))
            if topic is None or topic.is_internal:
                continue
            holds = topic.partitions.get(row["partition"])
            if holds is not None and holds.is_diskless:
                continue
            if topic.topic_id not in snapshots:
                snapshots[topic.topic_id] = self._snapshot_of(topic)
            place = TopicPartition(topic.name, row["partition"])
            next_offset = _end_of(snapshots[topic.topic_id], place.partition) + 1
            if (lost := row["log_end_offset"] - next_offset) > 0:
                self.say(
                    f"{place}: goes on at {next_offset}: {lost} offsets at least are lost, as the log had ended at "
                    f"{row['log_end_offset']} when that was published last"
                )
        diskless = [t.name for t in image.topics.values() if t.has_diskless_partitions]
        if diskless and self.first is None:
            self.say(
                f"diskless topics ({', '.join(sorted(diskless))}): records behind the first missing object of a "
                "write-ahead log, and in logs whose brokers' registrations have not arrived, are lost; kafka-ds "
                "restore says where each partition goes on"
            )
        numbers = ", ".join(map(str, sorted(image.brokers)))
        self.say(
            f"next: kafka-ds restore with lake.uri={self.copy.uri('')} and empty log.dirs for each of the brokers "
            f"{numbers}, then start them"
        )


def _end_of(snapshot: TopicSnapshot | None, partition: int) -> int:
    """The last offset that a table has of a partition; -1 for none."""
    end = None if snapshot is None else snapshot.highest_offset_in_remote_storage(partition)
    return -1 if end is None else end


def _folders(store: Store) -> Iterator[str]:
    """The lake in parts, each of which is listed at once; the cluster's metadata last."""
    for folder in store.folders(""):
        if folder in (TOPICS, TYPED_TABLES):
            yield from (f"{folder}/{each}" for each in store.folders(folder))
        elif folder != CLUSTER_METADATA:
            yield folder
    yield CLUSTER_METADATA


def _version_of(path: str) -> int | None:
    """The version that a file of a table's log belongs to; None for other files."""
    folder, _, name = path.rpartition("/")
    digits = name[:_VERSION_DIGITS]
    is_version = folder.endswith(LOG_FOLDER) and len(digits) == _VERSION_DIGITS
    return int(digits) if is_version and digits.isdecimal() else None


def _lost(cut: Cut) -> str:
    ends = f"ends at version {cut.whole}" if cut.whole >= 0 else "has not arrived"
    return (
        f"{cut.table}: {ends}; version {cut.newest} is there and lacks {cut.waits_for or 'its log'}"
    )
