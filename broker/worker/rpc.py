"""Pure: what the broker asks of its worker, and the answers: one class for each operation, and one for each answer.

Rules of this file: offsets are inclusive at both ends. Every request may be repeated: a copy of what the table already
holds is answered with what it holds. Of several partitions in a request each is answered for itself, `Unavailable`
where the store gave no answer for it. Nothing here needs more than the broker's process has.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka_ds.ipc.request import Buffer, Request
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.expiration import ExpirationDecision, Retention
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

ZSTD = "zstd"
UNBOUNDED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegmentData:
    """A range that is to be copied, where its batches are, and what else the lake stores of it (KIP-405)."""

    segment: RemoteLogSegment
    path: str
    position: int
    """Of the first of the segment's `size_bytes` bytes in the file."""
    lineage: tuple[tuple[int, int], ...] = ()
    """(epoch, start offset) of all epochs from the log's start to the range's end, to rebuild a replica."""
    aborted: tuple[tuple[int, int, int], ...] = ()
    """(producer id, first offset, last offset) of the aborted transactions in it."""
    producer_snapshot: bytes = b""
    """The producers at the end of the range, in Kafka's snapshot format."""
    compression: str = ZSTD
    """Of the Parquet file, by Kafka's name; what is not zstd is compressed anew when it is merged."""
    log_start_offset: int = 0
    """Where the leader's log begins: a range may begin there, behind the table's end."""
    may_have_gaps: bool = False
    """Whether compaction may have taken batches of it, also the last ones; else what is missing is lost."""


FINISHED = "finished"
"""COPY_SEGMENT_FINISHED is durable."""
FAILED = "failed"
"""Not in the table and not going to be by this attempt, or its fate is unknown: ask again."""
CONFLICT = "conflict"
"""The table is not this leader's to write now: say why, and ask again, but not often."""


UNKNOWN_END = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """What became of the ranges of one partition."""

    topic_id: bytes
    partition: int
    outcome: str
    tiered_end: int
    """Last offset that is FINISHED (-1: none), by any broker's copy; UNKNOWN_END: not known."""
    message: str = ""
    ranges: int = 0
    rows: int = 0
    log_bytes: int = 0
    lake_bytes: int = 0
    commit: tuple[int, str] | None = None
    """Version and commit id by which the ranges became visible; None where nothing was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredState:
    """What the table says of one partition."""

    tiered_end: int
    """-1: nothing."""
    log_start_offset: int
    leader_epoch: int = -1
    """The highest that wrote; -1: none."""
    conflict: str = ""
    """Why nothing may be copied to the table now; empty where it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The store gave no answer for this partition."""

    message: str
    outcome: str
    """FAILED or CONFLICT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlace:
    """A partition, and the leader epoch of the request."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int


# -- copies -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyAnswer:
    """The outcomes by partition."""

    partitions: list[PartitionOutcome]
    milliseconds: int = 0
    complaints: int = 0
    """Other writers' commits with rows, those that were not reported to the broker yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest(Request[CopyAnswer]):
    """One copy: one write of `__remote_log_metadata` when its ranges start, one when they finish.

    The ranges of one topic share a commit; those of one partition are consecutive.
    """

    sources: list[LogSegmentData]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp(Request[None]):
    """This broker no longer leads the partition: what is being done for it stops."""

    place: StoragePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest(Request["list[TieredState | Unavailable]"]):
    """What the lake holds of partitions."""

    partitions: Sequence[TopicIdPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceTopic(Request["list[TieredState | Unavailable]"]):
    """The same, after which no leader of an epoch below the given one commits anything more."""

    places: Sequence[StoragePlace]


# -- what the store has -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Offsets whose data the store lacks."""

    start_offset: int
    end_offset: int
    what: str
    """The file, for people; of several the first."""
    read_from: int
    read_to: int
    """The batches that it is written again from are those of these offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuestion:
    """What of one partition is looked for."""

    place: StoragePlace
    start_offset: int
    is_whole: bool
    """All files from `start_offset` on, and not the commits alone."""
    commits: Sequence[tuple[int, str]]
    """Version and commit id."""
    sources: Sequence[tuple[Missing, Sequence[LogSegmentData]]] = ()
    """To repair: what is missing, and where its batches are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """What the store has of one partition."""

    is_lost: bool
    """Whether one of the commits is another writer's by now."""
    tiered_end: int
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Request["list[StoreState | Unavailable]"]):
    """Look whether the store has what the tables say."""

    partitions: Sequence[CheckQuestion]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Request["list[StoreState | Unavailable]"]):
    """Write again what the store lacks, and look once more."""

    partitions: Sequence[CheckQuestion]


