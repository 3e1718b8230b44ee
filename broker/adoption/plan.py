"""Pure: from what lies in a data directory of Apache Kafka to the cluster that goes on with it.

All or nothing: what cannot be taken over whole is a ConfigError that names it. Topics keep their ids, partitions their
replicas and ISR, and leader epochs are above all that Kafka gave; leaders are elected when the brokers come. A metadata
log says it all, and the first one must reach as far as those of brokers that come later. Without one (ZooKeeper) this
broker has the only replica, and the operator gives topics' settings, cleanup.policy among them: with the default
retention would delete what compaction was to keep.
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
from kafka_ds.protocol.types import NO_UUID, uuid_text
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

ALL_OTHERS = "*"
CLEANUP_POLICY = "cleanup.policy"
NAMES_SHOWN_MAX = 10
# ZooKeeper alone knew the partitions' last epochs: logs tell of those with which something was written here, and logs
# of formats 0 and 1 of none. To a client that was told a higher one before, ours would be news of the past.
UNSEEN_LEADER_EPOCHS = 1_000_000

Key = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLog:
    """The log of a partition in one of the directories. `start_offset` is that of its first segment, or its log start
    where that is higher; `latest_epoch` the last leader epoch in its checkpoint, or -1."""

    topic: str
    partition: int
    topic_id: bytes
    folder: str
    start_offset: int
    remote_start_offset: int | None
    """Where it began in Kafka's tiered storage, if that was further back."""
    latest_epoch: int
    was_compacted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDirectory:
    """What lies in the directories of one broker."""

    node_id: int
    cluster_id: str | None
    """None in directories of before 2.4, as ZooKeeper alone knew it."""
    logs: Mapping[Key, FoundLog]
    cluster: KafkaCluster | None
    """The content of the metadata log; None if there is none."""
    is_zookeepers: bool
    adopted_into: Sequence[str | None]
    """Into which lake each directory was taken over before, if it was."""
    have_ids: bool
    """Whether directories have ids: our broker gives each one when it starts, Kafka with ZooKeeper none as a rule."""
    broker_epoch: int
    """That of a clean stop, or NO_BROKER_EPOCH."""
    next_producer_id: int
    """Above all that the logs have seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionPlan:
    """The events to decide, the logs that belong to it, the ids of topics, and lines for the operator."""

    cluster_id: str
    events: Sequence[Event]
    logs: Sequence[FoundLog]
    topic_ids: Mapping[str, bytes]
    lines: Sequence[str]


@dataclass(slots=True, kw_only=True)
class _Drafted:
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
    """Plan the takeover; raises ConfigError for anything that prevents it.

    `given_configs`: settings of topics by the operator; they win. `broker_configs`: those of brokers that are taken
    over, by resource name. `check_configs` raises ConfigError for settings of a topic that are not served.
    """
    if found.cluster is None and not found.is_zookeepers:
        before = next(filter(None, found.adopted_into), None)
        or_lost = (
            f"; or, if they were ZooKeeper's and have been started on lake.uri={before} since, bring that lake back: "
            "it alone has the metadata"
        )
        raise ConfigError(
            "log.dirs belong to a KRaft cluster and hold no metadata log: name its folder with "
            f"--metadata-log-dir{or_lost if before else ''}"
        )
    drafted = _Drafted()
    cluster_id = found.cluster_id
    if cluster_id is None:
        cluster_id = uuid_text(new_uuid())
        drafted.lines.append("Kafka before 2.4 names no cluster: it gets a new id")
    if found.cluster is None:
        drafted.topics = _topics_of_folders(found, new_uuid)
        drafted.lines.append(
            "no metadata log: the folders say which topics there are, and nothing of their settings"
        )
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
    _sum_up(found, logs, drafted)
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
    """A further broker of a cluster that was taken over, or one once more: only its logs' starts have to be recorded.

    Raises ConfigError where the lake is another cluster's, or behind what this broker knows, or where this broker has
    begun to work there.
    """
    is_repeated = _is_repeated(found, image, lake_uri)
    if image.cluster_id is None or (
        image.cluster_id != found.cluster_id and not (is_repeated and found.cluster_id is None)
    ):
        theirs = found.cluster_id or "a cluster without an id"
        raise ConfigError(
            f"lake.uri={lake_uri} holds cluster {image.cluster_id}, but log.dirs belong to {theirs}: adopt needs an "
            "empty lake"
        )
    known = image.brokers.get(found.node_id)
    # ZooKeeper's broker registers when it starts.
    may_join = is_repeated if known is None else known.incarnation_id == NO_UUID
    if not may_join:
        raise ConfigError(
            f"lake.uri={lake_uri}: cluster {image.cluster_id} is there already, and node.id={found.node_id} "
            f"{'is none of its brokers' if known is None else 'has been started in it'}: nothing was adopted"
        )
    _check_not_behind(found, image, lake_uri)
    drafted = _Drafted()
    drafted.topics = [
        KafkaTopic(name=topic.name, topic_id=topic.topic_id, partitions=topic.partitions)
        for topic in image.topics.values()
    ]
    logs = _own_logs(found, drafted)
    drafted.lines.append(
        f"cluster {image.cluster_id} was taken over already: {counted(len(logs), 'log')} of this broker"
    )
    return AdoptionPlan(
        cluster_id=image.cluster_id,
        events=(),
        logs=logs,
        topic_ids=drafted.topic_ids,
        lines=drafted.lines,
    )


def _is_repeated(found: FoundDirectory, image: MetadataImage, lake_uri: str) -> bool:
    """Whether these very directories, of ZooKeeper's, were taken over into this lake and have not been started since.

    Whoever did so may have been killed before it knew. Each log has got its topic's id before that was decided: by
    these it shows whose decision the lake has.
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
    """What was taken over first must have been the metadata log that reaches furthest.

    A broker that was stopped before the others does not know who fell out of sync since: it would name as in sync, and
    let lead, replicas that lack what was acknowledged. Epochs only grow, in Kafka and here, so a higher one is later.
    """
    later = sorted(_later_than(found, image))
    if later:
        raise ConfigError(
            f"lake.uri={lake_uri} is behind what broker {found.node_id} knows of {_few(later)}: the "
            "metadata log that was adopted first was not the longest one. Start again with an empty lake, and name the "
            "longest (usually that of the controller stopped last) by --metadata-log-dir for each broker"
        )


