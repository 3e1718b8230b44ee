"""Pure: the worker's settings, and one class for each operation and answer between broker and worker.

Offsets are inclusive at both ends. Every request may be repeated: a copy of what the table already holds is answered
with what it holds. Each partition of a request has an answer of its own, `Unavailable` if the store gave none for it.
Nothing here needs more than the broker's process has.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from kafka_ds.delta.arrivals import Arrival
from kafka_ds.ipc.backoff import Backoff
from kafka_ds.ipc.request import Request
from kafka_ds.process.buffers import Buffer
from kafka_ds.process.settings import MAX_LONG, boolean, double, i32, i64, string, strings
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.records.timestamps import TimestampAndOffset
from kafka_ds.topic.expiration import ExpirationDecision, Retention
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

ZSTD = "zstd"
UNBOUNDED = 2**63 - 1
_MIB = 1 << 20
_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """The settings of one broker's tier, which `broker.config.broker` inherits; those of `remote.` are Kafka's."""

    node_id: int = i32(1, "The id of this broker, unique in its cluster.", low=0, ours=True)
    log_dirs: tuple[str, ...] = strings(
        ("data/log",), "The log directories, separated by commas.", ours=True
    )
    lake_uri: str = string(
        "data/lake",
        "Where the Delta tables are: a folder, `s3://<bucket>/<prefix>`, `gs://…` or `abfss://…`.",
        ours=True,
    )
    lake_read_only: bool = boolean(
        False,
        "Whether this broker only reads the lake, as a read replica: it serves what is in the tables and takes nothing "
        "from producers, groups and administrators. It is no member of the cluster, and needs no right to write.",
        ours=True,
    )
    lake_read_only_interval_ms: int = i64(
        1_000,
        "How often a broker with lake.read.only looks for new records, topics and offsets of groups in the lake.",
        low=1,
        ours=True,
    )
    lake_read_only_replicated: bool = boolean(
        False,
        "Whether the lake of a broker with lake.read.only is a copy whose objects arrive in any order, such as a "
        "bucket that is replicated to another region. A version of a table then counts only once all that it needs is "
        "there.",
        ours=True,
    )
    lake_max_lag_ms: int = i64(
        -1,
        "The longest time a record waits before it is in the table, even if its segment is still open; -1 means that "
        "only rolled segments are copied, and of diskless topics also open ones, every two minutes or 8 MiB. Topics "
        "with remote.copy.lag.ms and remote.copy.lag.bytes copy rolled segments only.",
        low=-1,
        ours=True,
    )
    lake_local_grace_ms: int = i64(
        60_000,
        "How long a segment stays on local disk after it is in the table, even if local retention would delete it.",
        low=0,
        ours=True,
    )
    lake_worker_idle_ms: int = i64(
        300_000,
        "How long the worker process stays alive without work; -1 means it is never stopped. After brief work only, "
        "such as maintenance of a small table, it ends after five seconds at most.",
        low=-1,
        ours=True,
    )
    lake_start_delay_ms: int = i64(
        1_000,
        "How long after a partition with records is opened the broker asks the lake what it already holds of that "
        "partition.",
        low=0,
        ours=True,
    )
    lake_copy_bytes: int = i64(
        128 * _MIB,
        "The most bytes of log in one copy; a single larger segment is still copied whole.",
        low=1,
        ours=True,
    )
    lake_copy_threads: int = i32(
        2,
        "How many threads convert the segments of one copy to Parquet. A partition is split between threads only if "
        "each gets at least 16 MiB.",
        low=1,
        ours=True,
    )
    lake_file_bytes: int = i64(
        128 * _MIB,
        "The approximate size of a Parquet file, in bytes of records before compression.",
        low=1,
        ours=True,
    )
    lake_compression_level: int = i32(
        1,
        "The zstd level of the files that copies write; a higher level makes smaller files and slower copies.",
        low=1,
        high=22,
        ours=True,
    )
    lake_behind_compression_type: str = string(
        "snappy",
        "The codec of copies that cannot keep up with producers. snappy needs little more than half of the CPU, and "
        "up to twice the space until the files are merged and compressed with zstd again.",
        choices=("snappy", "zstd"),
        ours=True,
    )
    lake_checkpoint_interval: int = i32(
        100, "The number of commits between two checkpoints of a table.", low=1, ours=True
    )
    lake_log_retention_ms: int = i64(
        7 * _DAY_MS,
        "How long the history of a topic's table is kept, rounded up to whole days. A table gets this value when it "
        "is created and keeps it.",
        low=7 * _DAY_MS,
        ours=True,
    )
    lake_offsets_interval_ms: int = i64(
        60_000,
        "How often a broker writes the offsets of its partitions and of the groups that it coordinates to the lake, "
        "if they have changed. Restore and SQL read them from there. -1 means never.",
        low=-1,
        ours=True,
    )
    lake_maintenance_interval_ms: int = i64(
        300_000,
        "How often tables are checked for small files, badly sorted files and files with expired rows; -1 means "
        "never. Rows below a log start that has moved are looked for every five seconds, if this is not less.",
        low=-1,
        ours=True,
    )
    lake_maintenance_file_bytes: int = i64(
        128 * _MIB,
        "The size up to which small files of a table are merged. A file is small below an eighth of this.",
        low=8,
        ours=True,
    )
    lake_maintenance_min_files: int = i32(
        10,
        "How many consecutive small files are merged, even if together they are smaller than "
        "lake.maintenance.file.bytes.",
        low=2,
        ours=True,
    )
    lake_maintenance_expired_ratio: float = double(
        0.5,
        "The share of a file's offsets that must lie below the log start before the file is rewritten without them, "
        "if a file was rewritten for that lately; 0 means that one is enough. It delays only what retention expired, "
        "and by an hour at most.",
        low=0,
        ours=True,
    )
    lake_maintenance_compression_level: int = i32(
        9,
        "The highest zstd level of files that are merged or rewritten. It is used where the bytes that it saves are "
        "worth its CPU for as long as retention.ms keeps them; otherwise a lower level is, or files are joined as they "
        "are.",
        low=1,
        high=22,
        ours=True,
    )
    lake_reader_cache_bytes: int = i64(
        16 * _MIB,
        "How much memory the worker uses to cache batches read from the lake for consumers of cold records.",
        low=0,
        ours=True,
    )

    # -- Kafka's settings of tiered storage ------------------------------------------------------
    remote_fetch_max_wait_ms: int = i32(
        500,
        "How long a Fetch waits for records from the lake before it is answered without them.",
        low=1,
        changeable=True,
    )
    remote_list_offsets_request_timeout_ms: int = i64(
        30_000,
        "How long ListOffsets waits for the lake if the request has no timeout of its own.",
        low=1,
        changeable=True,
    )
    remote_log_index_file_cache_total_size_bytes: int = i64(
        1 << 30,
        "The size of the disk cache, in the first log directory, of records that were read from the lake more than "
        "once; 0 turns it off. If it was 0, a change counts from the worker process's next start.",
        low=0,
        ours=True,
        changeable=True,
    )
    remote_log_index_file_cache_ttl_ms: int = i64(
        900_000,
        "How long an entry of that cache may go unread before it is deleted; -1 means for ever.",
        low=-1,
    )
    remote_log_manager_copy_max_bytes_per_second: int = i64(
        MAX_LONG,
        "The most bytes of log per second that are copied into the lake; copies beyond this rate wait.",
        low=1,
        changeable=True,
    )
    remote_log_manager_copy_quota_window_num: int = i32(
        11, "The number of samples over which that rate is measured.", low=1
    )
    remote_log_manager_copy_quota_window_size_seconds: int = i32(
        1, "The length of one of these samples.", low=1
    )
    remote_log_manager_fetch_max_bytes_per_second: int = i64(
        MAX_LONG,
        "The most bytes per second that consumers read from the lake; beyond this rate a Fetch is answered without "
        "the records that only the lake has.",
        low=1,
        changeable=True,
    )
    remote_log_manager_fetch_quota_window_num: int = i32(
        11, "The number of samples over which that rate is measured.", low=1
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = i32(
        1, "The length of one of these samples.", low=1
    )
    remote_log_manager_task_interval_ms: int = i64(
        30_000,
        "How often the leader checks what to copy and what has expired; a segment that rolls is copied without "
        "waiting for this. Followers ask their leaders as often where the lake ends.",
        low=1,
    )
    remote_log_manager_task_retry_backoff_max_ms: int = i64(
        30_000,
        "The longest pause before the tier retries what failed.",
        low=1,
        ours=True,
    )
    remote_log_manager_task_retry_backoff_ms: int = i64(
        500,
        "The first pause before the tier retries what failed; it doubles with each failure (KIP-405; Kafka has "
        "dropped this setting).",
        low=1,
        ours=True,
    )
    remote_log_reader_max_pending_tasks: int = i32(
        100,
        "How many cold reads may wait; more are refused with a retriable error.",
        low=1,
    )
    remote_log_reader_threads: int = i32(
        2,
        "How many cold reads run at a time.",
        low=1,
        ours=True,
        changeable=True,
    )
    remote_log_storage_system_enable: bool = boolean(
        True,
        "Whether this broker has a tier. If true, a topic is a Delta table unless it sets remote.storage.enable=false, "
        "or is compacted and does not set it to true; if false, no topic can be one.",
        ours=True,
    )

    def backoff(self) -> Backoff:
        """The back-off after consecutive failures of one thing."""
        return Backoff(
            self.remote_log_manager_task_retry_backoff_ms,
            self.remote_log_manager_task_retry_backoff_max_ms,
        )

    def worker_arguments(self) -> list[str]:
        """The settings as the worker process's arguments."""
        return [json.dumps(asdict(self))]

    @classmethod
    def from_worker_argument(cls, text: str) -> Self:
        """The settings from the worker's argument."""
        values = json.loads(text)
        return cls(**{**values, "log_dirs": tuple(values["log_dirs"])})


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
    """Of the Parquet file, by Kafka's name; what is not zstd is recompressed when it is merged."""
    log_start_offset: int = 0
    """The leader's log start: a range may begin there, behind the table's end."""
    may_have_gaps: bool = False
    """Whether compaction may have removed batches of it, also the last ones; else what is missing is lost."""


