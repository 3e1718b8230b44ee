"""Pure: plans the adoption of data directories of Apache Kafka.

All or nothing: whatever cannot be adopted completely raises a ConfigError that names it. Topics keep their ids,
partitions their replicas and ISR; leader epochs are above all of Kafka's; leaders are elected when the brokers start.
The first broker's metadata log must be at least as long as those of later brokers. Without one (ZooKeeper) this broker
has the only replica, and the operator sets the topics' settings, cleanup.policy included: with the default, retention
would delete records of compacted topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.adoption.metadata import KafkaCluster, KafkaTopic
from broker.metadata.events import (
    NO_LEADER,
    ClientQuotaChanged,
    ClusterCreated,
    ConfigChanged,
    Event,
    PartitionChanged,
    PartitionRegistration,
    ProducerIdBlock,
    RegisterBroker,
    TopicCreated,
)
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import (
    COMPACTED_TOPICS,
    INTERNAL_TOPICS,
    REMOTE_STORAGE_ENABLE,
    RESERVED_TOPICS,
    collision_key,
    why_illegal,
)
from kafka_ds.process.amounts import counted
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID, uuid_text
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

ALL_OTHERS = "*"
CLEANUP_POLICY = "cleanup.policy"
NAMES_SHOWN_MAX = 10
# Only ZooKeeper knew the latest leader epochs: logs know those that were written with, message formats 0 and 1 none.
# Clients ignore metadata with an epoch lower than one they have seen.
UNSEEN_LEADER_EPOCHS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLog:
    """A partition's log. `start_offset` is the first segment's, or the log start offset if higher; `latest_epoch` is
    the last leader epoch in its checkpoint, or -1."""

    topic: str
    partition: int
    topic_id: bytes
    folder: str
    start_offset: int
    remote_start_offset: int | None
    """The start in Kafka's tiered storage, if lower."""
    latest_epoch: int
    was_compacted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDirectory:
    """The content of one broker's directories."""

    node_id: int
    cluster_id: str | None
    """None before Kafka 2.4, as only ZooKeeper knew it."""
    logs: Mapping[TopicPartition, FoundLog]
    cluster: KafkaCluster | None
    """The state of the metadata log; None without one."""
    is_zookeepers: bool
    adopted_into: Sequence[str | None]
    """The lake that each directory was adopted into before, or None."""
    have_ids: bool
    """Whether any directory has an id: a kafka-ds broker writes one at its start, Kafka with ZooKeeper usually not."""
    broker_epoch: int
    """The broker epoch of a clean shutdown, or NO_BROKER_EPOCH."""
    next_producer_id: int
    """A producer id above all in the logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionPlan:
    """The events to commit, this broker's logs, the topic ids, and lines for the operator."""

    cluster_id: str
    events: Sequence[Event]
    logs: Sequence[FoundLog]
    topic_ids: Mapping[str, bytes]
    lines: Sequence[str]


@dataclass(slots=True, kw_only=True)
class _DraftedTopics:
    topics: list[KafkaTopic] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def topic_ids(self) -> dict[str, bytes]:
        return {topic.name: topic.topic_id for topic in self.topics}


def plan(
    found: FoundDirectory,
    given_configs: Mapping[str, Mapping[str, str]],
    *,
    broker_configs: Mapping[str, Mapping[str, str]],
    check_configs: Callable[[Mapping[str, str]], object],
    new_uuid: Callable[[], bytes],
) -> AdoptionPlan:
    """Plan the adoption. Raises ConfigError for anything that prevents it.

    `given_configs` are the operator's topic settings, which win. `broker_configs` are the adopted broker settings by
    resource name. `check_configs` raises ConfigError for unsupported topic settings.
    """
    if found.cluster is None and not found.is_zookeepers:
        before = next(filter(None, found.adopted_into), None)
        or_lost = (
            f"; or, if they were ZooKeeper's and were started on lake.uri={before} since, restore that lake: "
            "only it has the metadata"
        )
        raise ConfigError(
            "log.dirs belong to a KRaft cluster and contain no metadata log: name its folder with "
            f"--metadata-log-dir{or_lost if before else ''}"
        )
    drafted = _DraftedTopics()
    cluster_id = found.cluster_id
    if cluster_id is None:
        cluster_id = uuid_text(new_uuid())
        drafted.lines.append("Kafka before 2.4 has no cluster id: the cluster gets a new one")
    if found.cluster is None:
        drafted.topics = _topics_of_folders(found, new_uuid)
        drafted.lines.append("no metadata log: topics come from the folder names, without settings")
    else:
        drafted.topics = sorted(found.cluster.topics.values(), key=lambda topic: topic.name)
    drafted.topics = [topic for topic in drafted.topics if topic.name not in RESERVED_TOPICS]
    _check_names(drafted.topics)
    logs = _own_logs(found, drafted)
    unknown = sorted(set(given_configs) - {topic.name for topic in drafted.topics} - {ALL_OTHERS})
    if unknown:
        raise ConfigError(f"--topic-config: there is no topic {_few(unknown)}")
    if found.cluster is None:
        _check_policies(drafted.topics, found, given_configs)
    for topic in drafted.topics:
        given = _given(topic, given_configs)
        topic.configs = _configs(topic, given, check_configs, drafted.lines)
    _summarize(found, logs, drafted)
    return AdoptionPlan(
        cluster_id=cluster_id,
        events=(
            ClusterCreated(cluster_id=cluster_id),
            *_events(found, drafted, logs),
            *_config_events(BROKER_RESOURCE, broker_configs),
        ),
        logs=logs,
        topic_ids=drafted.topic_ids,
        lines=drafted.lines,
    )


