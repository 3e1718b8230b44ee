"""Pure: which ranges of which partitions are copied next, and which local segments may be deleted.

No clock (callers pass a monotonic `now_ms`), no I/O, no log object. A range begins after the last FINISHED one and ends
at the end of a rolled segment or, with `lake.max.lag.ms`, at the last stable offset. It holds no offset at or above
that: a row in the lake cannot be undone. The oldest ranges come first. Consecutive segments are separate ranges, so
that a row of `__remote_log_metadata` is one segment. After each failure a partition waits twice as long.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from broker.log.epochs import LeaderEpochs
from broker.log.values import EnrichedLogSegment
from kafka_ds.ipc.backoff import Backoff
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

NOTHING_COPIED = -1
# When the store is checked again for missing files, or after it gave no answer.
CHECK_FIRST_MS = 1_000
CHECK_LONGEST_MS = 300_000
CommitId = tuple[int, str]
"""Version and commit id."""
Gap = tuple[int, int]
"""First and last offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLag:
    """How long rolled segments are held back (KIP-1241): until they are old enough, or enough bytes follow.

    0: not at all, whatever the other limit is. None: this limit alone never releases a segment.
    """

    now_ms: int = 0
    lag_ms: int | None = 0
    lag_bytes: int | None = 0

    @property
    def is_none(self) -> bool:
        """Whether nothing is held back."""
        return self.lag_ms == 0 or self.lag_bytes == 0

    def holds_back(self, max_timestamp_ms: int, bytes_behind: int) -> bool:
        """Whether a segment is held back by the bytes of the log behind it; then those after it are, too."""
        if self.is_none:
            return False
        is_old = self.lag_ms is not None and self.now_ms - max_timestamp_ms >= self.lag_ms
        return not is_old and (self.lag_bytes is None or bytes_behind < self.lag_bytes)


NO_LAG = CopyLag()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """All that the policy needs to know of one led partition."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    leader_epochs: LeaderEpochs
    copied_offset: int
    log_start_offset: int
    last_stable_offset: int
    rolled: Sequence[EnrichedLogSegment]
    active: EnrichedLogSegment | None = None
    lag: CopyLag = NO_LAG
    bytes_behind: int = 0
    """Of the log behind the segments of `rolled`; 0 where nothing is held back."""
    bytes_beyond: int = 0
    """Of further segments that may be copied, behind those of `rolled`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLimits:
    """The most that one copy takes: bounds the work repeated after a crash, and others' wait."""

    bytes_max: int = 64 * 1024 * 1024
    ranges_max: int = 128


def pending(view: CopyView, *, with_active: bool) -> list[RemoteLogSegment]:
    """All ranges of a partition that may be copied now, oldest first."""
    start = max(view.copied_offset + 1, view.log_start_offset)
    found: list[RemoteLogSegment] = []
    behind = view.bytes_behind + sum(each.size_bytes for each in view.rolled)
    for each in view.rolled:
        behind -= each.size_bytes
        if each.next_offset <= start:
            continue
        is_stable = each.next_offset <= view.last_stable_offset
        if not is_stable or view.lag.holds_back(each.max_timestamp_ms, behind):
            break
        found.append(_part(view, each, start, each.next_offset))
        start = each.next_offset
    else:
        active = view.active
        if with_active and view.lag.is_none and active and view.last_stable_offset > start:
            end = min(active.next_offset, view.last_stable_offset)
            if end > start >= active.base_offset:
                found.append(_part(view, active, start, end))
    return found


def _part(view: CopyView, segment: EnrichedLogSegment, start: int, end: int) -> RemoteLogSegment:
    """A range that ends within a segment; its bytes are estimated from its offsets."""
    begin = max(segment.base_offset, start)
    share = (end - begin) / max(1, segment.next_offset - segment.base_offset)
    return range_to_copy(view, begin, end - 1, max(1, round(segment.size_bytes * share)))


def range_to_copy(
    view: CopyView, start_offset: int, end_offset: int, size_bytes: int
) -> RemoteLogSegment:
    """Offsets [start_offset, end_offset] of a partition, with the leader epochs that own them."""
    owners = view.leader_epochs.between(start_offset, end_offset + 1)
    first = owners[0][0] if owners else view.leader_epoch
    return RemoteLogSegment(
        topic=view.topic,
        topic_id=view.topic_id,
        partition=view.partition,
        start_offset=start_offset,
        end_offset=end_offset,
        leader_epochs=((first, start_offset), *owners[1:]),
        size_bytes=size_bytes,
        leader_epoch=view.leader_epoch,
    )


