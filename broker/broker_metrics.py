"""Pure: what a broker shows of its partitions, logs, cluster and tier, under Kafka's names.

It reads state and changes none; each loop is over a copy, as a reading is done in parts. Names are declared by
`broker.metrics.names`; coordinators and the tier declare theirs beside what they count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.coordinator.group.metrics import LOADS as GROUP_LOADS
from broker.coordinator.group.metrics import group_samples
from broker.coordinator.share.metrics import LOADS as SHARE_LOADS
from broker.coordinator.share.metrics import share_coordinator_samples
from broker.coordinator.transaction.metrics import LOADS as TRANSACTION_LOADS
from broker.coordinator.transaction.metrics import late_samples, transaction_samples
from broker.membership.metrics import cluster_samples
from broker.metrics.names import Metric, MetricSample, gauge
from broker.replica.fetcher.metrics import fetcher_samples, move_samples
from broker.security.authorization.authorizer_metrics import authorizer_samples
from broker.security.quotas.quota_metrics import quota_samples
from broker.share.metrics import share_partition_samples
from broker.telemetry.series import telemetry_samples
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.version import VERSION

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker
    from broker.metadata.image import MetadataImage
    from broker.replica.follower.partition import FollowerPartition
    from broker.replica.leader.partition import LeaderPartition

_REPLICAS = "kafka.server:type=ReplicaManager,name="
_CONTROLLER = "kafka.controller:type=KafkaController,name="
_PARTITION = ("topic", "partition")
_WAITING = "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize"

# Kafka's numbers of a broker's state.
STARTING, RECOVERY, RUNNING = 1, 2, 3

BROKER_STATE = gauge(
    "kafka.server:type=KafkaServer,name=BrokerState",
    f"{STARTING} not registered yet, {RECOVERY} comparing logs with the lake, {RUNNING} running.",
)
APP_INFO = gauge(
    "kafka.server:type=app-info", "1; the label says which version this is.", "version", ours=True
)
PARTITIONS = gauge(f"{_REPLICAS}PartitionCount", "Partitions with a replica on this broker.")
LEADERS = gauge(f"{_REPLICAS}LeaderCount", "Partitions that this broker leads.")
OFFLINE_REPLICAS = gauge(
    f"{_REPLICAS}OfflineReplicaCount",
    "Replicas of this broker whose log is offline or cannot be opened.",
)
UNDER_REPLICATED = gauge(
    f"{_REPLICAS}UnderReplicatedPartitions", "Led partitions with replicas out of sync."
)
UNDER_MIN_ISR = gauge(
    f"{_REPLICAS}UnderMinIsrPartitionCount",
    "Led partitions with fewer replicas in sync than min.insync.replicas.",
)
AT_MIN_ISR = gauge(
    f"{_REPLICAS}AtMinIsrPartitionCount",
    "Led partitions with exactly min.insync.replicas replicas in sync.",
)
REASSIGNING = gauge(
    f"{_REPLICAS}ReassigningPartitions", "Led partitions whose replicas are being changed."
)
PRODUCER_IDS = gauge(
    f"{_REPLICAS}ProducerIdCount", "Idempotent and transactional producers whose state is kept."
)
WAITING = gauge(
    _WAITING, "Requests that wait for a partition, counted once per partition.", "delayedOperation"
)
ACTIVE_CONTROLLER = gauge(
    f"{_CONTROLLER}ActiveControllerCount", "1 if this broker is the active controller."
)

_OF_LOG: Mapping[Metric, Callable[[LeaderPartition | FollowerPartition], int]] = {
    gauge("kafka.log:type=Log,name=Size", "Bytes of the local log.", *_PARTITION): (
        lambda partition: partition.log.size_bytes
    ),
    gauge("kafka.log:type=Log,name=NumLogSegments", "Segments on the disk.", *_PARTITION): (
        lambda partition: len(partition.log.segments.all)
    ),
    gauge("kafka.log:type=Log,name=LogStartOffset", "The log start offset.", *_PARTITION): (
        lambda partition: partition.log.log_start_offset
    ),
    gauge("kafka.log:type=Log,name=LogEndOffset", "The log end offset.", *_PARTITION): (
        lambda partition: partition.log.log_end_offset
    ),
    gauge(
        "kafka.log:type=Log,name=LocalLogStartOffset",
        "The first offset on local disk; earlier ones are read from the lake.",
        *_PARTITION,
        ours=True,
    ): lambda partition: partition.log.local_log_start_offset,
    gauge(
        "kafka.log:type=Log,name=HighWatermark",
        "The high watermark.",
        *_PARTITION,
        ours=True,
    ): lambda partition: partition.high_watermark,
    gauge(
        "kafka.log:type=Log,name=HighestOffsetInRemoteStorage",
        "The last offset that is in the lake; -1 if none is.",
        *_PARTITION,
        ours=True,
    ): lambda partition: partition.log.highest_offset_in_remote_storage,
    gauge(
        "kafka.cluster:type=Partition,name=LastStableOffsetLag",
        "Offsets between the last stable offset and the high watermark.",
        *_PARTITION,
    ): lambda partition: partition.high_watermark - partition.last_stable_offset(),
}
_OF_PARTITION: Mapping[Metric, Callable[[LeaderPartition], int]] = {
    gauge("kafka.cluster:type=Partition,name=ReplicasCount", "Replicas.", *_PARTITION): (
        lambda partition: len(partition.leader.replicas)
    ),
    gauge(
        "kafka.cluster:type=Partition,name=InSyncReplicasCount", "Replicas in sync.", *_PARTITION
    ): lambda partition: len(partition.leader.isr),
    gauge(
        "kafka.cluster:type=Partition,name=UnderReplicated",
        "1 if a replica is out of sync.",
        *_PARTITION,
    ): lambda partition: int(partition.leader.is_under_replicated),
    gauge(
        "kafka.cluster:type=Partition,name=UnderMinIsr",
        "1 if fewer replicas are in sync than min.insync.replicas.",
        *_PARTITION,
    ): lambda partition: int(partition.leader.is_under_min_isr),
    gauge(
        "kafka.cluster:type=Partition,name=AtMinIsr",
        "1 if exactly min.insync.replicas replicas are in sync.",
        *_PARTITION,
    ): lambda partition: int(partition.leader.is_at_min_isr),
}

_OF_CLUSTER: Mapping[Metric, Callable[[MetadataImage], int]] = {
    gauge(f"{_CONTROLLER}GlobalTopicCount", "Topics of the cluster."): (
        lambda image: len(image.topics)
    ),
    gauge(f"{_CONTROLLER}GlobalPartitionCount", "Partitions of the cluster."): (
        lambda image: image.partition_count
    ),
    gauge(f"{_CONTROLLER}OfflinePartitionsCount", "Partitions without a leader."): (
        lambda image: sum(
            each.leader < 0 for topic in image.topics.values() for each in topic.partitions.values()
        )
    ),
    gauge(
        f"{_CONTROLLER}PreferredReplicaImbalanceCount",
        "Partitions that are not led by their preferred leader.",
    ): lambda image: sum(
        each.leader != each.preferred_leader
        for topic in image.topics.values()
        for each in topic.partitions.values()
    ),
    gauge(f"{_CONTROLLER}ActiveBrokerCount", "Brokers that are registered and not fenced."): (
        lambda image: sum(not each.fenced for each in image.brokers.values())
    ),
    gauge(f"{_CONTROLLER}FencedBrokerCount", "Brokers that are registered and fenced."): (
        lambda image: sum(each.fenced for each in image.brokers.values())
    ),
    gauge(
        f"{_CONTROLLER}LastAppliedRecordOffset",
        "The version of the metadata log that this broker has applied.",
    ): lambda image: image.version,
}


def broker_samples(broker: KafkaBroker) -> Iterator[MetricSample]:
    """Everything but what the network layer counts."""
    partitions = list(broker.replica_manager)
    yield APP_INFO, (VERSION,), 1
    yield BROKER_STATE, (), _state(broker)
    yield from _replica_samples(broker, partitions)
    yield from broker.replica_manager.topic_metrics.samples()
    yield from broker.cleaner.samples()
    yield ACTIVE_CONTROLLER, (), int(broker.metadata_driver.is_active)
    yield from cluster_samples(broker.metadata_driver, broker.member)
    for metric, count in _OF_CLUSTER.items():
        yield metric, (), count(broker.metadata)
    for metric, read in _OF_PARTITION.items():
        for partition in partitions:
            yield metric, (partition.topic, str(partition.partition)), read(partition)
    followed = list(broker.replica_manager.followed())
    replicas: list[LeaderPartition | FollowerPartition] = [*partitions, *followed]
    for metric, read_log in _OF_LOG.items():
        for replica in replicas:
            yield metric, (replica.topic, str(replica.partition)), read_log(replica)
    if broker.replica_manager.fetchers is not None:
        yield from fetcher_samples(
            broker.replica_manager.fetchers, followed, broker.clock.monotonic_ms()
        )
    if (diskless := broker.replica_manager.applier.diskless) is not None:
        yield from diskless.wal.samples()
    yield from move_samples(broker.moves)
    yield from quota_samples(broker.security.quotas, broker.clock.monotonic_ms())
    if (authorizer := broker.security.authorizer) is not None:
        yield from authorizer_samples(authorizer, len(broker.metadata.security.acls))
    yield from broker.fetch_manager.samples()
    yield from broker.alter_partition_manager.samples()
    yield from group_samples(list(broker.groups.shards()), broker.groups.counts)
    yield from transaction_samples(broker.transactions)
    yield from share_coordinator_samples(broker.shares)
    yield from share_partition_samples(broker.share_partitions)
    now_ms = broker.clock.monotonic_ms()
    yield from GROUP_LOADS.samples(broker.groups.loads, broker.groups.states(), now_ms)
    yield from TRANSACTION_LOADS.samples(
        broker.transactions.loads, broker.transactions.states(), now_ms
    )
    yield from SHARE_LOADS.samples(broker.shares.loads, broker.shares.states(), now_ms)
    yield from late_samples(
        partitions,
        now_ms=broker.clock.now_ms(),
        max_timeout_ms=broker.config.transaction_max_timeout_ms,
    )
    if broker.remote_log_manager is not None:
        yield from broker.remote_log_manager.samples()
    yield from telemetry_samples(broker.client_instances, broker.telemetry_exporter, now_ms)


def _state(broker: KafkaBroker) -> int:
    if broker.metadata_driver.broker_epoch < 0:
        return STARTING
    return RECOVERY if broker.replica_manager.is_recovering else RUNNING


def _replica_samples(
    broker: KafkaBroker, partitions: Sequence[LeaderPartition]
) -> Iterator[MetricSample]:
    node_id, image = broker.config.node_id, broker.metadata
    by_key = {
        TopicPartition(topic.name, number): each
        for topic in list(image.topics.values())
        for number, each in topic.partitions.items()
        if node_id in each.replicas
    }
    registered = by_key.values()
    yield PARTITIONS, (), len(registered)
    yield LEADERS, (), len(partitions)
    yield OFFLINE_REPLICAS, (), sum(map(broker.replica_manager.is_offline, by_key))
    leaders = [partition.leader for partition in partitions]
    yield UNDER_REPLICATED, (), sum(leader.is_under_replicated for leader in leaders)
    yield UNDER_MIN_ISR, (), sum(leader.is_under_min_isr for leader in leaders)
    yield AT_MIN_ISR, (), sum(leader.is_at_min_isr for leader in leaders)
    yield (
        REASSIGNING,
        (),
        sum(bool(each.adding_replicas or each.removing_replicas) for each in registered),
    )
    yield PRODUCER_IDS, (), sum(len(partition.log.producers) for partition in partitions)
    fetches, produces = 0, 0
    for partition in partitions:
        fetches += partition.watcher_count
        produces += partition.pending_acknowledgement_count
    yield WAITING, ("Fetch",), fetches
    yield WAITING, ("Produce",), produces