def join(found: FoundDirectory, image: MetadataImage, lake_uri: str) -> AdoptionPlan:
    """Plan the adoption of a further broker of an adopted cluster, or a repeated one: no events.

    Raises ConfigError if the lake is another cluster's or behind this broker, or if this broker was started on it.
    """
    is_repeated = _is_repeated(found, image, lake_uri)
    if image.cluster_id is None or (
        image.cluster_id != found.cluster_id and not (is_repeated and found.cluster_id is None)
    ):
        theirs = found.cluster_id or "a cluster without an id"
        raise ConfigError(
            f"lake.uri={lake_uri} contains cluster {image.cluster_id}, but log.dirs belong to {theirs}: adopt needs an "
            "empty lake"
        )
    known = image.brokers.get(found.node_id)
    # A broker of a ZooKeeper cluster registers at its start.
    may_join = is_repeated if known is None else known.incarnation_id == NO_UUID
    if not may_join:
        raise ConfigError(
            f"lake.uri={lake_uri}: cluster {image.cluster_id} exists already, and node.id={found.node_id} "
            f"{'is not one of its brokers' if known is None else 'was started in it'}: nothing was adopted"
        )
    _check_not_behind(found, image, lake_uri)
    drafted = _DraftedTopics()
    drafted.topics = [
        KafkaTopic(name=topic.name, topic_id=topic.topic_id, partitions=topic.partitions)
        for topic in image.topics.values()
    ]
    logs = _own_logs(found, drafted)
    drafted.lines.append(
        f"cluster {image.cluster_id} was adopted already: {counted(len(logs), 'log')} of this broker"
    )
    return AdoptionPlan(
        cluster_id=image.cluster_id,
        events=(),
        logs=logs,
        topic_ids=drafted.topic_ids,
        lines=drafted.lines,
    )


def _is_repeated(found: FoundDirectory, image: MetadataImage, lake_uri: str) -> bool:
    """Whether these directories of a ZooKeeper cluster were adopted into this lake and not started since.

    An earlier `adopt` may have been killed after its commit. It wrote each topic id before the commit, so the ids show
    that the lake's metadata are from these directories.
    """
    topic_ids = {topic.topic_id for topic in image.topics.values()}
    return (
        found.cluster is None
        and not found.have_ids
        and set(found.adopted_into) == {lake_uri}
        and all(
            log.topic_id in topic_ids
            for log in found.logs.values()
            if log.topic not in RESERVED_TOPICS
        )
    )


def _check_not_behind(found: FoundDirectory, image: MetadataImage, lake_uri: str) -> None:
    """The metadata log that was adopted first must be the longest one.

    A broker that stopped before the others does not know later ISR changes: replicas without acknowledged records might
    become leaders. Epochs only grow, so a higher one is later.
    """
    later = sorted(_later_than(found, image))
    if later:
        raise ConfigError(
            f"lake.uri={lake_uri} is behind broker {found.node_id} for {_few(later)}: the "
            "metadata log that was adopted first was not the longest one. Start again with an empty lake, and name the "
            "longest (usually that of the controller stopped last) by --metadata-log-dir for each broker"
        )


def _later_than(found: FoundDirectory, image: MetadataImage) -> Iterator[str]:
    """Topics and partitions that are behind in the lake."""
    known = {topic.topic_id: topic.partitions for topic in image.topics.values()}
    for topic in found.cluster.topics.values() if found.cluster else ():
        if topic.name in RESERVED_TOPICS:
            continue
        if topic.topic_id not in known:
            yield f"topic {topic.name}"
            continue
        for partition, theirs in topic.partitions.items():
            ours = known[topic.topic_id].get(partition)
            if (
                ours is None
                or theirs.partition_epoch > ours.partition_epoch
                or theirs.leader_epoch > ours.leader_epoch
            ):
                yield str(TopicPartition(topic.name, partition))
    for log in found.logs.values():
        registered = known.get(log.topic_id, {}).get(log.partition)
        if registered is not None and log.latest_epoch > registered.leader_epoch:
            yield f"{TopicPartition(log.topic, log.partition)} (its log)"


