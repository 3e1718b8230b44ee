"""Batches that are recompressed off the event loop: they keep their order and answers, and block nobody."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from broker.coordinator.transaction.add_partitions_to_txn_manager import TransactionalWriter
from broker.log.recompression import RECOMPRESSED_AT_ONCE_BYTES_MAX
from broker.log.validation import UNPACKED_AT_ONCE_BYTES_MAX, VALIDATED_AT_ONCE_BYTES_MAX
from broker.replica.leader import batch_preparer as preparing
from broker.replica.leader.partition import LeaderPartition
from broker.server.dispatch import Unanswerable, Waiting
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from kafka_ds.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)
from kafka_ds.records import validation
from kafka_ds.records.batch import HEADER_BYTES, Codec, Record, build_batch, read_header, seal
from kafka_ds.records.compression import compress
from tests.in_process import NOW_MS, InProcess, batch_of, in_process, produce_request, values_of
from tests.loops import in_loop, until

HOLDS_MUCH = bytes(UNPACKED_AT_ONCE_BYTES_MAX[Codec.LZ4])
LARGE = b"x" * (RECOMPRESSED_AT_ONCE_BYTES_MAX[Codec.GZIP] + 1)


async def answer_of(waiting: Any) -> tuple[int, int]:
    """Error and offset, which may be there already."""
    response = await waiting.result if isinstance(waiting, Waiting) else waiting
    answer = response.responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Until it is set, the threads do nothing."""
    go = Event()
    prepare: Callable[..., memoryview] = preparing.prepare_in_thread

    def wait(*arguments: object) -> memoryview:
        assert go.wait(120)
        return prepare(*arguments)

    monkeypatch.setattr(preparing, "prepare_in_thread", wait)
    return go


@in_loop
async def test_the_order_of_a_producer_stays(memory_path: Path) -> None:
    """Small ones, large ones, those in the topic's codec and those that are not, all at once."""
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="zstd")
        waiting = []
        for sequence in range(60):
            batch = batch_of(
                [b"%d" % sequence + (LARGE * 20 if sequence % 7 == 0 else b"")],
                codec=Codec(sequence % 5),
                producer_id=9,
                producer_epoch=0,
                base_sequence=sequence,
            )
            waiting.append(broker.begin(produce_request("t", batch, acks=sequence % 2 or -1), 9))
        answers = [await answer_of(each) for each in waiting]
        assert answers == [(ErrorCode.NONE, offset) for offset in range(60)]
        data = await broker.fetch("t", 0, partition_max_bytes=1 << 24, max_bytes=1 << 24)
        values = values_of(data.records)
        assert [int((value or b"").partition(b"x")[0]) for value in values] == list(range(60))
        assert not broker.node.preparer.queues


@in_loop
async def test_the_order_stays_where_batches_pass_as_they_are(memory_path: Path) -> None:
    """Some are looked at at once, large ones in a thread, small ones that hold much in both."""
    draw = Random(3)
    contents = [b"little", HOLDS_MUCH, draw.randbytes(700 << 10)]
    async with in_process(memory_path) as broker:
        await broker.create("t")
        waiting, at_once = [], 0
        for sequence in range(45):
            batch = batch_of(
                [b"%d:" % sequence + contents[sequence % 3]],
                codec=Codec(1 + sequence % 4),
                producer_id=9,
                producer_epoch=0,
                base_sequence=sequence,
            )
            waiting.append(broker.begin(produce_request("t", batch, acks=sequence % 2 or -1), 9))
            at_once += not isinstance(waiting[-1], Waiting)
        assert at_once == 1, "what comes behind one that waits waits, too"
        answers = [await answer_of(each) for each in waiting]
        assert answers == [(ErrorCode.NONE, offset) for offset in range(45)]
        data = await broker.fetch("t", 0, partition_max_bytes=1 << 26, max_bytes=1 << 26)
        values = values_of(data.records)
        assert [int((value or b"").partition(b":")[0]) for value in values] == list(range(45))
        for codec in Codec:
            batch = batch_of([b"small"], codec=codec)
            assert not isinstance(broker.begin(produce_request("t", batch), 9), Waiting)


@pytest.mark.parametrize("codec", list(Codec))
@in_loop
async def test_records_that_do_not_fit_are_refused_wherever_they_are_looked_at(
    memory_path: Path, codec: Codec
) -> None:
    draw = Random(3)
    async with in_process(memory_path) as broker:
        await broker.create("t")
        for size in (10, 700 << 10):
            good = batch_of([draw.randbytes(size), b"b"], codec=codec)
            header = read_header(good)._replace(record_count=3, last_offset_delta=2)
            answer = await broker.produce("t", seal(header, good[HEADER_BYTES:]))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
            assert answer.error_message is not None
            assert "record 2 of 3 is truncated" in answer.error_message
        counters = broker.node.replica_manager.get("t", 0).counters
        assert (counters.produce_requests, counters.produce_failures) == (2, 2)
        assert (await broker.fetch("t", 0)).high_watermark == 0


