"""Pure: what the broker asks of its worker, and the answers, as JSON-friendly values.

Rules of this file: ids are texts (Kafka's base64), offsets are inclusive at both ends, and batches travel as the
frame's payload, with their sizes in the header. Every request may be repeated: a copy of what the table already holds
is answered with what it holds.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRange:
    """One range to be copied: where its batches are and what else the lake stores of it."""

    partition: int
    start_offset: int
    end_offset: int
    leader_epoch: int
    leader_epochs: list[list[int]]
    """[epoch, start offset] of the epochs that own offsets of the range."""
    path: str
    position: int
    size_bytes: int
    lineage: list[list[int]] = field(default_factory=list)
    """The same of all epochs from the log's start to the range's end: who rebuilds a replica needs them."""
    aborted: list[list[int]] = field(default_factory=list)
    """[producer id, first offset, last offset] of the aborted transactions in it."""
    producer_snapshot: str = ""
    """Hex of the producers at the end of the range, in Kafka's snapshot format."""
    compression: str = ZSTD
    """Of the Parquet file, by Kafka's name; what is not zstd is compressed anew when it is merged."""
    log_start_offset: int = 0
    """Where the leader's log begins: a range may begin there, behind the table's end."""
    may_have_gaps: bool = False
    """Whether compaction may have taken batches of it, also the last ones; else what is missing is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTopic:
    """The ranges of one topic: they share a commit."""

    topic: str
    topic_id: str
    ranges: list[CopyRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest:
    """One copy: one write of `__remote_log_metadata` when its ranges start, one when they finish."""

    topics: list[CopyTopic]

    def header(self) -> dict[str, Any]:
        """As a frame's header."""
        return {"op": "copy", **asdict(self)}

    @classmethod
    def of(cls, header: dict[str, Any]) -> Self:
        """From a frame's header."""
        return cls(
            topics=[
                CopyTopic(
                    topic=each["topic"],
                    topic_id=each["topic_id"],
                    ranges=[CopyRange(**one) for one in each["ranges"]],
                )
                for each in header["topics"]
            ]
        )


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

    topic_id: str
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
class CopyAnswer:
    """The outcomes by partition."""

    partitions: list[PartitionOutcome]
    milliseconds: int = 0

    def header(self) -> dict[str, Any]:
        """As a frame's header."""
        return asdict(self)

    @classmethod
    def of(cls, header: dict[str, Any]) -> Self:
        """From a frame's header."""
        return cls(
            partitions=[PartitionOutcome(**each) for each in header["partitions"]],
            milliseconds=header["milliseconds"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredState:
    """What the table says of one partition."""

    topic_id: str
    partition: int
    tiered_end: int
    """-1: nothing."""
    log_start_offset: int
    leader_epoch: int = -1
    """The highest that wrote; -1: none."""
    conflict: str = ""
    """Why nothing may be copied to the table now; empty where it may."""


# Kinds of errors that a request may be answered with.
OUT_OF_RANGE = "out_of_range"
UNAVAILABLE = "unavailable"
"""The store, or the table, cannot be read now."""
