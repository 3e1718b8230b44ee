"""One client at work, as a process of its own: ``python -m tests.bench.load what …``.

Prints one line of JSON. librdkafka's settings are the same for both sides; ``fetch.queue.backoff.ms`` is low, since at
its default the client sleeps a second whenever 100,000 records are queued.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from kafka_ds.protocol.frame import decode_response
from kafka_ds.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ProduceRequest,
)
from kafka_ds.protocol.messages.data import (
    FetchPartition,
    FetchTopic,
    PartitionProduceData,
    TopicProduceData,
)
from kafka_ds.protocol.messages.offsets import (
    EARLIEST_LOCAL,
    ListOffsetsPartition,
    ListOffsetsTopic,
)
from kafka_ds.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    Codec,
    Record,
    build_batch,
    read_header,
)
from tests.bench.small_load import commits, requests
from tests.integration.raw_client import RawClient

__all__ = ["commits", "requests"]

CHUNK = 10_000
ANSWER_MS_MAX = 30_000
# As many requests as Kafka's clients have on their way.
IN_FLIGHT_MAX = 5
# Larger than any codec's window, so that no record repeats within reach of it.
TEXT_BYTES = 16 << 20


def words(size: int) -> bytes:
    """Text of random words, which compresses about as much as JSON does."""
    lots = random.Random(7)
    known = [bytes(lots.choices(b"abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(2000)]
    return b" ".join(lots.choices(known, k=size // 7 + 1))[:size]


def way_in(options: argparse.Namespace) -> dict[str, str]:
    """Where the broker is, and how it is spoken to."""
    if not options.tls:
        return {"bootstrap.servers": options.bootstrap}
    return {
        "bootstrap.servers": options.tls,
        "security.protocol": "ssl",
        "ssl.ca.location": options.authority,
    }


def produce(options: argparse.Namespace) -> dict[str, Any]:
    failures = 0

    def delivered(error: object, _message: object) -> None:
        nonlocal failures
        failures += error is not None

    producer = Producer(
        {
            **way_in(options),
            "acks": "all",
            "linger.ms": 5,
            "batch.size": options.batch,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 512_000,
        }
    )
    producer.list_topics(options.topic, timeout=20)
    text = words(TEXT_BYTES)
    starts = range(0, len(text) - options.size, options.size)
    began, began_at = time.perf_counter(), time.monotonic()
    for i in range(options.count):
        start = starts[i % len(starts)]
        value = text[start : start + options.size]
        while True:
            try:
                producer.produce(options.topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if not i % 1000:
            producer.poll(0)
    producer.flush(120)
    wall = time.perf_counter() - began
    if failures:
        raise RuntimeError(f"{failures} records were not acknowledged")
    return {"began": began_at, "wall_s": wall, "records_s": options.count / wall}


def offer(options: argparse.Namespace) -> dict[str, Any]:
    """Batches that were made beforehand, at a steady rate: a producer of no cost of its own, as on another machine.

    Where the broker does not take them so fast they are sent late. `began` is by the machine's monotonic clock.
    """
    text = words(TEXT_BYTES)
    values = [
        text[start : start + options.size]
        for start in range(0, len(text) - options.size, options.size)
    ]
    a_batch = max(1, options.batch // options.size)
    now_ms = time.time_ns() // 1_000_000
    requests = []
    for first in range(0, len(values) - a_batch, a_batch):
        records = [
            Record(at, now_ms, None, each)
            for at, each in enumerate(values[first : first + a_batch])
        ]
        batch = build_batch(records, codec=Codec[options.codec.upper()])
        partition = PartitionProduceData(index=0, records=batch)
        topic = TopicProduceData(name=options.topic, partition_data=[partition])
        requests.append(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]))
    seconds_each = a_batch * options.size / (options.rate * 1e6)
    asked_for = max(1, options.count // a_batch)
    sent = answered = 0
    used = time.process_time()
    with RawClient(options.bootstrap) as one:
        began = time.monotonic()
        while answered < asked_for:
            wait_s = began + sent * seconds_each - time.monotonic()
            if sent < asked_for and sent - answered < IN_FLIGHT_MAX and wait_s <= 0:
                one.send(requests[sent % len(requests)], 9)
                sent += 1
            elif sent > answered:
                done = one.receive(requests[answered % len(requests)], 9)
                error = done.responses[0].partition_responses[0].error_code
                if error:
                    raise RuntimeError(f"error {error} after {answered} batches")
                answered += 1
            else:
                time.sleep(wait_s)
        wall = time.monotonic() - began
    return {
        "began": began,
        "wall_s": wall,
        "records": answered * a_batch,
        "mb_s": answered * a_batch * options.size / wall / 1e6,
        "cpu_s": time.process_time() - used,
    }


def consume(options: argparse.Namespace) -> dict[str, Any]:
    consumer = Consumer(
        {
            **way_in(options),
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": 262_144,
            "fetch.message.max.bytes": 4 << 20,
        }
    )
    partitions = list(
        consumer.list_topics(options.topic, timeout=20).topics[options.topic].partitions
    )
    consumer.assign([TopicPartition(options.topic, p, OFFSET_BEGINNING) for p in partitions])
    count = size = 0
    first = 0.0
    began = time.perf_counter()
    while count < options.count:
        messages = consumer.consume(min(CHUNK, options.count - count), timeout=30)
        if not messages:
            raise RuntimeError(f"nothing came for 30 s after {count} records")
        first = first or time.perf_counter()
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
        count += len(messages)
        size += sum(len(message) for message in messages)
    wall = time.perf_counter() - began
    consumer.close()
    return {
        "wall_s": wall,
        "records_s": count / wall,
        "mb_s": size / wall / 1e6,
        "first_s": first - began,
    }


def drain(options: argparse.Namespace) -> dict[str, Any]:
    """The throughput of a consumer without costs of its own: one connection, one fetch at a time, only headers read.

    A client that makes an object of each record is slower than the broker that it measures.
    """
    times: list[float] = []
    with RawClient(options.bootstrap) as one:
        place = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=options.fetch)
        topic = FetchTopic(topic=options.topic, partitions=[place])
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=50 << 20,
            topics=[topic],
            forgotten_topics_data=[],
        )
        count = offset = size = 0
        used, began = time.process_time(), time.perf_counter()
        while count < options.count:
            asked = time.perf_counter()
            data = one.ask(request, 12).responses[0].partitions[0]
            if data.error_code:
                raise RuntimeError(f"error {data.error_code} at {offset}")
            times.append((time.perf_counter() - asked) * 1e3)
            if times[-1] > ANSWER_MS_MAX:
                raise RuntimeError(f"nothing came for {times[-1]:.0f} ms after {count} records")
            records = memoryview(data.records or b"")
            size += len(records)
            position = 0
            while position + HEADER_BYTES <= len(records):
                header = read_header(records, position)
                position += header.batch_length + LOG_OVERHEAD_BYTES
                if position > len(records):
                    break  # Kafka sends what fits, the last batch cut.
                if header.base_offset > offset:
                    raise RuntimeError(f"{header.base_offset} came where {offset} should")
                offset, count = header.next_offset, count + header.record_count
            place.fetch_offset = offset
        wall = time.perf_counter() - began
    return {
        "wall_s": wall,
        "mb_s": count * options.size / wall / 1e6,
        "wire_mb_s": size / wall / 1e6,
        "asked": len(times),
        "cpu_s": time.process_time() - used,
        "answer_p50_ms": statistics.median(times),
        "answer_max_ms": max(times),
    }


def fan_out(options: argparse.Namespace) -> dict[str, Any]:
    """Readers of all records of a topic, each with a connection of its own, at the same time."""
    with ThreadPoolExecutor(options.readers) as threads:
        began = time.perf_counter()
        for each in [threads.submit(_read_all, options) for _ in range(options.readers)]:
            each.result()
        wall = time.perf_counter() - began
    return {"wall_s": wall, "mb_s": options.readers * options.count * options.size / wall / 1e6}


def _read_all(options: argparse.Namespace) -> None:
    """Read as Java's client asks with its defaults; of what comes only headers are looked at."""
    places = [
        FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=options.fetch)
        for each in range(options.partitions)
    ]
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic=options.topic, partitions=places)],
        forgotten_topics_data=[],
    )
    count, buffer = 0, memoryview(bytearray(64 << 20))
    with RawClient(options.bootstrap) as one:
        one.socket.settimeout(None)
        while count < options.count:
            one.send(request, 12)
            size, got = int.from_bytes(one.receive_exactly(4), "big"), 0
            while got < size:
                got += one.socket.recv_into(buffer[got:size], size - got, socket.MSG_WAITALL)
            _, response = decode_response(FetchResponse, buffer[:size], 12)
            for data in response.responses[0].partitions:
                if data.error_code:
                    raise RuntimeError(f"error {data.error_code} in {data.partition_index}")
                place, position = places[data.partition_index], 0
                while position + HEADER_BYTES <= len(data.records):
                    header = read_header(data.records, position)
                    position += header.batch_length + LOG_OVERHEAD_BYTES
                    if position <= len(data.records):
                        place.fetch_offset = header.next_offset
                        count += header.record_count


