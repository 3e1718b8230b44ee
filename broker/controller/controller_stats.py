"""Pure: how often partitions got another leader by elections that may lose records, or from their ELR.

Kafka's ControllerStats. Every broker counts what it applies, from the start of its process on.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.metadata.events import NO_LEADER, Event, PartitionChanged
from broker.metadata.image import MetadataImage
from kafka_ds.process.amounts import counted

# So many partitions are named in a line.
NAMED_MAX = 20


class ControllerStats:
    """The elections that were neither from an ISR nor of a diskless topic."""

    def __init__(self) -> None:
        self.unclean_leader_elections = 0
        self.elections_from_elr = 0

    def count(self, image: MetadataImage, events: Sequence[Event]) -> list[PartitionChanged]:
        """Count the elections of a commit that the image does not have yet; returns the unclean ones."""
        unclean: list[PartitionChanged] = []
        for event in events:
            if not isinstance(event, PartitionChanged):
                continue
            topic = image.topics_by_id.get(event.topic_id)
            old = None if topic is None else topic.partitions.get(event.partition)
            if old is None or old.is_diskless:
                continue
            leader = event.registration.leader
            if leader in (NO_LEADER, old.leader, *old.isr):
                continue
            if leader in old.elr:
                self.elections_from_elr += 1
            else:
                unclean.append(event)
        self.unclean_leader_elections += len(unclean)
        return unclean


def unclean_line(elections: Sequence[PartitionChanged]) -> str:
    """What the log says of a commit's unclean elections."""
    named = ", ".join(
        f"{each.topic_partition} (leader {each.registration.leader})"
        for each in elections[:NAMED_MAX]
    )
    more = ", …" if len(elections) > NAMED_MAX else ""
    return (
        f"Unclean leader election of {counted(len(elections), 'partition')}: {named}{more}; each leader was neither in "
        "sync nor eligible: committed records that it lacks are lost, unless the lake has them"
    )
