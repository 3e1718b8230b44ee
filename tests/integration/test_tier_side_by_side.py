"""Small ranges of many partitions wait for the store together; large ones no more than are converted at a time."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from broker.worker import service
from broker.worker.copy_semaphore import CopySemaphore
from broker.worker.delta import writer
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.rpc import (
    FAILED,
    FINISHED,
    CheckRetention,
    CopyAnswer,
    CopyRequest,
    FenceTopic,
    ReadTieredState,
    RetentionCheck,
    Unavailable,
)
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.expiration import Retention
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.settings import tier_settings
from tests.fakes.store import ALWAYS, Call, MemoryStore
from tests.integration.tier_segments import copy_range, segment

TOPICS = 2
PARTITIONS = 4
RECORDS = 5
# A meeting that does not take place fails then.
MEETING_SECONDS = 20


class Meeting:
    """Where so many threads wait for each other, if they are told to."""

    def __init__(self) -> None:
        self.count = 0
        self.is_on = False
        self._barrier = threading.Barrier(TOPICS * PARTITIONS, timeout=MEETING_SECONDS)

    def wait(self) -> None:
        if self.is_on:
            self._barrier.wait()
            self.count += 1


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setattr(service, "open_lake", lambda uri, **_: made)
    return made


@pytest.fixture
def meetings(store: MemoryStore) -> list[Meeting]:
    """Files become durable, and are looked for, when all partitions' are: of residue, of rows, looks."""
    residue, files, looks = made = [Meeting(), Meeting(), Meeting()]

    def create(meeting: Meeting, call: Call) -> Any:
        @contextlib.contextmanager
        def created() -> Iterator[IO[bytes]]:
            with call() as file:
                yield file
                meeting.wait()

        return created()

    store.script(partial(create, residue), "create", path="*/_residue/*", times=ALWAYS)
    store.script(partial(create, files), "create", path="*", times=ALWAYS)
    store.race(looks.wait, calls="size", path="*/_residue/*", times=ALWAYS)
    return made


@pytest.fixture
def copy(store: MemoryStore, tmp_path: Path) -> Callable[[int], CopyAnswer]:
    """One copy of all partitions by a worker that converts one after the other, the so-many-th."""
    worker = service.Service(tier_settings(log_dirs=(), lake_copy_threads=1), CrashPoints())

    def copied(number: int) -> CopyAnswer:
        start = number * RECORDS
        path = segment(tmp_path / f"{number}.log", start, RECORDS)
        none = tmp_path / "none.log"
        sources = [
            copy_range(
                none if (number, topic, each) == (1, 1, 2) else path,
                start,
                start + RECORDS - 1,
                topic=f"t{topic}",
                topic_id=bytes([topic + 1]) * 16,
                partition=each,
            )
            for topic in range(TOPICS)
            for each in range(PARTITIONS)
        ]
        answer: Any = worker.writing()[CopyRequest](CopyRequest(sources=sources))
        assert isinstance(answer, CopyAnswer)
        return answer

    return copied


def commits(store: MemoryStore, topic: str) -> int:
    log = f"topics/{topic}/_delta_log/"
    return sum(path.startswith(log) and path.endswith(".json") for path in store.objects)


def outcomes(answer: CopyAnswer) -> list[str]:
    return [each.outcome for each in answer.partitions]


def test_the_files_of_all_partitions_of_all_topics_are_on_their_way_at_once(
    copy: Callable[[int], CopyAnswer], meetings: list[Meeting]
) -> None:
    for each in meetings:
        each.is_on = True
    answer = copy(0)
    assert outcomes(answer) == [FINISHED] * TOPICS * PARTITIONS
    assert [each.count for each in meetings] == [TOPICS * PARTITIONS] * 3


def test_one_copy_is_one_commit_of_each_topic_and_what_fails_fails_alone(
    store: MemoryStore, copy: Callable[[int], CopyAnswer]
) -> None:
    copy(0)
    before = [commits(store, f"t{each}") for each in range(TOPICS)]
    answer = copy(1)
    assert [commits(store, f"t{each}") for each in range(TOPICS)] == [each + 1 for each in before]
    expected = [FINISHED] * TOPICS * PARTITIONS
    expected[PARTITIONS + 2] = FAILED
    assert outcomes(answer) == expected
    assert [each.highest_offset_in_remote_storage for each in answer.partitions] == [
        RECORDS - 1 if each == FAILED else 2 * RECORDS - 1 for each in expected
    ]