FINISHED = "finished"
"""COPY_SEGMENT_FINISHED is durable."""
FAILED = "failed"
"""Not in the table and not going to be by this attempt, or its fate is unknown: ask again."""
CONFLICT = "conflict"
"""This leader may not write to the table now: report why, and ask again, but not often."""


UNKNOWN_END = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The outcome of the ranges of one partition."""

    topic_id: bytes
    partition: int
    outcome: str
    highest_offset_in_remote_storage: int
    """Last offset that is FINISHED (-1: none), by any broker's copy; UNKNOWN_END: not known."""
    message: str = ""
    ranges: int = 0
    rows: int = 0
    log_bytes: int = 0
    lake_bytes: int = 0
    invalid_bytes: int = 0
    commit: tuple[int, str] | None = None
    """Version and commit id by which the ranges became visible; None if nothing was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredState:
    """What the table holds of one partition."""

    highest_offset_in_remote_storage: int
    """-1: nothing."""
    log_start_offset: int
    leader_epoch: int = -1
    """The highest leader epoch that wrote; -1: none."""
    conflict: str = ""
    """Why nothing may be copied to the table now; empty if copies are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The store gave no answer for this partition."""

    message: str
    outcome: str
    """FAILED or CONFLICT."""


# -- copies -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyAnswer:
    """The outcomes by partition."""

    partitions: list[PartitionOutcome]
    milliseconds: int = 0
    complaints: int = 0
    """Other writers' commits with rows that were not reported to the broker yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest(Request[CopyAnswer]):
    """One copy: one write of `__remote_log_metadata` when its ranges start, one when they finish.

    The ranges of one topic share a commit; those of one partition are consecutive.
    """

    sources: list[LogSegmentData]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Request[None]):
    """Dynamic settings, for a process that was started with others."""

    reader_threads: int
    cache_bytes: int

    @classmethod
    def of(cls, settings: TierSettings) -> Self:
        """What these settings say."""
        return cls(
            reader_threads=settings.remote_log_reader_threads,
            cache_bytes=settings.remote_log_index_file_cache_total_size_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPartition(Request[None]):
    """This broker no longer leads the partition: work on it stops."""

    partition: TopicIdPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTieredState(Request["list[TieredState | Unavailable]"]):
    """What the lake holds of partitions."""

    partitions: Sequence[TopicIdPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceTopic(Request["list[TieredState | Unavailable]"]):
    """What the lake holds of partitions, after which no leader of an epoch below the given one can commit anything."""

    leader_epochs: Mapping[TopicIdPartition, int]
    loads: Mapping[bytes, str] = field(default_factory=dict)
    """The bulk loads, by topic id, that are committed before that."""


# -- what the store has -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingOffsets:
    """Offsets whose data the store lacks."""

    start_offset: int
    end_offset: int
    what: str
    """The file, for log lines; of several the first."""
    read_from: int
    read_to: int
    """The file is rewritten from batches of these offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuestion:
    """Which files and commits of one partition the worker is to look for."""

    partition: TopicIdPartition
    leader_epoch: int
    start_offset: int
    is_whole: bool
    """All files from `start_offset` on, and not only the commits."""
    commits: Sequence[tuple[int, str]]
    """Version and commit id."""
    sources: Sequence[tuple[MissingOffsets, Sequence[LogSegmentData]]] = ()
    """To repair: what is missing, and where its batches are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """What the store has of one partition."""

    is_lost: bool
    """Whether one of the commits is another writer's by now."""
    highest_offset_in_remote_storage: int
    missing: tuple[MissingOffsets, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Request["list[StoreState | Unavailable]"]):
    """Check whether the store has what the tables name."""

    partitions: Sequence[CheckQuestion]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Request["list[StoreState | Unavailable]"]):
    """Rewrite what the store lacks, and check once more."""

    partitions: Sequence[CheckQuestion]


# -- retention and OPTIMIZE -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLogStart(Request["TieredState | Unavailable"]):
    """Set the partition's log start in the table; a larger one that is there stays."""

    partition: TopicIdPartition
    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionCheck:
    """What a leader knows of one partition and its retention."""

    partition: TopicIdPartition
    retention: Retention
    lineage: Sequence[tuple[int, int]]
    copied_offset: int
    is_to_count: bool = False
    """Whether the leader does not know what the lake holds of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionResult:
    """The result of examining one partition."""

    decision: ExpirationDecision
    is_counted: bool = True
    """Whether the decision's numbers are known: unless requested, nothing is counted if nothing can be due."""
    segments: int = 0
    """All that the metadata have, in whatever state."""
    size_bytes: int = 0
    """Of those that are FINISHED."""
    below: int = 0
    """Segments that lie below the log start and may be deleted."""
    below_bytes: int = 0
    has_files_below: bool = False
    """Whether the table has files there, also of ranges that were never recorded as FINISHED."""
    held_up: int = 0
    """Segments whose deletion has begun and must wait: a file that holds them has later records, too."""
    milliseconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRetention(Request["list[RetentionResult | Unavailable]"]):
    """Ask where partitions are to begin."""

    partitions: Sequence[RetentionCheck]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What was removed."""

    segments: int = 0
    size_bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Request[Swept]):
    """Remove what lies below a partition's log start."""

    partition: TopicIdPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Whether a file is left that holds rows on both sides of the log start, except one that cannot be rewritten."""
    lost: int = 0
    """Tasks that were given up because another writer was first."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """How many tasks, by reason."""
    is_done: bool = True
    """Whether nothing is left to be done."""
    milliseconds: int = 0
    missing_offsets: int = 0
    """Of the tiered ranges that a RESTORE removed from the table."""
    lost_ranges: Sequence[tuple[int, int]] = ()
    """First and last offsets of files that the store lost, and that cannot be rewritten."""

    def plus(self, done: Self) -> Self:
        """All that was done, files that were rewritten twice counted twice; the rest as after the second."""
        counts = Counter(self.reasons) + Counter(done.reasons)
        sums = {name: getattr(self, name) + getattr(done, name) for name in _SUMS}
        return replace(done, reasons=dict(counts), **sums)


_SUMS = (
    "files_before", "files_after", "bytes_before", "bytes_after", "rows", "expired_rows", "boundary_bytes", "lost",
    "milliseconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimize(Request[Optimized]):
    """Rewrite a partition's files where that helps readers."""

    partition: TopicIdPartition
    leader_epoch: int
    retention_ms: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounts:
    """Counts of the worker's cache since its start."""

    hits: int = 0
    misses: int = 0
    size_bytes: int = 0
    is_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """The whole batches from an offset on."""

    chunks: Sequence[Buffer]
    cache: CacheCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Request[ReadAnswer]):
    """At least one batch and then at most `max_bytes`."""

    partition: TopicIdPartition
    offset: int
    max_bytes: int
    isolation_level: int
    """As in Fetch: 0 read_uncommitted, 1 read_committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOffset:
    """A record, if there is one."""

    found: TimestampAndOffset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForTimestamp(Request[FoundOffset]):
    """The first record at or after a time and offset."""

    partition: TopicIdPartition
    timestamp_ms: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTimestamp(Request[FoundOffset]):
    """The first record of the greatest timestamp among those from an offset on."""

    partition: TopicIdPartition
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAuxState:
    """The state of a partition at the end of one of its ranges, besides records."""

    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, start offset) from the log's start on; empty where they are not known."""
    epochs_known_to: int | None = None
    """The last offset whose epoch is known, if that is not the end; -1 if none is though records are there."""
    producer_snapshot: bytes = b""
    """In Kafka's format, as of the offset after the range; empty where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAuxState(Request[SegmentAuxState]):
    """The end of the range that holds an offset."""

    partition: TopicIdPartition
    offset: int
    has_producers: bool = True
    """Whether the producers are asked for, too: they may have to be read from the table's rows."""


