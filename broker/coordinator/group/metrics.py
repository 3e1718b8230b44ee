"""Pure: the metrics of groups, under Kafka's names.

It reads state and changes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from broker.coordinator.group.classic_group import ClassicGroupState
from broker.coordinator.group.consumer_group import ConsumerGroupState
from broker.coordinator.group.shard import GroupCoordinatorShard
from broker.coordinator.group.share_group import ShareGroupState
from broker.coordinator.group.streams_group import StreamsGroupState
from broker.coordinator.group.values import GroupMetric
from broker.coordinator.loads import LoadMetrics
from broker.metrics.names import MetricSample, attribute, gauge

_OF_GROUPS = "kafka.coordinator.group:type=GroupMetadataManager,name="
_COUNTERS = "kafka.server:type=group-coordinator-metrics"

LOADS = LoadMetrics(_COUNTERS, "groups", states_are_ours=False)
OFFSETS = gauge(f"{_OF_GROUPS}NumOffsets", "Committed offsets of all groups.")
GROUPS = gauge(f"{_OF_GROUPS}NumGroups", "Groups that this broker coordinates.")
_BY_STATE = {
    state: gauge(f"{_OF_GROUPS}NumGroups{state.value}", f"Groups that are {state.value}.")
    for state in ClassicGroupState
}
_SAYS = {
    GroupMetric.OFFSET_COMMITS: "Offsets committed.",
    GroupMetric.OFFSET_DELETIONS: "Offsets deleted by OffsetDelete.",
    GroupMetric.OFFSET_EXPIRATIONS: "Offsets that were kept for offsets.retention.minutes.",
    GroupMetric.COMPLETED_REBALANCES: "Rebalances that have ended with all members joined.",
    GroupMetric.CONSUMER_REBALANCES: "Epochs of groups of the consumer protocol that have begun.",
    GroupMetric.SHARE_REBALANCES: "Epochs of share groups that have begun.",
    GroupMetric.STREAMS_REBALANCES: "Epochs of streams groups that have begun.",
}
_BY_COUNT = {
    count: attribute(_COUNTERS, count.value.replace("_", "-"), says)
    for count, says in _SAYS.items()
}
BY_PROTOCOL = attribute(
    _COUNTERS, "group-count", "Groups by protocol: classic, consumer, share, streams.", "protocol"
)
BY_CONSUMER_STATE = attribute(
    _COUNTERS,
    "consumer-group-count",
    "Groups of the consumer protocol by state.",
    "state",
)
BY_SHARE_STATE = attribute(_COUNTERS, "share-group-count", "Share groups by state.", "state")
BY_STREAMS_STATE = attribute(_COUNTERS, "streams-group-count", "Streams groups by state.", "state")
assert set(_BY_COUNT) == set(GroupMetric), "each count is shown"


def group_samples(
    shards: Iterable[GroupCoordinatorShard], counts: Mapping[GroupMetric, int]
) -> Iterator[MetricSample]:
    """Groups by state, offsets, and what has happened to them since the broker started."""
    states: Counter[ClassicGroupState] = Counter()
    consumers: Counter[ConsumerGroupState] = Counter()
    shares: Counter[ShareGroupState] = Counter()
    streams: Counter[StreamsGroupState] = Counter()
    offsets = 0
    for shard in shards:
        states.update(shard.count_by_state())
        consumers.update(shard.count_consumer_groups())
        shares.update(shard.count_share_groups())
        streams.update(shard.count_streams_groups())
        offsets += len(shard.state.offsets)
    yield OFFSETS, (), offsets
    yield GROUPS, (), states.total()
    yield BY_PROTOCOL, ("classic",), states.total()
    yield BY_PROTOCOL, ("consumer",), consumers.total()
    yield BY_PROTOCOL, ("share",), shares.total()
    yield BY_PROTOCOL, ("streams",), streams.total()
    for each in ConsumerGroupState:
        yield BY_CONSUMER_STATE, (each.value.lower(),), consumers[each]
    for state_of_share in ShareGroupState:
        yield BY_SHARE_STATE, (state_of_share.value,), shares[state_of_share]
    for state_of_streams in StreamsGroupState:
        yield BY_STREAMS_STATE, (state_of_streams.value,), streams[state_of_streams]
    for state, metric in _BY_STATE.items():
        yield metric, (), states[state]
    for count, metric in _BY_COUNT.items():
        yield metric, (), counts.get(count, 0)
