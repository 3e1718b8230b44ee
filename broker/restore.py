"""Shell: `kafka-ds restore`: empty disks get back what the lake holds, before clients are served again.

It is a broker without clients: it joins its cluster with empty disks, its logs continue at the lake's end as after
any lost disk (`broker.replica.lake_recovery`), and then it stops cleanly. The operator says that records outside the
lake are gone: a partition of this broker without a leader is led here, whoever was in sync. Groups and states of share
groups come back from `__offsets`, never beyond the end of what came back. Disks that are not empty, and a lake without
a cluster, are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from broker.broker_server import BrokerServer
from broker.config.loader import BrokerConfig
from broker.controller.elections import ElectionType
from broker.coordinator.group.records import encode_record
from broker.coordinator.group.restored_groups import RestoredGroups, restored_groups
from broker.coordinator.share.restored_states import RestoredStates, restored_states
from broker.kafka_broker import KafkaBroker
from broker.lake_store import reason, store_of
from broker.metadata.events import NO_LEADER
from broker.metadata.log import MetadataLog
from broker.metadata.topic_names import (
    COMPACTED_TOPICS,
    GROUP_METADATA_TOPIC_NAME,
    SHARE_GROUP_STATE_TOPIC_NAME,
    TRANSACTION_STATE_TOPIC_NAME,
)
from broker.replica.leader.partition import LeaderPartition
from broker.worker.rpc import OffsetsCheckpoint, PublishedPartition
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import Store
from kafka_ds.process.seams import Disk
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages import ElectLeadersRequest
from kafka_ds.protocol.messages.replicas import TopicPartitions
from kafka_ds.protocol.topic_partition import TopicIdPartition, TopicPartition
from kafka_ds.protocol.types import uuid_from_text, uuid_text
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.segments.producers import AppendOrigin
from kafka_ds.topic.names import CLUSTER_METADATA

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
RETRY_SECONDS = 1.0
LOG_EVERY_MS = 10_000
RECORDS_AT_ONCE = 500
# Of a partition whose leader lives no offset that was committed is beyond the end.
NO_BOUND = 2**63 - 1

Report = Callable[[int, int], object]


def check(config: BrokerConfig, disk: Disk, open_lake: Callable[[str], Store]) -> None:
    """Refuse where there is nothing to restore, or something to lose. Raises ConfigError."""
    if config.lake_read_only:
        raise ConfigError("lake.read.only=true: a broker that is restored writes to the lake")
    if not config.remote_log_storage_system_enable:
        raise ConfigError("remote.log.storage.system.enable=false: restore needs tiered storage")
    for folder in config.log_dirs:
        if disk.exists(folder) and disk.list_names(folder):
            raise ConfigError(f"log.dirs: {folder} is not empty: restore needs empty log.dirs")
    store = store_of(config.lake_uri, open_lake)
    try:
        # Looked for before it is read: reading makes the table where there is none.
        there = DeltaLog(store, CLUSTER_METADATA).exists()
        cluster_id = MetadataLog(store).load().cluster_id if there else None
    except OSError as error:
        raise ConfigError(f"lake.uri={config.lake_uri}: {reason(error)}") from None
    if cluster_id is None:
        raise ConfigError(f"lake.uri={config.lake_uri} holds no cluster: nothing to restore")


async def restore(
    node: BrokerServer, say: Callable[[str], object], report: Report | None = None
) -> None:
    """Bring back what belongs to this broker, which is not started yet; it is stopped when this returns.

    `report` is called with how many partitions of how many are back; without it the log is, now and then.
    """
    broker = await node.start(serves_clients=False)
    working = asyncio.get_running_loop().create_task(Restoration(broker, say, report).run())
    try:
        await asyncio.wait((working, node.failed), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise node.failed.result()
        await working
    except BaseException:
        log.error("the restore is incomplete: empty log.dirs and restore again")
        raise
    finally:
        working.cancel()
        await node.stop()


class Restoration:
    """One broker's share of a cluster on its way back."""

    def __init__(
        self, node: KafkaBroker, say: Callable[[str], object], report: Report | None
    ) -> None:
        self._node = node
        self._say = say
        self._report = report or self._log_progress
        self._logged_ms = node.clock.monotonic_ms()

    async def run(self) -> None:
        """Elect, recover, restore groups, and report the result."""
        node = self._node
        published = await self._published()
        await self._elect()
        while True:
            partitions = [each.leader.is_recovering for each in node.replica_manager]
            self._report(partitions.count(False), len(partitions))
            if not any(partitions):
                break
            await asyncio.sleep(POLL_SECONDS)
        self._say(
            f"cluster {node.log_manager.cluster_id}: broker {node.config.node_id} restored from "
            f"{node.config.lake_uri}"
        )
        self._report_partitions(published.partitions)
        ends = await self._ends(published)
        self._report_groups(await self._bring_back_groups(published, ends))
        self._report_share_states(await self._bring_back_share_states(published, ends), ends)
        self._report_transactions(published.partitions)
        await self._flush()

    def _log_progress(self, done: int, total: int) -> None:
        now_ms = self._node.clock.monotonic_ms()
        if now_ms - self._logged_ms >= LOG_EVERY_MS:
            self._logged_ms = now_ms
            log.info("restored %d of %d partitions", done, total)

    async def _published(self) -> OffsetsCheckpoint:
        """What brokers have published of their partitions and groups; asked until the lake answers."""
        assert self._node.remote_log_manager is not None, "checked before"
        while True:
            try:
                return await self._node.remote_log_manager.published_offsets()
            except KafkaError as error:
                log.warning("cannot read the published offsets yet, retrying: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    # -- leaders ------------------------------------------------------------------------------------

    async def _elect(self) -> None:
        """Lead the assigned partitions without a leader, until there are none.

        The last leader counts as the leader until its session ends: so long that is waited for.
        """
        node = self._node
        patience_ms = (
            node.config.broker_session_timeout_ms + node.config.broker_heartbeat_interval_ms
        )
        settled_ms = node.clock.monotonic_ms() + patience_ms
        while True:
            if leaderless := self._led_by(lambda leader: leader == NO_LEADER):
                await self._lead(leaderless)
            elif node.clock.monotonic_ms() >= settled_ms or not self._led_by(
                lambda leader: leader != node.config.node_id
            ):
                return
            await node.metadata_driver.wait_for_change(RETRY_SECONDS)

    async def _lead(self, leaderless: Sequence[TopicPartition]) -> None:
        node = self._node
        topics: dict[str, list[int]] = {}
        for topic, partition in leaderless:
            topics.setdefault(topic, []).append(partition)
        log.warning("%d partitions have no leader: electing this broker", len(leaderless))
        request = ElectLeadersRequest(
            election_type=ElectionType.UNCLEAN,
            topic_partitions=[
                TopicPartitions(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
            timeout_ms=node.config.request_timeout_ms,
        )
        try:
            await node.member.channel.send(request, timeout_ms=node.config.request_timeout_ms)
        except KafkaError as error:
            log.warning("leader election failed, retrying: %s", error)

    def _led_by(self, is_meant: Callable[[int], bool]) -> list[TopicPartition]:
        """Partitions of this broker that have such a leader."""
        here = self._node.config.node_id
        return [
            TopicPartition(topic.name, partition)
            for topic in self._node.metadata.topics.values()
            for partition, state in topic.partitions.items()
            if here in state.replicas and is_meant(state.leader)
        ]

    # -- groups -------------------------------------------------------------------------------------

    async def _bring_back_groups(
        self, published: OffsetsCheckpoint, ends: Mapping[TopicPartition, int]
    ) -> list[RestoredGroups]:
        """Append what was published of the groups whose coordinator is here."""
        restored: list[RestoredGroups] = []
        for partition in self._empty(GROUP_METADATA_TOPIC_NAME):
            found = restored_groups(
                published,
                partition.partition,
                end_of=lambda topic, partition: ends.get(TopicPartition(topic, partition)),
                name_of=self._name_of,
                now_ms=self._node.clock.now_ms(),
            )
            await self._append(partition, [encode_record(each) for each in found.records])
            restored.append(found)
        return restored

    async def _bring_back_share_states(
        self, published: OffsetsCheckpoint, ends: Mapping[TopicPartition, int]
    ) -> list[RestoredStates]:
        """Append what was published of the share partitions whose coordinator is here."""

        def end_of(topic_id: bytes, partition: int) -> int | None:
            name = self._name_of(topic_id)
            return None if name is None else ends.get(TopicPartition(name, partition))

        restored: list[RestoredStates] = []
        for partition in self._empty(SHARE_GROUP_STATE_TOPIC_NAME):
            found = restored_states(
                published,
                partition.partition,
                end_of=end_of,
                now_ms=self._node.clock.now_ms(),
            )
            await self._append(partition, found.records)
            restored.append(found)
        return restored

    def _empty(self, topic: str) -> list[LeaderPartition]:
        """Partitions of a coordinators' topic in which nothing has come back."""
        return [
            each
            for each in self._node.replica_manager
            if each.topic == topic and each.log.log_end_offset == 0
        ]

    async def _append(
        self, partition: LeaderPartition, records: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        # acks=1: with all brokers gone no other replica could be in sync, whatever min.insync.replicas is.
        now_ms = self._node.clock.now_ms()
        for batch in record_batches(records, now_ms):
            data = memoryview(bytearray(batch))
            partition.append(data, acks=1, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
            await asyncio.sleep(0)

    def _name_of(self, topic_id: bytes) -> str | None:
        topic = self._node.metadata.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    async def _ends(self, published: OffsetsCheckpoint) -> dict[TopicPartition, int]:
        """The ends of the partitions of which groups have offsets or states, as far as they exist."""
        node = self._node
        ends: dict[TopicPartition, int] = {}
        asked: list[TopicIdPartition] = []
        keys = {TopicPartition(each.topic, each.partition) for each in published.offsets}
        for each in published.share_states:
            name = self._name_of(uuid_from_text(each.topic_id))
            if name is not None:
                keys.add(TopicPartition(name, each.partition))
        for key in sorted(keys):
            topic, partition = key
            registration = node.metadata.partition(topic, partition)
            led = node.replica_manager.find(topic, partition)
            if registration is None:
                continue
            if led is not None:
                ends[key] = led.log.log_end_offset
            elif self._lives(registration.leader):
                ends[key] = NO_BOUND
            else:
                asked.append(
                    TopicIdPartition(node.metadata.topics[topic].topic_id, topic, partition)
                )
        for (_, name, number), end in zip(asked, await self._lake_ends(asked), strict=True):
            ends[TopicPartition(name, number)] = end + 1
        return ends

    def _lives(self, broker_id: int) -> bool:
        """Whether another broker is at work: where this one decides, the last one had left."""
        known = self._node.metadata.brokers.get(broker_id)
        return known is not None and not known.fenced and not self._node.metadata_driver.is_active

    async def _lake_ends(self, asked: Sequence[TopicIdPartition]) -> list[int]:
        remote_log_manager = self._node.remote_log_manager
        assert remote_log_manager is not None, "checked before"
        while asked:
            try:
                found = await remote_log_manager.highest_offsets_in_remote_storage(asked)
            except KafkaError as error:
                found = [error]
            ends = [each for each in found if isinstance(each, int)]
            if len(ends) == len(asked):
                return ends
            log.warning("cannot read the tiered offsets yet, retrying")
            await asyncio.sleep(RETRY_SECONDS)
        return []

    async def _flush(self) -> None:
        """Appended records are on the disk when this process reports them."""
        loop = asyncio.get_running_loop()
        for partition in self._node.replica_manager:
            done: asyncio.Future[BaseException | None] = loop.create_future()
            partition.log.flush(then=done.set_result)
            error = await done
            if error is not None:
                raise error

    # -- the report ---------------------------------------------------------------------------------

    def _report_partitions(self, partitions: Iterable[PublishedPartition]) -> None:
        published = {(each.topic_id, each.partition): each for each in partitions}
        for partition in sorted(self._node.replica_manager, key=lambda p: (p.topic, p.partition)):
            if partition.topic in COMPACTED_TOPICS:
                continue
            self._say(
                _line(
                    partition, published.get((uuid_text(partition.topic_id), partition.partition))
                )
            )
        here = self._node.config.node_id
        for topic in self._node.metadata.topics.values():
            for number, state in topic.partitions.items():
                if here not in state.replicas and state.leader == NO_LEADER:
                    brokers = ", ".join(map(str, state.replicas))
                    self._say(
                        f"{TopicPartition(topic.name, number)}: not of this broker: restore brokers {brokers}"
                    )

    def _report_groups(self, restored: Sequence[RestoredGroups]) -> None:
        groups = sum(len(each.groups) for each in restored)
        offsets = sum(each.offsets for each in restored)
        published_ms = max((each.published_ms for each in restored), default=-1)
        since = (
            f", as published at {_time(published_ms)}; later commits are lost"
            if published_ms >= 0
            else ""
        )
        self._say(f"groups: {groups} with {offsets} committed offsets{since}")
        for each in (one for found in restored for one in found.truncated):
            self._say(
                f"group {each.group_id}: {TopicPartition(each.topic, each.partition)}: goes on at {each.end_offset} "
                f"and not at {each.committed_offset}, which was not in the lake"
            )

    def _report_share_states(
        self, restored: Sequence[RestoredStates], ends: Mapping[TopicPartition, int]
    ) -> None:
        count = sum(len(each.records) for each in restored)
        if not count:
            return
        since = _time(max(each.published_ms for each in restored))
        self._say(
            f"share groups: the states of {count} partitions, as published at {since}; records that were "
            "acknowledged later are delivered again"
        )
        for each in (one for found in restored for one in found.truncated):
            topic = self._name_of(uuid_from_text(each.topic_id)) or each.topic_id
            place = TopicPartition(topic, each.partition)
            self._say(
                f"share group {each.group_id}: {place}: goes on at {ends[place]} and not at "
                f"{each.start_offset}, which was not in the lake"
            )

    def _report_transactions(self, partitions: Iterable[PublishedPartition]) -> None:
        used = any(
            each.topic == TRANSACTION_STATE_TOPIC_NAME
            and each.log_end_offset > each.log_start_offset
            for each in partitions
        )
        if used:
            self._say(
                "transactional ids: not in the lake; their producers get new producer ids, and a transaction that was "
                "open is gone, but in diskless topics"
            )
        for each in self._node.replica_manager:
            place = TopicPartition(each.topic, each.partition)
            for producer_id, producer in each.log.producers:
                if producer.transaction_start >= 0:
                    self._say(
                        f"{place}: a transaction of producer {producer_id} is open from offset "
                        f"{producer.transaction_start}: if its coordinator's disks are lost, end it: "
                        f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {place.topic} "
                        f"--partition {place.partition} --start-offset {producer.transaction_start}"
                    )


def _line(partition: LeaderPartition, published: PublishedPartition | None) -> str:
    """What has come back of a partition, and what has not."""
    log_, name = partition.log, partition.log.name
    start, end = log_.log_start_offset, log_.log_end_offset
    if not log_.config.remote_storage_enable:
        what = f"{name}: not tiered: starts empty at {end}"
    else:
        what = f"{name}: offsets {start} to {end - 1}" if end > start else f"{name}: empty at {end}"
    if published is None:
        return f"{what}; where it ended was not published"
    lost = published.log_end_offset - end
    when = _time(published.event_time_ms)
    if lost > 0:
        return f"{what}; {lost} offsets at least are lost: it ended at {published.log_end_offset} at {when}"
    return f"{what}; nothing is known to be lost (published at {when})"


def _time(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def record_batches(records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> Iterator[bytes]:
    """The records, each key and value, as batches of a coordinator."""
    for start in range(0, len(records), RECORDS_AT_ONCE):
        listed = records[start : start + RECORDS_AT_ONCE]
        yield build_batch([Record(i, now_ms, key, value) for i, (key, value) in enumerate(listed)])
