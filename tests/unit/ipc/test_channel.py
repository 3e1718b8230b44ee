"""Frames between the broker and its worker, the worker as the broker sees it, settings, crash points."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.config.loader import load
from broker.remote.process import new_worker
from broker.worker.rpc import (
    CopyAnswer,
    PartitionOutcome,
    Read,
    ReadAnswer,
    ReadTieredState,
    TieredState,
    TierSettings,
    Unavailable,
)
from kafka_ds.ipc import child
from kafka_ds.ipc.channel import BlockingChannel, ChannelProtocol
from kafka_ds.ipc.child import ChildWorker, WorkerFailed, WorkerLost
from kafka_ds.ipc.codec import decode, encode
from kafka_ds.ipc.memory import Trimmer, resident_file_bytes
from kafka_ds.ipc.worker import Operations, serve
from kafka_ds.ipc.worker import Worker as Serving
from kafka_ds.process.crash_points import (
    BROKER_POINTS,
    WORKER_POINTS,
    CrashPoints,
    armed_from_environment,
)
from kafka_ds.process.settings import part
from kafka_ds.process.system import SystemClock
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.version import VERSION
from tests.fakes.settings import tier_settings
from tests.fakes.store import begin_lake
from tests.integration.tier_segments import copy_range, copy_request
from tests.loops import in_loop


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


def worker_of(folder: Path, **settings: object) -> ChildWorker:
    begin_lake(folder)
    made = tier_settings(lake_uri=str(folder), **settings)  # type: ignore[arg-type]
    return new_worker(made.worker_arguments(), SystemClock(), idle_ms=made.lake_worker_idle_ms)


def state_of(topic: str, topic_id: bytes = bytes(16)) -> ReadTieredState:
    return ReadTieredState(partitions=[TopicIdPartition(topic_id, topic, 0)])


STATE = state_of("nothing")


@in_loop
async def test_a_worker_is_started_by_the_first_question_and_again_after_its_death(
    tmp_path: Path,
) -> None:
    worker = worker_of(tmp_path)
    assert worker.pid is None
    (state,) = await worker.send(STATE)
    assert isinstance(state, TieredState)
    assert state.highest_offset_in_remote_storage == -1
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        for _ in range(100):
            await worker.send(STATE)
    with pytest.raises(WorkerLost) as lost:
        await worker.send(STATE)
    await asyncio.sleep(lost.value.retry_ms / 1000 + 0.05)
    await worker.send(STATE)
    assert worker.pid not in (None, first)
    await worker.stop()
    assert worker.pid is None
    with pytest.raises(WorkerLost, match="stopped"):
        await worker.send(STATE)
    # It was killed once, and stopped at the end.
    assert (worker.starts, worker.deaths) == (2, 1)


@pytest.mark.parametrize("given", ["", ":/nowhere"])
@in_loop
async def test_a_worker_imports_nothing_from_the_folder_that_the_broker_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Also where `PYTHONPATH=$PYTHONPATH:/nowhere` had nothing to add to: to Python that means this folder."""
    monkeypatch.setenv("PYTHONPATH", given)
    (tmp_path / "pyarrow.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)

    worker = worker_of(tmp_path / "lake")
    (state,) = await worker.send(STATE)
    assert isinstance(state, TieredState)
    assert state.highest_offset_in_remote_storage == -1
    await worker.stop()


@in_loop
async def test_what_goes_wrong_in_the_worker_is_answered(tmp_path: Path) -> None:
    worker = worker_of(tmp_path)
    with pytest.raises(WorkerFailed) as failed:
        await worker.send(ReadTieredState(partitions=[("not a partition",)]))  # type: ignore[list-item]
    assert failed.value.kind == "internal"
    partition = TopicIdPartition(bytes(16), "t", 0)
    with pytest.raises(WorkerFailed) as failed:
        await worker.send(Read(partition=partition, offset=0, max_bytes=1, isolation_level=0))
    assert failed.value.kind == "out_of_range"
    (tmp_path / "topics").write_text("no folder")
    (state,) = await worker.send(state_of("t"))
    assert isinstance(state, Unavailable)
    assert "topics" in state.message
    await worker.stop()


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
    answers = iter([threading.Lock(), 3])

    worker = Serving(
        theirs,
        Operations(
            writing=(),
            reading={Read: lambda request: next(answers)},
            afterwards=lambda: None,
        ),
        reader_threads=1,
        reader_niceness=0,
    )
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    found: list[Any] = []
    for number in range(2):
        partition = TopicIdPartition(bytes(16), "t", 0)
        request = Read(partition=partition, offset=0, max_bytes=1, isolation_level=0)
        ours.send((number, (), request))
        received = ours.receive()
        assert received is not None
        (answered, body, _, _), _ = received
        found.append((answered, decode(body)))
    end.close()
    thread.join(60)
    assert not thread.is_alive()
    assert [(number, getattr(each, "kind", each)) for number, each in found] == [
        (0, "internal"),
        (1, 3),
    ]


def test_a_request_that_cannot_be_read_ends_the_worker_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    head = b"\x80\x05cbroker.worker.rpc\nNowhere\n."
    ours.sendall(struct.pack(">II", len(head), len(head)) + head)
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    channel = BlockingChannel(theirs)
    worker = Serving(
        channel, Operations(writing=(), reading={}, afterwards=lambda: None), reader_threads=1
    )
    with contextlib.suppress(AttributeError):
        serve(worker)
    assert statuses == [1] and "the worker cannot go on" in caplog.text
    ours.close()
    serve(worker)
    assert statuses == [1, 0]


def test_a_worker_of_another_version_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "VERSION", "0.0.9", raising=False)

    async def run() -> None:
        worker = worker_of(tmp_path)
        with pytest.raises(WorkerLost):
            await worker.send(STATE)
        await worker.stop()

    asyncio.run(run())
    said = f"the tier worker is of version {VERSION}, the broker of 0.0.9: restart the broker"
    assert capfd.readouterr().err.count(said) == 1


@in_loop
async def test_a_worker_may_end_as_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "STOP_TIMEOUT_SECONDS", 0.01)

    process: Any = EndsAsItIsKilled()
    await ChildWorker.reap(process)


def test_copies_cross_as_they_are() -> None:
    request = copy_request([copy_range(Path("nowhere"), 0, 9, aborted=[(1, 2, 3)])])
    assert decode(encode(request)[0]) == request
    outcome = PartitionOutcome(
        topic_id=b"x", partition=1, outcome="failed", highest_offset_in_remote_storage=-2
    )
    answer = CopyAnswer(partitions=[outcome], milliseconds=3)
    assert decode(encode(answer)[0]) == answer


def test_large_buffers_of_a_value_are_not_copied() -> None:
    chunk = bytearray(b"batches")
    body, buffers = encode(ReadAnswer(chunks=[memoryview(chunk)]))
    assert b"batches" not in body
    found = decode(body, buffers)
    chunk[:] = b"changed"
    assert [bytes(each) for each in found.chunks] == [b"changed"]


def test_settings_cross_to_the_worker() -> None:
    settings = part(TierSettings, load(None, ["node.id=7", "lake.max.lag.ms=5"]))
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
    with pytest.raises(ValueError, match="unknown crash point 'nowhere'"):
        armed_from_environment(WORKER_POINTS)


def test_dropping_clean_pages_breaks_nothing() -> None:
    before = resident_file_bytes()
    Trimmer().look()
    after = resident_file_bytes()
    assert after <= before
    assert sorted({"b", "a"}) == ["a", "b"]