@pytest.mark.parametrize("step", ["states", "write", "commit", "verify", "holds"])
def test_what_nobody_expected_of_one_topic_keeps_no_other_from_the_lake(
    copy: Callable[[int], CopyAnswer], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def broken_at(step: str) -> None:
        able = getattr(RemoteStorageManager, step)

        def fail_one(self: RemoteStorageManager, what: Any, *rest: Any, **named: Any) -> Any:
            first = what[0].segment if isinstance(what, list) else what
            if getattr(first, "topic", first) == "t1":
                raise ValueError("of ours")
            return able(self, what, *rest, **named)

        monkeypatch.setattr(RemoteStorageManager, step, fail_one)

    expected = [FINISHED] * PARTITIONS + [FAILED] * PARTITIONS
    if step == "holds":
        broken_at("commit")  # So that attempts are left of which it is asked.
        assert outcomes(copy(0)) == expected
    broken_at(step)
    assert outcomes(copy(0)) == expected
    monkeypatch.undo()
    assert outcomes(copy(0)) == [FINISHED] * TOPICS * PARTITIONS


def test_what_nobody_expected_of_one_topic_keeps_no_other_from_being_told(
    store: MemoryStore, copy: Callable[[int], CopyAnswer], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(0)
    able = TopicTable.read

    def fail_one(self: TopicTable) -> TopicSnapshot:
        if self.topic == "t1":
            raise AttributeError("of ours")
        return able(self)

    worker = service.Service(tier_settings(log_dirs=()), CrashPoints())
    monkeypatch.setattr(TopicTable, "read", fail_one)
    partitions = [TopicIdPartition(bytes([each + 1]) * 16, f"t{each}", 0) for each in range(TOPICS)]
    retention = Retention(
        now_ms=10**12,
        retention_ms=1,
        retention_bytes=-1,
        log_start_offset=0,
        limit_offset=RECORDS,
        local_bytes=0,
    )
    questions = [
        RetentionCheck(
            partition=each, retention=retention, lineage=[(0, 0)], copied_offset=RECORDS - 1
        )
        for each in partitions
    ]
    operations = {**worker.reading(), **worker.writing()}
    for request in (
        ReadTieredState(partitions=partitions),
        FenceTopic(leader_epochs=dict.fromkeys(partitions, 99)),
        CheckRetention(partitions=questions),
    ):
        answers: Any = operations[type(request)](request)
        assert [isinstance(each, Unavailable) for each in answers] == [False, True]


def test_tables_are_fenced_side_by_side(store: MemoryStore) -> None:
    """A new leader of hundreds of topics does not wait for one store's answer after the other."""
    topics = 5
    together = threading.Barrier(topics)
    for calls in ("list", "put_if_absent"):
        store.race(
            lambda: together.wait(60), calls=calls, path="topics/*/_delta_log*", times=topics
        )
    worker = service.Service(tier_settings(log_dirs=()), CrashPoints())
    partitions = [TopicIdPartition(bytes([each + 1]) * 16, f"t{each}", 3) for each in range(topics)]
    epochs = {each: 7 + number for number, each in enumerate(partitions)}
    answers = worker.writing()[FenceTopic](FenceTopic(leader_epochs=epochs))
    assert [each.leader_epoch for each in answers] == list(epochs.values())
    assert not store.scripted


@pytest.mark.parametrize("small_bytes_max", [0, writer.SMALL_BYTES_MAX])
def test_large_ones_have_a_turn_from_their_first_byte_to_their_last(
    copy: Callable[[int], CopyAnswer], monkeypatch: pytest.MonkeyPatch, small_bytes_max: int
) -> None:
    """There are as many turns as `lake.copy.threads`: so they bound the memory of a copy."""
    at_turn: set[tuple[int, CopySemaphore]] = set()
    begin, end, able = CopySemaphore.__enter__, CopySemaphore.__exit__, writer.write_ranges
    had_one: list[bool] = []

    def enter(semaphore: CopySemaphore) -> None:
        begin(semaphore)
        at_turn.add((threading.get_ident(), semaphore))

    def leave(semaphore: CopySemaphore, *error: object) -> None:
        at_turn.discard((threading.get_ident(), semaphore))
        end(semaphore, *error)

    def write(*what: Any, semaphore: CopySemaphore, **more: Any) -> Any:
        mine = {each for thread, each in at_turn.copy() if thread == threading.get_ident()}
        assert semaphore not in mine, "those are for what is converted"
        had_one.append(bool(mine))
        return able(*what, semaphore=semaphore, **more)

    monkeypatch.setattr(CopySemaphore, "__enter__", enter)
    monkeypatch.setattr(CopySemaphore, "__exit__", leave)
    monkeypatch.setattr(writer, "write_ranges", write)
    monkeypatch.setattr(writer, "SMALL_BYTES_MAX", small_bytes_max)
    assert outcomes(copy(0)) == [FINISHED] * TOPICS * PARTITIONS
    assert had_one == [small_bytes_max == 0] * TOPICS * PARTITIONS
