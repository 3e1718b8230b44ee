"""Pure: what is to be seen of groups, under Kafka's names in their Prometheus spelling.

Rules of this file: it reads state and changes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.groups.shard import GroupShard
from broker.groups.state import Count
from broker.groups.states import GroupState

if TYPE_CHECKING:
    from broker.net.metrics import Sample

_OF_GROUPS = "kafka_coordinator_group_groupmetadatamanager"
_COUNTERS = "kafka_server_group_coordinator_metrics"


def group_samples(shards: Iterable[GroupShard]) -> Iterator[Sample]:
    """Groups by state, offsets, and what has happened to them."""
    states: Counter[GroupState] = Counter()
    counts: Counter[Count] = Counter()
    offsets = 0
    for shard in shards:
        states.update(shard.count_by_state())
        counts.update(shard.state.counts)
        offsets += len(shard.state.offsets)
    yield f"{_OF_GROUPS}_numoffsets", {}, offsets
    yield f"{_OF_GROUPS}_numgroups", {}, states.total()
    for state in GroupState:
        yield f"{_OF_GROUPS}_numgroups{state.value.lower()}", {}, states[state]
    for count in Count:
        yield f"{_COUNTERS}_{count.value}", {}, counts[count]
