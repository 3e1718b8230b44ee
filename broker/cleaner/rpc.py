"""Pure: what the broker asks of the child process that cleans, and the answers.

Rules of this file: headers of `broker.ipc.channel` are JSON, so values travel as lists and numbers. One cleaning of
a log is a job: `begin` maps the keys of its dirty part, `group` writes one segment from several, `end` forgets the job;
`abort` stops one of its operations at once. The settings may change while the child runs: each job brings those that it
is done with, and `limit` changes what all jobs together read and write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from broker.cleaner.settings import CleanerSettings
from broker.log.values import AbortedTransaction

BEGIN, GROUP, END, ABORT, LIMIT = "begin", "group", "end", "abort", "limit"

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
class Job:
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
    aborted: tuple[AbortedTransaction, ...]
    last_records: tuple[LastRecord, ...]
    settings: CleanerSettings

    def header(self) -> dict[str, Any]:
        """The request that begins it."""
        return {"op": BEGIN, "job": self.number, **asdict(self)}

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Self:
        """The other way."""
        taken = {field.name: header[field.name] for field in fields(cls)}
        taken["segments"] = tuple(SourceSegment(**each) for each in taken["segments"])
        taken["aborted"] = tuple(AbortedTransaction(*each) for each in taken["aborted"])
        taken["last_records"] = tuple(LastRecord(**each) for each in taken["last_records"])
        taken["settings"] = CleanerSettings(**taken["settings"])
        return cls(**taken)


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
