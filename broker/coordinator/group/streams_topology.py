"""Pure: the topology of a streams group (KIP-1071), and what the cluster's topics make of it.

- A topology is the same in whatever order a member lists its parts; the first member's is the group's.
- A repartition topic without a number of partitions gets that of what flows into it, or of the topics that it is
  copartitioned with; a changelog that of its subtopology's tasks. A subtopology has a task for each partition of its
  largest source.
- Without its source topics, or with topics of the wrong size, a topology has no tasks; without its internal topics it
  has none yet: they are to be created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from broker.controller.topics import NewTopic
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.persisted_streams_groups import (
    StreamsGroupTopologyValue,
    TopologyCopartitionGroup,
    TopologySubtopology,
    TopologyTopicConfig,
    TopologyTopicInfo,
)
from kafka_ds.protocol.messages.streams_groups import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupStatus,
)

# Of a repartition topic whose number of partitions is to be found, and of every changelog.
ANY_PARTITIONS = 0
DEFAULT_FACTOR = -1
# A status names so many topics, and says how many more there are.
NAMED_TOPICS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsInternalTopic:
    """A repartition or changelog topic, as the members want it."""

    name: str
    partitions: int = ANY_PARTITIONS
    # 0 is the broker's default.
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """A part of a topology whose tasks need nothing of other parts but their repartition topics."""

    subtopology_id: str
    sources: tuple[str, ...]
    regexes: tuple[str, ...] = ()
    repartition_sources: tuple[StreamsInternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    changelogs: tuple[StreamsInternalTopic, ...] = ()
    # Each the names of sources that must have the same number of partitions.
    copartitioned: tuple[tuple[str, ...], ...] = ()

    @property
    def is_stateful(self) -> bool:
        """Whether its tasks keep a state."""
        return bool(self.changelogs)

    def inputs(self) -> Iterator[str]:
        """Every topic that its tasks read."""
        yield from self.sources
        for topic in self.repartition_sources:
            yield topic.name

    def internal_topics(self) -> Iterator[StreamsInternalTopic]:
        """Every topic that is there for this subtopology only."""
        yield from self.repartition_sources
        yield from self.changelogs


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsTopology:
    """The topology of a group."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]
    # Derived: each source topic's subtopology.
    subtopology_of: Mapping[str, str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        found = {
            topic: each.subtopology_id for each in self.subtopologies for topic in each.inputs()
        }
        object.__setattr__(self, "subtopology_of", found)

    def required_topics(self) -> frozenset[str]:
        """Every topic without which there are no tasks."""
        internal = (t.name for each in self.subtopologies for t in each.internal_topics())
        return frozenset((*self.subtopology_of, *internal))


# -- requests and records ---------------------------------------------------------------------------


def check_subtopologies(said: Iterable[HeartbeatSubtopology]) -> None:
    """Refuse what no member of Kafka's sends; raises KafkaError."""
    seen: set[str] = set()
    for each in said:
        if each.subtopology_id in seen:
            raise _invalid(f"Subtopology {each.subtopology_id} is there twice.")
        seen.add(each.subtopology_id)
        for changelog in each.state_changelog_topics:
            if changelog.partitions != ANY_PARTITIONS:
                raise _invalid(
                    f"Changelog topic {changelog.name} must have an undefined partition count, "
                    f"but it is set to {changelog.partitions}."
                )
        for group in each.copartition_groups:
            if min((*group.source_topics, *group.repartition_source_topics), default=0) < 0:
                raise _no_source(each.subtopology_id)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


def _no_source(subtopology_id: str) -> KafkaError:
    return _invalid(f"A copartition group of subtopology {subtopology_id} names no source topic.")


def topology_of(said: HeartbeatTopology | StreamsGroupTopologyValue) -> StreamsTopology:
    """The topology of a request or of a record; raises KafkaError."""
    subtopologies = [_subtopology(each) for each in said.subtopologies]
    return StreamsTopology(
        epoch=said.epoch,
        subtopologies=tuple(sorted(subtopologies, key=lambda each: each.subtopology_id)),
    )


def _subtopology(said: Any) -> Subtopology:
    names = [topic.name for topic in said.repartition_source_topics]
    try:
        groups = {
            tuple(
                sorted(
                    (
                        *(said.source_topics[index] for index in group.source_topics),
                        *(names[index] for index in group.repartition_source_topics),
                    )
                )
            )
            for group in said.copartition_groups
        }
    except IndexError:
        raise _no_source(said.subtopology_id) from None
    return Subtopology(
        subtopology_id=said.subtopology_id,
        sources=tuple(sorted(said.source_topics)),
        regexes=tuple(sorted(said.source_topic_regex)),
        repartition_sources=_internal_topics(said.repartition_source_topics),
        repartition_sinks=tuple(sorted(said.repartition_sink_topics)),
        changelogs=_internal_topics(said.state_changelog_topics),
        copartitioned=tuple(sorted(groups)),
    )


def _internal_topics(topics: Iterable[Any]) -> tuple[StreamsInternalTopic, ...]:
    found = [
        StreamsInternalTopic(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(sorted((config.key, config.value) for config in topic.topic_configs)),
        )
        for topic in topics
    ]
    return tuple(sorted(found, key=lambda topic: topic.name))


def topology_value(topology: StreamsTopology) -> StreamsGroupTopologyValue:
    """The topology as a record holds it."""
    return StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[_subtopology_value(each) for each in topology.subtopologies],
    )


