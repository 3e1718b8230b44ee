"""Shell: the cluster's metadata log: a Delta table whose commits are the metadata records, in order.

The events are in the commit's own commitInfo (`kafkaDs.events`), written by put-if-absent and fsynced; versions without
events are skipped. If events lie between the version on which a commit was decided (`begin`) and its own, they are
another controller's: the commit fails, and its author resigns. Now and then (`_is_snapshot_due`) a commit begins with a
snapshot, where reading starts, and before which the log may be cleaned up (`last_snapshot_version`). A new controller
has read all versions first (`read_after`). One thread at a time; every method may wait for the store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from broker.metadata.events import (
    ClusterCreated,
    ControllerChange,
    Event,
    Snapshot,
    encode_listed,
    from_json,
    to_json,
)
from broker.metadata.image import MetadataImage
from kafka_ds.delta.actions import KIND_KEY, Action, CorruptLog, kafka_ds_info
from kafka_ds.delta.commit import Attempt, CommitError, Conflict, PlainChange, VersionsGone
from kafka_ds.delta.log import DeltaLog, ForeignTable
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.table_writer import TableWriter
from kafka_ds.process.settings import ConfigError
from kafka_ds.topic import metadata_table as table
from kafka_ds.topic.lake import EVENTS_KEY
from kafka_ds.topic.metadata_table import MetadataPosition
from kafka_ds.topic.names import CLUSTER_METADATA

OPERATION = "APPEND METADATA RECORDS"
SNAPSHOT_INTERVAL = 100
# Of 200,000 partitions a snapshot has 60 MB and takes seconds: every 100 versions that is more than all decisions.
PARTITIONS_A_VERSION = 500


class ForeignMetadata(ConfigError):
    """The lake holds something else where the cluster's metadata should be; the text names the folder."""


class FencedCluster(ConfigError):
    """The cluster of this lake goes on in another one: to start again would be in vain."""

    exit_status = os.EX_CONFIG


class VersionsMissing(Exception):
    """Versions after the one that was read were cleaned up: only a start from the last snapshot helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Records on their way into the log, and the version of the state that they were decided on."""

    attempt: Attempt
    decided_on: int

    def encoded(self) -> bytes:
        """The events as they are sent between brokers: as in the log, without the snapshot."""
        listed = self.attempt.change.info()[EVENTS_KEY]
        start = 1 if listed and listed[0]["type"] == Snapshot.__name__ else 0
        return encode_listed(listed[start:])


