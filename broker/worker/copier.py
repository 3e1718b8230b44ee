"""Shell: the copy of segments, step by step. The order is the protocol.

STARTED is durable before a file is written, every file before the commit, the commit before FINISHED, and FINISHED
before the broker gets an answer. The process may die between any two steps: `recover` rolls forward the STARTED
attempts that the table holds. Another attempt at the range has a new id; once it has won, the files of the attempt that
lost are deleted and it is marked deleted (for a broker that is gone, by the next leader: `Sweeper`). While the fate of
a commit is unknown, nothing is answered as done or deleted. An error in one table or partition fails only that.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from broker.worker.delta.segments import CopyCommit, WrittenFiles
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.errors import STORE_ERRORS, CommitLost, FileMissing, StorageError, apart
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.rpc import (
    CONFLICT,
    FAILED,
    FINISHED,
    UNKNOWN_END,
    CopyAnswer,
    CopyRequest,
    LogSegmentData,
    PartitionOutcome,
    TieredState,
)
from broker.worker.side_by_side import side_by_side
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import PartitionId, TopicIdPartition, TopicPartition
from kafka_ds.topic.files.parquet import WrittenFile
from kafka_ds.topic.remote_log_segment import RemoteLogSegment, RemoteLogSegmentState

log = logging.getLogger(__name__)

GIVEN_UP_MAX = 10_000
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
DONE = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
Failure = tuple[str, str]
"""The reason and the outcome."""


@dataclass(slots=True, kw_only=True)
class _Partition:
    """The ranges of one partition that are being copied."""

    topic: str
    topic_id: bytes
    partition: int
    asked: list[LogSegmentData] = field(default_factory=list)
    sources: Sequence[LogSegmentData] = ()
    """Those of them for which an attempt was begun."""
    loaded: Sequence[WrittenFile] = ()
    """Files that are there already: those of a bulk load."""
    loaded_count: int = 0
    """How many partitions that load knew."""
    written: WrittenFiles | None = None
    highest_offset_in_remote_storage: int = UNKNOWN_END
    outcome: str = FAILED
    message: str = ""
    done: Sequence[RemoteLogSegment] = ()
    commit: tuple[int, str] | None = None

    @property
    def name(self) -> str:
        """The partition's name."""
        return str(TopicPartition(self.topic, self.partition))

    def fail(self, message: str, outcome: str = FAILED) -> None:
        self.outcome, self.message = outcome, message

    def answer(self) -> PartitionOutcome:
        return PartitionOutcome(
            topic_id=self.topic_id,
            partition=self.partition,
            outcome=self.outcome,
            highest_offset_in_remote_storage=self.highest_offset_in_remote_storage,
            message=self.message,
            ranges=len(self.done),
            rows=sum(each.row_count for each in self.done),
            log_bytes=sum(each.size_bytes for each in self.done),
            lake_bytes=sum(each.lake_bytes for each in self.done),
            invalid_bytes=0 if self.written is None else self.written.invalid_bytes,
            commit=self.commit if self.done else None,
        )


@dataclass(slots=True)
class _SettledAttempts:
    """The outcome of attempts that were left STARTED."""

    finished: list[RemoteLogSegment] = field(default_factory=list)
    given_up: list[RemoteLogSegment] = field(default_factory=list)
    doubtful: list[RemoteLogSegment] = field(default_factory=list)
    """The range became visible; whether by this attempt is no longer known."""


