"""Pure: the changes of a commit on a topic's table, and which of them conflict with a version that came before.

A commit adds or removes, never both; an optimised file is the exception, which brings no new row. Many partitions share
a commit, and a conflict drops its partition alone: a higher leader epoch, a range that is there or would leave a gap, a
log start that is there, a missing file. Epochs and ends are `txn` actions, so that a paused leader reads them too.
Another topic id, or a change of the table that is not known to be harmless, ends the whole commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import unquote

from kafka_ds.delta.actions import (
    LOG_RETENTION_MS_MIN,
    TXN_RETENTION_KEY,
    Action,
    interval_ms,
    txn_action,
)
from kafka_ds.delta.commit import FILES_AGE_MS_MAX, Conflict
from kafka_ds.delta.deletion_vector import vector_of
from kafka_ds.delta.features import active, unset, unsupported
from kafka_ds.delta.schema import delta_schema_json
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.names import (
    TOPIC_ID_KEY,
    AppIdKind,
    app_id,
    loaded_mark,
    parse_app_id,
    undecodable_mark,
)
from kafka_ds.topic.schemas import TOPIC_PARTITION_COLUMNS, TOPIC_SCHEMA

# Columns for which every row of kafka-ds has a value.
NEVER_NULL = frozenset({"partition", "offset", "leader_epoch", "timestamp_type", "batch"})


class TopicIdChanged(Conflict):
    """The table belongs to another incarnation of the topic, or to none."""


class LeaderEpochFenced(Conflict):
    """A leader of a higher epoch wrote: this one is fenced."""


class RangeTaken(Conflict):
    """The range, or one beyond it, is in the table."""


class RangeGap(Conflict):
    """The range begins behind the table's end, and offsets in between are neither there nor given up."""


class LogStartIncremented(Conflict):
    """The log start is there or beyond already."""


class FilesRemoved(Conflict):
    """A file that was to be removed is no longer in the table."""


class TableChanged(Conflict):
    """Protocol, schema or properties changed in a way that is not known to be harmless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionIntent:
    """What a commit does to one partition; most commits add no range, so it is no RemoteLogSegment.

    A fence is an intent with nothing but its epoch.
    """

    partition: int
    leader_epoch: int
    start_offset: int = -1
    end_offset: int = -1
    """The range that is added, both inclusive; -1: none."""
    leader_log_start: int = 0
    """The log start of the leader that adds the range: the table gets it if it lacks it, and the range leaves a gap."""
    undecodable_to: int = -1
    """The last offset of the range's batches that cannot be decoded; -1 where all can."""
    log_start_offset: int = -1
    """The new log start; -1 if it stays."""
    loaded_count: int = 0
    """How many partitions the bulk load knew that this one has now, with this commit; 0: none."""
    adds: tuple[Action, ...] = ()
    removes: tuple[Action, ...] = ()
    is_rewrite: bool = False
    """Whether what is added holds rows of what is removed, and no others."""
    segments: tuple[Mapping[str, Any], ...] = ()
    """The commitInfo's entry about the added segments, to find them after a crash."""

    def __post_init__(self) -> None:
        assert not (self.adds and self.removes) or self.is_rewrite, "adds only, or removes only"
        assert not self.is_rewrite or not any(e["add"]["dataChange"] for e in self.adds), (
            "no new rows"
        )
        assert (self.start_offset < 0) == (self.end_offset < 0), "a range has two ends"
        assert self.start_offset <= self.end_offset, "an offset range"
        assert self.undecodable_to <= self.end_offset, "batches of the range"

    @property
    def has_range(self) -> bool:
        return self.end_offset >= 0

    @property
    def is_fence(self) -> bool:
        """Whether it has only its epoch."""
        return not (self.has_range or self.adds or self.removes) and self.log_start_offset < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a commit does to a topic's table."""

    operation: str
    topic_id: bytes
    partitions: tuple[PartitionIntent, ...] = ()
    actions: tuple[Action, ...] = ()
    """Actions that are no partition's, such as new metadata."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Entries of the table's history besides the operation."""

    @property
    def is_fence(self) -> bool:
        """Whether it has no row and no file: whatever columns there are, a recovering leader must write its epoch."""
        return not self.actions and all(part.is_fence for part in self.partitions)