async def transactional_writes(broker: InProcess) -> Callable[[int, bytes], ProduceRequest]:
    """Makes the writes of a producer that has no transaction yet, by sequence and content."""
    asked = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    while True:
        given = await broker.ask(asked, 4)
        if given.error_code not in (
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.CONCURRENT_TRANSACTIONS,
        ):
            break
        await broker.ask(FindCoordinatorRequest(key="x", key_type=1), 3)
        await asyncio.sleep(0.01)
    assert given.error_code == ErrorCode.NONE

    def write(sequence: int, value: bytes) -> ProduceRequest:
        batch = batch_of(
            [value],
            codec=Codec.ZSTD,
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = produce_request("t", batch)
        request.transactional_id = "x"
        return request

    return write


def answer_slowly(broker: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a coordinator that is elsewhere: never in the turn of the question."""
    joins = broker.node.transactions.add_partitions_to_txn
    verify = joins.verify

    async def answer(partition: LeaderPartition, writer: TransactionalWriter) -> object:
        await asyncio.sleep(0)
        given = verify(partition, writer)
        return None if given is None else await given

    monkeypatch.setattr(joins, "verify", answer)


@in_loop
async def test_one_that_joins_its_transaction_first(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found out to take long only when the coordinator has answered."""
    async with in_process(memory_path) as broker:
        await broker.create("t")
        write = await transactional_writes(broker)
        answer_slowly(broker, monkeypatch)
        for sequence in range(2):
            waiting = broker.begin(write(sequence, HOLDS_MUCH), 12)
            assert await answer_of(waiting) == (ErrorCode.NONE, sequence)


@in_loop
async def test_what_waits_for_the_same_coordinator_is_not_overtaken(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first takes long, and those behind it do not."""
    async with in_process(memory_path) as broker:
        await broker.create("t")
        write = await transactional_writes(broker)
        answer_slowly(broker, monkeypatch)
        contents = [HOLDS_MUCH, b"little", HOLDS_MUCH, b"little"]
        waiting = [broker.begin(write(i, value), 12) for i, value in enumerate(contents)]
        answers = [await answer_of(each) for each in waiting]
        assert answers == [(ErrorCode.NONE, offset) for offset in range(4)]


@in_loop
async def test_what_waits_is_bounded(
    memory_path: Path, held: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where those who sent it have been told that it took too long."""
    monkeypatch.setattr(preparing, "WAITING_BYTES_MAX", 2 * len(LARGE))
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        requests = [produce_request("t", batch_of([LARGE])) for _ in range(4)]
        for each in requests[:2]:
            each.timeout_ms = 1
        codes = [(await answer_of(broker.begin(each, 9)))[0] for each in requests]
        assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 2 + [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
        held.set()
        await until(lambda: not broker.node.preparer.queues)
        assert (await broker.produce("t", batch_of([LARGE]))).base_offset == 2
        assert broker.node.preparer.waiting_bytes == 0


@in_loop
async def test_a_small_batch_is_packed_at_once(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        answer = broker.begin(produce_request("t", batch_of([b"a"])), 9)
        assert not isinstance(answer, Waiting)
        data = await broker.fetch("t", 0)
        assert read_header(data.records).codec == Codec.GZIP


@pytest.mark.parametrize("level", ["-1", "9"])
@in_loop
async def test_what_is_packed_at_once_is_bounded(memory_path: Path, level: str) -> None:
    """Whether it comes compressed or not; the level decides."""
    async with in_process(memory_path) as broker:
        await broker.create("t", **{"compression_type": "gzip", "compression_gzip_level": level})
        for size, waits in ((1 << 10, False), (16 << 10, level == "9"), (len(LARGE), True)):
            for codec in (Codec.NONE, Codec.ZSTD):
                answer = broker.begin(produce_request("t", batch_of([bytes(size)], codec=codec)), 9)
                assert isinstance(answer, Waiting) == waits, (size, codec)
                assert (await answer_of(answer))[0] == ErrorCode.NONE


@in_loop
async def test_what_is_read_in_python_is_read_in_a_thread(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        monkeypatch.setattr(validation, "in_use", None)
        for size, waits in ((1 << 10, False), (VALIDATED_AT_ONCE_BYTES_MAX, True)):
            for codec in Codec:
                answer = broker.begin(produce_request("t", batch_of([bytes(size)], codec=codec)), 9)
                assert isinstance(answer, Waiting) == waits, (size, codec)
                assert (await answer_of(answer))[0] == ErrorCode.NONE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@in_loop
async def test_very_many_blocks_are_no_work_of_the_event_loop(
    memory_path: Path, held: Event, codec: Codec
) -> None:
    """They hold nothing: how much a batch unpacks to is no measure of what it takes."""
    begin, block = {
        Codec.GZIP: (b"\x1f\x8b\x08" + bytes(7), b"\x00\x00\x00\xff\xff"),
        Codec.LZ4: (compress(Codec.LZ4, b"")[:7], b"\x01\x00\x00\x80a"),
        Codec.ZSTD: (b"\x28\xb5\x2f\xfd\x00\x58", bytes(3)),
    }[codec]
    header = read_header(batch_of([b""], codec=codec))
    async with in_process(memory_path) as broker:
        await broker.create("t")
        batch = seal(header, begin + 8_000 * block)
        waiting = broker.begin(produce_request("t", batch), 9)
        assert isinstance(waiting, Waiting)
        held.set()
        assert await answer_of(waiting) == (ErrorCode.INVALID_RECORD, -1)


@in_loop
async def test_others_do_not_wait(memory_path: Path, held: Event) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        await broker.create("u")
        slow = broker.begin(produce_request("t", batch_of([LARGE])), 9)
        behind = broker.begin(produce_request("t", batch_of([b"small"])), 9)
        assert (await broker.produce("u", batch_of([LARGE]))).base_offset == 0
        assert (await broker.fetch("t", 0)).high_watermark == 0
        held.set()
        assert await answer_of(slow) == (ErrorCode.NONE, 0)
        assert await answer_of(behind) == (ErrorCode.NONE, 1)


@in_loop
async def test_a_setting_that_changes_meanwhile(memory_path: Path, held: Event) -> None:
    """Later batches keep their place, although they need no preparation any more."""
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        first = broker.begin(produce_request("t", batch_of([LARGE])), 9)
        change = IncrementalAlterableConfig(
            name="compression.type", config_operation=0, value="producer"
        )
        resource = IncrementalAlterConfigsResource(
            resource_type=2, resource_name="t", configs=[change]
        )
        await broker.ask(
            IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1
        )
        second = broker.begin(produce_request("t", batch_of([b"small"])), 9)
        held.set()
        assert await answer_of(first) == (ErrorCode.NONE, 0)
        assert await answer_of(second) == (ErrorCode.NONE, 1)


@in_loop
async def test_one_that_is_refused_holds_nobody_up(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        bad = bytearray(batch_of([LARGE]))
        bad[-1] ^= 1
        keyless = build_batch([Record(0, NOW_MS, None, LARGE)])
        batches = [batch_of([LARGE]), bytes(bad), keyless, batch_of([b"a"])]
        waiting = [broker.begin(produce_request("t", each), 9) for each in batches]
        answers = [await answer_of(each) for each in waiting]
        assert answers == [(0, 0), (ErrorCode.CORRUPT_MESSAGE, -1), (0, 1), (0, 2)]


@in_loop
async def test_without_an_answer(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        assert await broker.ask(produce_request("t", batch_of([LARGE]), acks=0), 9) is None
        assert (await broker.fetch("t", 0)).high_watermark == 1
        bad = bytearray(batch_of([LARGE]))
        bad[-1] ^= 1
        with pytest.raises(Unanswerable):
            await broker.ask(produce_request("t", bytes(bad), acks=0), 9)


async def delete(broker: InProcess, topic: str) -> None:
    await broker.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 5)


@in_loop
async def test_a_topic_that_is_deleted_and_made_again_gets_nothing(
    memory_path: Path, held: Event
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        waiting = broker.begin(produce_request("t", batch_of([LARGE])), 9)
        task = asyncio.ensure_future(waiting.result)
        await asyncio.sleep(0)
        await delete(broker, "t")
        await broker.create("t")
        held.set()
        response = await task
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await broker.fetch("t", 0)).high_watermark == 0


@in_loop
async def test_one_that_takes_too_long_times_out_and_is_written(
    memory_path: Path, held: Event
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        request = produce_request("t", batch_of([LARGE]))
        request.timeout_ms = 10
        response = await broker.ask(request, 9)
        assert response.responses[0].partition_responses[0].error_code == (
            ErrorCode.REQUEST_TIMED_OUT
        )
        held.set()
        assert (await broker.produce("t", batch_of([b"a"]))).base_offset == 1


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)]
)
@in_loop
async def test_old_consumers_are_not_given_zstd(
    memory_path: Path, version: int, code: ErrorCode
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="zstd")
        assert (await broker.produce("t", batch_of([b"a"]), version=3)).base_offset == 0
        assert (await broker.fetch("t", 0, version=version)).error_code == code


@in_loop
async def test_the_end_of_the_broker_answers_those_who_wait(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", compression_type="gzip")
        go = Event()
        broker.node.preparer.threads.submit(go.wait, 20)
        broker.node.preparer.threads.submit(go.wait, 20)
        waiting = broker.begin(produce_request("t", batch_of([LARGE])), 9)
        task = asyncio.ensure_future(waiting.result)
        await asyncio.sleep(0)
        broker.node.replica_manager.stop()
        broker.node.preparer.close()
        go.set()
        response = await task
        assert response.responses[0].partition_responses[0].error_code == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