class MetadataLog:
    """The table `__cluster_metadata` of one lake."""

    def __init__(self, store: Store, *, log: DeltaLog | None = None) -> None:
        self.delta_log = log or DeltaLog(store, CLUSTER_METADATA)
        self._table = TableWriter(self.delta_log)
        self.folder = store.uri(CLUSTER_METADATA)
        self.last_snapshot_version = -1
        # Consecutive failed commits.
        self.failures = 0
        # Between these versions there are no events: they need not be read again.
        self._quiet = (-1, -1)

    # -- reading ------------------------------------------------------------------------------

    def load(self, *, begins: bool = True, into: MetadataImage | None = None) -> MetadataImage:
        """Read the table's state, `into` an empty image if one is given.

        If there is no table it is created if this `begins` it; else the state is empty.
        """
        image = MetadataImage() if into is None else into
        try:
            if self.delta_log.latest_version() < 0:
                if not begins:
                    return image
                self._create()
            self._replay(image)
            return image
        except ForeignTable as error:
            raise ForeignMetadata(f"lake.uri: {error}") from error
        except CorruptLog as error:
            raise ForeignMetadata(f"lake.uri: {error}") from error
        except NotADirectoryError as error:
            raise ForeignMetadata(f"lake.uri: {self.folder} lies below a file") from error

    def _create(self) -> None:
        self.delta_log.create(
            schema_json=table.schema_json(),
            partition_columns=(),
            configuration={**table.PROPERTIES, KIND_KEY: table.KIND},
        )

    def _replay(self, image: MetadataImage) -> None:
        latest = self.delta_log.latest_version()
        for version, events in reversed(self._back_to_snapshot(latest)):
            replay_commit(image, version, events, self.folder)
        self._quiet = (image.version, latest)

    def read_after(self, version: int) -> list[tuple[int, list[Event]]]:
        """The versions with events after this one, up to the newest.

        Raises VersionsMissing, ForeignMetadata, and OSError if the store does not answer.
        """
        latest = self.delta_log.latest_version()
        found: list[tuple[int, list[Event]]] = []
        for each in range(self._past_quiet(version) + 1, latest + 1):
            actions = self.delta_log.read_version(each)
            if actions is None:
                raise VersionsMissing(f"{self.folder}: version {each} is gone")
            events = self._events_of(each, actions)
            if events:
                found.append((each, events))
                if isinstance(events[0], Snapshot):
                    self.last_snapshot_version = max(self.last_snapshot_version, each)
        self._quiet = (found[-1][0] if found else version, latest)
        return found

    def _past_quiet(self, version: int) -> int:
        after, up_to = self._quiet
        return up_to if version == after else version

    def _back_to_snapshot(self, latest: int) -> list[tuple[int, list[Event]]]:
        """The versions with events from the newest down to the last one that begins with a snapshot."""
        found: list[tuple[int, list[Event]]] = []
        for version in range(latest, -1, -1):
            actions = self.delta_log.read_version(version)
            if actions is None:
                raise ForeignMetadata(
                    f"lake.uri: {self.folder}: version {version} is gone, and no later one holds a snapshot"
                )
            if version == 0 and not _is_ours(actions):
                raise ForeignMetadata(
                    f"lake.uri: {self.folder} is a Delta table, but not the metadata of a cluster"
                )
            events = self._events_of(version, actions)
            if events:
                found.append((version, events))
                if isinstance(events[0], Snapshot):
                    self.last_snapshot_version = version
                    break
        return found

    def _events_of(self, version: int, actions: Sequence[Action]) -> list[Event]:
        listed = _events_in(actions)
        try:
            return [from_json(each) for each in listed]
        except ValueError as error:
            raise ForeignMetadata(f"lake.uri: {self.folder}: version {version}: {error}") from error

    def found(self, cluster_id: str) -> None:
        """Create a cluster of this id, unless there is one by then; `load` reads which."""
        commit = self.begin([ClusterCreated(cluster_id=cluster_id)], MetadataImage())
        try:
            self._table.commit(commit.attempt, read_version=self._past_quiet(commit.decided_on))
        except Conflict:
            pass  # Another broker was faster.
        except CommitError as error:
            raise OSError(str(error)) from error

    # -- writing ------------------------------------------------------------------------------

    def begin(
        self, events: Sequence[Event], image: MetadataImage, *, decided_on: int | None = None
    ) -> Commit:
        """A commit of these events, decided on the committed state `image`, which must not change meanwhile.

        If another controller's records may come into the image meanwhile, `decided_on` is its version without them.
        """
        listed, version = list(events), image.version if decided_on is None else decided_on
        if image.cluster_id is not None and self._is_snapshot_due(version, image):
            listed.insert(0, image.snapshot())
        change = PlainChange(
            OPERATION,
            info={
                EVENTS_KEY: [to_json(event) for event in listed],
                "controllerEpoch": _epoch_of(events, image),
            },
            check=_end_at_events,
        )
        # A claim with an unknown outcome: whoever reads it claims again.
        self._table.abandon()
        return Commit(attempt=self._table.begin(change), decided_on=version)

    def _is_snapshot_due(self, version: int, image: MetadataImage) -> bool:
        """Whether so many versions follow the last one that a larger cluster's snapshot is worth it, too."""
        versions = version - max(self.last_snapshot_version, 0)
        if versions < SNAPSHOT_INTERVAL:
            return False
        return versions >= image.partition_count // PARTITIONS_A_VERSION

    def commit(self, commit: Commit) -> int:
        """Put the commit into the log; returns its version.

        Raises Conflict if another controller was faster, NotCommitted if nothing was written, and FateUnknown or
        OSError, after which the same is committed again.
        """
        attempt = commit.attempt
        try:
            version = self._table.commit(attempt, read_version=self._past_quiet(commit.decided_on))
        except VersionsGone as error:
            raise Conflict(str(error)) from error
        except (CommitError, OSError):
            self.failures += 1
            raise
        self.failures, self._quiet = 0, (version, version)
        events = attempt.change.info()[EVENTS_KEY]
        if events and events[0]["type"] == Snapshot.__name__:
            self.last_snapshot_version = version
        return version


def replay_commit(
    image: MetadataImage, version: int, events: Sequence[Event], folder: str = ""
) -> None:
    """Apply one commit's events to the state; the snapshot at its beginning has no place of its own."""
    try:
        # A snapshot is the state before the commit: places are counted without it.
        start = -1 if events and isinstance(events[0], Snapshot) else 0
        for sequence, event in enumerate(events, start):
            image.replay(event, MetadataPosition(version, max(sequence, 0)))
    except ValueError as error:
        raise ForeignMetadata(f"lake.uri: {folder}: version {version}: {error}") from error


def _epoch_of(events: Sequence[Event], image: MetadataImage) -> int:
    """The epoch of the controller that decided this."""
    claims = [event.controller_epoch for event in events if isinstance(event, ControllerChange)]
    return max(claims, default=image.controller_epoch)


def _events_in(actions: Sequence[Action]) -> list[dict[str, Any]]:
    ours = kafka_ds_info(actions)
    listed = ours.get(EVENTS_KEY) if ours else None
    return listed if isinstance(listed, list) else []


def refuse_if_fenced(image: MetadataImage, folder: str) -> None:
    """Raises FencedCluster if another lake has taken the place of this one."""
    if image.fenced_by is not None:
        raise FencedCluster(
            f"lake.uri: {folder}: this cluster was fenced by kafka-ds promote: it goes on in the lake "
            f"{image.fenced_by}, and no broker writes here any more"
        )


def begins_with_snapshot(actions: Sequence[Action]) -> bool:
    """Whether reading may start at a version: it has the state before it."""
    listed = _events_in(actions)
    return bool(listed) and listed[0].get("type") == Snapshot.__name__


def _end_at_events(version: int, actions: Sequence[Action]) -> None:
    if _events_in(actions):
        raise Conflict(f"version {version} was written by another controller", version=version)


def _is_ours(actions: Sequence[Action]) -> bool:
    for action in actions:
        metadata = action.get("metaData")
        if isinstance(metadata, dict):
            configuration = metadata.get("configuration")
            return isinstance(configuration, dict) and configuration.get(KIND_KEY) == table.KIND
    return False
