"""Frames between the broker and its worker, the worker as the broker sees it, settings, crash points."""

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.crash_points import (
    BROKER_POINTS,
    WORKER_POINTS,
    CrashPoints,
    armed_from_environment,
)
from broker.ipc import child
from broker.ipc.channel import BlockingChannel, ChannelProtocol
from broker.ipc.child import Worker, WorkerFailed, WorkerLost
from broker.ipc.memory import Trimmer, resident_file_bytes
from broker.ipc.worker import Worker as Serving
from broker.remote.process import new_worker
from broker.system import SystemClock
from broker.worker.rpc import CopyAnswer, CopyRequest, PartitionOutcome
from broker.worker.settings import TierSettings
from tests.fakes.lake_store import begin_lake
from tests.integration.tier_segments import copy_range, copy_request


def test_frames_of_any_size_cross_both_ways() -> None:
    payloads = [[], [b""], [b"x"], [bytes(300_000), memoryview(b"tail")], [os.urandom(3 << 20)]]

    async def broker() -> list[bytes]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        channel = BlockingChannel(theirs)

        def echo() -> None:
            while (received := channel.receive()) is not None:
                header, payload = received
                channel.send({"id": header["id"], "size": len(payload)}, [payload])

        thread = threading.Thread(target=echo)
        thread.start()
        answers: asyncio.Queue[tuple[dict[str, int], memoryview]] = asyncio.Queue()
        closed = asyncio.Event()
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(
            lambda: ChannelProtocol(lambda *each: answers.put_nowait(each), closed.set), sock=ours
        )
        found = []
        for number, payload in enumerate(payloads):
            protocol.send({"id": number, "text": "é"}, payload)
        for number in range(len(payloads)):
            header, body = await answers.get()
            assert header == {"id": number, "size": len(body)}
            found.append(bytes(body))
        protocol.close()
        await asyncio.wait_for(closed.wait(), 5)
        thread.join(120)
        assert not thread.is_alive(), "the worker's end sees the hang-up"
        return found

    found = asyncio.run(broker())
    assert found == [b"".join(bytes(each) for each in payload) for payload in payloads]


def worker_of(folder: Path, **settings: object) -> Worker:
    begin_lake(folder)
    made = TierSettings(lake_uri=str(folder), **settings)  # type: ignore[arg-type]
    return new_worker(made.worker_arguments(), SystemClock(), idle_ms=made.lake_worker_idle_ms)


STATE = {"op": "state", "partitions": [["nothing", "A" * 22, 0]]}


