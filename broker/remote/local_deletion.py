"""Shell: local segments whose records are in the lake may be deleted `lake.local.grace.ms` after they got there.

On a leader only this module moves `highest_offset_in_remote_storage`: after COPY_SEGMENT_FINISHED is durable (KIP-405),
the grace time is over, and the store was checked once more. For this leader's own copies the commit is read back; other
records are looked for file by file, as far as the local log has them. Missing files are written again from the local
log; until then an alarm is raised, and no segment from there on is deleted. The log's own retention chooses among the
others.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.log.log import Log
from broker.remote.copies import CopyLoop
from broker.remote.copy_policy import CopyQuestion
from broker.remote.partitions import TieredPartition
from broker.worker.rpc import (
    FAILED,
    Check,
    CheckQuestion,
    Repair,
    StoreState,
    TierSettings,
    Unavailable,
)
from kafka_ds.ipc.child import ChildWorker, WorkerFailed, WorkerLost
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

_LOGGER = logging.getLogger(__name__)

QUESTION_PARTITIONS_MAX = 100
UNEXPECTED_PAUSE_SECONDS = 5.0
GROUPING_MS = 1_000
SHOWN_MAX = 5


class LocalDeletion:
    """Lets the led logs delete records that are safe in the lake."""

    def __init__(
        self,
        settings: TierSettings,
        clock: Clock,
        worker: ChildWorker,
        crash_points: CrashPoints,
        copies: CopyLoop,
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._crash_points = crash_points
        self._copies = copies
        self._led: Mapping[PartitionId, TieredPartition] = copies.led
        self._grace_ms = settings.lake_local_grace_ms
        self._wake = asyncio.Event()
        self._stopped = False

    def advanced(self) -> None:
        """More of a partition is FINISHED."""
        self._wake.set()

    def stop(self) -> None:
        """Stop updating logs."""
        self._stopped = True
        self._wake.set()

    async def run(self) -> None:
        """Work until stopped."""
        while not self._stopped:
            await self._wait()
            try:
                await self.round()
            except Exception:
                _LOGGER.exception("cannot check the store: keeping local segments")
                await asyncio.sleep(UNEXPECTED_PAUSE_SECONDS)

    async def _wait(self) -> None:
        """Until the first grace time or back-off ends; those that end within the same second are handled together."""
        while not self._stopped:
            self._wake.clear()
            now_ms = self._clock.monotonic_ms()
            times = (
                each.state.next_check_ms(now_ms, self._grace_ms) for each in self._led.values()
            )
            next_ms = min((at_ms for at_ms in times if at_ms is not None), default=None)
            if next_ms is not None and next_ms <= now_ms:
                await asyncio.sleep(min(GROUPING_MS, self._grace_ms) / 1000)
                return
            wait_s = None if next_ms is None else (next_ms - now_ms) / 1000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)

    async def round(self) -> None:
        now_ms = self._clock.monotonic_ms()
        due = []
        for tiered in self._led.values():
            at_ms = tiered.state.next_check_ms(now_ms, self._grace_ms)
            if at_ms is not None and at_ms <= now_ms:
                due.append(tiered)
        for start in range(0, len(due), QUESTION_PARTITIONS_MAX):
            if self._stopped:
                return
            await self._check(due[start : start + QUESTION_PARTITIONS_MAX])

    async def _check(self, due: Sequence[TieredPartition]) -> None:
        now_ms = self._clock.monotonic_ms()
        asked = [(tiered, tiered.state.question(now_ms, self._grace_ms)) for tiered in due]
        questions = [self._question(*each) for each in asked]
        self._crash_points.at("broker_before_check")
        answers = await self._send(Check(partitions=questions), due)
        self._crash_points.at("broker_after_check")
        for (tiered, question), answer in zip(asked, answers, strict=True):
            if answer is None or not self._is_led(tiered):
                continue
            if answer.missing:
                answer = await self._repair(tiered, question, answer)
            if answer is not None and self._is_led(tiered):
                self._settle(tiered, question, answer)
                self._crash_points.at("broker_after_local_deletion")

    async def _repair(
        self, tiered: TieredPartition, question: CopyQuestion, answer: StoreState
    ) -> StoreState | None:
        """Have missing files written again, as far as the log has their records; returns what the store lacks after
        that.
        """
        try:
            sources = [
                (each, tiered.sources(each.read_from, each.read_to)) for each in answer.missing
            ]
        except (OSError, KafkaError) as error:
            _LOGGER.error(
                "Cannot read the log of %s to rewrite what the store lacks: %s", tiered.name, error
            )
            return answer
        found = [(missing, ranges) for missing, ranges in sources if ranges]
        if not found:
            return answer
        asked = replace(self._question(tiered, question), sources=found)
        (after,) = await self._send(Repair(partitions=[asked]), [tiered])
        self._crash_points.at("broker_after_repair")
        return after if after is not None else answer

    @staticmethod
    def _question(tiered: TieredPartition, question: CopyQuestion) -> CheckQuestion:
        return CheckQuestion(
            partition=tiered.topic_id_partition,
            leader_epoch=tiered.leader_epoch,
            start_offset=tiered.log.local_log_start_offset,
            is_whole=question.is_whole,
            commits=question.commits,
        )

    async def _send(
        self, request: Check | Repair, asked: Sequence[TieredPartition]
    ) -> list[StoreState | None]:
        """The worker's answers; None where it gave none: asked again later."""
        now_ms = self._clock.monotonic_ms()
        answers: Sequence[StoreState | Unavailable]
        try:
            answers = await self._worker.send(request)
        except (WorkerLost, WorkerFailed) as error:
            answers = [Unavailable(message=str(error), outcome=FAILED)] * len(asked)
        found: list[StoreState | None] = []
        for tiered, answer in zip(asked, answers, strict=True):
            if isinstance(answer, StoreState):
                found.append(answer)
                continue
            found.append(None)
            wait_ms = tiered.state.check_backoff.failed(now_ms)
            _LOGGER.warning(
                "%s: cannot check the store, retrying in %d ms and keeping local segments: %s",
                tiered.name,
                wait_ms,
                answer.message,
            )
        return found

    def _settle(self, tiered: TieredPartition, question: CopyQuestion, answer: StoreState) -> None:
        """Let the log delete what the store has."""
        state, where = tiered.state, {"topic": tiered.log.topic, "partition": tiered.log.partition}
        if answer.is_lost or answer.highest_offset_in_remote_storage < question.offset:
            _LOGGER.error(
                "%s: the table ends at offset %d, before it ended at %d: another writer removed commits; "
                "copying again from there",
                tiered.name,
                answer.highest_offset_in_remote_storage,
                state.copied_offset,
                extra=where,
            )
            tiered.lost(min(answer.highest_offset_in_remote_storage, state.copied_offset))
            self._copies.look_at(tiered.key)
            return
        gaps = [(each.start_offset, each.end_offset) for each in answer.missing]
        if gaps and gaps != state.missing:
            shown = ", ".join(
                f"{each.start_offset}-{each.end_offset} ({each.what})"
                for each in answer.missing[:SHOWN_MAX]
            )
            _LOGGER.error(
                "%s: the table's data of offsets %s%s are missing in the store: keeping local segments from %d on",
                tiered.name,
                shown,
                " and more" if len(gaps) > SHOWN_MAX else "",
                gaps[0][0],
                extra=where,
            )
        elif state.missing and not gaps:
            _LOGGER.info("%s: the store has all files again", tiered.name, extra=where)
        state.checked(question, gaps)
        if gaps:
            state.check_backoff.failed(self._clock.monotonic_ms())
        else:
            state.check_backoff.succeeded()
        self._delete_local_segments(tiered)

    def _is_led(self, tiered: TieredPartition) -> bool:
        return self._led.get(tiered.key) is tiered

    def _delete_local_segments(self, tiered: TieredPartition) -> None:
        """Let the log delete, by its local retention, what has been FINISHED long enough."""
        delete_local_segments(tiered.log, tiered.state.deletable_offset, self._clock)


def delete_local_segments(log: Log, offset: int, clock: Clock) -> None:
    """Have a log, of a leader or a follower, delete what has been in the lake long enough; errors are logged.

    A lower offset than before keeps the records behind it: the lake has lost them.
    """
    before = log.highest_offset_in_remote_storage
    log.update_highest_offset_in_remote_storage(offset)
    if offset > before:
        try:
            log.delete_local_segments(clock.now_ms())
        except (OSError, KafkaError) as error:
            _LOGGER.error(
                "Unable to delete local log segments of %s that are in the lake, will try again: %s",
                log.name, error,
            )  # fmt: skip