class TableView(Protocol):
    """What is known of a table as of one version; None for a partition of which nothing is known.

    `TopicSnapshot`, which reads files, as these rules see it.
    """

    @property
    def topic_id(self) -> bytes | None:
        """The incarnation of the topic that the rows are of; None where it was deleted."""
        ...

    @property
    def protocol(self) -> Mapping[str, Any]: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    def highest_offset_in_remote_storage(self, partition: int) -> int | None:
        """The last offset that is in the table."""
        ...

    def log_start(self, partition: int) -> int | None:
        """The log start offset, as far as the table has it."""
        ...

    def leader_epoch(self, partition: int) -> int | None:
        """The highest leader epoch that wrote."""
        ...

    def has_file(self, action_path: str, vector_id: str | None = None) -> bool:
        """Whether a file is in the table, by its path as actions spell it, with that deletion vector or none."""
        ...


class TopicChange:
    """An intent on its way to a version; `out` has the partitions it lost, and why."""

    def __init__(self, intent: Intent, view: TableView) -> None:
        self.intent = intent
        self.operation, self.parameters = intent.operation, intent.parameters
        self.out: dict[int, Conflict] = {}
        self._left = {part.partition: part for part in intent.partitions}
        self._protocol, self._metadata = view.protocol, view.metadata
        """As of the newest version that was looked at."""
        # delta-rs overlooks removals that change no data: with its OPTIMIZE of the same files each row would be there
        # twice. New metadata end any commit that was decided before.
        self._says_metadata = any(part.is_rewrite for part in intent.partitions)
        self._admit(view)

    @property
    def partitions(self) -> tuple[PartitionIntent, ...]:
        """The partitions that are still in the commit."""
        return tuple(self._left.values())

    @property
    def has_files(self) -> bool:
        return any(part.adds for part in self._left.values())

    def info(self) -> Mapping[str, Any]:
        return {
            "topicId": uuid_text(self.intent.topic_id),
            "partitions": [
                {
                    "partition": part.partition,
                    "leaderEpoch": part.leader_epoch,
                    "startOffset": part.start_offset,
                    "endOffset": part.end_offset,
                    **({"segments": list(part.segments)} if part.segments else {}),
                }
                for part in self._left.values()
            ],
        }

    def actions(self, version: int) -> Sequence[Action]:
        found: list[Action] = [*self.intent.actions]
        if self._says_metadata:
            found.append({"metaData": dict(self._metadata)})
        for part in self._left.values():
            found.extend(part.adds)
            found.extend(part.removes)
            numbers = [(AppIdKind.LEADER_EPOCH, part.leader_epoch)]
            if part.has_range:
                numbers.append((AppIdKind.HIGHEST_OFFSET, part.end_offset))
            if part.log_start_offset >= 0:
                numbers.append((AppIdKind.LOG_START, part.log_start_offset))
            for kind, number in numbers:
                name = app_id(self.intent.topic_id, part.partition, kind)
                found.append(txn_action(name, number))
            if part.undecodable_to >= 0:
                name = undecodable_mark(self.intent.topic_id, part.partition)
                found.append(txn_action(name, part.undecodable_to))
            if part.loaded_count:
                name = loaded_mark(self.intent.topic_id, part.partition)
                found.append(txn_action(name, part.loaded_count))
        return found

    def check(self, version: int, actions: Sequence[Action]) -> None:
        """Drop what a version in between ends; raises if nothing is left."""
        removed, before = set(), (self._protocol, self._metadata)
        for action in actions:
            if "protocol" in action or "metaData" in action:
                self._check_table(version, action)
            elif "txn" in action:
                self._check_txn(version, action["txn"])
            elif "remove" in action:
                removed.add(file_name(action["remove"].get("path", "")))
        # A version may change both, and the one alone would not do.
        if (self._protocol, self._metadata) != before and (complaint := self._objection()):
            raise TableChanged(f"version {version}: {complaint}", version=version)
        if removed:
            for part in self.partitions:
                if any(file_name(each["remove"]["path"]) in removed for each in part.removes):
                    self._reject(FilesRemoved, part, version, "a file was removed by another")
        self._raise_if_nothing_is_left()

    def _admit(self, view: TableView) -> None:
        """The same rules against the state that the decision was made on."""
        if view.topic_id != self.intent.topic_id:
            found = "none" if view.topic_id is None else uuid_text(view.topic_id)
            raise TopicIdChanged(
                f"the table's topic id is {found}, not {uuid_text(self.intent.topic_id)}"
            )
        if complaint := self._objection():
            raise TableChanged(complaint)
        for part in self.partitions:
            self._check_number(part, AppIdKind.LEADER_EPOCH, view.leader_epoch(part.partition), -1)
            self._check_number(
                part,
                AppIdKind.HIGHEST_OFFSET,
                view.highest_offset_in_remote_storage(part.partition),
                -1,
            )
            self._check_number(part, AppIdKind.LOG_START, view.log_start(part.partition), -1)
            self._check_gap(part, view)
            if not all(_is_in(view, each["remove"]) for each in part.removes):
                self._reject(FilesRemoved, part, -1, "a file is not in the table")
        self._raise_if_nothing_is_left()

    def _check_table(self, version: int, action: Action) -> None:
        metadata = action.get("metaData")
        if metadata is not None:
            topic_id = metadata.get("configuration", {}).get(TOPIC_ID_KEY, "")
            if topic_id != uuid_text(self.intent.topic_id):
                raise TopicIdChanged(
                    f"version {version} gave the table the topic id {topic_id or 'none'}",
                    version=version,
                )
            if any("metaData" in each for each in self.intent.actions):
                raise TableChanged(f"version {version} changed the metadata too", version=version)
            self._metadata = metadata
        self._protocol = action.get("protocol", self._protocol)

    def _objection(self) -> str | None:
        return objection(self._protocol, self._metadata, needs_columns=not self.intent.is_fence)

    def _check_txn(self, version: int, txn: Mapping[str, Any]) -> None:
        name = parse_app_id(str(txn.get("appId", "")))
        if name is None or name.topic_id != self.intent.topic_id:
            return
        part = self._left.get(name.partition)
        if part is not None:
            self._check_number(part, name.kind, txn.get("version"), version)

    def _check_number(
        self, part: PartitionIntent, kind: AppIdKind, number: int | None, version: int
    ) -> None:
        """Compare a number that the table keeps with what the intent needs it to be."""
        if number is None or part.partition not in self._left:
            return
        if kind is AppIdKind.LEADER_EPOCH:
            if number > part.leader_epoch:
                why = f"leader epoch {number} wrote, this one's is {part.leader_epoch}"
                self._reject(LeaderEpochFenced, part, version, why)
        elif kind is AppIdKind.HIGHEST_OFFSET:
            if part.has_range and number >= part.start_offset:
                why = f"offsets up to {number} are there"
                self._reject(RangeTaken, part, version, why)
        elif 0 <= part.log_start_offset <= number and part.has_range:
            self._left[part.partition] = replace(part, log_start_offset=-1)
        elif 0 <= part.log_start_offset <= number:
            self._reject(LogStartIncremented, part, version, f"the log starts at {number}")

    def _check_gap(self, part: PartitionIntent, view: TableView) -> None:
        """Nothing that comes between makes a gap: ends and log starts only grow."""
        if not part.has_range or part.partition not in self._left:
            return
        end = view.highest_offset_in_remote_storage(part.partition)
        next_offset = 0 if end is None else end + 1
        begins = max(next_offset, view.log_start(part.partition) or 0)
        if part.start_offset > max(begins, part.leader_log_start):
            why = f"the table ends at {next_offset - 1}, the range begins at {part.start_offset}"
            self._reject(RangeGap, part, -1, why)
        elif part.start_offset > begins:
            # What the leader's log start leaves out is never there. The next leader may not have that log start.
            self._left[part.partition] = replace(part, log_start_offset=part.start_offset)

    def _reject(self, kind: type[Conflict], part: PartitionIntent, version: int, why: str) -> None:
        text = f"partition {part.partition}: {why}"
        if version >= 0:
            text += f" (version {version})"
        self.out[part.partition] = kind(text, version=version, partitions=[part.partition])
        self._left.pop(part.partition, None)

    def _raise_if_nothing_is_left(self) -> None:
        if self.intent.partitions and not self._left:
            raise next(iter(self.out.values()))


