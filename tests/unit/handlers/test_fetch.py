"""Fetch through the real codec and log: bytes, budgets, bounds, epochs, sessions, waiting, the lake."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.handlers.records.fetch import SENT_BYTES_MIN
from broker.log.values import FileSlice, LogRead
from broker.principal import ANONYMOUS
from broker.registry import ClientInformation
from broker.replica.leader.partition import LeaderPartition
from broker.replica.leader.state import LeaderState
from broker.server.dispatch import Waiting
from kafka_ds.process.system import SystemFileRange
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.messages import FetchRequest
from kafka_ds.protocol.messages.data import FetchPartition, FetchTopic
from kafka_ds.records.batch import ControlType, end_transaction_marker
from tests.in_process import (
    NOW_MS,
    batch_of,
    fetch_request,
    in_process,
    values_of,
)
from tests.loops import in_loop
from tests.requests import build
from tests.unit.handlers.tiered_topics import TierOfChunks, tiered


@pytest.mark.parametrize("version", range(4, 19))
@in_loop
async def test_every_version_reads(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
        name = "t" if version < 13 else ""
        response = await broker.ask(fetch_request(name, 0, topic_id=topic_id), version)
        (topic,) = response.responses
        assert (topic.topic or topic.topic_id) == (name or topic_id)
        (data,) = topic.partitions
        assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 2, 2)
        assert data.log_start_offset == (0 if version >= 5 else -1)
        assert data.aborted_transactions is None
        assert values_of(data.records) == [b"a", b"b"]
        assert response.session_id == 0


@in_loop
async def test_the_whole_batch_comes_for_an_offset_in_its_middle(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        for _ in range(3):
            await broker.produce("t", batch_of([b"a", b"b", b"c"]))
        data = await broker.fetch("t", 4)
        assert len(values_of(data.records)) == 6


@in_loop
async def test_budgets(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 3)
        batch = batch_of([b"v" * 1000])
        for partition in range(3):
            for _ in range(3):
                await broker.produce("t", batch, partition=partition)

        async def counts(max_bytes: int, partition_max_bytes: int) -> list[int]:
            wanted = [
                FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=partition_max_bytes)
                for i in range(3)
            ]
            request = build(
                FetchRequest,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=max_bytes,
                topics=[{"topic": "t", "partitions": wanted}],
            )
            response = await broker.ask(request, 12)
            return [len(values_of(p.records)) for p in response.responses[0].partitions]

        size = len(batch)
        assert await counts(100 * size, 100 * size) == [3, 3, 3]
        assert await counts(100 * size, 2 * size) == [2, 2, 2]
        assert await counts(4 * size, 100 * size) == [3, 1, 0]
        # One batch at least, so that a small budget stops nobody; but only one in all.
        assert await counts(1, 1) == [1, 0, 0]
        assert await counts(0, 0) == [1, 0, 0]
        assert await counts(-5, -5) == [1, 0, 0]
        assert await counts(100 * size, size - 1) == [1, 0, 0]


@in_loop
async def test_a_partition_that_gives_nothing_leaves_its_place_to_the_next(
    memory_path: Path,
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 2)
        await broker.produce("t", batch_of([b"v"]), partition=1)
        more = [FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1)]
        response = await broker.ask(fetch_request("t", 0, more=more), 12)
        assert [len(p.records) > 0 for p in response.responses[0].partitions] == [False, True]


@in_loop
async def test_fetch_max_bytes_bounds_every_response(memory_path: Path) -> None:
    async with in_process(memory_path, fetch_max_bytes=1024) as broker:
        await broker.create("t")
        for _ in range(4):
            await broker.produce("t", batch_of([b"v" * 400]))
        data = await broker.fetch("t", 0)
        assert len(values_of(data.records)) == 2


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, ErrorCode.NONE),
        (2, ErrorCode.NONE),
        (3, ErrorCode.OFFSET_OUT_OF_RANGE),
        (2**62, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
@in_loop
async def test_offsets_outside_of_the_log(memory_path: Path, offset: int, code: ErrorCode) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
        data = await broker.fetch("t", offset)
        assert data.error_code == code
        assert data.high_watermark == (-1 if code else 2)
        assert bytes(data.records) == b"" or offset < 2


@in_loop
async def test_partitions_that_are_not_there(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        assert (await broker.fetch("u", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await broker.fetch("t", 0, partition=1)).error_code == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        unknown = await broker.fetch("", 0, version=13, topic_id=b"\x01" * 16)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, ErrorCode.NONE),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (1, ErrorCode.NONE),
        (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
@in_loop
async def test_the_readers_epoch_is_checked(memory_path: Path, epoch: int, code: ErrorCode) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
    async with in_process(memory_path) as broker:  # A restart leads in epoch 1.
        fields = {"current_leader_epoch": epoch}
        data = await broker.fetch("t", 0, version=12, partition_fields=fields)
        assert data.error_code == code
        if code:
            assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (1, 1)


@in_loop
async def test_a_reader_whose_log_diverges_is_told_where(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
    async with in_process(memory_path) as broker:
        await broker.produce("t", batch_of([b"c"]))

        async def divergence(epoch: int, offset: int) -> tuple[int, int] | None:
            fields = {"last_fetched_epoch": epoch}
            data = await broker.fetch("t", offset, partition_fields=fields)
            assert data.error_code == ErrorCode.NONE
            found = data.diverging_epoch
            assert found is None or bytes(data.records) == b""
            return (found.epoch, found.end_offset) if found else None

        assert await divergence(0, 2) is None
        assert await divergence(0, 3) == (0, 2)
        assert await divergence(1, 3) is None
        fields = {"last_fetched_epoch": 7}
        data = await broker.fetch("t", 2, partition_fields=fields)
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@in_loop
async def test_an_isolation_level_that_is_none(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        response = await broker.ask(fetch_request("t", 0, isolation_level=2), 12)
        assert response.error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_isolation(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"plain"]))
        for producer in (7, 8):
            broker.append_own(

                batch_of([b"%d" % producer], producer_id=producer, producer_epoch=0,
                         base_sequence=0, is_transactional=True),
            )  # fmt: skip
        committed = await broker.fetch("t", 0, isolation_level=1)
        assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)
        assert values_of(committed.records) == [b"plain"]
        assert committed.aborted_transactions == []
        assert (await broker.fetch("t", 2, isolation_level=1)).error_code == ErrorCode.NONE
        everything = await broker.fetch("t", 0)
        assert values_of(everything.records) == [b"plain", b"7", b"8"]
        assert everything.aborted_transactions is None
        for producer, control in ((7, ControlType.ABORT), (8, ControlType.COMMIT)):
            broker.append_own(

                end_transaction_marker(control, timestamp=NOW_MS, producer_id=producer,
                                       producer_epoch=0, coordinator_epoch=0),
            )  # fmt: skip
        decided = await broker.fetch("t", 0, isolation_level=1)
        assert decided.last_stable_offset == 5
        aborted = decided.aborted_transactions
        assert [(a.producer_id, a.first_offset) for a in aborted] == [(7, 1)]


# -- the disk and the lake ----------------------------------------------------------------------


@in_loop
async def test_much_that_a_consumer_reads_is_sent_from_the_file(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"v" * SENT_BYTES_MIN]))
        await broker.produce("t", batch_of([b"little"]))
        whole = fetch_request("t", 0)
        little = fetch_request("t", 1)
        follower = fetch_request("t", 0)
        follower.replica_id = broker.node.config.node_id + 1
        monkeypatch.setattr(LeaderState, "check_follower", lambda *_: None)
        monkeypatch.setattr(LeaderPartition, "update_follower_fetch_state", lambda *_, **__: None)
        dispatcher = broker.dispatcher
        counters = broker.node.replica_manager.get("t", 0).counters

        def in_files(request: FetchRequest, *, sends_files: bool) -> int:
            client = ClientInformation(sends_files=sends_files)
            frame = memoryview(bytearray(encode_request(request, 12, 7, "test")))[4:]
            parts: Any = dispatcher.handle(frame, "h", "PLAINTEXT", 0.0, ANONYMOUS, client)
            sizes = [len(part) for part in parts]
            assert int.from_bytes(parts[0][:4], "big") == sum(sizes) - 4
            return sum(len(part) for part in parts if isinstance(part, SystemFileRange))

        assert in_files(whole, sends_files=True) > SENT_BYTES_MIN
        assert counters.bytes_out == in_files(whole, sends_files=True)
        assert in_files(whole, sends_files=False) == 0
        assert in_files(little, sends_files=True) == 0
        assert in_files(follower, sends_files=True) == 0
        assert counters.replication_bytes_out > SENT_BYTES_MIN


@pytest.mark.interpreted
@in_loop
async def test_what_is_not_in_memory_is_read_beside_the_loop(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a"]))
        log = broker.node.replica_manager.get("t", 0).log
        monkeypatch.setattr(FileSlice, "read_now", lambda part: None)
        waiting = broker.begin(fetch_request("t", 0, max_wait_ms=5000), 12)
        assert isinstance(waiting, Waiting)
        response = await waiting.result
        assert values_of(b"".join(response.responses[0].partitions[0].records)) == [b"a"]
        read = log.read

        def read_later(*args: Any, may_wait: bool = True, **options: Any) -> Any:
            if not may_wait:
                raise BlockingIOError
            return read(*args, **options)

        monkeypatch.setattr(log, "read", read_later)
        data = await broker.fetch("t", 0)
        assert values_of(data.records) == [b"a"]

        def broken(part: object) -> bytes:
            raise OSError("a bad sector")

        monkeypatch.setattr(FileSlice, "read", broken)
        data = await broker.fetch("t", 0)
        assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.interpreted
@pytest.mark.parametrize("is_found", [False, True])
@in_loop
async def test_a_disk_that_fails_under_one_partition_is_no_others_trouble(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("good")
        await broker.create("bad")
        await broker.produce("good", batch_of([b"a"]))
        await broker.produce("bad", batch_of([b"b"]))
        log = broker.node.replica_manager.get("bad", 0).log

        def broken(*_: object, **__: object) -> Any:
            raise OSError("a bad sector")

        found = LogRead((FileSlice(SimpleNamespace(read=broken, read_now=broken), 0, 99),), 99, 1)
        monkeypatch.setattr(log, "read", (lambda *_, **__: found) if is_found else broken)
        request = fetch_request("bad", 0)
        request.topics += fetch_request("good", 0).topics
        response = await broker.ask(request, 12)
        bad, good = (topic.partitions[0] for topic in response.responses)
        assert bad.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert values_of(good.records) == [b"a"]


@in_loop
async def test_old_offsets_come_from_the_lake(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        tier = await tiered(broker)
        more = [FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=500)]
        request = fetch_request("t", 1, max_wait_ms=5000, partition_max_bytes=700, more=more)
        response = await broker.ask(request, 12)
        cold, hot = response.responses[0].partitions
        assert values_of(cold.records) == [b"cold", b"colder"]
        assert values_of(hot.records) == [b"other"]
        assert (cold.high_watermark, cold.log_start_offset) == (3, 0)
        assert tier.asked == [(0, 1, 700)]
        data = await broker.fetch("t", 2)
        assert values_of(data.records) == [b"hot"]


@pytest.mark.interpreted
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE])
@pytest.mark.parametrize("is_found", [False, True])
@in_loop
async def test_what_leaves_the_disk_while_it_is_read_comes_from_the_lake(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, is_found: bool, code: ErrorCode
) -> None:
    """A page cache that misses, for the index or for the records, and a retention that does not wait.

    What was found may be read still; but which of it was aborted is known no more.
    """
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"old"]))
        log = broker.node.replica_manager.get("t", 0).log
        log.roll()
        tier = TierOfChunks(chunks=[batch_of([b"cold"])])
        broker.exchange(remote_log_manager=tier)
        read = log.read

        def read_later(*args: Any, may_wait: bool = True, **options: Any) -> Any:
            if not may_wait and not is_found:
                raise BlockingIOError
            return read(*args, **options)

        monkeypatch.setattr(log, "read", read_later)
        monkeypatch.setattr(FileSlice, "read_now", lambda part: None)
        waiting = broker.begin(fetch_request("t", 0, isolation_level=1), 12)
        assert isinstance(waiting, Waiting)
        log.segments.discard_oldest(1, broker.node.clock.now_ms())
        if code is not ErrorCode.NONE:
            log.advance_log_start_offset(1)
        data = (await waiting.result).responses[0].partitions[0]
        assert data.error_code == code
        if code is ErrorCode.NONE:
            assert values_of(b"".join(data.records)) == [b"cold"]
            assert data.aborted_transactions == []


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE])
@in_loop
async def test_a_lake_that_fails_is_one_partitions_error(
    memory_path: Path, code: ErrorCode
) -> None:
    async with in_process(memory_path) as broker:
        await tiered(broker, error=code)
        more = [FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=500)]
        response = await broker.ask(fetch_request("t", 0, more=more), 12)
        cold, hot = response.responses[0].partitions
        assert (cold.error_code, cold.high_watermark, bytes(cold.records)) == (code, -1, b"")
        assert values_of(hot.records) == [b"other"]


@in_loop
async def test_without_a_lake_old_offsets_are_out_of_range(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await tiered(broker)
        broker.exchange(remote_log_manager=None)
        data = await broker.fetch("t", 0)
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- sessions (KIP-227) -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 12, 13, 18])
@in_loop
async def test_a_session_tells_what_is_new(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("t", 3)
        await broker.produce("t", batch_of([b"a"]))
        name = "t" if version < 13 else ""
        more = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=500)
            for index in (1, 2)
        ]
        request = fetch_request(name, 0, topic_id=topic_id, more=more, session_epoch=0)
        first = await broker.ask(request, version)
        assert [len(p.records) > 0 for p in first.responses[0].partitions] == [True, False, False]

        async def ask(epoch: int, *wanted: FetchPartition, **options: Any) -> Any:
            topics = [FetchTopic(topic=name, topic_id=topic_id, partitions=[*wanted])]
            request = FetchRequest(
                max_wait_ms=0, min_bytes=1, session_id=first.session_id, session_epoch=epoch,
                topics=topics if wanted else [], **options,
            )  # fmt: skip
            return await broker.ask(request, version)

        nothing = await ask(1, FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=500))
        assert (nothing.session_id, nothing.responses) == (first.session_id, [])
        await broker.produce("t", batch_of([b"b"]), partition=2)
        (topic,) = (await ask(2)).responses
        (data,) = topic.partitions
        assert (topic.topic or topic.topic_id) == (name or topic_id)
        assert (data.partition_index, values_of(data.records)) == (2, [b"b"])
        assert (await ask(2)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        other = fetch_request("t", 0, session_id=first.session_id, session_epoch=3)
        mixed = await broker.ask(other, 12 if version >= 13 else 13)
        assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@in_loop
async def test_a_session_that_is_gone(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        response = await broker.ask(fetch_request("t", 0, session_id=5, session_epoch=1), 12)
        assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert response.responses == []
        for epoch in (0, -1):
            response = await broker.ask(fetch_request("t", 0, session_epoch=epoch), 12)
            assert (response.error_code, response.session_id > 0) == (0, epoch == 0)


@in_loop
async def test_a_parked_fetch_of_a_session_tells_what_woke_it(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 2)
        more = [FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=500)]
        first = await broker.ask(fetch_request("t", 0, more=more, session_epoch=0), 12)
        request = FetchRequest(
            max_wait_ms=5000, min_bytes=1, session_id=first.session_id, session_epoch=1, topics=[]
        )
        waiting = broker.begin(request, 12)
        assert isinstance(waiting, Waiting)
        await broker.produce("t", batch_of([b"a"]), partition=1)
        (data,) = (await waiting.result).responses[0].partitions
        assert data.partition_index == 1
        assert values_of(b"".join(data.records)) == [b"a"]
        samples = {metric.bean: value for metric, _, value in broker.node.fetch_manager.samples()}
        assert sorted(samples.values()) == [0, 1, 2]


@in_loop
async def test_without_slots_every_fetch_is_a_full_one(memory_path: Path) -> None:
    settings = {"max_incremental_fetch_session_cache_slots": 0}
    async with in_process(memory_path, **settings) as broker:
        await broker.create("t")
        response = await broker.ask(fetch_request("t", 0, session_epoch=0), 12)
        assert response.session_id == 0
        assert response.responses
