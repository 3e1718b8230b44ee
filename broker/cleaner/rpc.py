"""Pure: what the broker asks of the child process that cleans, and the answers.

Rules of this file: one cleaning of a log is a job: `CleanJob` maps the keys of its dirty part, `LogGroup` writes one
segment from several, `End` forgets the job; `Abort` stops one of its operations at once. The settings may change while
the child runs: each job brings its own, and `CleanLimit` changes what all jobs together read and write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kafka_ds.ipc.request import Request
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """The settings that the cleaner needs; what each means, and its default, says `broker.config.broker`."""

    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_backoff_ms: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Take each field from the setting of the same name."""
        return cls(**{field: values[field.replace("_", ".")] for field in cls.__dataclass_fields__})

    @property
    def slots(self) -> int:
        """How many keys there is memory for in one thread."""
        return self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads // KEY_BYTES

    @property
    def keys_max(self) -> int:
        """How many keys one thread may know at a time."""
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