# -- retention and layout ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLogStart(Request["TieredState | Unavailable"]):
    """The partition begins there, or further up if somebody has said so before."""

    place: StoragePlace
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyQuestion:
    """What a leader knows of one partition and its retention."""

    place: StoragePlace
    retention: Retention
    lineage: Sequence[tuple[int, int]]
    copied_offset: int
    is_to_count: bool = False
    """Whether the leader does not know what the lake holds of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was found out about one partition."""

    decision: ExpirationDecision
    is_counted: bool = True
    """Whether the decision's numbers are known: unless it is asked for, nothing is counted where nothing can be due."""
    segments: int = 0
    """All that the metadata know of, in whatever state."""
    size_bytes: int = 0
    """Of those that are FINISHED."""
    below: int = 0
    """Segments that lie below the log start and may go."""
    below_bytes: int = 0
    has_files_below: bool = False
    """Whether the table has files there, also of ranges that nobody has said to be FINISHED."""
    held_up: int = 0
    """Segments whose deletion has begun, and that may not go yet: a file that holds them has later records, too."""
    milliseconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyRequest(Request["list[Survey | Unavailable]"]):
    """Where partitions are to begin."""

    partitions: Sequence[SurveyQuestion]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What was removed."""

    segments: int = 0
    size_bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Request[Swept]):
    """Remove what lies below a partition's log start."""

    place: StoragePlace


@dataclass(slots=True, kw_only=True)
class Optimized:
    """What was done to one partition's files."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    expired_rows: int = 0
    boundary_bytes: int = 0
    """Of files that were rewritten because rows in them had expired, before that."""
    has_expired: bool = True
    """Whether a file is left that holds rows below the log start and others; unless it cannot be rewritten."""
    lost: int = 0
    """Tasks that were given up because another writer was first."""
    reasons: dict[str, int] = field(default_factory=dict)
    """How many tasks, by why."""
    is_done: bool = True
    """Whether nothing is left to be done."""
    milliseconds: int = 0
    missing_offsets: int = 0
    """Of the tiered ranges that a RESTORE took out of the table."""
    lost_ranges: list[tuple[int, int]] = field(default_factory=list)
    """First and last offsets of files that the store lost, and that cannot be written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimize(Request[Optimized]):
    """Rewrite a partition's files where that helps readers."""

    place: StoragePlace
    rewrites_any_expired: bool
    """Whether a file is rewritten for a single expired row."""
    merges_any: bool = False
    """Whether two small files are enough to be merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic(Request[None]):
    """Remove everything of a deleted topic."""

    topic: str
    topic_id: bytes


# -- cold reads -------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class CacheCounts:
    """Counts of the worker's cache since its start."""

    hits: int = 0
    misses: int = 0
    size_bytes: int = 0
    is_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """Whole batches from an offset on."""

    chunks: Sequence[Buffer]
    next_offset: int
    cache: CacheCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Request[ReadAnswer]):
    """At least one batch and then at most `max_bytes`."""

    partition: TopicIdPartition
    offset: int
    max_bytes: int
    isolation_level: int
    """As in Fetch: 0 read_uncommitted, 1 read_committed."""


Found = tuple[int, int, int]
"""A record: timestamp (ms), offset, leader epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForTimestamp(Request["Found | None"]):
    """The first record at or after a time and offset."""

    partition: TopicIdPartition
    timestamp_ms: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTimestamp(Request["Found | None"]):
    """The first record of the greatest timestamp among those from an offset on."""

    partition: TopicIdPartition
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfRange:
    """What is known of a partition at the end of one of its ranges, besides records."""

    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, start offset) from the log's start on; empty where they are not known."""
    epochs_known_to: int | None = None
    """The last offset whose epoch is known, where that is not the end; -1 where none is though records are there."""
    producer_snapshot: bytes = b""
    """In Kafka's format, as of the offset after the range; empty where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfRangeRequest(Request[EndOfRange]):
    """The end of the range that holds an offset."""

    partition: TopicIdPartition
    offset: int


# -- system tables ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialise(Request[int]):
    """Make the cluster's events up to a version rows; the version that was reached."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOffsets(Request[None]):
    """Replace what this broker has published of its partitions and groups."""

    partitions: list[list[Any]]
    shards: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOffsets(Request["list[dict[str, Any]]"]):
    """The valid rows of `__offsets` of all brokers."""


# Kinds of errors that a request may be answered with.
OUT_OF_RANGE = "out_of_range"
UNAVAILABLE = "unavailable"
"""The store, or the table, cannot be read now."""
