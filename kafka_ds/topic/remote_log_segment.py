"""Pure: the life of a tiered range, with Kafka's names and ids, and what of it is visible (KIP-405).

State changes by `replay` alone, in the order of (version, sequence), by TRANSITIONS. An event that none of them allows
is dropped, since a replayed log may repeat anything but must not corrupt what is known. Each state may follow itself: a
failover or a retry repeats it. Only COPY_SEGMENT_FINISHED is readable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from kafka_ds.protocol.topic_partition import TopicPartition

# How many ids of the last deleted segments are kept: a repeated event comes soon.
DELETED_MAX = 1_000


class RemoteLogSegmentState(IntEnum):
    """Kafka's states of a remote log segment, with its ids."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


_S = RemoteLogSegmentState
TRANSITIONS: dict[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]] = {
    None: frozenset({_S.COPY_SEGMENT_STARTED}),
    _S.COPY_SEGMENT_STARTED: frozenset(
        {_S.COPY_SEGMENT_STARTED, _S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}
    ),
    _S.COPY_SEGMENT_FINISHED: frozenset({_S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}),
    _S.DELETE_SEGMENT_STARTED: frozenset({_S.DELETE_SEGMENT_STARTED, _S.DELETE_SEGMENT_FINISHED}),
    _S.DELETE_SEGMENT_FINISHED: frozenset({_S.DELETE_SEGMENT_FINISHED}),
}


def is_valid_transition(
    source: RemoteLogSegmentState | None, target: RemoteLogSegmentState
) -> bool:
    """Whether a segment may change from state `source` (None: not known yet) to `target`."""
    return target in TRANSITIONS[source]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegment:
    """One event in a tiered range's life: all of its metadata, in the state that the event set.

    The copy policy makes it, the worker adds the id of an attempt and what is known once its files are written.
    """

    topic: str
    topic_id: bytes
    partition: int
    segment_id: bytes = bytes(16)
    """Of one attempt to copy the range; zeros where none has begun."""
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    start_offset: int
    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    """(epoch, start offset), ascending; the first starts at `start_offset`."""
    max_timestamp_ms: int = -1
    size_bytes: int = 0
    lake_bytes: int = 0
    row_count: int = 0
    broker_id: int = -1
    leader_epoch: int = -1
    files: tuple[str, ...] = ()
    residue: str | None = None
    event_id: bytes = bytes(16)
    event_time_ms: int = 0
    version: int = -1
    """The commit that made the event durable, and its place in it: the order of events."""
    sequence: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.start_offset <= self.end_offset, "an offset range"
        assert self.leader_epochs, "a segment has a leader epoch"

    @property
    def name(self) -> str:
        """The partition's name."""
        return str(TopicPartition(self.topic, self.partition))

    def overlaps(self, other: RemoteLogSegment) -> bool:
        """Whether both are of one partition and have an offset in common."""
        return (
            (self.topic_id, self.partition) == (other.topic_id, other.partition)
            and self.start_offset <= other.end_offset
            and other.start_offset <= self.end_offset
        )


class RemoteLogMetadataCache:
    """What is known of one partition's tiered ranges, under Kafka's name; a finished delete is forgotten."""

    def __init__(self, events: Iterable[RemoteLogSegment] = ()) -> None:
        self._by_id: dict[bytes, RemoteLogSegment] = {}
        self._deleted: dict[bytes, None] = {}
        """Ids that were deleted for good, the last ones: a repeated event must not bring them back."""
        for event in events:
            self.replay(event)

    def replay(self, event: RemoteLogSegment) -> bool:
        """Replay one event; False if no transition allows it, and nothing changed."""
        known = self._by_id.get(event.segment_id)
        if event.segment_id in self._deleted:
            return event.state is _S.DELETE_SEGMENT_FINISHED
        if not is_valid_transition(known.state if known else None, event.state):
            return False
        if event.state is _S.DELETE_SEGMENT_FINISHED:
            del self._by_id[event.segment_id]
            self._deleted[event.segment_id] = None
            if len(self._deleted) > DELETED_MAX:
                del self._deleted[next(iter(self._deleted))]
        else:
            self._by_id[event.segment_id] = event
        return True

    def by_id(self, segment_id: bytes) -> RemoteLogSegment | None:
        """The segment of that id, in any state but deleted."""
        return self._by_id.get(segment_id)

    def list(self) -> list[RemoteLogSegment]:
        """All segments, by start offset."""
        return sorted(self._by_id.values(), key=_by_start)


def _by_start(segment: RemoteLogSegment) -> tuple[int, int, bytes]:
    return (segment.start_offset, segment.end_offset, segment.segment_id)