def pingpong(options: argparse.Namespace) -> dict[str, Any]:
    """One record at a time: the next is sent when the last one is acknowledged. Percentiles in microseconds."""
    acknowledged = False

    def delivered(error: object, _message: object) -> None:
        nonlocal acknowledged
        if error is not None:
            raise RuntimeError(str(error))
        acknowledged = True

    producer = Producer({"bootstrap.servers": options.bootstrap, "acks": "all", "linger.ms": 0})
    value = bytes(options.size)
    times = []
    for i in range(options.count):
        acknowledged = False
        began = time.perf_counter()
        producer.produce(options.topic, value, partition=0, on_delivery=delivered)
        while not acknowledged:
            producer.poll(1)
        if i >= options.count // 10:
            times.append((time.perf_counter() - began) * 1e6)
    cuts = statistics.quantiles(times, n=1000)
    return {"p50_us": cuts[499], "p99_us": cuts[989], "p999_us": cuts[998]}


def first(options: argparse.Namespace) -> dict[str, Any]:
    """Until the first record is acknowledged by a broker that is just starting."""
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 10,
            # The first topic makes itself: on busy cores a JVM takes longer for it than the client's 30 s.
            "topic.metadata.propagation.max.ms": 180_000,
            "log_level": 0,
        }
    )
    done: list[object] = []
    producer.produce(options.topic, b"x" * 100, on_delivery=lambda e, m: done.append(e))
    deadline = time.monotonic() + 180  # A JVM on cores that others use takes its time.
    while not done and time.monotonic() < deadline:
        producer.poll(0.005)
    # Its errors cannot be compared with None.
    if not done or done[0] is not None:
        raise RuntimeError(f"the first record was not acknowledged: {[str(each) for each in done]}")
    return {"at": time.time()}


