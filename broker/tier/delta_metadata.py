"""Shell: remote log metadata as the Delta table `__remote_log_metadata`.

Rules of this file: the table is append-only events; each commit of ours also carries, in its commitInfo, the attempts
of this broker that are STARTED after it. So a worker that starts after a crash reads back to this broker's last
commit and no row at all, however long the history is. A commit whose fate is unknown is settled with the same
bytes before the next one.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from broker.system import new_uuid
from broker.tier.crash_points import CrashPoints
from broker.tier.settings import TierSettings
from broker.tier.spi import FateUnknownError, StorageError
from broker.tier.upkeep import Upkeep
from kafka_ds.lake.actions import ours_of
from kafka_ds.lake.attempt import Attempt, CommitError, Conflict, FateUnknown
from kafka_ds.lake.events import RemoteLogEvents
from kafka_ds.lake.log import ForeignTable, LogClock, SystemLogClock
from kafka_ds.lake.states import RemoteLogSegment, RemoteLogSegmentState, RemoteSegments
from kafka_ds.lake.store import Store, open_store
from kafka_ds.wire.types import uuid_from_text, uuid_text

Segments = dict[bytes, RemoteLogSegment]


class DeltaMetadata:
    """The events of one broker's attempts, and what all events together say."""

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
        self._upkeep = Upkeep(
            store, crash_points, self._clock, interval=settings.lake_checkpoint_interval
        )
        self._events = RemoteLogEvents(store, clock=self._clock)
        self._open: Segments | None = None
        self._unsettled: tuple[Attempt, Segments] | None = None
        self._segments: dict[tuple[bytes, int], RemoteSegments] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, settings: TierSettings, crash_points: CrashPoints) -> Self:
        """The metadata under the lake that the settings name."""
        return cls(open_store(settings.lake_uri), settings, crash_points)

    # -- writing ----------------------------------------------------------------------------

    def add(self, segments: Sequence[RemoteLogSegment]) -> None:
        known = self._known()
        self._append(segments, known | {each.segment_id: each for each in segments})

    def update(self, segments: Sequence[RemoteLogSegment]) -> None:
        known = self._known()
        fresh = [each for each in segments if each.segment_id in known]
        if fresh:
            ended = {each.segment_id for each in fresh}
            self._append(fresh, {key: each for key, each in known.items() if key not in ended})

    def unfinished(self) -> list[RemoteLogSegment]:
        return list(self._known().values())

    def given_up(self, segments: Sequence[RemoteLogSegment]) -> None:
        # Not worth a commit: the next one says so, and until then they are given up once more.
        known = self._known()
        for each in segments:
            known.pop(each.segment_id, None)

    def _known(self) -> Segments:
        """The attempts of this broker that are STARTED."""
        self._settle()
        if self._open is None:
            self._open = self._load()
        return self._open

    def _load(self) -> Segments:
        """What this broker's last commit left STARTED."""
        try:
            self._events.open()
        except ForeignTable as error:
            raise StorageError(str(error)) from error
        except (CommitError, OSError) as error:
            raise StorageError(f"{self._events.log.table} cannot be opened: {error}") from error
        version = self._events.log.latest_version()
        while version >= 0:
            actions = self._events.log.read_version(version)
            if actions is None:
                break
            ours = ours_of(actions) or {}
            if ours.get("brokerId") == self._settings.node_id:
                found = [_segment(each) for each in ours.get("started", ())]
                return {each.segment_id: each for each in found}
            version -= 1
        return {}

    def _append(self, segments: Sequence[RemoteLogSegment], left: Segments) -> None:
        now_ms = self._clock.wall_ms()
        events = [replace(each, event_id=new_uuid(), event_time_ms=now_ms) for each in segments]
        info = {
            "brokerId": self._settings.node_id,
            "started": [_described(each) for each in left.values()],
        }
        try:
            self._events.append(events, info=info)
        except FateUnknown as error:
            self._unsettled = (error.attempt, left)
            raise FateUnknownError(str(error)) from error
        except (CommitError, Conflict, OSError) as error:
            raise StorageError(f"{self._events.log.table}: {error}") from error
        self._open = left

    def _settle(self) -> None:
        """Find out what became of a commit whose answer was lost."""
        if self._unsettled is None:
            return
        attempt, left = self._unsettled
        try:
            self._events.resume(attempt)
            self._open = left
        except (FateUnknown, OSError) as error:
            raise FateUnknownError(f"fate still unknown: {error}") from error
        except (CommitError, Conflict):
            # It is certainly not there: what was known before it holds.
            self._open = None
        self._unsettled = None

    def maintain(self) -> None:
        self._upkeep.look_after(self._events.log.table)

    # -- reading ----------------------------------------------------------------------------

    def list_segments(self, topic_id: bytes, partition: int) -> list[RemoteLogSegment]:
        return self._followed(topic_id, partition).list()

    def segment(
        self, topic_id: bytes, partition: int, epoch: int, offset: int
    ) -> RemoteLogSegment | None:
        return self._followed(topic_id, partition).segment(epoch, offset)

    def highest_offset_for_epoch(self, topic_id: bytes, partition: int, epoch: int) -> int | None:
        return self._followed(topic_id, partition).highest_offset_for_epoch(epoch)

    def _followed(self, topic_id: bytes, partition: int) -> RemoteSegments:
        self._known()
        with self._lock:
            for event in self._events.follow():
                key = (event.topic_id, event.partition)
                self._segments.setdefault(key, RemoteSegments()).replay(event)
            return self._segments.setdefault((topic_id, partition), RemoteSegments())


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
