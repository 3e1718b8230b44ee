"""Pure: the requests of the broker to the cleaner process, and the answers.

One cleaning of a log is a job: `CleanJob` maps the keys of its dirty part, `CleanSegments` writes one segment from
several, `EndJob` discards the job, `AbortJob` stops its current operation. Settings are dynamic: each job has its own,
and `CleanLimit` changes the I/O limit of all jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_ds.ipc.request import Request
from kafka_ds.process.settings import boolean, double, i32, i64
from kafka_ds.segments.index import AbortedTxn

# The kinds of error answers.
ABORTED = "aborted"
"""The broker aborted the job."""
CORRUPT = "corrupt"
"""The log is corrupt: an operator must look at it."""
DISK = "disk"
"""A disk error, which may not recur."""
UNKNOWN_JOB = "unknown job"
"""The child process that started the job has ended."""

NO_OFFSET = -1
# A 16-byte hash and the last offset, as in Kafka's offset map.
KEY_BYTES = 24


# Without slots, as BrokerConfig has a second base class with slots.
@dataclass(frozen=True, kw_only=True)
class CleanerSettings:
    """The settings of the log cleaner, which `broker.config.broker` inherits."""

    log_cleaner_backoff_ms: int = i64(
        15_000,
        "How long a log cleaner thread waits if there is nothing to clean.",
        low=0,
        changeable=True,
    )
    log_cleaner_dedupe_buffer_size: int = i64(
        128 << 20,
        "The memory for the keys of logs being cleaned, shared by all cleaner threads; more than 1 MiB for each.",
        low=0,
        changeable=True,
    )
    log_cleaner_enable: bool = boolean(True, "Whether logs of compacted topics are compacted.")
    log_cleaner_io_buffer_load_factor: float = double(
        0.9,
        "How full the memory for keys may get: fuller means more keys in a run, but slower runs.",
        low=0,
        high=1,
        changeable=True,
    )
    log_cleaner_io_buffer_size: int = i32(
        512 << 10,
        "The memory for reading and writing, shared by all cleaner threads.",
        low=0,
        changeable=True,
    )
    log_cleaner_io_max_bytes_per_second: float = double(
        1.7976931348623157e308,
        "The most bytes per second that all cleaner threads together read and write.",
        changeable=True,
    )
    log_cleaner_threads: int = i32(
        1, "How many logs are compacted at a time.", low=1, changeable=True
    )

    @property
    def slots(self) -> int:
        """The key slots of one thread."""
        return self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads // KEY_BYTES

    @property
    def keys_max(self) -> int:
        """The most keys in the key table of one thread."""
        return max(int(self.slots * self.log_cleaner_io_buffer_load_factor), 1)

    @property
    def read_bytes(self) -> int:
        """The read buffer of one thread; the other half of its memory is the write buffer."""
        return max(self.log_cleaner_io_buffer_size // self.log_cleaner_threads // 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A rolled segment to read. `next_offset` is the base offset of the next segment."""

    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """An active producer's last record; `last_data_offset` is NO_OFFSET if it is a marker."""

    producer_id: int
    producer_epoch: int
    last_data_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanJob(Request["Mapped"]):
    """Map the keys of a log; `segments` are those below `first_uncleanable_offset`."""

    number: int
    directory: str
    segments: tuple[SourceSegment, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int
    keeps_tombstones: bool
    """Whether tombstones stay, since readers find the deleted values in the lake."""
    index_interval_bytes: int
    aborted: tuple[AbortedTxn, ...]
    last_records: tuple[LastRecord, ...]
    settings: CleanerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """The keys of the dirty part are known up to `end_offset`."""

    end_offset: int
    buffer_used: float
    """The used share of `keys_max`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """A durable segment was written, with the suffix `.cleaned`."""

    size_bytes: int
    bytes_read: int
    records_read: int
    records_kept: int
    without_key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSegments(Request[Cleaned]):
    """Write one segment from these of the job."""

    job: int
    segments: Sequence[SourceSegment]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob(Request[None]):
    """Discard the job."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortJob(Request[None]):
    """Stop the current operation of the job."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLimit(Request[None]):
    """Set the I/O limit of all jobs together."""

    bytes_per_second: float