class Copier:
    """Copies ranges in one thread; only writing and checking the files of several partitions is parallel."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        *,
        node_id: int,
        crash_points: CrashPoints,
        new_id: Callable[[], bytes],
        threads: int = 1,
    ) -> None:
        """`threads`: how many partitions' files are uploaded at a time."""
        self._storage = storage
        self._metadata = metadata
        self._node_id = node_id
        self._crash_points = crash_points
        self._new_id = new_id
        self._threads = threads
        self._given_up: dict[PartitionId, int] = {}

    def give_up(self, topic_id: bytes, partition: int, leader_epoch: int) -> None:
        """The broker no longer leads the partition: commit nothing more. Any thread."""
        key = topic_id, partition
        self._given_up.pop(key, None)
        while len(self._given_up) >= GIVEN_UP_MAX:
            # The oldest: work of that time has ended, and its topic may be deleted.
            del self._given_up[next(iter(self._given_up))]
        self._given_up[key] = leader_epoch

    def is_given_up(self, topic_id: bytes, partition: int, leader_epoch: int) -> bool:
        """Whether the broker gave up the partition in that epoch. Any thread."""
        return leader_epoch <= self._given_up.get((topic_id, partition), -1)

    def _is_given_up(self, each: _Partition) -> bool:
        """Whether to stop work on it; asked before each step that is slow or cannot be undone."""
        leader_epoch = each.asked[0].segment.leader_epoch
        if not self.is_given_up(each.topic_id, each.partition, leader_epoch):
            return False
        each.fail("it is led elsewhere by now")
        return True

    def recover(self) -> dict[PartitionId, Failure]:
        """Settle the attempts that were left STARTED; returns the partitions where that failed, and why.

        Raises what the metadata raise.
        """
        found, failed = _SettledAttempts(), dict[PartitionId, Failure]()
        self._settle_each(self._metadata.unfinished(), self._settle, found, failed)
        # The newest first: it was begun because those before it had not won.
        self._settle_each(found.doubtful[::-1], self._settle_doubtful, found, failed)
        if found.finished:
            for each in found.finished:
                log.info(
                    "Recovered the copy of offsets %d to %d of %s-%d: the table has it, now COPY_SEGMENT_FINISHED",
                    each.start_offset, each.end_offset, each.topic, each.partition,
                )  # fmt: skip
            self._crash_points.at("after_verify")
            self._metadata.update(found.finished)
            self._crash_points.at("after_finished")
        if found.given_up:
            self._metadata.given_up(found.given_up)
        return failed

    @staticmethod
    def _settle_each(
        segments: Sequence[RemoteLogSegment],
        settle: Callable[[RemoteLogSegment, _SettledAttempts], None],
        found: _SettledAttempts,
        failed: dict[PartitionId, Failure],
    ) -> None:
        for segment in segments:
            with apart(partial(_note_failure, failed, segment)):
                settle(segment, found)

    def _settle(self, segment: RemoteLogSegment, found: _SettledAttempts) -> None:
        """Find out what became of one attempt."""
        committed = self._storage.holds(segment)
        if committed is not None and not committed.files and not committed.residue:
            found.doubtful.append(committed)
        elif committed is not None:
            # A missing file does not block copies: it is looked for before local segments are deleted.
            with suppress(FileMissing):
                self._storage.verify(committed)
                found.finished.append(replace(committed, state=DONE))
        elif self._superseded(segment) and self._storage.discard(segment):
            found.given_up.append(segment)

    def _settle_doubtful(self, segment: RemoteLogSegment, found: _SettledAttempts) -> None:
        """Settle an attempt at a range of which another may have won: orphans' clean-up deletes the loser's files."""
        there = self._metadata.list_segments(segment.topic_id, segment.partition)
        rivals = [*found.finished, *(each for each in there if each.state is not STARTED)]
        # If another broker marked it, the attempt that won may be deleted by now.
        is_gone = all(each.segment_id != segment.segment_id for each in there)
        if is_gone or any(each.overlaps(segment) for each in rivals):
            found.given_up.append(segment)
        else:
            found.finished.append(replace(segment, state=DONE))

    def _superseded(self, segment: RemoteLogSegment) -> bool:
        """Whether the topic is deleted or another attempt tiered the range; otherwise this one may still win."""
        if self._storage.is_deleted(segment.topic, segment.topic_id):
            return True
        partition = TopicIdPartition(segment.topic_id, segment.topic, segment.partition)
        state = self._storage.state(partition)
        return state.highest_offset_in_remote_storage >= segment.end_offset

    def copy(self, request: CopyRequest) -> CopyAnswer:
        """Copy what can be copied; each partition has its own outcome."""
        began = time.monotonic()
        of_topics = _by_topic(request.sources)
        self._run(of_topics)
        milliseconds = round((time.monotonic() - began) * 1000)
        return CopyAnswer(
            partitions=[each.answer() for mine in of_topics for each in mine],
            milliseconds=milliseconds,
        )

    def load(
        self,
        loaded: Mapping[int, tuple[Sequence[LogSegmentData], Sequence[WrittenFile]]],
        partition_count: int,
    ) -> None:
        """Commit the files of a bulk load of so many partitions (by partition), those that are not in the table yet.

        Raises StorageError where one of the partitions is not in the table afterwards.
        """
        (mine,) = _by_topic([source for sources, _ in loaded.values() for source in sources])
        for each in mine:
            each.loaded, each.loaded_count = loaded[each.partition][1], partition_count
        self._run([mine])
        failed = [each.message for each in mine if each.outcome != FINISHED]
        if failed:
            raise StorageError("; ".join(failed))

    def _run(self, of_topics: Sequence[Sequence[_Partition]]) -> None:
        """All steps, for partitions by topic."""
        partitions = [each for mine in of_topics for each in mine]
        try:
            failed = self.recover()
            for mine in of_topics:
                self._begin_topic(mine, failed)
            self._start(partitions)
            with side_by_side(self._threads, "copy") as each_of:
                writing = [(mine, each_of(self._write, mine)) for mine in of_topics]
                for mine, written in writing:
                    _await(written)
                    self._commit_topic(mine)
                _await(each_of(self._verify, partitions))
            for mine in of_topics:
                self._confirm(mine)
            self._finish(partitions)
        except STORE_ERRORS as error:
            for each in partitions:
                if each.outcome != CONFLICT:
                    each.fail(str(error))

    def _begin_topic(
        self, partitions: Sequence[_Partition], failed: Mapping[PartitionId, Failure]
    ) -> None:
        """Find which ranges are already there: a repeated request finds what the first one copied."""
        topic, topic_id = partitions[0].topic, partitions[0].topic_id
        # Until an earlier attempt is settled, the partition's end is unknown.
        for each in partitions:
            if (topic_id, each.partition) in failed:
                each.fail(*failed[topic_id, each.partition])
        able = [each for each in partitions if (topic_id, each.partition) not in failed]
        with apart(partial(_fail_all, able)):
            states = self._storage.states(topic, topic_id, [each.partition for each in able])
            for each, state in zip(able, states, strict=True):
                self._begin(each, state)

    def _begin(self, each: _Partition, state: TieredState) -> None:
        each.highest_offset_in_remote_storage = state.highest_offset_in_remote_storage
        sources = [
            one
            for one in each.asked
            if one.segment.end_offset > state.highest_offset_in_remote_storage
        ]
        if not sources:
            each.outcome = FINISHED
            return
        first = sources[0].segment
        if conflict := state.conflict or _fenced(first, state):
            # Each commit checks it as well; here nothing is written yet, however often it is tried.
            each.fail(conflict, CONFLICT)
        elif first.start_offset <= state.highest_offset_in_remote_storage:
            each.fail(
                f"the lake ends at {state.highest_offset_in_remote_storage}, inside the range"
            )
        elif not self._is_given_up(each):
            each.sources = [self._attempt(one) for one in sources]

    def _attempt(self, source: LogSegmentData) -> LogSegmentData:
        """The same range, with the id of a new attempt."""
        segment = replace(source.segment, segment_id=self._new_id(), broker_id=self._node_id)
        return replace(source, segment=segment)

    def _start(self, partitions: Sequence[_Partition]) -> None:
        """Step 1: COPY_SEGMENT_STARTED for all ranges, in one commit."""
        segments = [source.segment for each in partitions for source in each.sources]
        if segments:
            self._metadata.add(segments)
            self._crash_points.at("after_started")

    def _commit_topic(self, partitions: Sequence[_Partition]) -> None:
        """Step 3: one commit of the files of all partitions of a topic."""
        for each in partitions:
            if each.written is not None and self._is_given_up(each):
                each.written = None
        written = [each.written for each in partitions if each.written is not None]
        if not written:
            return
        self._crash_points.at("before_commit")
        topic, topic_id = partitions[0].topic, partitions[0].topic_id
        with apart(partial(_fail_all, [each for each in partitions if each.written])):
            committed = self._storage.commit(topic, topic_id, written)
            self._crash_points.at("after_commit")
            for each in partitions:
                self._apply_commit(each, committed)

    def _write(self, each: _Partition) -> None:
        """Step 2: make a partition's ranges durable; an error fails this partition alone."""
        if not each.sources or self._is_given_up(each):
            return
        with apart(each.fail):
            each.written = self._storage.write(
                each.sources, each.loaded, loaded_count=each.loaded_count
            )

    def _apply_commit(self, each: _Partition, committed: CopyCommit) -> None:
        dropped = committed.dropped.get(each.partition)
        if dropped is not None:
            log.warning(
                "Copied log segments of partition %s were not committed: %s", each.name, dropped
            )
            each.fail(dropped, CONFLICT if each.partition in committed.final else FAILED)
        elif each.written is not None:
            each.done, each.commit = each.written.segments, committed.commit

    def _verify(self, each: _Partition) -> None:
        """Step 4: check that each file is there."""

        def failed(message: str, outcome: str) -> None:
            log.error(
                "Error occurred while verifying copied log segments of partition %s: %s",
                each.name,
                message,
            )
            each.fail(message, outcome)
            each.done = ()

        with apart(failed):
            for segment in each.done:
                self._storage.verify(segment)

    def _confirm(self, partitions: Sequence[_Partition]) -> None:
        """Check that the commit is there, too: a writer that renames over a version removes it."""
        seen = [each for each in partitions if each.done and each.commit is not None]
        if not seen:
            return

        assert seen[0].commit is not None
        try:
            self._storage.confirm(seen[0].topic, seen[0].commit)
        except STORE_ERRORS as error:
            for each in seen:
                if isinstance(error, CommitLost):
                    log.error(
                        "%s: offsets %d-%d are not in the table, and are copied again: %s",
                        each.name,
                        each.done[0].start_offset,
                        each.done[-1].end_offset,
                        error,
                    )
                each.fail(str(error))
                each.done = ()

    def _finish(self, partitions: Sequence[_Partition]) -> None:
        """Step 5: COPY_SEGMENT_FINISHED for all ranges, in one commit."""
        finished = [segment for each in partitions for segment in each.done]
        if not finished:
            return
        self._crash_points.at("after_verify")
        self._metadata.update([replace(segment, state=DONE) for segment in finished])
        self._crash_points.at("after_finished")
        for each in partitions:
            if each.done:
                each.highest_offset_in_remote_storage = each.done[-1].end_offset
                each.outcome = FINISHED