def choose(
    candidates: Sequence[tuple[CopyView, Sequence[RemoteLogSegment]]], limits: CopyLimits
) -> dict[PartitionId, list[RemoteLogSegment]]:
    """Fill one copy, by topic id and partition: the oldest range of each in turn, so that no partition starves.

    At least one range is taken, however large. Partitions come in the order given; the caller begins after the one that
    came last.
    """
    queues = [(view, deque(ranges)) for view, ranges in candidates if ranges]
    chosen: dict[PartitionId, list[RemoteLogSegment]] = {}
    bytes_left, ranges_left = limits.bytes_max, limits.ranges_max
    while queues and ranges_left > 0 and bytes_left > 0:
        still = []
        for view, ranges in queues:
            if ranges_left <= 0 or bytes_left <= 0:
                break
            if chosen and ranges[0].size_bytes > bytes_left:
                continue
            first = ranges.popleft()
            chosen.setdefault((view.topic_id, view.partition), []).append(first)
            bytes_left -= first.size_bytes
            ranges_left -= 1
            if ranges:
                still.append((view, ranges))
        queues = still
    return chosen


class CopyBacklog:
    """Whether copies keep up with the segments that roll meanwhile.

    They fall behind once a copy leaves a larger backlog than the first copy that left any, until one leaves none. After
    a burst each copy leaves less than the one before, even while segments roll.
    """

    __slots__ = ("_first_bytes", "_is_behind")

    def __init__(self) -> None:
        self._first_bytes = 0
        """The backlog that the first copy left since one left none."""
        self._is_behind = False

    def is_behind_with(self, left_bytes: int) -> bool:
        """Whether copies fall behind if the next one leaves that many bytes."""
        return left_bytes > 0 and (self._is_behind or left_bytes > self._first_bytes > 0)

    def copied(self, left_bytes: int) -> None:
        """A copy is done and left that many bytes."""
        self._is_behind = self.is_behind_with(left_bytes)
        self._first_bytes = (self._first_bytes or left_bytes) if left_bytes else 0


