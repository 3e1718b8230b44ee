"""Produce through the real codec and log: answers in every version, and refusals."""

import asyncio
import gc
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import pytest

from broker.server.dispatch import Unanswerable
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.messages import ProduceRequest
from kafka_ds.protocol.messages.data import PartitionProduceData
from kafka_ds.records.batch import Codec, Record, TimestampType, build_batch
from tests.in_process import LISTENER, batch_of, in_process, produce_request, values_of
from tests.loops import in_loop
from tests.requests import build


@pytest.mark.parametrize("version", range(3, 14))
@in_loop
async def test_every_version_appends(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("t")
        name = "t" if version < 13 else ""
        for first in (0, 2):
            request = produce_request(name, batch_of([b"a", b"b"]), topic_id=topic_id)
            response = await broker.ask(request, version)
            (topic,) = response.responses
            (answer,) = topic.partition_responses
            assert (topic.name or topic.topic_id) == (name or topic_id)
            assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (
                0,
                first,
                -1,
            )
            assert answer.log_start_offset == (0 if version >= 5 else -1)
        data = await broker.fetch("t", 0)
        assert values_of(data.records) == [b"a", b"b"] * 2


@pytest.mark.parametrize("codec", list(Codec))
@in_loop
async def test_every_codec_passes_through_untouched(memory_path: Path, codec: Codec) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        batch = batch_of([b"v" * 100, None, b""], codec=codec)
        await broker.produce("t", batch)
        data = await broker.fetch("t", 0)
        assert bytes(data.records)[17:] == batch[17:]
        assert values_of(data.records) == [b"v" * 100, None, b""]


@in_loop
async def test_acks(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        assert (await broker.produce("t", batch_of([b"a"]), acks=1)).base_offset == 0
        assert (await broker.produce("t", batch_of([b"a"]), acks=-1)).base_offset == 1
        assert await broker.ask(produce_request("t", batch_of([b"a"]), acks=0), 9) is None
        assert (await broker.produce("t", batch_of([b"a"]))).base_offset == 3
        for acks in (2, -2, 32767):
            answer = await broker.produce("t", batch_of([b"a"]), acks=acks)
            assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert (await broker.produce("t", batch_of([b"a"]))).base_offset == 4


@pytest.mark.parametrize("broken", [True, False])
@in_loop
async def test_without_acks_an_error_closes_the_connection(memory_path: Path, broken: bool) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        topic, batch = ("t", b"\0" * 80) if broken else ("nowhere", batch_of([b"a"]))
        with pytest.raises(Unanswerable):
            broker.begin(produce_request(topic, batch, acks=0), 9)


@pytest.mark.parametrize("acks", [1, 0])
@in_loop
async def test_what_is_refused_is_let_go_of_at_once(memory_path: Path, acks: int) -> None:
    """And not when the collector of garbage comes by: of those who try again a second's requests may be all memory."""
    async with in_process(memory_path) as broker:
        request = produce_request("nowhere", batch_of([b"a"]), acks=acks)
        frame = bytearray(encode_request(request, 9, 7, "test"))
        handle = broker.dispatcher.handle
        gc.disable()
        try:
            with suppress(Unanswerable):
                handle(memoryview(frame)[4:], "127.0.0.1", LISTENER, perf_counter())
            frame.append(0)  # a BufferError while anything refers to it
        finally:
            gc.enable()


@in_loop
async def test_log_append_time_is_told_and_stamped(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", message_timestamp_type="LogAppendTime")
        before = broker.node.clock.now_ms()
        answer = await broker.produce("t", batch_of([b"a"], timestamp=5))
        assert before <= answer.log_append_time_ms <= broker.node.clock.now_ms()


@in_loop
async def test_partitions_succeed_and_fail_alone(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 2)
        good, bad = batch_of([b"a"]), bytearray(batch_of([b"b"]))
        bad[-1] ^= 1
        data = [
            PartitionProduceData(index=0, records=good),
            PartitionProduceData(index=1, records=bytes(bad)),
            PartitionProduceData(index=2, records=good),
        ]
        request = build(
            ProduceRequest,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                {"name": "t", "partition_data": data},
                {"name": "u", "partition_data": data[:1]},
            ],
        )
        response = await broker.ask(request, 9)
        codes = [[p.error_code for p in t.partition_responses] for t in response.responses]
        assert codes == [
            [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        ]
        refused = response.responses[0].partition_responses[1]
        assert refused.base_offset == -1
        assert "checksum" in refused.error_message


@in_loop
async def test_an_unknown_id_is_told_as_such(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        request = produce_request("", batch_of([b"a"]), topic_id=b"\x01" * 16)
        response = await broker.ask(request, 13)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def two_batches() -> bytes:
    return batch_of([b"a"]) * 2


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (b"\0" * 20, ErrorCode.INVALID_RECORD),
        (two_batches(), ErrorCode.INVALID_RECORD),
        (batch_of([b"a"])[:-1], ErrorCode.INVALID_RECORD),
        (batch_of([b"a" * 2_000_000]), ErrorCode.MESSAGE_TOO_LARGE),
        (batch_of([b"a"], is_control=True), ErrorCode.INVALID_RECORD),
        (batch_of([b"a"], timestamp_type=TimestampType.LOG_APPEND_TIME),
         ErrorCode.INVALID_TIMESTAMP),
        (batch_of([b"a"], is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
         ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)  # fmt: skip
@in_loop
async def test_batches_that_are_refused(
    memory_path: Path, batch: bytes | None, code: ErrorCode
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        response = await broker.ask(produce_request("t", batch), 9)
        answer = response.responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (code, -1)
        assert answer.record_errors == []
        assert answer.error_message
        assert (await broker.produce("t", batch_of([b"a"]))).base_offset == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=["at once", "in a thread"])
@in_loop
async def test_a_compacted_topic_names_the_records_without_a_key(
    memory_path: Path, codec: Codec
) -> None:
    records = [Record(i, 1, key, b"v") for i, key in enumerate((b"a", None, b"", None))]
    batch = build_batch(records, codec=codec)
    async with in_process(memory_path) as broker:
        await broker.create("t", cleanup_policy="compact")
        response = await broker.ask(produce_request("t", batch), 9)
        answer = response.responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert [each.batch_index for each in answer.record_errors] == [1, 3]
        assert "without key" in answer.record_errors[0].batch_index_error_message
        assert answer.error_message
        keyed = build_batch(records[:1], codec=codec)
        assert (await broker.produce("t", keyed)).base_offset == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@in_loop
async def test_records_with_a_time_that_is_not_allowed_are_named(
    memory_path: Path, codec: Codec
) -> None:
    async with in_process(memory_path) as broker:
        now_ms = broker.node.clock.now_ms()
        times = (now_ms, now_ms + 5000, -1, now_ms - 5000, now_ms)
        records = [Record(i, time_ms, None, b"v") for i, time_ms in enumerate(times)]
        await broker.create(
            "t", message_timestamp_before_max_ms=4000, message_timestamp_after_max_ms=4000
        )
        answer = await broker.produce("t", build_batch(records, codec=codec))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
        assert [each.batch_index for each in answer.record_errors] == [1, 3]
        for error, time_ms in zip(answer.record_errors, (times[1], times[3]), strict=True):
            assert str(time_ms) in error.batch_index_error_message


@pytest.mark.parametrize("magic", [0, 1])
@in_loop
async def test_old_formats_are_not_written(memory_path: Path, magic: int) -> None:
    batch = bytearray(batch_of([b"a" * 100]))
    batch[16] = magic
    async with in_process(memory_path) as broker:
        await broker.create("t")
        answer = await broker.produce("t", bytes(batch))
        assert answer.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize(
    ("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)]
)
@in_loop
async def test_zstd_needs_a_version_that_knows_it(
    memory_path: Path, version: int, code: ErrorCode
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        batch = batch_of([b"a"], codec=Codec.ZSTD)
        answer = await broker.produce("t", batch, version=version)
        assert answer.error_code == code


@in_loop
async def test_kafkas_own_topics_are_not_for_clients(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("__consumer_offsets")
        answer = await broker.produce("__consumer_offsets", batch_of([b"a"]))
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        request = produce_request("__consumer_offsets", batch_of([b"a"]))
        response = await broker.ask(request, 9, client_id="__admin_client")
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


@in_loop
async def test_an_idempotent_producer(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")

        async def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
            batch = batch_of(
                [b"a", b"b"], producer_id=9, producer_epoch=epoch, base_sequence=sequence
            )
            answer = await broker.produce("t", batch)
            return answer.error_code, answer.base_offset

        assert await send(0) == (0, 0)
        assert await send(2) == (0, 2)
        assert await send(0) == (0, 0)
        assert await send(2) == (0, 2)
        assert await send(6) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert await send(4) == (0, 4)
        assert await send(0, epoch=1) == (0, 6)
        assert (await send(2, epoch=0))[0] == ErrorCode.INVALID_PRODUCER_EPOCH


@in_loop
async def test_flush_messages_is_waited_for_beside_the_loop(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", flush_messages=1)
        partition = broker.node.replica_manager.get("t", 0)
        waiting = [
            broker.begin(produce_request("t", batch_of([b"%d" % i]), acks=acks), 9)
            for i, acks in enumerate([-1, 1, -1, 1])
        ]
        assert partition.log.log_end_offset == 4
        assert partition.high_watermark == 0, "visible before it is durable"
        results = [await each.result for each in waiting]
        offsets = [r.responses[0].partition_responses[0].base_offset for r in results]
        assert offsets == [0, 1, 2, 3]
        assert partition.high_watermark == partition.log.recovery_point == 4


@pytest.mark.interpreted
@in_loop
async def test_a_disk_that_fails_is_an_error_of_those_who_wait(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", flush_messages=1)
        partition = broker.node.replica_manager.get("t", 0)

        def fail(then: object = None) -> None:
            assert callable(then)
            asyncio.get_running_loop().call_soon(then, OSError("the disk is gone"))

        partition.log.flush = fail  # type: ignore[method-assign, assignment]
        answer = await broker.produce("t", batch_of([b"a"]))
        del partition.log.flush
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.high_watermark == 0


@pytest.mark.interpreted
@in_loop
async def test_an_append_that_takes_too_long_times_out(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", flush_messages=1)
        partition = broker.node.replica_manager.get("t", 0)
        flush = partition.log.flush
        partition.log.flush = lambda then: None  # type: ignore[method-assign, assignment, misc]
        request = produce_request("t", batch_of([b"a"]))
        request.timeout_ms = 20
        response = await broker.ask(request, 9)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        partition.log.flush = flush  # type: ignore[method-assign]


@in_loop
async def test_too_few_replicas_write_nothing(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        partition = broker.node.replica_manager.get("t", 0)
        partition.leader.replicas = (1, 2)
        partition.leader.min_insync_replicas = 2
        answer = await broker.produce("t", batch_of([b"a"]))
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log.log_end_offset == 0
        assert (await broker.produce("t", batch_of([b"a"]), acks=1)).error_code == ErrorCode.NONE


@in_loop
async def test_a_min_isr_above_the_replicas_forbids_nothing(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", min_insync_replicas=2)
        assert (await broker.produce("t", batch_of([b"a"]))).error_code == ErrorCode.NONE


@in_loop
async def test_a_partition_led_elsewhere_names_its_leader(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        node = broker.node
        node.replica_manager.applier.end(node.replica_manager.get("t", 0))
        answer = await broker.produce("t", batch_of([b"a"]), version=10)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader is not None
        assert answer.current_leader.leader_id == 1
        response = await broker.ask(produce_request("t", batch_of([b"a"])), 10)
        (endpoint,) = response.node_endpoints
        assert (endpoint.node_id, endpoint.port) == (1, broker.owner.bound_address[1])


@pytest.mark.interpreted
@in_loop
async def test_stopping_answers_those_who_wait(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", flush_messages=1)
        partition = broker.node.replica_manager.get("t", 0)
        flush = partition.log.flush
        partition.log.flush = lambda then: None  # type: ignore[method-assign, assignment, misc]
        waiting = broker.begin(produce_request("t", batch_of([b"a"])), 9)
        await asyncio.sleep(0)
        task = asyncio.ensure_future(waiting.result)
        await asyncio.sleep(0)
        partition.log.flush = flush  # type: ignore[method-assign]
        broker.node.replica_manager.stop()
        response = await task
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
