"""Pure: where a tiered partition begins by its retention, and what lies wholly below that offset (KIP-405).

A range expires if it ends below the log start, if its newest record is as old as retention.ms, or if the partition
without it is as large as retention.bytes (records in both log and lake count once). The first range that stays keeps
all after it; nothing at or above the high watermark expires; ranges of another history are not counted. Retention moves
the log start alone; then what lies wholly below it is removed, and a file on both sides of it stays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from kafka_ds.topic.lineage import Lineage

NO_LIMIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """One range in the lake: offsets [start_offset, end_offset]."""

    start_offset: int
    end_offset: int
    size_bytes: int
    """The bytes in the log that it was copied from."""
    newest_ms: int
    """The greatest timestamp of its records; where none has one, when it was copied."""
    is_ours: bool = True
    """Whether the leader's epochs agree with those that it was written in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much of a partition is kept, and what must not expire in any case."""

    now_ms: int
    retention_ms: int
    retention_bytes: int
    log_start_offset: int
    limit_offset: int
    """Nothing at or above it expires: the high watermark, or the last stable offset if that is lower."""
    local_bytes: int
    """Bytes of local log that are not in the lake."""


class ExpirationReason(Enum):
    """Why the log start moves; Kafka's words."""

    TIME = "retention.ms"
    SIZE = "retention.bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirationDecision:
    """Where a partition is to begin."""

    log_start_offset: int
    reasons: frozenset[ExpirationReason] = frozenset()
    expired: int = 0
    """Ranges that end below it and did not end below the one before."""
    expired_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    """Of the ranges that stay."""
    oldest_ms: int | None = None
    """The newest timestamp of the first range that stays; None where none does."""
    oldest_bytes: int = 0


def decide(held: Sequence[HeldRange], retention: Retention) -> ExpirationDecision:
    """Where the partition begins by its retention; `held` is sorted by start offset."""
    left = [each for each in held if each.is_ours and each.end_offset >= retention.log_start_offset]
    kept_bytes = sum(each.size_bytes for each in left)
    start, reasons, count = retention.log_start_offset, set(), 0
    expired_bytes = 0
    for each in left:
        if each.end_offset >= retention.limit_offset:
            break
        reason = _due(each, retention, kept_bytes + retention.local_bytes)
        if reason is None:
            break
        reasons.add(reason)
        kept_bytes -= each.size_bytes
        expired_bytes += each.size_bytes
        start = each.end_offset + 1
        count += 1
    first = left[count] if count < len(left) else None
    return ExpirationDecision(
        log_start_offset=start,
        reasons=frozenset(reasons),
        expired=count,
        expired_bytes=expired_bytes,
        kept=len(left) - count,
        kept_bytes=kept_bytes,
        oldest_ms=None if first is None else first.newest_ms,
        oldest_bytes=0 if first is None else first.size_bytes,
    )


def _due(each: HeldRange, retention: Retention, partition_bytes: int) -> ExpirationReason | None:
    """Why this range, the oldest one left, expires."""
    horizon_ms = retention.now_ms - retention.retention_ms
    if retention.retention_ms != NO_LIMIT and horizon_ms >= 0 and each.newest_ms <= horizon_ms:
        return ExpirationReason.TIME
    limit_bytes = retention.retention_bytes
    if limit_bytes != NO_LIMIT and partition_bytes - each.size_bytes >= limit_bytes:
        return ExpirationReason.SIZE
    return None


def is_of_this_history(
    epochs: Sequence[tuple[int, int]], lineage: Sequence[tuple[int, int]], end_offset: int
) -> bool:
    """Whether a range's epochs agree with those that the leader knows for its offsets."""
    return Lineage.of(epochs).divergence(Lineage.of(lineage), end_offset) is None


def horizon(log_start_offset: int, files: Iterable[tuple[int, int]], tiered_end: int) -> int:
    """The offset below which all files may be removed; `files` gives the [first, last] offset of each."""
    straddling = [first for first, last in files if first < log_start_offset <= last]
    return min([log_start_offset, tiered_end, *straddling])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidueFile:
    """One residue file, and what it knows."""

    path: str
    end_offset: int
    has_producers: bool


def residue_to_drop(files: Iterable[ResidueFile], below: int) -> list[str]:
    """The files that only concern lower offsets, except the last ones with epochs and producers.

    Rebuilding a replica asks for the partition's state at an offset, perhaps the one before the first.
    """
    past = [each for each in files if each.end_offset < below]
    last = max((each.end_offset for each in past), default=-1)
    known = max((each.end_offset for each in past if each.has_producers), default=-1)
    return [each.path for each in past if each.end_offset not in (last, known)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRetentionCheck:
    """What a leader remembers of a partition after a look, so that it looks again only for a reason."""

    decision: ExpirationDecision
    retention: Retention
    copied_offset: int

    def is_due(self, retention: Retention, copied_offset: int) -> bool:
        """Whether something may be removed that could not be at the last look."""
        before = self.retention
        changed = (retention.retention_ms, retention.retention_bytes) != (
            before.retention_ms,
            before.retention_bytes,
        )
        if changed or retention.log_start_offset != self.decision.log_start_offset:
            return True
        if (
            self.copied_offset + 1 < retention.log_start_offset
            and copied_offset != self.copied_offset
        ):
            # A copy was in flight when the log start moved: its rows may lie below.
            return True
        oldest_ms = self.decision.oldest_ms
        # By time alone nothing expires before the oldest does, whatever is copied after it.
        by_size = retention.retention_bytes != NO_LIMIT
        if copied_offset != self.copied_offset and (by_size or oldest_ms is None):
            return True
        if oldest_ms is None or retention.limit_offset <= self.decision.log_start_offset:
            return False
        first = HeldRange(
            start_offset=0,
            end_offset=0,
            size_bytes=self.decision.oldest_bytes,
            newest_ms=oldest_ms,
        )
        whole_bytes = self.decision.kept_bytes + retention.local_bytes
        return _due(first, retention, whole_bytes) is not None
