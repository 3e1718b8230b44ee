"""Many clients with one request in flight each: ``python -m tests.bench.load requests`` and ``commits``.

One process, epoll, requests that were made beforehand: some 10 µs of CPU a request, a fraction of a broker's. Each
answer is compared with the expected bytes up to its error code.
"""

from __future__ import annotations

import argparse
import os
import select
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import encode_request, encode_response
from kafka_ds.protocol.messages import (
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    ProduceRequest,
    ProduceResponse,
)
from kafka_ds.protocol.messages.data import (
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kafka_ds.records.batch import Record, build_batch
from tests.integration.raw_client import RawClient
from tests.processes import wait_until

PRODUCE_VERSION = 11
COMMIT_VERSION = 8
CORRELATION_ID = 7
ANSWER_BYTES_MAX = 4096
SILENCE_S_MAX = 30.0


class _Exchange(NamedTuple):
    """What a client sends again and again, and how each answer begins."""

    request: bytes
    answer: bytes


def requests(options: argparse.Namespace) -> dict[str, Any]:
    """One record a request, acks=all, each client to a partition of its own or shared."""
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([Record(0, now_ms, None, bytes(options.size))])

    def request(client: int) -> ProduceRequest:
        data = PartitionProduceData(index=client % options.partitions, records=batch)
        topic = TopicProduceData(name=options.topic, partition_data=[data])
        return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])

    def exchange(client: int) -> _Exchange:
        place = client % options.partitions
        answers = [
            ProduceResponse(
                responses=[
                    TopicProduceResponse(
                        name=options.topic,
                        partition_responses=[
                            PartitionProduceResponse(index=place, base_offset=base_offset)
                        ],
                    )
                ]
            )
            for base_offset in (0, -1)
        ]
        return _exchange(request(client), PRODUCE_VERSION, answers)

    def code(answer: ProduceResponse) -> int:
        return answer.responses[0].partition_responses[0].error_code

    with RawClient(options.bootstrap) as one:
        _accepted(
            one, [request(client) for client in range(options.clients)], PRODUCE_VERSION, code
        )
    return _run([exchange(client) for client in range(options.clients)], options)


def commits(options: argparse.Namespace) -> dict[str, Any]:
    """One offset a request, each client in a group of its own."""

    def request(client: int) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(
            partition_index=client % options.partitions, committed_offset=1, committed_metadata=""
        )
        topic = OffsetCommitRequestTopic(name=options.topic, partitions=[partition])
        return OffsetCommitRequest(group_id=f"group-{client}", member_id="", topics=[topic])

    def exchange(client: int) -> _Exchange:
        partition = OffsetCommitResponsePartition(
            partition_index=client % options.partitions, error_code=ErrorCode.NONE
        )
        topic = OffsetCommitResponseTopic(name=options.topic, partitions=[partition])
        answer = OffsetCommitResponse(topics=[topic])
        return _exchange(request(client), COMMIT_VERSION, [answer])

    def code(answer: OffsetCommitResponse) -> int:
        return answer.topics[0].partitions[0].error_code

    with RawClient(options.bootstrap) as one:
        # Who asks for the coordinator has its topic made.
        one.ask(FindCoordinatorRequest(key="group-0", key_type=0), 2)
        _accepted(one, [request(client) for client in range(options.clients)], COMMIT_VERSION, code)
    return _run([exchange(client) for client in range(options.clients)], options)


def _accepted(
    one: RawClient, wanted: Sequence[Any], version: int, code: Callable[[Any], int]
) -> None:
    """Wait until each of these requests succeeds: leaders and coordinators take a while."""
    for request in wanted:

        def is_done(request: Any = request) -> bool:
            return code(one.ask(request, version)) == ErrorCode.NONE

        wait_until("a leader", is_done, timeout_s=120, every_s=0.05)


def _exchange(request: Any, version: int, answers: Sequence[Any]) -> _Exchange:
    """`answers` differ behind what is compared, if at all."""
    encoded = [b"".join(encode_response(each, version, CORRELATION_ID)) for each in answers]
    expected = os.path.commonprefix(encoded)
    return _Exchange(encode_request(request, version, CORRELATION_ID, "bench"), expected)


def _run(exchanges: Sequence[_Exchange], options: argparse.Namespace) -> dict[str, Any]:
    """Send each client's next request when its last one is answered, for so many seconds."""
    clock = time.perf_counter
    times: list[float] = []
    with ExitStack() as stack:
        epoll = stack.enter_context(select.epoll())
        clients = [stack.enter_context(RawClient(options.bootstrap)) for _ in exchanges]
        by_fd = {}
        for one, exchange in zip(clients, exchanges, strict=True):
            epoll.register(one.socket, select.EPOLLIN)
            by_fd[one.socket.fileno()] = (one.socket.recv, one.socket.send, exchange)
        used, began = time.process_time(), clock()
        ends = began + options.seconds
        sent = dict.fromkeys(by_fd, began)
        for _, send, exchange in by_fd.values():
            send(exchange.request)
        now = began
        while now < ends:
            ready = epoll.poll(SILENCE_S_MAX)
            if not ready:
                raise RuntimeError(f"nothing came for {SILENCE_S_MAX} s")
            for fd, _ in ready:
                receive, send, (request, expected) = by_fd[fd]
                answer = receive(ANSWER_BYTES_MAX)
                if not answer.startswith(expected):
                    raise RuntimeError(f"{answer.hex()} came instead of {expected.hex()}")
                now = clock()
                times.append(now - sent[fd])
                sent[fd] = now
                send(request)
        wall = clock() - began
        used = time.process_time() - used
    cuts = statistics.quantiles(times, n=1000)
    return {
        "wall_s": wall,
        "requests": len(times),
        "requests_s": len(times) / wall,
        "p50_us": cuts[499] * 1e6,
        "p99_us": cuts[989] * 1e6,
        "client_us": used / len(times) * 1e6,
    }