def _note_failure(
    failed: dict[PartitionId, Failure], segment: RemoteLogSegment, message: str, outcome: str
) -> None:
    if outcome == FAILED:  # The broker logs when a conflict begins and ends.
        log.error(
            "Error occurred while copying log segments of partition %s: %s", segment.name, message
        )
    failed[segment.topic_id, segment.partition] = message, outcome


def _fenced(first: RemoteLogSegment, state: TieredState) -> str:
    """Why this leader may not write any more; empty if it may."""
    if first.leader_epoch >= state.leader_epoch:
        return ""
    return f"leader epoch {state.leader_epoch} wrote, this one's is {first.leader_epoch}"


def _fail_all(partitions: Sequence[_Partition], message: str, outcome: str) -> None:
    for each in partitions:
        each.fail(message, outcome)


def _await(done: Iterable[None]) -> None:
    for _ in done:
        pass


def _by_topic(sources: Sequence[LogSegmentData]) -> list[list[_Partition]]:
    found: dict[bytes, dict[int, _Partition]] = {}
    for source in sources:
        one = source.segment
        partitions = found.setdefault(one.topic_id, {})
        each = partitions.setdefault(
            one.partition,
            _Partition(topic=one.topic, topic_id=one.topic_id, partition=one.partition),
        )
        each.asked.append(source)
    return [list(each.values()) for each in found.values()]
