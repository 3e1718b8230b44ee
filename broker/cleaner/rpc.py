"""Pure: what the broker asks of the child process that cleans, and the answers.

One cleaning of a log is a job: `CleanJob` maps the keys of its dirty part, `LogGroup` writes one segment from several,
`End` forgets the job; `Abort` stops one of its operations at once. The settings may change while the child runs: each
job brings its own, and `CleanLimit` changes what all jobs together read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_ds.ipc.request import Request
from kafka_ds.process.settings import boolean, double, i32, i64
from kafka_ds.segments.index import AbortedTxn

# Kinds of error that the child answers with.
ABORTED = "aborted"
"""The broker had asked for it."""
CORRUPT = "corrupt"
"""The log holds what cannot be read: it must be looked at by a human."""
DISK = "disk"
"""The disk refused something, which it may not do the next time."""
UNKNOWN_JOB = "unknown job"
"""The child that began it has ended since."""

NO_OFFSET = -1
# A key takes its hash of 16 bytes and its last offset, as in Kafka's own table.
KEY_BYTES = 24


# Without slots: a broker's configuration inherits it beside another class that has some.
@dataclass(frozen=True, kw_only=True)
class CleanerSettings:
    """The settings of the log cleaner, which `broker.config.broker` inherits."""

    log_cleaner_backoff_ms: int = i64(
        15_000,
        "How long a log cleaner waits if there is nothing to compact.",
        low=0,
        changeable=True,
    )
    log_cleaner_dedupe_buffer_size: int = i64(
        128 << 20,
        "The memory for the keys of logs being compacted, shared by all cleaners; more than 1 MiB for each.",
        low=0,
        changeable=True,
    )
    log_cleaner_enable: bool = boolean(True, "Whether logs of compacted topics are compacted.")
    log_cleaner_io_buffer_load_factor: float = double(
        0.9,
        "How full the memory for keys may get: the fuller, the more keys fit in a run, and the slower it is.",
        low=0,
        high=1,
        changeable=True,
    )
    log_cleaner_io_buffer_size: int = i32(
        512 << 10,
        "The memory for reading and writing, shared by all cleaners.",
        low=0,
        changeable=True,
    )
    log_cleaner_io_max_bytes_per_second: float = double(
        1.7976931348623157e308,
        "The most bytes per second that all cleaners together read and write.",
        changeable=True,
    )
    log_cleaner_threads: int = i32(
        1, "How many logs are compacted at a time.", low=1, changeable=True
    )

    @property
    def slots(self) -> int:
        """How many keys there is memory for in one thread."""
        return self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads // KEY_BYTES

    @property
    def keys_max(self) -> int:
        """How many keys one thread may hold at a time."""
        return max(int(self.slots * self.log_cleaner_io_buffer_load_factor), 1)

    @property
    def read_bytes(self) -> int:
        """How much of a log one thread reads at a time; the other half is for what it writes."""
        return max(self.log_cleaner_io_buffer_size // self.log_cleaner_threads // 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A rolled segment that may be read. `next_offset` is where the following one begins."""

    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """What an active producer wrote last; NO_OFFSET if that was a marker."""

    producer_id: int
    producer_epoch: int
    last_data_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanJob(Request["Mapped"]):
    """What is needed to clean a log: its segments below `first_uncleanable_offset`, and what is known of them."""

    number: int
    directory: str
    segments: tuple[SourceSegment, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int
    keeps_tombstones: bool
    """Whether tombstones stay, since readers find what they delete in the lake."""
    index_interval_bytes: int
    aborted: tuple[AbortedTxn, ...]
    last_records: tuple[LastRecord, ...]
    settings: CleanerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """The keys of the dirty part are known up to `end_offset`."""

    end_offset: int
    bytes_read: int
    buffer_used: float
    """The share of the table of keys that is in use, of what it may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """A segment was written, whole and durable, under the names `.cleaned`."""

    size_bytes: int
    bytes_read: int
    records_read: int
    records_kept: int
    without_key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGroup(Request[Cleaned]):
    """Write one segment from these of the job."""

    job: int
    segments: Sequence[SourceSegment]


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Request[None]):
    """Forget the job."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Request[None]):
    """Stop what is being done of the job."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLimit(Request[None]):
    """All jobs together read and write no more than that."""

    bytes_per_second: float