# -- system tables ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialised:
    """The version up to which all events are rows."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialise(Request[Materialised]):
    """Make rows of the cluster's events up to a version."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """The ends of a partition, as its leader knew them."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    log_start_offset: int
    local_log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    # Local retention changes it, too: that is no reason to publish.
    size_bytes: int = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPartition:
    """The ends of a partition as the checkpoint has them; `event_time_ms` is when a broker published them."""

    topic: str
    topic_id: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    event_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGroup:
    """A classic group, or the epoch of a consumer, share or streams group as its generation."""

    coordinator_partition: int
    group_id: str
    group_type: str = "classic"
    """As ListGroups names it; a broker that did not publish it had classic groups only."""
    protocol_type: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOffset:
    """An offset that a group has committed; -1 where there is no time."""

    coordinator_partition: int
    group_id: str
    topic: str
    topic_id: str = ""
    """Empty if it was committed without one."""
    partition: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str = ""
    commit_time_ms: int = -1
    expire_time_ms: int = -1
    event_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedShareState:
    """The state of a share partition; each batch is first and last offset, delivery state and delivery count."""

    coordinator_partition: int
    group_id: str
    topic_id: str
    partition: int
    leader_epoch: int
    start_offset: int
    state_epoch: int
    state_batches: Sequence[tuple[int, int, int, int]]
    event_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCheckpoint:
    """What `__offsets` says: of each partition and coordinator what its newest leader has published."""

    partitions: Sequence[PublishedPartition]
    groups: Sequence[PublishedGroup]
    offsets: Sequence[PublishedOffset]
    share_states: Sequence[PublishedShareState]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOffsets(Request[None]):
    """Replace the checkpoint that this broker has published of its partitions and groups."""

    partitions: Sequence[PartitionOffsets]
    shards: Sequence[str]
    """What each coordinator keeps as JSON, until it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOffsets(Request[OffsetsCheckpoint]):
    """What all brokers have published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArrivals(Request[list[Arrival]]):
    """How far the tables have arrived, with lake.read.only.replicated."""


# Kinds of errors that a request may be answered with.
OUT_OF_RANGE = "out_of_range"
UNAVAILABLE = "unavailable"
"""The store, or the table, cannot be read now."""