def _later_than(found: FoundDirectory, image: MetadataImage) -> Iterator[str]:
    """Topics and partitions that are not complete in the lake."""
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
                yield f"{topic.name}-{partition}"
    for log in found.logs.values():
        registered = known.get(log.topic_id, {}).get(log.partition)
        if registered is not None and log.latest_epoch > registered.leader_epoch:
            yield f"{log.topic}-{log.partition} (its log)"


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
            topic.topic_id = new_uuid()  # Kafka before 2.8 had none.
        missing = sorted(set(range(max(topic.partitions) + 1)) - set(topic.partitions))
        if missing:
            raise ConfigError(
                f"log.dirs: topic {topic.name} has no folder of partition {_few(missing)}: it was on other brokers as "
                "well, and only a cluster with a metadata log (KRaft) is taken over in parts"
            )
    return list(topics.values())


def _check_names(topics: Sequence[KafkaTopic]) -> None:
    names: dict[str, str] = {}
    for topic in topics:
        why = why_illegal(topic.name)
        other = names.setdefault(collision_key(topic.name), topic.name)
        if why is None and other != topic.name:
            why = f"a lake cannot tell it from {other}"
        if why is not None:
            raise ConfigError(f"log.dirs: topic {topic.name} cannot be taken over: {why}")