def _topics_of_folders(found: FoundDirectory, new_uuid: Callable[[], bytes]) -> list[KafkaTopic]:
    topics: dict[str, KafkaTopic] = {}
    for (name, partition), log in sorted(found.logs.items()):
        topic = topics.setdefault(name, KafkaTopic(name=name, topic_id=log.topic_id))
        if topic.topic_id == NO_UUID:
            topic.topic_id = log.topic_id
        topic.partitions[partition] = PartitionRegistration(
            replicas=(found.node_id,),
            isr=(found.node_id,),
            leader=NO_LEADER,
            leader_epoch=max(log.latest_epoch, 0) + UNSEEN_LEADER_EPOCHS,
        )
    for topic in topics.values():
        if topic.topic_id == NO_UUID:
            topic.topic_id = new_uuid()  # Kafka before 2.8 has no topic ids.
        missing = sorted(set(range(max(topic.partitions) + 1)) - set(topic.partitions))
        if missing:
            raise ConfigError(
                f"log.dirs: topic {topic.name} has no folder of partition {_few(missing)}: it was on other brokers, "
                "too, and only a cluster with a metadata log (KRaft) can be adopted broker by broker"
            )
    return list(topics.values())


def _check_names(topics: Sequence[KafkaTopic]) -> None:
    names: dict[str, str] = {}
    for topic in topics:
        why = why_illegal(topic.name)
        other = names.setdefault(collision_key(topic.name), topic.name)
        if why is None and other != topic.name:
            why = f"it collides with {other} in the lake"
        if why is not None:
            raise ConfigError(f"log.dirs: topic {topic.name} cannot be adopted: {why}")


def _own_logs(found: FoundDirectory, drafted: _DraftedTopics) -> list[FoundLog]:
    """The logs of the broker's replicas. Raises ConfigError for a missing one: it would start empty, but might lead."""
    logs: list[FoundLog] = []
    missing: list[str] = []
    for topic in drafted.topics:
        for partition, registration in topic.partitions.items():
            log = found.logs.get(TopicPartition(topic.name, partition))
            if log is not None and log.topic_id in (topic.topic_id, NO_UUID):
                logs.append(log)
            elif found.node_id in registration.replicas:
                missing.append(str(TopicPartition(topic.name, partition)))
    if missing:
        raise ConfigError(
            f"log.dirs: no folder of {_few(missing)}, of which this broker has a replica in Kafka's metadata: name all "
            "directories that it had"
        )
    left = sorted(set(found.logs) - {TopicPartition(log.topic, log.partition) for log in logs})
    for key in left:
        drafted.lines.append(f"{found.logs[key].folder} is ignored: its topic does not exist")
    return logs


def _configs(
    topic: KafkaTopic,
    given: Mapping[str, str],
    check: Callable[[Mapping[str, str]], object],
    lines: list[str],
) -> dict[str, str]:
    """The adopted settings of a topic; the operator's must be valid."""
    own = dict(topic.configs)
    if topic.name in COMPACTED_TOPICS:
        own = {CLEANUP_POLICY: "compact", **own}
    if topic.name in INTERNAL_TOPICS:
        own[REMOTE_STORAGE_ENABLE] = "false"
    adopted, refused = adoptable(
        {name: value for name, value in own.items() if name not in given},
        lambda tried: check({**tried, **given}),
    )
    try:
        check({**adopted, **given})
    except ConfigError as error:
        raise ConfigError(f"--topic-config {topic.name}: {error}") from None
    for name, why in refused.items():
        if name == CLEANUP_POLICY:
            raise ConfigError(f"topic {topic.name}: {why}")
        lines.append(f"{topic.name}: {name}={own[name]} is not adopted: {why}")
    return {**adopted, **given}


def adoptable(
    own: Mapping[str, str], check: Callable[[Mapping[str, str]], object]
) -> tuple[dict[str, str], dict[str, ConfigError]]:
    """The settings that are valid together, and why the others are not.

    First all at once, as one may need another; then one by one until no more is valid.
    """
    adopted: dict[str, str] = {}
    refused: dict[str, ConfigError] = {}
    try:
        check(own)
        return dict(own), refused
    except ConfigError:
        pass
    while True:
        refused.clear()
        before = len(adopted)
        for name in [each for each in own if each not in adopted]:
            try:
                check({**adopted, name: own[name]})
                adopted[name] = own[name]
            except ConfigError as error:
                refused[name] = error
        if len(adopted) == before:
            return adopted, refused


