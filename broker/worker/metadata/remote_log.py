"""Shell: remote log metadata as the Delta table `__remote_log_metadata`.

The table consists of append-only events. Each commit also carries, in its commitInfo, the attempts of this broker that
are STARTED after it. So a worker that starts after a crash reads back to this broker's last commit, and no row at all,
however long the history is. Unfinished deletions are carried along in the same way, those of other brokers with the
version up to which they are known, so that the next leader finishes what a dead one began. A commit whose fate is
unknown is settled with the same bytes before the next one.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.worker.maintenance import TableMaintenance
from broker.worker.metadata.event_files import EventMerging
from broker.worker.rpc import TierSettings
from kafka_ds.delta.actions import kafka_ds_info
from kafka_ds.delta.log import LogClock, SystemLogClock
from kafka_ds.delta.store.store import Store
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.protocol.types import uuid_from_text, uuid_text
from kafka_ds.topic.events import RemoteLogEvents
from kafka_ds.topic.remote_log_segment import (
    RemoteLogMetadataCache,
    RemoteLogSegment,
    RemoteLogSegmentState,
    is_valid_transition,
)

# How old the knowledge of other brokers' deletions may be.
FOLLOW_MS = 1_000
Segments = dict[bytes, RemoteLogSegment]
DELETIONS = (
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
)


class RemoteLogMetadataManager:
    """The events of one broker's attempts, and the state that follows from all events."""

    def __init__(
        self,
        store: Store,
        settings: TierSettings,
        crash_points: CrashPoints,
        *,
        clock: LogClock | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemLogClock()
        self._events = RemoteLogEvents(store, clock=self._clock)
        self._merging = EventMerging(
            store, self._events.log.table, settings, crash_points, self._clock
        )
        self._open: Segments | None = None
        self._deleting: set[tuple[str, int]] = set()
        """Partitions, by topic id, with an unfinished deletion that this broker began."""
        self._elsewhere: dict[int, set[tuple[str, int]]] = {}
        """The same of other brokers, as of the version `_seen`."""
        self._seen = -1
        self._looked_ms = 0
        self._segments: dict[PartitionId, RemoteLogMetadataCache] = {}
        self._lock = threading.Lock()

    # -- writing ----------------------------------------------------------------------------

    def add(self, segments: Sequence[RemoteLogSegment]) -> None:
        """Write events of fresh attempts, all COPY_SEGMENT_STARTED. Raises CommitError, OSError."""
        known = self._known()
        self._append(segments, known | {each.segment_id: each for each in segments})

    def update(self, segments: Sequence[RemoteLogSegment]) -> None:
        """Write later events of known attempts; a deletion's may concern an attempt of any broker.

        An event that is there already is not written twice.
        """
        known = self._known()
        fresh = [each for each in segments if each.segment_id in known or self._is_going(each)]
        if fresh:
            ended = {each.segment_id for each in fresh}
            self._append(fresh, {key: each for key, each in known.items() if key not in ended})

    def _is_going(self, segment: RemoteLogSegment) -> bool:
        """Whether this is an event of a deletion, which any broker may write."""
        if segment.state not in DELETIONS:
            return False
        there = self._followed(segment.topic_id, segment.partition).by_id(segment.segment_id)
        return (
            there is not None
            and there.state is not segment.state
            and is_valid_transition(there.state, segment.state)
        )

    def unfinished(self) -> list[RemoteLogSegment]:
        """Attempts of this broker that are STARTED and not known to have ended."""
        return list(self._known().values())

    def given_up(self, segments: Sequence[RemoteLogSegment]) -> None:
        """Mark attempts as deleted that never became visible and never will. This broker's files of them are gone.

        Writes DELETE_SEGMENT_STARTED and FINISHED, in this order: no attempt stays STARTED for ever.
        """
        known = self._known()
        fresh = [each for each in segments if each.segment_id in known or self._is_open(each)]
        if fresh:
            gone = {each.segment_id for each in fresh}
            left = {key: each for key, each in known.items() if key not in gone}
            # Both in one commit: the attempts were never visible, and nothing happens in between that could be
            # repeated.
            events = [replace(each, state=state) for state in DELETIONS for each in fresh]
            self._append(events, left, is_retention=False)

    def _is_open(self, segment: RemoteLogSegment) -> bool:
        """Whether an attempt of any broker is STARTED."""
        there = self._followed(segment.topic_id, segment.partition).by_id(segment.segment_id)
        return there is not None and there.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED

    def is_deleting(self, topic_id: bytes, partition: int) -> bool:
        """Whether a deletion was begun there that may be unfinished."""
        self._known()
        key = (uuid_text(topic_id), partition)
        if key in self._deleting:
            # Another broker may have finished it, as below.
            return self._is_begun(key)
        self._look_elsewhere(FOLLOW_MS)
        if not any(key in each for each in self._elsewhere.values()):
            return False
        # Another broker may have finished it since that broker carried it along.
        return self._is_begun(key)

    def _is_begun(self, key: tuple[str, int]) -> bool:
        """Whether the events show a deletion that some broker began and none finished."""
        there = self._followed(uuid_from_text(key[0]), key[1]).list()
        return any(each.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED for each in there)

    def _there_after(self, version: int) -> int:
        """That version, or a later one if the versions after it were cleaned up."""
        if self._events.log.read_version(version + 1) is not None:
            return version
        later = self._events.log.listing(start=version + 1).commits
        return later[0] - 1 if later else version

    def _look_elsewhere(self, older_than_ms: int = 0) -> None:
        """Follow the deletions that other brokers have begun."""
        now_ms = self._clock.boot_ms()
        if self._looked_ms and now_ms - self._looked_ms < older_than_ms:
            return
        if self._looked_ms and self._events.log.is_long_past(self._looked_ms):
            # Each later commit of another broker carries its unfinished deletions.
            self._seen = self._there_after(self._seen)
        while (actions := self._events.log.read_version(self._seen + 1)) is not None:
            self._seen += 1
            self._note_elsewhere(kafka_ds_info(actions) or {})
        self._looked_ms = now_ms

    def _note_elsewhere(self, ours: Mapping[str, Any]) -> None:
        broker_id = ours.get("brokerId")
        if isinstance(broker_id, int) and broker_id != self._settings.node_id:
            self._elsewhere[broker_id] = {(each[0], each[1]) for each in ours.get("deleting", ())}

    def _known(self) -> Segments:
        """The attempts of this broker that are STARTED."""
        if self._events.settle():
            # The table has its outcome.
            self._open = None
        if self._open is None:
            self._open = self._load()
        return self._open

    def _load(self) -> Segments:
        """What this broker's last commit left STARTED."""
        self._events.open()
        version = self._events.log.latest_version()
        self._elsewhere, self._looked_ms = {}, 0
        while version >= 0:
            actions = self._events.log.read_version(version)
            if actions is None:
                break
            ours = kafka_ds_info(actions) or {}
            if ours.get("brokerId") == self._settings.node_id:
                self._deleting = {(each[0], each[1]) for each in ours.get("deleting", ())}
                self._elsewhere = {
                    int(number): {(each[0], each[1]) for each in deleting}
                    for number, deleting in ours.get("elsewhere", {}).items()
                }
                self._seen = self._there_after(min(ours.get("seenTo", version), version))
                found = [_segment(each) for each in ours.get("started", ())]
                return {each.segment_id: each for each in found}
            version -= 1
        self._seen = version
        return {}

    def _append(
        self, segments: Sequence[RemoteLogSegment], left: Segments, *, is_retention: bool = True
    ) -> None:
        """`is_retention`: a deletion event among these begins or ends its partition's deletion."""
        now_ms = self._clock.wall_ms()
        events = [replace(each, event_id=new_uuid(), event_time_ms=now_ms) for each in segments]
        # Other brokers may have finished deletions begun here, and the reverse.
        deleting = {key for key in self._deleting if self._is_begun(key)}
        for each in segments if is_retention else ():
            key = (uuid_text(each.topic_id), each.partition)
            if each.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                deleting.add(key)
            elif each.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                deleting.discard(key)
        self._look_elsewhere()
        elsewhere = {
            str(each): sorted(filter(self._is_begun, keys))
            for each, keys in self._elsewhere.items()
        }
        info = {
            "brokerId": self._settings.node_id,
            "deleting": sorted(deleting),
            "elsewhere": {each: keys for each, keys in elsewhere.items() if keys},
            "seenTo": self._seen,
            "started": [_described(each) for each in left.values()],
        }
        self._events.append(events, info=info)
        self._open, self._deleting = left, deleting

    def maintain(self, maintenance: TableMaintenance) -> None:
        """Checkpoints, clean-up, merges of small files."""
        log = self._events.log
        if log.known_version is not None:
            maintenance.look_after(log.table, log.known_version)
        self._merging.look()

    # -- reading ----------------------------------------------------------------------------

    def list_segments(self, topic_id: bytes, partition: int) -> list[RemoteLogSegment]:
        """All segments of a partition except deleted ones, by start offset."""
        return self._followed(topic_id, partition).list()

    def list_topic(self, topic_id: bytes) -> list[RemoteLogSegment]:
        """All segments of all partitions of a topic except deleted ones."""
        self._followed(topic_id, 0)
        with self._lock:
            mine = [each for (owner, _), each in self._segments.items() if owner == topic_id]
            return [segment for each in mine for segment in each.list()]

    def forget_topic(self, topic_id: bytes) -> None:
        """The topic is deleted, and so is each of its segments: forget them."""
        # With its last events: they would be remembered when it is followed.
        self._followed(topic_id, 0)
        with self._lock:
            for key in [key for key in self._segments if key[0] == topic_id]:
                del self._segments[key]

    def _followed(self, topic_id: bytes, partition: int) -> RemoteLogMetadataCache:
        self._known()
        with self._lock:
            for event in self._events.follow():
                key = (event.topic_id, event.partition)
                self._segments.setdefault(key, RemoteLogMetadataCache()).replay(event)
            # A question leaves no entry behind.
            return self._segments.get((topic_id, partition)) or RemoteLogMetadataCache()


def _described(segment: RemoteLogSegment) -> dict[str, Any]:
    """A started attempt, as the commitInfo holds it."""
    return {
        "topic": segment.topic,
        "topicId": uuid_text(segment.topic_id),
        "partition": segment.partition,
        "id": uuid_text(segment.segment_id),
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset,
        "leaderEpochs": [list(each) for each in segment.leader_epochs],
        "sizeBytes": segment.size_bytes,
        "brokerId": segment.broker_id,
        "leaderEpoch": segment.leader_epoch,
    }


def _segment(described: Mapping[str, Any]) -> RemoteLogSegment:
    return RemoteLogSegment(
        topic=described["topic"],
        topic_id=uuid_from_text(described["topicId"]),
        partition=described["partition"],
        segment_id=uuid_from_text(described["id"]),
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        start_offset=described["startOffset"],
        end_offset=described["endOffset"],
        leader_epochs=tuple((epoch, start) for epoch, start in described["leaderEpochs"]),
        size_bytes=described["sizeBytes"],
        broker_id=described["brokerId"],
        leader_epoch=described["leaderEpoch"],
    )
