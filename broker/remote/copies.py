"""Shell: the copy loop in the broker: it chooses ranges when something has changed, asks the worker, applies outcomes.

There is one copy at a time, so that segments that roll meanwhile are copied together next. If a partition gets another
leader its copy stops before the next step; the new leader repeats it. A log learns of a copy only after
COPY_SEGMENT_FINISHED is durable, and only if this broker still leads the partition in the epoch in which the copy
began. After a failure a partition waits; each is looked at again every `remote.log.manager.task.interval.ms`.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from broker.remote.copy_policy import (
    CopyBacklog,
    CopyLimits,
    CopyPhase,
    CopyView,
    choose,
)
from broker.remote.metrics import TierMetrics
from broker.remote.partitions import TieredPartition, sources_of
from broker.remote.quota import RemoteQuota
from broker.worker.rpc import (
    CONFLICT,
    FINISHED,
    UNBOUNDED,
    UNKNOWN_END,
    ZSTD,
    CopyAnswer,
    CopyRequest,
    LogSegmentData,
    PartitionOutcome,
    ReadTieredState,
    StopPartition,
    TieredState,
    TierSettings,
    Unavailable,
)
from kafka_ds.ipc.child import ChildWorker, WorkerFailed, WorkerLost
from kafka_ds.process.amounts import counted, size_text
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

log = logging.getLogger(__name__)

# Several partitions often roll at once: after a short wait they share commits, whose fsyncs delay produce requests.
GROUPING_SECONDS = 0.5
# Of diskless topics, unless lake.max.lag.ms is set, active segments are copied, too: until a record is in the table,
# its object in the write-ahead log stays, with all others in it, and whoever leads next puts it again. But each copy of
# a partition costs two PUTs, as many as the log makes for all partitions in a tenth of a second.
DISKLESS_INTERVAL_MS = 120_000
# Before that, where so much of a partition waits.
DISKLESS_ACTIVE_BYTES = 8 << 20
# When a rolled segment that is not yet below the last stable offset is looked at again.
UNSTABLE_RECHECK_MS = 1_000
# The rate may change while the copy waits for it; Kafka checks again every second, too.
QUOTA_RECHECK_MS = 1_000
UNEXPECTED_PAUSE_SECONDS = 5.0
STATE_QUESTION_PARTITIONS_MAX = 1_000


async def stop_work(worker: ChildWorker, tiered: TieredPartition) -> None:
    """Let the worker stop its work on a partition that is led elsewhere."""
    # A lost worker has stopped, too.
    with contextlib.suppress(WorkerLost, WorkerFailed):
        await worker.send(
            StopPartition(partition=tiered.topic_id_partition, leader_epoch=tiered.leader_epoch)
        )


class CopyLoop:
    """Copies the ranges that the policy chooses, and updates the logs."""

    def __init__(
        self,
        settings: TierSettings,
        clock: Clock,
        worker: ChildWorker,
        metrics: TierMetrics,
        crash_points: CrashPoints,
        advanced: Callable[[TieredPartition], None],
        quota: RemoteQuota,
    ) -> None:
        self._quota = quota
        self._settings = settings
        self._clock = clock
        self._worker = worker
        self._metrics = metrics
        self._crash_points = crash_points
        self._advanced = advanced
        self.led: dict[PartitionId, TieredPartition] = {}
        self._due: dict[PartitionId, int] = {}
        """Partitions to look at, and from which monotonic time."""
        self._active_due: set[PartitionId] = set()
        """Partitions whose active segment is to be copied up to its end."""
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._next_round_ms = 0
        self._next_active_ms = 0
        self._backlog = CopyBacklog()
        self._giving_up: set[asyncio.Task[None]] = set()

    def look_at(self, key: PartitionId, delay_ms: int = 0) -> None:
        """Look at this partition: something happened to it."""
        at_ms = self._clock.monotonic_ms() + delay_ms
        self._due[key] = min(at_ms, self._due.get(key, at_ms))
        self._wake.set()

    def copy_active(self, key: PartitionId) -> None:
        """Copy all of a partition soon, its active segment included."""
        if key in self.led:
            self._active_due.add(key)
            self.look_at(key)

    def open(self, tiered: TieredPartition, delay_ms: int | None) -> None:
        """This broker leads the partition; it is looked at after the delay, if there is something to look at."""
        self.led[tiered.key] = tiered
        if self._settings.lake_max_lag_ms >= 0:
            self._active_due.add(tiered.key)
        if delay_ms is not None:
            self.look_at(tiered.key, delay_ms)

    def forget(self, key: PartitionId) -> None:
        """This broker no longer leads the partition: a copy of it in progress stops."""
        tiered = self.led.pop(key, None)
        self._due.pop(key, None)
        self._active_due.discard(key)
        if tiered is not None and tiered.state.phase is CopyPhase.COPYING:
            task = asyncio.get_running_loop().create_task(stop_work(self._worker, tiered))
            self._giving_up.add(task)
            task.add_done_callback(self._giving_up.discard)

    def stop(self) -> None:
        """Start no further copy."""
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Work until stopped."""
        while not self._stopping.is_set():
            await self._wait()
            if self._stopping.is_set():
                return
            await asyncio.sleep(self._grouping_seconds())
            try:
                # Rounds go on while a backlog is copied, so that new records of other partitions wait no longer.
                while not self._stopping.is_set():
                    self.begin_round()
                    if not await self.copy_once():
                        break
            except Exception:
                log.exception("unexpected error while copying to the lake")
                self._metrics.copy_failed(None)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), UNEXPECTED_PAUSE_SECONDS)

    def _grouping_seconds(self) -> float:
        """How long to wait for more to copy: a fraction of the allowed lag."""
        lag_ms = self._settings.lake_max_lag_ms
        return GROUPING_SECONDS if lag_ms < 0 else min(GROUPING_SECONDS, lag_ms / 4000)

    async def _wait(self) -> None:
        """Until a partition is due: at once, or when its back-off or the interval ends."""
        self._wake.clear()
        now_ms = self._clock.monotonic_ms()
        next_ms = min([self._next_round_ms, *self._due.values()])
        if next_ms <= now_ms:
            return
        try:
            await asyncio.wait_for(self._wake.wait(), (next_ms - now_ms) / 1000)
        except TimeoutError:
            return

    def begin_round(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_round_ms:
            return
        self._next_round_ms = now_ms + self._round_ms()
        for key in self.led:
            self._due[key] = min(now_ms, self._due.get(key, now_ms))
        if now_ms >= self._next_active_ms:
            # Not at each record: a topic with a few records a second would get a commit for each.
            lag_ms = self._settings.lake_max_lag_ms
            self._next_active_ms = now_ms + (DISKLESS_INTERVAL_MS if lag_ms < 0 else lag_ms // 2)
            self._active_due.update(
                key for key, tiered in self.led.items() if lag_ms >= 0 or tiered.is_diskless
            )

    def _is_active_due(self, tiered: TieredPartition) -> bool:
        return tiered.key in self._active_due or (
            tiered.is_diskless and tiered.only_local_bytes() >= DISKLESS_ACTIVE_BYTES
        )

    def _round_ms(self) -> int:
        """How often every partition is looked at: twice in each `lake.max.lag.ms` at least."""
        interval_ms = self._settings.remote_log_manager_task_interval_ms
        lag_ms = self._settings.lake_max_lag_ms
        return interval_ms if lag_ms < 0 else max(50, min(interval_ms, lag_ms // 2))

    async def copy_once(self) -> bool:
        """Copy what fits one request; True if there may be more to do at once."""
        now_ms = self._clock.monotonic_ms()
        keys = [key for key, at_ms in self._due.items() if at_ms <= now_ms]
        due = [self.led[key] for key in keys if self._due.pop(key) is not None and key in self.led]
        if not due:
            return False
        lost_ms = await self._learn(
            [tiered for tiered in due if self._is_asked_for(tiered, now_ms)]
        )
        if lost_ms is not None:
            self._look_again(due, lost_ms)
            return False
        # Partitions may have been closed while the worker answered.
        candidates = self._candidates([each for each in due if self.led.get(each.key) is each])
        chosen = choose(candidates, self._limits())
        if not chosen or self._is_held_back(candidates):
            return False
        left_bytes = _left_bytes(chosen, candidates)
        sources, taking_part = sources_of(
            chosen, self.led, self._compression(left_bytes), self._unreadable
        )
        views = {(view.topic_id, view.partition): view for view, ranges in candidates if ranges}
        if not sources:
            # Partitions that had no room in this copy do not wait for one that cannot be read.
            others = [self.led[key] for key in views if key not in chosen]
            self._look_again(others, 0)
            return bool(others)
        size_bytes = sum(each.segment.size_bytes for each in sources)
        self._quota.record(size_bytes, self._clock.monotonic_ms())
        lost_ms = await self._copy(sources, taking_part)
        if lost_ms is None:
            self._backlog.copied(left_bytes)
        led_still = [self.led[key] for key in views if key in self.led]
        self._active_due.difference_update(
            tiered.key for tiered in led_still if _has_all(tiered, views[tiered.key])
        )
        # Partitions that had no room in this copy come first in the next.
        self._look_again(sorted(led_still, key=lambda tiered: tiered.key in chosen), lost_ms or 0)
        return lost_ms is None

    def _candidates(
        self, due: Sequence[TieredPartition]
    ) -> list[tuple[CopyView, list[RemoteLogSegment]]]:
        """What may be copied of these now; those that may not are looked at again later."""
        now_ms = self._clock.monotonic_ms()
        found = []
        for tiered in due:
            if tiered.state.may_copy(now_ms):
                try:
                    with_active = self._is_active_due(tiered)
                    view, ranges = tiered.view(with_active=with_active, now_ms=self._clock.now_ms())
                except Exception:
                    log.exception("Cannot read the log of %s, not copying it for now", tiered.name)
                    self._unreadable(tiered)
                    continue
                found.append((view, ranges))
                if not ranges:
                    # The lake was just asked and nothing is in the way; a copy will not show more.
                    self._resume(tiered)
                if not ranges and any(s.next_offset > view.last_stable_offset for s in view.rolled):
                    self.look_at(tiered.key, UNSTABLE_RECHECK_MS)
            elif tiered.state.phase is CopyPhase.READY:
                self.look_at(tiered.key, tiered.state.backoff.retry_at_ms - now_ms)
        return found

    def _unreadable(self, tiered: TieredPartition) -> None:
        """An error in one log does not stop copies of the others; this one is tried again later."""
        self._metrics.copy_failed(tiered.log.topic)
        self.look_at(tiered.key, tiered.state.failed(self._clock.monotonic_ms()))

    def _limits(self) -> CopyLimits:
        """The size of one copy: with a quota at most one second's bytes, so that the rate is even."""
        bytes_max = min(self._settings.lake_copy_bytes, self._quota.bytes_per_second)
        return CopyLimits(bytes_max=bytes_max)

    def _compression(self, left_bytes: int) -> str:
        """A copy that falls behind compresses less, to use less CPU, unless a quota sets the rate."""
        has_quota = self._quota.bytes_per_second < UNBOUNDED
        if has_quota or not self._backlog.is_behind_with(left_bytes):
            return ZSTD
        return self._settings.lake_behind_compression_type

    def _is_held_back(
        self, candidates: Sequence[tuple[CopyView, Sequence[RemoteLogSegment]]]
    ) -> bool:
        """Whether the copy quota is used up (KIP-956): nothing is copied then; the partitions are looked at again."""
        wait_ms = self._quota.throttle_time_ms(self._clock.monotonic_ms())
        for view, ranges in candidates:
            if wait_ms and ranges:
                self.look_at((view.topic_id, view.partition), min(wait_ms, QUOTA_RECHECK_MS))
        return wait_ms > 0

    def _look_again(self, partitions: Sequence[TieredPartition], delay_ms: int) -> None:
        """Look at these again once the worker is back and their back-off is over."""
        now_ms = self._clock.monotonic_ms()
        for tiered in partitions:
            if self.led.get(tiered.key) is tiered:
                self.look_at(tiered.key, max(delay_ms, tiered.state.backoff.retry_at_ms - now_ms))

    @staticmethod
    def _is_asked_for(tiered: TieredPartition, now_ms: int) -> bool:
        """Whether the lake's state of this partition matters and is unknown, or something was in the way."""
        if tiered.state.phase is CopyPhase.UNKNOWN:
            return tiered.log.log_end_offset > 0
        return tiered.state.is_paused and tiered.state.may_copy(now_ms)

    async def _learn(self, partitions: list[TieredPartition]) -> int | None:
        """Ask the lake for the state of partitions; returns how long to wait if it does not answer."""
        for start in range(0, len(partitions), STATE_QUESTION_PARTITIONS_MAX):
            asked = partitions[start : start + STATE_QUESTION_PARTITIONS_MAX]
            question = [tiered.topic_id_partition for tiered in asked]
            try:
                states = await self._worker.send(ReadTieredState(partitions=question))
            except (WorkerLost, WorkerFailed) as error:
                log.warning("cannot read the tiered state yet, retrying: %s", error)
                return self._wait_ms(error, asked)
            now_ms = self._clock.monotonic_ms()
            for tiered, state in zip(asked, states, strict=True):
                if isinstance(state, Unavailable) and state.outcome == CONFLICT:
                    self._pause(tiered, state.message)
                elif isinstance(state, Unavailable):
                    log.warning(
                        "cannot read the tiered state of %s, retrying: %s",
                        tiered.name,
                        state.message,
                    )
                    self.look_at(tiered.key, tiered.state.backoff.failed(now_ms))
                elif tiered.state.is_paused and state.conflict:
                    self._pause(tiered, state.conflict)
                elif tiered.state.phase is CopyPhase.UNKNOWN:
                    self._learnt(tiered, state)
        return None

    def _learnt(self, tiered: TieredPartition, state: TieredState) -> None:
        now_ms = self._clock.monotonic_ms()
        if state.highest_offset_in_remote_storage >= tiered.log.log_end_offset:
            # The lake has other records at its offsets; these do not make them safe to delete.
            reason = f"the lake ends at {state.highest_offset_in_remote_storage}, beyond the log"
            tiered.state.diverge(reason, now_ms)
            log.error("tiering of %s is paused: %s", tiered.name, reason, extra=_where(tiered))
            return
        tiered.state.backoff.succeeded()
        self._resume(tiered)
        tiered.state.learnt(state.highest_offset_in_remote_storage, now_ms)
        tiered.update_lake_log_start(state.log_start_offset)
        if self.led.get(tiered.key) is tiered:
            tiered.lake_reaches(state.highest_offset_in_remote_storage + 1)
        self._advanced(tiered)

    def _wait_ms(
        self, error: WorkerLost | WorkerFailed, partitions: Sequence[TieredPartition]
    ) -> int:
        """How long until the worker is back; a failure of the store waits longer each time."""
        if isinstance(error, WorkerLost):
            return error.retry_ms
        now_ms = self._clock.monotonic_ms()
        return max(tiered.state.backoff.failed(now_ms) for tiered in partitions)

    async def _copy(
        self, sources: list[LogSegmentData], taking_part: list[TieredPartition]
    ) -> int | None:
        """Ask for a copy and act on its outcomes; returns how long to wait if the worker was lost."""
        for tiered in taking_part:
            tiered.state.copying()
        epochs = {tiered.key: tiered.leader_epoch for tiered in taking_part}
        asked = Counter((each.segment.topic_id, each.segment.partition) for each in sources)
        self._crash_points.at("broker_before_copy")
        self._metrics.copiers.begin(self._clock.monotonic_ms() / 1000)
        try:
            answer = await self._worker.send(CopyRequest(sources=sources))
        except (WorkerLost, WorkerFailed) as error:
            log.warning(
                "Error occurred while copying log segments of partitions %s, retrying: %s",
                _names(taking_part),
                error,
            )
            for tiered in taking_part:
                self._metrics.copy_failed(tiered.log.topic)
                tiered.state.interrupted()
            return self._wait_ms(error, taking_part)
        finally:
            self._metrics.copiers.end(self._clock.monotonic_ms() / 1000)
        self._crash_points.at("broker_after_copy")
        self._metrics.foreign_commits += answer.complaints
        for outcome in answer.partitions:
            key = (outcome.topic_id, outcome.partition)
            led_now = self.led.get(key)
            if led_now is not None and led_now.leader_epoch == epochs.get(key):
                # This attempt has not checked what an earlier one copied.
                self._settle(led_now, outcome, is_seen=outcome.ranges == asked[key])
        self._crash_points.at("broker_after_advance")
        self._log_copied(sources, answer)
        return None

    def _settle(self, tiered: TieredPartition, outcome: PartitionOutcome, *, is_seen: bool) -> None:
        now_ms, highest = self._clock.monotonic_ms(), outcome.highest_offset_in_remote_storage
        if outcome.outcome == FINISHED:
            tiered.state.finished(highest, now_ms, is_seen=is_seen, commit=outcome.commit)
            self._resume(tiered)
            self._metrics.copied(
                tiered.topic_partition,
                outcome.log_bytes,
                outcome.lake_bytes,
                outcome.ranges,
                invalid_bytes=outcome.invalid_bytes,
            )
            self._advanced(tiered)
            return
        self._metrics.copy_failed(tiered.log.topic)
        is_ours = outcome.outcome != CONFLICT
        if is_ours and UNKNOWN_END < highest < tiered.state.copied_offset:
            # Another writer removed committed rows: the local log still has what was not deleted.
            log.error(
                "%s: the table ends at offset %d, before it ended at %d; copying again from there",
                tiered.name,
                highest,
                tiered.state.copied_offset,
                extra=_where(tiered),
            )
            tiered.lost(highest)
        elif highest >= 0:
            tiered.state.learnt(highest, now_ms)
            self._advanced(tiered)
        if outcome.outcome == CONFLICT:
            self._pause(tiered, outcome.message)
            return
        log.warning(
            "Error occurred while copying log segments of partition %s from offset %d on, retrying: %s",
            tiered.name,
            tiered.state.copied_offset + 1,
            outcome.message,
            extra=_where(tiered),
        )
        tiered.state.failed(now_ms)

    def _pause(self, tiered: TieredPartition, reason: str) -> None:
        """Logged when it begins; later tries are silent until it is over."""
        now_ms = self._clock.monotonic_ms()
        if tiered.state.pause(reason, now_ms):
            log.error("tiering of %s is paused: %s", tiered.name, reason, extra=_where(tiered))
        self.look_at(tiered.key, tiered.state.backoff.retry_at_ms - now_ms)

    @staticmethod
    def _resume(tiered: TieredPartition) -> None:
        if tiered.state.resume():
            log.info("tiering of %s is resumed", tiered.name, extra=_where(tiered))

    @staticmethod
    def _log_copied(sources: Sequence[LogSegmentData], answer: CopyAnswer) -> None:
        """The log line for an operator."""
        done = [each for each in answer.partitions if each.outcome == FINISHED]
        if not done:
            return
        log.info(
            "Copied %s to remote storage: %s, %s, %s, %s of log into %s of files in %d ms",
            ", ".join(dict.fromkeys(each.segment.topic for each in sources)),
            counted(len(done), "partition"),
            counted(sum(each.ranges for each in done), "range"),
            counted(sum(each.rows for each in done), "row"),
            size_text(sum(each.log_bytes for each in done)),
            size_text(sum(each.lake_bytes for each in done)),
            answer.milliseconds,
        )


def _left_bytes(
    chosen: Mapping[PartitionId, Sequence[RemoteLogSegment]],
    candidates: Sequence[tuple[CopyView, Sequence[RemoteLogSegment]]],
) -> int:
    """Bytes that may be copied and were not chosen."""
    pending_bytes = sum(
        view.bytes_beyond + sum(each.size_bytes for each in ranges) for view, ranges in candidates
    )
    return pending_bytes - sum(each.size_bytes for ranges in chosen.values() for each in ranges)


def _has_all(tiered: TieredPartition, view: CopyView) -> bool:
    """Whether the lake holds all that could be copied when the partition was viewed, its active segment included."""
    if view.active is None:
        return False
    return tiered.state.copied_offset + 1 >= min(view.active.next_offset, view.last_stable_offset)


def _where(tiered: TieredPartition) -> dict[str, object]:
    """The fields of the structured log."""
    return {"topic": tiered.log.topic, "partition": tiered.log.partition}


def _names(partitions: list[TieredPartition]) -> str:
    names = [tiered.name for tiered in partitions]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