def _subtopology_value(each: Subtopology) -> TopologySubtopology:
    repartition = [topic.name for topic in each.repartition_sources]
    return TopologySubtopology(
        subtopology_id=each.subtopology_id,
        source_topics=list(each.sources),
        source_topic_regex=list(each.regexes),
        state_changelog_topics=_topic_values(each.changelogs),
        repartition_sink_topics=list(each.repartition_sinks),
        repartition_source_topics=_topic_values(each.repartition_sources),
        copartition_groups=[
            TopologyCopartitionGroup(
                source_topics=[each.sources.index(name) for name in group if name in each.sources],
                source_topic_regex=[],
                repartition_source_topics=[
                    repartition.index(name) for name in group if name not in each.sources
                ],
            )
            for group in each.copartitioned
        ],
    )


def _topic_values(topics: Iterable[StreamsInternalTopic]) -> list[TopologyTopicInfo]:
    return [
        TopologyTopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[
                TopologyTopicConfig(key=key, value=value) for key, value in topic.configs
            ],
        )
        for topic in topics
    ]


# -- with the topics that there are -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredTopology:
    """What the cluster's topics make of a topology.

    `tasks` by subtopology id, `sizes` of all internal topics: both empty if no topics can be told.
    """

    tasks: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[NewTopic, ...] = ()
    # What keeps the group from its tasks.
    problem: tuple[StreamsGroupStatus, str] | None = None
    # Why no topics could make the topology work.
    refusal: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there are tasks."""
        return self.problem is None and self.refusal is None


class _TopicMismatch(Exception):
    """The topics that there are do not fit: what is wrong, and how the members are told."""

    def __init__(self, status: StreamsGroupStatus, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class _InvalidTopology(Exception):
    """The topology could not work with any topics."""


# The number of a topic's partitions as it is, or as it will be; None: nobody knows.
_SizeOf: TypeAlias = Callable[[str], int | None]


def configured(topology: StreamsTopology, image: CoordinatorMetadataImage) -> ConfiguredTopology:
    """The topology with the topics of this image."""
    try:
        return _configured(topology, image)
    except _TopicMismatch as error:
        return ConfiguredTopology(problem=(error.status, error.text))
    except _InvalidTopology as error:
        return ConfiguredTopology(refusal=str(error))


def _configured(topology: StreamsTopology, image: CoordinatorMetadataImage) -> ConfiguredTopology:
    decided: dict[str, int] = {}

    def size_of(topic: str) -> int | None:
        shape = image.topic(topic)
        return decided.get(topic) if shape is None else shape.partitions

    absent = {
        topic
        for each in topology.subtopologies
        for topic in each.sources
        if image.topic(topic) is None
    }
    if absent:
        status = StreamsGroupStatus.MISSING_SOURCE_TOPICS
        raise _TopicMismatch(status, f"Source topics {named(absent)} are missing.")
    _decide_repartition(topology, decided, size_of)
    _decide_copartitioned(topology, decided, size_of)
    tasks: dict[str, int] = {}
    for each in topology.subtopologies:
        tasks[each.subtopology_id] = count = _task_count(each, size_of)
        decided |= {topic.name: count for topic in each.changelogs}
    missing = tuple(_missing_topics(topology, decided, image))
    problem = None
    if missing:
        text = f"Internal topics are missing: {named(topic.name for topic in missing)}"
        problem = (StreamsGroupStatus.MISSING_INTERNAL_TOPICS, text)
    return ConfiguredTopology(tasks=tasks, sizes=decided, missing=missing, problem=problem)


def named(topics: Iterable[str]) -> str:
    """The names, or the first of them and how many more there are."""
    found = sorted(topics)
    more = len(found) - NAMED_TOPICS_MAX
    text = ", ".join(found[:NAMED_TOPICS_MAX])
    return f"{text} and {more} additional topics" if more > 0 else text


def _task_count(each: Subtopology, size_of: _SizeOf) -> int:
    counts = [size_of(topic) for topic in each.inputs()]
    if not counts:
        raise _InvalidTopology(f"No source topics found for subtopology {each.subtopology_id}")
    return max(count or 0 for count in counts)


def _decide_repartition(
    topology: StreamsTopology, decided: dict[str, int], size_of: _SizeOf
) -> None:
    """Find a number of partitions for each repartition topic; raises _InvalidTopology."""
    sources = [topic for each in topology.subtopologies for topic in each.repartition_sources]
    decided |= {topic.name: topic.partitions for topic in sources if topic.partitions}
    writers = [(sink, each) for each in topology.subtopologies for sink in each.repartition_sinks]
    while undecided := [pair for pair in writers if pair[0] not in decided]:
        for sink, each in undecided:
            counts = [decided.get(topic.name) for topic in each.repartition_sources]
            counts += [size_of(topic) for topic in each.sources]
            known = [count for count in counts if count]
            if known and sink not in decided:
                decided[sink] = max(known)
        if all(sink not in decided for sink, _ in undecided):
            raise _InvalidTopology(
                "Failed to compute number of partitions for all repartition topics. "
                "There may be loops in the topology that cannot be resolved."
            )
    if any(topic.name not in decided for topic in sources):
        raise _InvalidTopology(
            "Failed to compute number of partitions for all repartition topics, because a "
            "repartition source topic is never used as a sink topic."
        )


def _decide_copartitioned(
    topology: StreamsTopology, decided: dict[str, int], size_of: _SizeOf
) -> None:
    """Give copartitioned topics the same number of partitions; raises _TopicMismatch."""
    sources = {
        topic.name: topic for each in topology.subtopologies for topic in each.repartition_sources
    }
    for group in (group for each in topology.subtopologies for group in each.copartitioned):
        outer = {topic: size_of(topic) for topic in group if topic not in sources}
        fixed = {
            topic: decided[topic]
            for topic in group
            if topic in sources and sources[topic].partitions
        }
        flexible = [topic for topic in group if topic in sources and topic not in fixed]
        if outer:
            count = _same(outer)
            for topic, own in fixed.items():
                if own != count:
                    text = (
                        f"Number of partitions [{own}] of repartition topic [{topic}] doesn't "
                        f"match number of partitions [{count}] of the source topic."
                    )
                    raise _TopicMismatch(StreamsGroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text)
        elif fixed:
            count = _same(fixed)
        else:
            count = max(decided[topic] for topic in flexible)
        decided |= dict.fromkeys(flexible, count)


def _same(counts: Mapping[str, int | None]) -> int:
    if len({*counts.values()}) > 1:
        shown = ", ".join(f"{topic}={count}" for topic, count in sorted(counts.items()))
        text = f"Following topics do not have the same number of partitions: [{{{shown}}}]"
        raise _TopicMismatch(StreamsGroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text)
    return next(iter(counts.values())) or 0


def _missing_topics(
    topology: StreamsTopology, decided: Mapping[str, int], image: CoordinatorMetadataImage
) -> Iterator[NewTopic]:
    """The internal topics that are to be created; raises _TopicMismatch if there is one of another size."""
    topics = {t.name: t for each in topology.subtopologies for t in each.internal_topics()}
    for name, topic in sorted(topics.items()):
        shape = image.topic(name)
        if shape is None:
            yield NewTopic(
                name=name,
                num_partitions=decided[name],
                replication_factor=topic.replication_factor or DEFAULT_FACTOR,
                configs=topic.configs,
            )
        elif shape.partitions != decided[name]:
            text = (
                f"Existing topic {name} has different number of partitions: "
                f"expected {decided[name]}, found {shape.partitions}"
            )
            raise _TopicMismatch(StreamsGroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text)
