"""A connection: however its bytes come, the same answers in the same order, and never too much in memory."""

import asyncio
import struct
import zlib
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.server import connection as limits
from kafka_ds.protocol.errors import ErrorCode
from tests.unit.server.net_harness import (
    Harness,
    answers,
    api_versions,
    feed,
    fetch,
    frame,
    ids,
    metadata,
    produce,
    settle,
    with_version,
)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


STREAM = [
    api_versions(1),
    metadata(2),
    produce(3, b"abc"),
    produce(4, b"silent", acks=0),
    api_versions(5, 4),
    with_version(api_versions(6), 77),
    produce(7, bytes(range(256)) * 3),
]
ANSWERED = [1, 2, 3, 5, 6, 7]


def test_every_split_in_two_gives_the_same_answers() -> None:
    async def test() -> None:
        stream = b"".join(STREAM)
        connection, whole = Harness().connect()
        feed(connection, stream)
        assert ids(whole) == ANSWERED
        for split in range(len(stream) + 1):
            connection, transport = Harness().connect()
            feed(connection, stream[:split])
            feed(connection, stream[split:])
            assert transport.written == whole.written, split

    run(test())


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 10, 5_000, 65_400, 70_000, 300_000, 4_300_000]), max_size=4),
    chunks=st.lists(st.sampled_from([1, 2, 3, 5, 17, 1_000, 65_535, 65_536, 400_000]), min_size=1),
    loops=st.integers(1, 2),
)
def test_requests_of_all_sizes_in_any_chunks(
    sizes: list[int], chunks: list[int], loops: int
) -> None:
    async def test() -> None:
        harness = Harness()
        connections = [harness.connect() for _ in range(loops)]
        records = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
        stream = b"".join(
            api_versions(100 + number) + produce(number, data)
            for number, data in enumerate(records)
        )
        position, turn = 0, 0
        while position < len(stream):
            count = max(chunks[turn % len(chunks)], len(stream) // 5_000)
            for connection, _ in connections:  # interleaved: they share what they receive into
                feed(connection, stream[position : position + count])
            position += count
            turn += 1
        for _, transport in connections:
            bodies = answers(transport.written)
            assert [i for i, _ in bodies] == [
                i for number in range(len(sizes)) for i in (100 + number, number)
            ]
            sums = [struct.unpack_from(">iihq", body, 7)[3] for _, body in bodies[1::2]]
            assert sums == [zlib.crc32(data) for data in records]

    run(test())


def test_a_waiting_request_holds_up_only_those_behind_it() -> None:
    async def test() -> None:
        harness = Harness()
        first, first_transport = harness.connect()
        second, second_transport = harness.connect()
        feed(first, api_versions(1) + fetch(2) + api_versions(3) + metadata(4))
        await settle()
        assert ids(first_transport) == [1]
        assert harness.handlers.begun == ["ApiVersions", "Fetch"]
        feed(second, api_versions(9))
        assert ids(second_transport) == [9]
        harness.handlers.waiting[0].set_result(0)
        await settle()
        assert ids(first_transport) == [1, 2, 3, 4]

    run(test())


def test_pipelined_requests_begin_at_once_and_are_answered_in_order() -> None:
    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        feed(connection, b"".join(produce(i, acks=-1) for i in (1, 2, 3)))
        feed(connection, produce(4, acks=1) + produce(5, acks=0) + api_versions(6))
        await settle()
        assert harness.handlers.begun == ["Produce"] * 5
        assert ids(transport) == []
        waiting = harness.handlers.waiting
        waiting[1].set_result(None)
        waiting[2].set_result(None)
        await settle()
        assert ids(transport) == []
        waiting[0].set_result(None)
        await settle()
        assert ids(transport) == [1, 2, 3, 4, 6]

    run(test())


def test_answers_of_one_turn_are_one_write() -> None:
    async def test() -> None:
        connection, transport = Harness().connect()
        feed(connection, b"".join(api_versions(i) for i in range(20)))
        assert ids(transport) == list(range(20))
        assert transport.writes == 1

    run(test())


def test_a_burst_is_served_in_turns() -> None:
    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        count = 3 * limits.REQUESTS_PER_TURN_MAX + 1
        feed(connection, b"".join(api_versions(i) for i in range(count)))
        assert len(ids(transport)) == limits.REQUESTS_PER_TURN_MAX
        await settle()
        assert ids(transport) == list(range(count))

    run(test())


def test_reading_pauses_while_too_much_is_unanswered() -> None:
    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        feed(connection, fetch(0))
        assert transport.is_reading
        feed(
            connection, b"".join(api_versions(i) for i in range(1, limits.UNANSWERED_REQUESTS_MAX))
        )
        assert not transport.is_reading
        await settle()
        harness.handlers.waiting[0].set_result(0)
        await settle()
        assert transport.is_reading
        assert ids(transport) == list(range(limits.UNANSWERED_REQUESTS_MAX))
        feed(connection, fetch(0) + produce(1, bytes(limits.UNANSWERED_BYTES_MAX)))
        assert not transport.is_reading
        await settle()
        harness.handlers.waiting[1].set_result(0)
        await settle()
        assert transport.is_reading

    run(test())


def test_what_has_begun_and_is_not_answered_counts_too() -> None:
    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        half = limits.UNANSWERED_BYTES_MAX // 2
        for number in range(2):
            assert transport.is_reading
            feed(connection, produce(number, bytes(half), acks=-1))
        assert harness.handlers.begun == ["Produce"] * 2
        assert not transport.is_reading
        harness.handlers.waiting[0].set_result(None)
        await settle()
        assert transport.is_reading
        feed(connection, produce(2, bytes(half), acks=-1) + produce(3, bytes(half), acks=0))
        assert not transport.is_reading
        for waiting in harness.handlers.waiting[1:]:
            waiting.set_result(None)
        await settle()
        assert ids(transport) == [0, 1, 2]
        assert transport.is_reading and not connection.unanswered_bytes

    run(test())


def test_a_peer_that_does_not_read_gets_nothing_begun() -> None:
    async def test() -> None:
        harness = Harness()
        harness.handlers.metadata_bytes = 400_000
        connection, transport = harness.connect()
        transport.is_slow = True
        feed(connection, b"".join(metadata(i) for i in range(50)))
        await settle()
        begun = len(harness.handlers.begun)
        assert begun * 400_000 <= limits.UNSENT_BYTES_MAX + limits.FLUSH_BYTES + 400_000
        assert not transport.is_reading
        connections = harness.server.connections
        assert connections.unsent_bytes == transport.unsent > limits.UNSENT_BYTES_MAX
        other, waiting = harness.connect()
        waiting.is_slow = True
        feed(other, b"".join(metadata(i) for i in range(50)))
        assert connections.unsent_bytes == transport.unsent + waiting.unsent
        other.abort()
        await settle()
        assert connections.unsent_bytes == transport.unsent
        for _ in range(40):
            transport.let_go()
            await settle()
        assert ids(transport) == list(range(50))
        assert transport.is_reading
        assert connections.unsent_bytes == 0

    run(test())


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (struct.pack(">i", -1), "a request of -1 bytes"),
        (struct.pack(">i", 0), "a request of 0 bytes"),
        (struct.pack(">i", 1_000_001), "more than socket.request.max.bytes=1000000"),
        (b"GET / HTTP/1.1\r\n\r\n", "the client sends an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "the client begins a TLS handshake"),
        (frame(struct.pack(">hhih", 9999, 0, 1, -1)), "unknown API key 9999"),
        (frame(struct.pack(">hhih", 11, 0, 1, -1)), "unsupported API key 11"),
        (frame(struct.pack(">hhih", 3, 99, 1, -1)), "unsupported version 99 of Metadata"),
        (frame(b"\x00"), "request header"),
        (frame(struct.pack(">hhih", 18, 0, 1, 500)), "client id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_kafka_closes_this_connection_only(
    sent: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        harness = Harness("socket.request.max.bytes=1000000")
        bad, bad_transport = harness.connect()
        good, good_transport = harness.connect()
        with caplog.at_level("INFO"):
            feed(bad, api_versions(1) + sent)
        assert ids(bad_transport) == [1]
        assert bad_transport.closing
        assert [record.levelname for record in caplog.records] == ["INFO"]
        assert words in caplog.text
        assert "10.0.0.1:5" in caplog.text
        assert "Traceback" not in caplog.text
        await settle()
        feed(good, api_versions(2))
        assert ids(good_transport) == [2]
        assert len(harness.server.connections) == 1
        assert harness.metrics.malformed == 1

    run(test())


def test_bytes_behind_a_request_are_not_looked_at() -> None:
    """As in Kafka: kafka-go ends DescribeAcls with its tagged fields twice, and librdkafka has its like."""

    async def test() -> None:
        connection, transport = Harness().connect()
        feed(connection, frame(api_versions(1)[4:] + bytes(3)) + api_versions(2))
        assert ids(transport) == [1, 2]

    run(test())


def test_memory_is_taken_as_bytes_come_not_as_they_are_promised() -> None:
    async def test() -> None:
        connection, _ = Harness().connect()
        feed(connection, struct.pack(">i", 100_000_000) + bytes(1000))
        assert len(connection.get_buffer(-1)) <= 4 << 20

    run(test())


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    async def test() -> None:
        connection, transport = Harness().connect()
        feed(connection, with_version(api_versions(5, 4), 99))
        [(correlation_id, body)] = answers(transport.written)
        assert correlation_id == 5
        assert struct.unpack(">hihhh", body) == (ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 4)

    run(test())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_is_answered_in_its_own_words(version: int) -> None:
    async def test() -> None:
        connection, transport = Harness().connect()
        new = produce(6, b"abc")
        body = new[4:]  # key, version, correlation id, client id, then the transactional id of 3+
        header, rest = body[: 8 + 2 + 1], body[8 + 2 + 1 + 2 :]
        feed(connection, with_version(frame(header + rest), version))
        [(_, answer)] = answers(transport.written)
        topics, name_length = struct.unpack_from(">ih", answer)
        assert (topics, name_length, answer[6:7]) == (1, 1, b"t")
        partitions, index, error, base = struct.unpack_from(">iihq", answer, 7)
        assert (partitions, index, error, base) == (1, 0, ErrorCode.UNSUPPORTED_VERSION, -1)
        rest_size = {0: 0, 1: 4, 2: 12}[version]
        assert len(answer) == 7 + 18 + rest_size

    run(test())


def test_what_a_handler_raises_is_answered_where_it_can_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from kafka_ds.protocol.frame import encode_request
    from kafka_ds.protocol.messages import (
        DescribeClusterRequest,
        InitProducerIdRequest,
        ProduceRequest,
    )

    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        init = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        feed(connection, encode_request(init, 0, 1, "x"))
        [(_, body)] = answers(transport.written)
        assert struct.unpack(">ihqh", body) == (0, ErrorCode.INVALID_REQUEST, -1, -1)
        assert harness.metrics.apis[22].errors == {"INVALID_REQUEST": 1}
        assert "Traceback" not in caplog.text

        feed(
            connection,
            encode_request(
                DescribeClusterRequest(include_cluster_authorized_operations=False), 0, 2, "x"
            ),
        )
        assert answers(transport.written)[1][0] == 2
        assert "ZeroDivisionError" in caplog.text
        assert not transport.closing

        produce = ProduceRequest(acks=0, timeout_ms=1, topic_data=[])
        feed(connection, encode_request(produce, 9, 3, "x"))
        assert transport.closing  # nobody awaits an answer that could say what is wrong
        assert len(answers(transport.written)) == 2

    run(test())


def test_a_handler_that_fails_while_waiting() -> None:
    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        feed(connection, fetch(1))
        await settle()
        harness.handlers.waiting[0].set_exception(ZeroDivisionError())
        await settle()
        assert [correlation_id for correlation_id, _ in answers(transport.written)] == [1]
        assert not transport.closing
        assert harness.metrics.apis[1].errors == {"UNKNOWN_SERVER_ERROR": 1}

    run(test())


def test_an_error_that_a_handler_answers_is_counted() -> None:
    """At once or after it has waited."""
    from kafka_ds.protocol.frame import encode_request
    from kafka_ds.protocol.messages import FetchRequest

    async def test() -> None:
        harness = Harness()
        connection, _ = harness.connect()
        for error in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR):
            harness.handlers.error = error
            fetching = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[])
            feed(connection, api_versions(1) + encode_request(fetching, 7, 2, None))
            await settle()
            harness.handlers.waiting.pop().set_result(0)
            await settle()
        counted = {api: harness.metrics.apis[api].errors for api in (1, 18)}
        assert counted == {1: {"KAFKA_STORAGE_ERROR": 1}, 18: {"KAFKA_STORAGE_ERROR": 1}}

    run(test())


def test_who_goes_away_leaves_nothing_behind() -> None:
    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        feed(connection, fetch(1) + api_versions(2) + api_versions(3)[:7])
        await settle()
        connection.connection_lost(ConnectionResetError())
        await settle()
        assert harness.handlers.cancelled == 1
        assert not harness.server.connections
        assert harness.metrics.connections == 0
        assert ids(transport) == []

    run(test())


def test_half_closed_is_answered_and_then_closed() -> None:
    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        feed(connection, fetch(1) + api_versions(2))
        assert connection.eof_received()
        await settle()
        harness.handlers.waiting[0].set_result(0)
        await settle()
        assert ids(transport) == [1, 2]
        assert transport.closing
        idle, _ = harness.connect()
        assert not idle.eof_received()  # nothing to say: the transport closes

    run(test())


def test_draining_answers_what_was_begun() -> None:
    async def test() -> None:
        harness = Harness()
        waiting, waiting_transport = harness.connect()
        _, idle_transport = harness.connect()
        feed(waiting, fetch(1) + api_versions(2))
        await settle()
        stopping = asyncio.ensure_future(harness.server.stop())
        await settle()
        assert idle_transport.closing and not waiting_transport.closing
        assert not stopping.done()
        harness.handlers.waiting[0].set_result(0)
        await stopping
        assert ids(waiting_transport) == [1]
        late, late_transport = harness.connect()
        assert late_transport.closing

    run(test())


def test_who_is_too_many_is_refused() -> None:
    async def test() -> None:
        harness = Harness("max.connections=3", "max.connections.per.ip=2")
        transports = [harness.connect(host)[1] for host in ("a", "a", "a", "b", "c")]
        assert [transport.closing for transport in transports] == [
            False, False, True, False, True,
        ]  # fmt: skip
        assert harness.metrics.connections_refused == 2
        transports[0].close()
        await settle()
        assert not harness.connect("a")[1].closing

    run(test())


def test_who_is_silent_is_closed_and_who_speaks_is_not() -> None:
    async def test() -> None:
        harness = Harness("connections.max.idle.ms=400")
        silent, silent_transport = harness.connect()
        busy, busy_transport = harness.connect()
        await harness.server.serve(harness.dispatcher)
        for number in range(16):
            feed(busy, api_versions(number))
            await asyncio.sleep(0.05)
        assert silent_transport.closing
        assert not busy_transport.closing
        assert harness.metrics.connections_idle == 1
        await harness.server.stop()

    run(test())


def test_who_reads_a_large_answer_slowly_is_not_silent() -> None:
    async def test() -> None:
        harness = Harness("connections.max.idle.ms=400")
        harness.handlers.metadata_bytes = 400_000
        connections = harness.server.connections
        connection, transport = harness.connect()
        transport.is_slow = True
        feed(connection, b"".join(metadata(i) for i in range(5)))
        for _ in range(20):
            transport.unsent -= 1_000
            connections.on_tick()
            assert connections.unsent_bytes == transport.unsent > limits.UNSENT_BYTES_MAX
        assert not transport.closing
        for _ in range(20):
            connections.on_tick()
        assert transport.closing

    run(test())


def test_what_a_handler_keeps_is_not_overwritten() -> None:
    """A slice of a large request stays as it was, although the memory of answered requests is used again."""

    async def test() -> None:
        harness = Harness()
        kept = harness.handlers.kept = []
        connection, transport = harness.connect()
        for number in range(4):
            feed(connection, produce(number, bytes([number]) * 200_000))
        assert [bytes(view) for view in kept] == [bytes([n]) * 200_000 for n in range(4)]
        harness.handlers.kept = None
        kept.clear()
        feed(connection, produce(9, bytes([9]) * 200_000))
        assert harness.server.connections.pool.free_bytes > 0
        assert len(ids(transport)) == 5

    run(test())