class CopyPhase(Enum):
    """The state of a led partition."""

    UNKNOWN = "unknown"
    """The lake was not asked yet: nothing is copied and nothing local is deleted."""
    READY = "ready"
    COPYING = "copying"
    DIVERGED = "diverged"
    """The lake ends beyond the log: it has other records at the offsets that this log assigns next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyQuestion:
    """What is checked in the store before local records up to an offset may be deleted."""

    offset: int
    commits: tuple[CommitId, ...]
    unseen: int
    is_whole: bool
    """All files of the offsets that are still local, and not only the commits."""


class CopyState:
    """One led partition: what is FINISHED, what is being copied, what may be deleted locally.

    Records that this leader copied may be deleted locally after the grace time, once the commit was read back. Records
    that the lake reported (copied by another leader, or before a crash) are looked for file by file first; from the
    first missing offset on nothing is deleted.

    UNKNOWN → READY (the lake answered) → COPYING → READY (finished or failed). In each of them it is paused while an
    operator must undo what is in the way (a table property, another topic id), and retried as after a failure. UNKNOWN
    → DIVERGED is final: the log may grow beyond the lake's end, and its records would be taken for the lake's.
    """

    __slots__ = (
        "_aged_offset",
        "_aging",
        "_commits",
        "backoff",
        "check_backoff",
        "copied_offset",
        "deletable_offset",
        "lost_ranges",
        "missing",
        "pause_reason",
        "phase",
        "unseen",
    )

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.phase = CopyPhase.UNKNOWN
        self.copied_offset = NOTHING_COPIED
        self.backoff = backoff or Backoff()
        self.pause_reason = ""
        """What is in the way; empty if nothing is."""
        self._aging: deque[tuple[int, int, CommitId | None]] = deque()
        self._aged_offset = NOTHING_COPIED
        self._commits: dict[CommitId, None] = {}
        """Of copies whose grace time is over; their commits are to be read back."""
        self.deletable_offset = NOTHING_COPIED
        """Last offset whose local copy may be deleted."""
        self.unseen = 0
        """How often the lake reported offsets that were not looked for since; 0 if all were."""
        self.missing: list[Gap] = []
        """Offsets that the store lacked at the last check."""
        self.lost_ranges: Sequence[Gap] = ()
        """Offsets of files that the store lost, anywhere in the partition, and that the worker cannot write again."""
        self.check_backoff = Backoff(CHECK_FIRST_MS, CHECK_LONGEST_MS)

    def learnt(self, offset: int, now_ms: int) -> None:
        """The lake reported its last offset; only `lost` moves back what is known of it."""
        if self.phase is CopyPhase.UNKNOWN:
            self.phase = CopyPhase.READY
        if offset > self.copied_offset:
            self.unseen += 1
        self._advance(offset, now_ms)

    def lost(self, offset: int) -> None:
        """The lake's end has moved back: what is behind it is copied again and kept locally."""
        self.copied_offset = offset
        self.deletable_offset = min(self.deletable_offset, offset)
        self._aged_offset = min(self._aged_offset, offset)
        self._aging.clear()
        self._commits.clear()
        self.unseen += 1

    def update_lost_ranges(self, ranges: Sequence[Gap]) -> None:
        """The worker's last look at the table has found these lost ranges."""
        self.lost_ranges = ranges

    def copying(self) -> None:
        """A copy of some of the partition's ranges begins."""
        assert self.phase is CopyPhase.READY, f"a copy begins while {self.phase}"
        self.phase = CopyPhase.COPYING

    def finished(
        self,
        end_offset: int,
        now_ms: int,
        *,
        is_seen: bool = True,
        commit: CommitId | None = None,
    ) -> None:
        """COPY_SEGMENT_FINISHED is durable up to `end_offset`. `is_seen`: the store was checked for all of it."""
        self._settled()
        if not is_seen:
            self.learnt(end_offset, now_ms)
        self._advance(end_offset, now_ms, commit)
        self.backoff.succeeded()

    def failed(self, now_ms: int) -> int:
        """A copy failed and the lake is taken as unchanged; returns how long to wait before the next try."""
        self._settled()
        return self.backoff.failed(now_ms)

    def interrupted(self) -> None:
        """The copy ended for a reason outside this partition: no back-off."""
        self._settled()

    @property
    def is_paused(self) -> bool:
        """Whether an operator must undo something before the next copy."""
        return bool(self.pause_reason)

    def pause(self, reason: str, now_ms: int) -> bool:
        """Copy nothing until what is in the way is gone, and retry as after a failure; returns whether the reason is
        new.
        """
        self.failed(now_ms)
        is_news = reason not in self.pause_reason
        if is_news:
            self.pause_reason = reason
        return is_news

    def diverge(self, reason: str, now_ms: int) -> bool:
        """Copy nothing and delete nothing locally until the partition is opened again; returns whether that is new."""
        self.phase = CopyPhase.DIVERGED
        return self.pause(reason, now_ms)

    def resume(self) -> bool:
        """Nothing is in the way of copies; returns whether something was."""
        was_paused, self.pause_reason = self.is_paused, ""
        return was_paused

    def aged_offset(self, now_ms: int, grace_ms: int) -> int:
        """Last offset that is FINISHED for at least the grace time."""
        while self._aging and now_ms - self._aging[0][1] >= grace_ms:
            self._aged_offset, _, commit = self._aging.popleft()
            if commit is not None:
                self._commits[commit] = None
        return self._aged_offset

    def next_check_ms(self, now_ms: int, grace_ms: int) -> int | None:
        """When the store is checked before more is deleted; None if nothing more is to be deleted."""
        if self.phase in (CopyPhase.UNKNOWN, CopyPhase.DIVERGED):
            return None
        if self.missing or self.aged_offset(now_ms, grace_ms) > self.deletable_offset:
            return self.check_backoff.retry_at_ms
        return self._aging[0][1] + grace_ms if self._aging else None

    def question(self, now_ms: int, grace_ms: int) -> CopyQuestion:
        """The question that the worker is to answer now."""
        return CopyQuestion(
            offset=self.aged_offset(now_ms, grace_ms),
            commits=tuple(self._commits),
            unseen=self.unseen,
            is_whole=self.unseen > 0 or bool(self.missing),
        )

    def checked(self, question: CopyQuestion, missing: Sequence[Gap]) -> None:
        """The worker has found all that the table names in the store, except for these."""
        self.missing = list(missing)
        first = min((gap[0] for gap in missing), default=None)
        if self.unseen == question.unseen:
            for commit in question.commits:
                self._commits.pop(commit, None)
            self.unseen = 0
            self.deletable_offset = max(self.deletable_offset, question.offset)
        if first is not None:
            self.deletable_offset = min(self.deletable_offset, first - 1)

    def unavailable(self) -> list[Gap]:
        """First and last offsets of all that the table names and the store lacks, in order, each offset once."""
        found: list[Gap] = []
        for start, end in sorted([*self.missing, *self.lost_ranges]):
            if found and start <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((start, end))
        return found

    @property
    def allows_upkeep(self) -> bool:
        """Whether the partition's files may be expired and rewritten: they are known, and nothing is in the way."""
        return self.phase in (CopyPhase.READY, CopyPhase.COPYING) and not self.is_paused

    def may_copy(self, now_ms: int) -> bool:
        """Whether the policy may look for ranges of this partition to copy now."""
        return self.phase is CopyPhase.READY and self.backoff.ready(now_ms)

    def _settled(self) -> None:
        if self.phase is CopyPhase.COPYING:
            self.phase = CopyPhase.READY

    def _advance(self, end_offset: int, now_ms: int, commit: CommitId | None = None) -> None:
        if end_offset > self.copied_offset:
            self.copied_offset = end_offset
            self._aging.append((end_offset, now_ms, commit))