def reach(options: argparse.Namespace) -> dict[str, Any]:
    """Fetches at random offsets that are only in the lake: milliseconds to the first byte of an answer with records.

    If an answer has no records (the lake was not in time), the fetch is repeated, as clients do; its time counts.
    """
    lots = random.Random(7)
    times: list[float] = []
    with RawClient(options.bootstrap) as one:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST_LOCAL)
        topics = [ListOffsetsTopic(name=options.topic, partitions=[wanted])]
        found = one.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 8)
        end = found.topics[0].partitions[0].offset
        if end <= 0:
            raise RuntimeError(f"{options.topic} has nothing that is in the lake alone")
        for _ in range(options.count + options.count // 10):
            place = FetchPartition(
                partition=0, fetch_offset=lots.randrange(end), partition_max_bytes=1 << 20
            )
            topic = FetchTopic(topic=options.topic, partitions=[place])
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=50 << 20,
                topics=[topic],
                forgotten_topics_data=[],
            )
            began = time.perf_counter()
            while True:
                one.send(request, 12)
                one.socket.recv(1, socket.MSG_PEEK)
                came = time.perf_counter()
                data = one.receive(request, 12).responses[0].partitions[0]
                if data.error_code:
                    raise RuntimeError(f"error {data.error_code} at {place.fetch_offset}")
                if data.records:
                    break
            times.append((came - began) * 1e3)
    cuts = statistics.quantiles(times[options.count // 10 :], n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "what",
        choices=(
            *("produce", "offer", "consume", "drain", "fan_out", "pingpong"),
            *("first", "reach", "requests", "commits"),
        ),
    )
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1_000_000)
    parser.add_argument("--fetch", type=int, default=1 << 20, help="max.partition.fetch.bytes")
    parser.add_argument("--readers", type=int, default=1, help="fan_out: how many")
    parser.add_argument("--codec", default="none", help="offer: of the batches")
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s to offer")
    parser.add_argument("--tls", default="", help="where the broker is by TLS: produce, consume")
    parser.add_argument("--authority", default="", help="the file of who signed its certificate")
    parser.add_argument("--clients", type=int, default=1, help="requests, commits")
    parser.add_argument(
        "--partitions", type=int, default=1, help="requests, commits, fan_out: of the topic"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="requests, commits: how long")
    options = parser.parse_args()
    print(json.dumps(globals()[options.what](options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