def _given(topic: KafkaTopic, given: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The operator's settings of a topic; those for all topics exclude Kafka's internal ones."""
    general = {} if topic.name in INTERNAL_TOPICS else given.get(ALL_OTHERS, {})
    return {**general, **given.get(topic.name, {})}


def _check_policies(
    topics: Sequence[KafkaTopic], found: FoundDirectory, given: Mapping[str, Mapping[str, str]]
) -> None:
    compacted = {key[0] for key, log in found.logs.items() if log.was_compacted}
    for topic in topics:
        if topic.name in INTERNAL_TOPICS:
            continue
        own = given.get(topic.name, {}) if topic.name in compacted else _given(topic, given)
        if CLEANUP_POLICY not in own:
            was = (
                "was compacted by Kafka"
                if topic.name in compacted
                else "has its settings in ZooKeeper"
            )
            others = (
                ""
                if topic.name in compacted
                else f", or of all others, {ALL_OTHERS}:{CLEANUP_POLICY}=delete"
            )
            raise ConfigError(
                f"topic {topic.name} {was}: set --topic-config {topic.name}:{CLEANUP_POLICY}=compact "
                f"or =delete{others}"
            )


def _summarize(found: FoundDirectory, logs: Sequence[FoundLog], drafted: _DraftedTopics) -> None:
    """The summary for the operator: what is adopted, what is not, and which brokers remain."""
    lines = drafted.lines
    for log in logs:
        if log.remote_start_offset is not None:
            lines.append(
                f"{TopicPartition(log.topic, log.partition)} starts at {log.start_offset}: records in Kafka's tiered "
                f"storage, from {log.remote_start_offset} on, are not adopted"
            )
    cluster = found.cluster
    if cluster is not None:
        for what, count in cluster.not_adopted.items():
            lines.append(f"{what}: not adopted ({counted(count, 'record')})")
        lines.append(
            f"{counted(len(cluster.acls), 'ACL')} and {counted(len(cluster.quotas), 'quota')} are adopted"
        )
        others = sorted(_others(found, drafted.topics))
        if others:
            lines.append(
                f"brokers {_few(others)} have replicas, too: adopt their directories into the same lake"
            )
    lines.append(
        f"{counted(len(drafted.topics), 'topic')}, {counted(len(logs), 'log')} of this broker"
    )


def _others(found: FoundDirectory, topics: Iterable[KafkaTopic]) -> set[int]:
    replicas = {r for t in topics for p in t.partitions.values() for r in p.replicas}
    return replicas - {found.node_id}


def _events(
    found: FoundDirectory, drafted: _DraftedTopics, logs: Sequence[FoundLog]
) -> Iterator[Event]:
    cluster = found.cluster
    known = cluster.next_producer_id if cluster else 0
    next_producer_id = max(known, found.next_producer_id)
    if next_producer_id:
        yield ProducerIdBlock(broker_id=-1, first_producer_id=next_producer_id, size=0)
    # A broker that shut down cleanly has recorded its epoch: if it is the registered one, nothing is lost.
    epochs = dict(cluster.brokers) if cluster else {}
    if found.broker_epoch != NO_BROKER_EPOCH:
        epochs.setdefault(found.node_id, found.broker_epoch)
    for broker_id, epoch in sorted(epochs.items()):
        yield RegisterBroker(
            broker_id=broker_id,
            incarnation_id=NO_UUID,
            endpoints=(),
            broker_epoch=epoch,
            fenced=True,
        )
    latest = {(log.topic, log.partition): log.latest_epoch for log in logs}
    for topic in drafted.topics:
        yield TopicCreated(topic=topic.name, topic_id=topic.topic_id)
        for partition, registration in sorted(topic.partitions.items()):
            epoch = max(registration.leader_epoch, latest.get((topic.name, partition), -1), 0)
            yield PartitionChanged(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=partition,
                registration=replace(
                    registration,
                    leader=NO_LEADER,
                    leader_epoch=epoch,
                    partition_epoch=max(registration.partition_epoch, 0),
                ),
            )
    yield from _config_events(TOPIC_RESOURCE, {t.name: t.configs for t in drafted.topics})
    if cluster is not None:
        yield from cluster.acls.values()
        for (entity, name), quota in cluster.quotas.items():
            yield ClientQuotaChanged(entity=entity, name=name, value=quota)


def _config_events(kind: int, configs: Mapping[str, Mapping[str, str]]) -> Iterator[ConfigChanged]:
    for resource, own in configs.items():
        for name, value in own.items():
            yield ConfigChanged(resource_type=kind, resource_name=resource, name=name, value=value)


def _few(names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:NAMES_SHOWN_MAX])
    return (
        shown
        if len(names) <= NAMES_SHOWN_MAX
        else f"{shown} and {len(names) - NAMES_SHOWN_MAX} more"
    )
