"""Pure: a commit of cluster events as lines of the broker's log.

- A commit that creates a topic of a thousand partitions is one line. A commit that moves the partitions of a dead
  broker is one line per topic: the brokers are busy then, and the table of events has each partition.
- Values of settings may be secrets: a line names settings and leaves values out.
- A broker's registration at each start gets no line, nor does a partition of which only the log directories are new:
  each new topic would seem to get new leaders once more for each of its brokers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from broker.metadata.events import (
    ConfigChanged,
    Event,
    FenceBroker,
    PartitionChanged,
    PartitionRegistration,
    TopicCreated,
    TopicDeleted,
    UnfenceBroker,
)
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.messages.configs import (
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)

# Text, and the fields that a structured log has beside it.
Line: TypeAlias = tuple[str, dict[str, object]]

# What was logged last: of topics by their ids, in them of partitions.
Logged: TypeAlias = dict[bytes, dict[int, PartitionRegistration]]

# So many partitions of a topic have a line each.
PARTITION_LINES_MAX = 20


def lines_of(events: Sequence[Event], logged: Logged) -> Iterator[Line]:
    """The lines, in order; `logged` is the caller's to keep, and changed here."""
    return _lines_of([event for event in events if _is_news(event, logged)])


def _is_news(event: Event, logged: Logged) -> bool:
    """Whether more of a partition has changed than its directories; others are always news."""
    match event:
        case PartitionChanged():
            partitions = logged.setdefault(event.topic_id, {})
            before, now = partitions.get(event.partition), event.registration
            partitions[event.partition] = now
            return before is None or now != replace(
                before, directories=now.directories, partition_epoch=now.partition_epoch
            )
        case TopicDeleted():
            logged.pop(event.topic_id, None)
    return True


def _lines_of(events: Sequence[Event]) -> Iterator[Line]:
    created = {each.topic for each in events if isinstance(each, TopicCreated)}
    partitions = Counter(each.topic for each in events if isinstance(each, PartitionChanged))
    leaders: defaultdict[str, Counter[int]] = defaultdict(Counter)
    settings: dict[tuple[int, str], list[str]] = {}
    for event in events:
        match event:
            case TopicCreated():
                count = partitions[event.topic]
                yield (
                    f"topic {event.topic} was created with {counted(count, 'partition')}",
                    {"topic": event.topic, "partitions": count},
                )
            case TopicDeleted():
                yield f"topic {event.topic} was deleted", {"topic": event.topic}
            case PartitionChanged() if event.topic not in created:
                if partitions[event.topic] <= PARTITION_LINES_MAX:
                    yield _partition(event)
                else:
                    leaders[event.topic][event.registration.leader] += 1
            case FenceBroker() | UnfenceBroker():
                yield _fencing(event)
            case ConfigChanged() if event.resource_name not in created:
                place = (event.resource_type, event.resource_name)
                settings.setdefault(place, []).append(event.name)
            case _:
                pass
    for topic, counts in leaders.items():
        yield _partitions(topic, counts)
    for (kind, name), names in settings.items():
        yield _settings(kind, name, names)


def _fencing(event: FenceBroker | UnfenceBroker) -> Line:
    what, why = "Fencing", "its session has timed out, or it has stopped"
    if isinstance(event, UnfenceBroker):
        what, why = "Unfencing", "it has caught up with the metadata"
    text = f"{what} broker {event.broker_id} at epoch {event.broker_epoch}: {why}"
    return text, {"broker": event.broker_id, "broker_epoch": event.broker_epoch}


def _settings(kind: int, name: str, names: list[str]) -> Line:
    """Some settings of one resource have changed."""
    if kind == TOPIC_RESOURCE:
        return (
            f"settings of topic {name} were changed: {', '.join(names)}",
            {"topic": name, "settings": names},
        )
    whose = f"broker {name}" if name else "all brokers"
    if kind == GROUP_RESOURCE:
        whose = f"group {name}"
    if kind == CLIENT_METRICS_RESOURCE:
        whose = f"client metrics subscription {name}"
    return f"settings of {whose} were changed: {', '.join(names)}", {"settings": names}


def _partitions(topic: str, leaders: Counter[int]) -> Line:
    """Many partitions of a topic, by their new leaders."""
    by_leader = ", ".join(
        f"leader {leader} has {count}" for leader, count in sorted(leaders.items())
    )
    return (
        f"partition change for {leaders.total()} partitions of {topic}: {by_leader}",
        {"topic": topic, "partitions": leaders.total(), "leaders": dict(leaders)},
    )


def _partition(event: PartitionChanged) -> Line:
    state = event.registration
    isr = ",".join(map(str, state.isr))
    text = (
        f"partition change for {event.topic_partition}: leader: {state.leader}, "
        f"leaderEpoch: {state.leader_epoch}, isr: [{isr}]"
    )
    return text, {
        "topic": event.topic,
        "partition": event.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