def test_a_worker_is_started_by_the_first_question_and_again_after_its_death(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        worker = worker_of(tmp_path)
        assert worker.pid is None
        answer, _ = await worker.ask(STATE)
        assert answer["partitions"][0]["tiered_end"] == -1
        first = worker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            for _ in range(100):
                await worker.ask(STATE)
        with pytest.raises(WorkerLost) as lost:
            await worker.ask(STATE)
        await asyncio.sleep(lost.value.retry_ms / 1000 + 0.05)
        await worker.ask(STATE)
        assert worker.pid not in (None, first)
        await worker.stop()
        assert worker.pid is None
        with pytest.raises(WorkerLost, match="stopped"):
            await worker.ask(STATE)
        # It was killed once, and stopped at the end.
        assert (worker.starts, worker.deaths) == (2, 1)

    asyncio.run(run())


@pytest.mark.parametrize("given", ["", ":/nowhere"])
def test_a_worker_imports_nothing_from_the_folder_that_the_broker_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Also where `PYTHONPATH=$PYTHONPATH:/nowhere` had nothing to add to: to Python that means this folder."""
    monkeypatch.setenv("PYTHONPATH", given)
    (tmp_path / "pyarrow.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)

    async def run() -> None:
        worker = worker_of(tmp_path / "lake")
        answer, _ = await worker.ask(STATE)
        assert answer["partitions"][0]["tiered_end"] == -1
        await worker.stop()

    asyncio.run(run())


def test_what_goes_wrong_in_the_worker_is_answered(tmp_path: Path) -> None:
    async def run() -> None:
        worker = worker_of(tmp_path)
        with pytest.raises(WorkerFailed) as failed:
            await worker.ask({"op": "state", "partitions": [["t", "not an id", 0]]})
        assert failed.value.kind == "internal"
        question = {"op": "read", "topic": "t", "topic_id": "A" * 22, "partition": 0, "offset": 0}
        with pytest.raises(WorkerFailed) as failed:
            await worker.ask({**question, "max_bytes": 1, "isolation_level": 0})
        assert failed.value.kind == "out_of_range"
        (tmp_path / "topics").write_text("no folder")
        answer, _ = await worker.ask({**STATE, "partitions": [["t", "A" * 22, 0]]})
        assert "topics" in answer["partitions"][0]["error"]
        await worker.stop()

    asyncio.run(run())


class EndsAsItIsKilled:
    """A process that ends when that has just become too long; there is nobody to kill any more."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    async def wait(self) -> None:
        await self._ended.wait()

    def kill(self) -> None:
        self._ended.set()
        raise ProcessLookupError


def test_an_answer_that_cannot_be_sent_is_an_error_and_the_thread_goes_on() -> None:
    end, other = socket.socketpair()
    end.settimeout(60)
    ours, theirs = BlockingChannel(end), BlockingChannel(other)
    answers = iter([{"is": {1, 2}}, {"is": 3}])

    worker = Serving(
        theirs,
        writing={},
        reading={"read": lambda request: (next(answers), ())},
        afterwards=lambda: None,
        reader_threads=1,
        reader_niceness=0,
    )
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    found: list[Any] = []
    for number in range(2):
        ours.send({"op": "read", "id": number})
        received = ours.receive()
        assert received is not None
        found.append(received[0])
    end.close()
    thread.join(60)
    assert not thread.is_alive()
    assert [(each["id"], each.get("error"), each.get("is")) for each in found] == [
        (0, "internal", None),
        (1, None, 3),
    ]


def test_a_worker_may_end_as_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "STOP_TIMEOUT_SECONDS", 0.01)

    async def run() -> None:
        process: Any = EndsAsItIsKilled()
        await Worker._reap(process)

    asyncio.run(run())


def test_copies_cross_as_they_are() -> None:
    request = copy_request([copy_range(Path("nowhere"), 0, 9, aborted=[(1, 2, 3)])])
    assert CopyRequest.of(request.header()) == request
    outcome = PartitionOutcome(topic_id="x", partition=1, outcome="failed", tiered_end=-2)
    answer = CopyAnswer(partitions=[outcome], milliseconds=3)
    assert CopyAnswer.of(answer.header()) == answer


def test_settings_are_taken_by_kafka_s_names_and_cross_to_the_worker() -> None:
    settings = TierSettings.of({"node.id": 7, "lake.max.lag.ms": 5, "other": 1})
    assert (settings.node_id, settings.lake_max_lag_ms) == (7, 5)
    assert TierSettings.from_worker_argument(settings.worker_arguments()[0]) == settings


def test_each_process_arms_its_own_points_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *each: deaths.append(each))
    monkeypatch.setenv("KAFKA_DS_CRASH_AT", "after_commit:2,broker_after_copy")
    monkeypatch.setenv("KAFKA_DS_CRASH_ONCE", str(tmp_path))
    monkeypatch.setenv("KAFKA_DS_CRASH_WHO", "parent")
    for _ in range(2):
        worker = armed_from_environment(WORKER_POINTS)
        for _ in range(3):
            worker.at("after_commit")
            worker.at("broker_after_copy")
    assert deaths == [(os.getppid(), signal.SIGKILL)]
    armed_from_environment(BROKER_POINTS).at("broker_after_copy")
    assert deaths[1:] == [(os.getpid(), signal.SIGKILL)]
    CrashPoints().at("after_commit")
    monkeypatch.setenv("KAFKA_DS_CRASH_AT", "nowhere")
    with pytest.raises(ValueError, match="no crash point is called 'nowhere'"):
        armed_from_environment(WORKER_POINTS)


def test_dropping_clean_pages_breaks_nothing() -> None:
    before = resident_file_bytes()
    Trimmer().look()
    after = resident_file_bytes()
    assert after <= before
    assert sorted({"b", "a"}) == ["a", "b"]