def _own_logs(found: FoundDirectory, drafted: _Drafted) -> list[FoundLog]:
    """The logs of this broker's replicas; a replica without one would begin empty, and might lead."""
    logs: list[FoundLog] = []
    missing: list[str] = []
    for topic in drafted.topics:
        for partition, registration in topic.partitions.items():
            log = found.logs.get((topic.name, partition))
            if log is not None and log.topic_id in (topic.topic_id, NO_UUID):
                logs.append(log)
            elif found.node_id in registration.replicas:
                missing.append(f"{topic.name}-{partition}")
    if missing:
        raise ConfigError(
            f"log.dirs: no folder of {_few(missing)}, which this broker holds by Kafka's metadata: name all "
            "directories that it had"
        )
    left = sorted(set(found.logs) - {(log.topic, log.partition) for log in logs})
    for key in left:
        drafted.lines.append(
            f"{found.logs[key].folder}: left alone: it belongs to no topic that there is"
        )
    return logs


def _configs(
    topic: KafkaTopic,
    given: Mapping[str, str],
    check: Callable[[Mapping[str, str]], object],
    lines: list[str],
) -> dict[str, str]:
    """The settings that are taken over; those of the operator must be right."""
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
        lines.append(f"{topic.name}: {name}={own[name]} is not taken over: {why}")
    return {**adopted, **given}


def adoptable(
    own: Mapping[str, str], check: Callable[[Mapping[str, str]], object]
) -> tuple[dict[str, str], dict[str, ConfigError]]:
    """The settings that can be had together, and why the others cannot.

    All at once if they can, as one may be right only beside another; else as many as go, in whatever order they go.
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
    """The operator's settings of a topic; those for all topics are not for Kafka's own."""
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
            was = "was compacted by Kafka" if topic.name in compacted else "is set in ZooKeeper"
            others = (
                ""
                if topic.name in compacted
                else f", or of all others, {ALL_OTHERS}:{CLEANUP_POLICY}=delete"
            )
            raise ConfigError(
                f"topic {topic.name} {was}: say how, with --topic-config {topic.name}:{CLEANUP_POLICY}=compact "
                f"or =delete{others}"
            )


def _sum_up(found: FoundDirectory, logs: Sequence[FoundLog], drafted: _Drafted) -> None:
    """The summary for the operator: what is taken over, what stays behind, and which brokers are to follow."""
    lines = drafted.lines
    for log in logs:
        if log.remote_start_offset is not None:
            lines.append(
                f"{log.topic}-{log.partition}: begins at {log.start_offset}: what Kafka had tiered, from "
                f"{log.remote_start_offset} on, stays there"
            )
    cluster = found.cluster
    if cluster is not None:
        for what, count in cluster.left_behind.items():
            lines.append(f"{what}: not taken over ({counted(count, 'record')})")
        lines.append(
            f"{counted(len(cluster.acls), 'ACL')} and {counted(len(cluster.quotas), 'quota')} are taken over"
        )
        others = sorted(_others(found, drafted.topics))
        if others:
            lines.append(
                f"replicas are on brokers {_few(others)}, too: take their directories over with this same lake"
            )
    lines.append(
        f"{counted(len(drafted.topics), 'topic')}, {counted(len(logs), 'log')} of this broker"
    )


def _others(found: FoundDirectory, topics: Iterable[KafkaTopic]) -> set[int]:
    replicas = {r for t in topics for p in t.partitions.values() for r in p.replicas}
    return replicas - {found.node_id}


def _events(found: FoundDirectory, drafted: _Drafted, logs: Sequence[FoundLog]) -> Iterator[Event]:
    cluster = found.cluster
    known = cluster.next_producer_id if cluster else 0
    next_producer_id = max(known, found.next_producer_id)
    if next_producer_id:
        yield ProducerIdBlock(broker_id=-1, first_producer_id=next_producer_id, size=0)
    # Brokers that stopped cleanly have recorded their epoch, and have lost nothing if it is this one.
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
