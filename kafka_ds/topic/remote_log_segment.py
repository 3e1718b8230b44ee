"""Pure: the life of a tiered range, with Kafka's names and ids, and what of it is visible (KIP-405).

State changes by `replay` alone, in the order of (version, sequence), by TRANSITIONS. An event that none of them allows
is dropped, since a replayed log may repeat anything but must not corrupt what is known. Each state may follow itself: a
failover or a retry repeats it. Only COPY_SEGMENT_FINISHED is readable.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

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

    def overlaps(self, other: RemoteLogSegment) -> bool:
        """Whether both are of one partition and have an offset in common."""
        return (
            (self.topic_id, self.partition) == (other.topic_id, other.partition)
            and self.start_offset <= other.end_offset
            and other.start_offset <= self.end_offset
        )


@dataclass(slots=True)
class _Epoch:
    """The segments that cover one leader epoch's offsets."""

    starts: list[int] = field(default_factory=list)
    ids: dict[int, bytes] = field(default_factory=dict)
    """Finished segments by their first offset in this epoch."""
    highest_offset: int | None = None


class RemoteLogMetadataCache:
    """What is known of one partition's tiered ranges, under Kafka's name.

    What each method sees of a segment, by its state (a finished delete is forgotten):

    +--------------------------+--------------+---------------+----------------+-----------------+
    | method                   | COPY_STARTED | COPY_FINISHED | DELETE_STARTED | DELETE_FINISHED |
    +--------------------------+--------------+---------------+----------------+-----------------+
    | segment(epoch, offset)   | no           | yes           | no             | no              |
    | highest_offset_for_epoch | no           | yes           | yes (stays)    | yes (stays)     |
    | list()                   | yes          | yes           | yes            | no              |
    | by_id(segment_id)        | yes          | yes           | yes            | no              |
    +--------------------------+--------------+---------------+----------------+-----------------+
    """

    def __init__(self, events: Iterable[RemoteLogSegment] = ()) -> None:
        self._by_id: dict[bytes, RemoteLogSegment] = {}
        self._epochs: dict[int, _Epoch] = {}
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
        for epoch, start, end in epoch_ranges(event):
            self._replay_in_epoch(self._epochs.setdefault(epoch, _Epoch()), event, start, end)
        return True

    @staticmethod
    def _replay_in_epoch(entry: _Epoch, event: RemoteLogSegment, start: int, end: int) -> None:
        if event.state is not _S.COPY_SEGMENT_FINISHED:
            if entry.ids.get(start) == event.segment_id:
                del entry.ids[start]
                entry.starts.remove(start)
            return
        if start not in entry.ids:
            insort(entry.starts, start)
        entry.ids[start] = event.segment_id
        if entry.highest_offset is None or end > entry.highest_offset:
            entry.highest_offset = end

    def by_id(self, segment_id: bytes) -> RemoteLogSegment | None:
        """The segment of that id, in any state but deleted."""
        return self._by_id.get(segment_id)

    def segment(self, epoch: int, offset: int) -> RemoteLogSegment | None:
        """The readable segment that holds `offset` as written in `epoch`."""
        entry = self._epochs.get(epoch)
        if entry is None:
            return None
        at = bisect_right(entry.starts, offset)
        if at == 0:
            return None
        found = self._by_id[entry.ids[entry.starts[at - 1]]]
        for each, start, end in epoch_ranges(found):
            if each == epoch and start <= offset <= end:
                return found
        return None

    def highest_offset_for_epoch(self, epoch: int) -> int | None:
        """The highest offset of that epoch that was ever copied; deleting does not lower it."""
        entry = self._epochs.get(epoch)
        return entry.highest_offset if entry else None

    def list(self) -> list[RemoteLogSegment]:
        """All segments, by start offset."""
        return sorted(self._by_id.values(), key=_by_start)


def _by_start(segment: RemoteLogSegment) -> tuple[int, int, bytes]:
    return (segment.start_offset, segment.end_offset, segment.segment_id)


def epoch_ranges(segment: RemoteLogSegment) -> list[tuple[int, int, int]]:
    """(epoch, first offset, last offset) of each leader epoch within the segment."""
    found = []
    chain = segment.leader_epochs
    for at, (epoch, start) in enumerate(chain):
        end = chain[at + 1][1] - 1 if at + 1 < len(chain) else segment.end_offset
        start = max(start, segment.start_offset)
        if start <= end:
            found.append((epoch, start, end))
    return found
