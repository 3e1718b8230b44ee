"""Pure: what a commit of cluster events means, as lines of the broker's log.

Rules of this file: a commit that makes a topic of a thousand partitions is one line. Values of settings may be secrets:
a line names settings and leaves values out. What a broker registers at each start is its own affair and no line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from broker.cluster.events import (
    TOPIC_RESOURCE,
    ConfigChanged,
    Event,
    PartitionChanged,
    TopicCreated,
    TopicDeleted,
)

# Text, and the fields that a structured log has beside it.
Line: TypeAlias = tuple[str, dict[str, object]]


def lines_of(events: Sequence[Event]) -> Iterator[Line]:
    """What has happened, in order."""
    created = {each.topic for each in events if isinstance(each, TopicCreated)}
    partitions = Counter(each.topic for each in events if isinstance(each, PartitionChanged))
    settings: dict[tuple[int, str], list[str]] = {}
    for event in events:
        match event:
            case TopicCreated():
                count = partitions[event.topic]
                yield (
                    f"topic {event.topic} was created with {count} partitions",
                    {"topic": event.topic, "partitions": count},
                )
            case TopicDeleted():
                yield f"topic {event.topic} was deleted", {"topic": event.topic}
            case PartitionChanged() if event.topic not in created:
                yield _partition(event)
            case ConfigChanged() if event.resource_name not in created:
                place = (event.resource_type, event.resource_name)
                settings.setdefault(place, []).append(event.name)
            case _:
                pass
    for (kind, name), names in settings.items():
        if kind == TOPIC_RESOURCE:
            yield (
                f"settings of topic {name} were changed: {', '.join(names)}",
                {"topic": name, "settings": names},
            )
        else:
            whose = f"broker {name}" if name else "all brokers"
            yield f"settings of {whose} were changed: {', '.join(names)}", {"settings": names}


def _partition(event: PartitionChanged) -> Line:
    state = event.registration
    isr = ",".join(map(str, state.isr))
    text = (
        f"{event.topic}-{event.partition} is led by {state.leader} in epoch {state.leader_epoch}, "
        f"in sync {isr}"
    )
    return text, {
        "topic": event.topic,
        "partition": event.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