def _is_in(view: TableView, remove: Mapping[str, Any]) -> bool:
    """Whether what is to be removed is there: a file whose deletion vector is another one by now is another file."""
    vector = vector_of("", remove.get("deletionVector"))
    return view.has_file(remove["path"], None if vector is None else vector.id)


def file_name(path: str) -> str:
    """The last part of a file's path, however an engine spells it: no two files of a table share it."""
    return unquote(path).rpartition("/")[2]


def fields_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a metaData action, name → type."""
    schema = json.loads(metadata["schemaString"])
    return {field["name"]: field["type"] for field in schema["fields"]}


def objection(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], *, needs_columns: bool = True
) -> str | None:
    """Why rows of topics (or without `needs_columns` a fence) may not be written under these; None if they may.

    Each text has the SQL that undoes what it names.
    """
    return (
        unsupported(protocol, metadata)
        or active(metadata, _COLUMNS)
        or _property_objection(metadata)
        or (_schema_objection(metadata) if needs_columns else None)
    )


def _property_objection(metadata: Mapping[str, Any]) -> str | None:
    configuration = metadata.get("configuration", {})
    if TXN_RETENTION_KEY in configuration:
        return f"{TXN_RETENTION_KEY} would forget what is tiered: {unset(TXN_RETENTION_KEY)}"
    name = "delta.logRetentionDuration"
    retention = configuration.get(name)
    if retention is not None and (interval_ms(retention) or 0) < LOG_RETENTION_MS_MIN:
        return f"{name}={retention} is less than 7 days: {unset(name)}"
    name = "delta.deletedFileRetentionDuration"
    kept = configuration.get(name)
    if kept is not None and (interval_ms(kept) or 0) < FILES_AGE_MS_MAX:
        return f"{name}={kept} is less than an hour: VACUUM would delete files of copies: {unset(name)}"
    return None


_RESTORE = "RESTORE TABLE … TO VERSION AS OF <the version before>"


def _schema_objection(metadata: Mapping[str, Any]) -> str | None:
    partitioned_by = tuple(metadata.get("partitionColumns", ()))
    if partitioned_by != TOPIC_PARTITION_COLUMNS:
        return f"it is partitioned by {list(partitioned_by)}: {_RESTORE}"
    there = {field["name"]: field for field in json.loads(metadata["schemaString"])["fields"]}
    for name, kind in _COLUMNS.items():
        if name not in there or _shape(there[name]["type"]) != kind:
            return f"column {name} was dropped or retyped: {_RESTORE}"
    for name, column in there.items():
        if not column["nullable"] and name not in NEVER_NULL:
            return f"column {name} may not be null: ALTER TABLE … ALTER COLUMN {name} DROP NOT NULL"
    return None


def _shape(kind: Any) -> Any:
    """A type without what engines spell in their own ways: comments, and what may be null within."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return {field["name"]: _shape(field["type"]) for field in kind["fields"]}
    return [kind["type"], _shape(kind.get("elementType"))]


_COLUMNS = {
    field["name"]: _shape(field["type"])
    for field in json.loads(delta_schema_json(TOPIC_SCHEMA))["fields"]
}
