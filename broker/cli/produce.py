"""Shell: `kafka-ds produce`: produces a record for each line of standard input.

Available lines are sent at once, as one batch per partition, so a typed line is produced before the next is read, and a
pipe fills batches. The producer is idempotent. A key's partition is that of Java's producer; records without a key stay
with one partition for a batch (sticky).
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from broker.cli.options import ClusterTarget, CommandError, cluster_options, pairs
from broker.cli.output import note, progress
from kafka_ds.process.amounts import counted
from kafka_ds.process.settings import suggestion
from kafka_ds.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.client.producer import Producer
    from kafka_ds.client.producer_settings import ProducerSettings
    from kafka_ds.client.transactions import Identity

# How long a topic that does not exist may take to be created.
CREATION_SECONDS_MAX = 5.0
READ_BYTES = 256 * 1024
# A line is one record, and no broker's message.max.bytes is that large.
LINE_BYTES_MAX = 64 * 1024 * 1024
_ESCAPES = {"\\t": "\t", "\\0": "\0", "\\x1f": "\x1f"}

KeyedLine = tuple[bytes | None, bytes | None]


def lines_of(descriptor: int) -> Iterator[list[bytes]]:
    """Yields available lines as they arrive; the last line needs no newline. Raises CommandError."""
    rest = b""
    while data := os.read(descriptor, READ_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise CommandError(f"a line of standard input is longer than {LINE_BYTES_MAX} bytes")
        if whole:
            yield [line.removesuffix(b"\r") for line in whole]
    if rest:
        yield [rest]


def key_and_value(line: bytes, separator: bytes | None, null_marker: bytes | None) -> KeyedLine:
    """A line's key and value. Raises CommandError if the separator is missing."""
    key: bytes | None = None
    value: bytes | None = line
    if separator is not None:
        key, found, value = line.partition(separator)
        if not found:
            raise CommandError(
                f"a line has no --key-separator {separator.decode()!r}: {line[:60].decode(errors='replace')!r}"
            )
    if null_marker is not None:
        key = None if key == null_marker else key
        value = None if value == null_marker else value
    return key, value


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key. `kafka_ds.records.partitioner` hashes columns, and importing numba takes half a second."""
    mask, m = 0xFFFF_FFFF, 0x5BD1_E995
    value = 0x9747_B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        value = value * m & mask ^ k
    if rest := key[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * m & mask
    value = (value ^ value >> 13) * m & mask
    return value ^ value >> 15


class LineProducer:
    """Builds batches from lines and sends them."""

    def __init__(
        self,
        producer: Producer,
        settings: ProducerSettings,
        *,
        identity: Identity | None,
        topic: str,
        partitions: int,
        partition: int | None,
        headers: tuple[tuple[bytes, bytes], ...],
    ) -> None:
        self._producer = producer
        self._settings = settings
        self._identity = identity
        self._topic = topic
        self._partitions = partitions
        self._partition = partition
        self._headers = headers
        self._sequences: dict[int, int] = {}
        self._sticky = time.time_ns() % partitions

    def send(self, lines: list[KeyedLine]) -> None:
        """Send lines; does not wait for acknowledgements."""
        by_partition: dict[int, list[KeyedLine]] = {}
        for line in lines:
            by_partition.setdefault(self._partition_of(line[0]), []).append(line)
        self._sticky = (self._sticky + 1) % self._partitions
        for partition, records in by_partition.items():
            for batch in self._batches(records):
                self._send(partition, batch)
        self._producer.push()

    def _partition_of(self, key: bytes | None) -> int:
        if self._partition is not None:
            return self._partition
        if key is None or not self._settings.keys_decide:
            return self._sticky
        return (murmur2(key) & 0x7FFF_FFFF) % self._partitions

    def _batches(self, records: list[KeyedLine]) -> Iterator[list[KeyedLine]]:
        """Batches of about batch.size bytes."""
        batch: list[KeyedLine] = []
        size = 0
        for record in records:
            batch.append(record)
            size += len(record[0] or b"") + len(record[1] or b"")
            if size >= self._settings.batch_size:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _send(self, partition: int, lines: list[KeyedLine]) -> None:
        from kafka_ds.client.producer import OutgoingBatch
        from kafka_ds.records.batch import NO_PRODUCER_ID, NO_SEQUENCE, Record, build_batch
        from kafka_ds.records.sequences import sequence_after

        now_ms = time.time_ns() // 1_000_000
        records = [
            Record(at, now_ms, key, value, self._headers) for at, (key, value) in enumerate(lines)
        ]
        identity, sequence = self._identity, NO_SEQUENCE
        if identity is not None:
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = sequence_after(sequence, len(records))
        data = build_batch(
            records,
            codec=self._settings.compression,
            producer_id=identity.producer_id if identity else NO_PRODUCER_ID,
            producer_epoch=identity.epoch if identity else -1,
            base_sequence=sequence,
        )
        self._producer.send(
            OutgoingBatch(
                topic=self._topic,
                partition=partition,
                data=data,
                record_count=len(records),
                describe=lambda places: counted(len(list(places)), "record"),
            )
        )


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    text = _ESCAPES.get(text, text)
    if not text:
        raise CommandError("--key-separator is empty")
    return text.encode()


@click.command()
@click.argument("topic")
@click.option(
    "--key-separator", metavar="TEXT", help="The separator of key and value; \\t is a tab."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of each record; repeat it.",
)
@click.option("--partition", type=click.IntRange(min=0), metavar="P", help="Default: by key.")
@click.option("--null-marker", metavar="TEXT", help="The text that stands for a null key or value.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    metavar="CODEC",
    help="gzip, snappy, lz4, zstd or none, which is the default.",
)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@cluster_options
def produce(
    target: ClusterTarget,
    topic: str,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    null_marker: str | None,
    compression: str,
    acks: str,
) -> None:
    """Produce a record for each line of standard input.

    A topic that does not exist is created if the brokers allow that (auto.create.topics.enable), and standard error
    says so.

    \b
    Examples:
      echo '{"total": 12.5}' | kafka-ds produce orders
      printf '42:{"total": 12.5}\\n' | kafka-ds produce orders --key-separator :
      kafka-ds produce orders --header source=import < orders.jsonl
    """
    from kafka_ds.client.producer import Producer
    from kafka_ds.client.transactions import Transactions

    settings = target.producer_settings({"compression.type": compression, "acks": acks})
    given = tuple((n.encode(), v.encode()) for n, v in pairs(headers, "--header").items())
    separator = _separator(key_separator)
    marker = null_marker.encode() if null_marker is not None else None
    with target.cluster(creates_topics=True) as cluster:
        partitions = _partition_count(cluster, topic)
        if partition is not None and partition >= partitions:
            raise CommandError(f"topic {topic} has no partition {partition}: it has {partitions}")
        identity = (
            Transactions(cluster).begin(None, settings.transaction_timeout_ms)
            if settings.enable_idempotence
            else None
        )
        producer = Producer(cluster, settings)
        sink = LineProducer(
            producer,
            settings,
            identity=identity,
            topic=topic,
            partitions=partitions,
            partition=partition,
            headers=given,
        )
        try:
            count = _pump(sink, producer, separator, marker)
        finally:
            producer.close()
    where = str(TopicPartition(topic, partition)) if partition is not None else topic
    note(f"{counted(count, 'record')} produced to {where}")


def _partition_count(cluster: Cluster, topic: str) -> int:
    """The number of partitions of a topic, which the brokers may create. Raises CommandError."""
    if cluster.has_topic(topic):
        return len(cluster.topic(topic).partitions)
    like = suggestion(topic, cluster.topics(None))
    deadline = time.monotonic() + CREATION_SECONDS_MAX
    while time.monotonic() < deadline:
        found = cluster.topics([topic]).get(topic)
        if found is not None and found.partitions:
            count = len(found.partitions)
            note(f"topic {topic} was created, with {counted(count, 'partition')}{like}")
            return count
        time.sleep(0.1)
    raise CommandError(
        f"there is no topic {topic}, and the brokers do not create it (auto.create.topics.enable){like}"
    )


def _pump(
    sink: LineProducer, producer: Producer, separator: bytes | None, marker: bytes | None
) -> int:
    """Produce all of standard input; returns the number of records."""
    count = 0
    descriptor = sys.stdin.fileno()
    status = os.fstat(descriptor)
    is_file = stat.S_ISREG(status.st_mode)
    if sys.stdin.isatty():
        note("type a record a line; Ctrl-D ends")
    # No bar on a terminal, where it would cover the input. Only a file's size is known.
    bar = progress("produced", status.st_size, unit="bytes") if is_file else progress("produced")
    with nullcontext(_ignore) if sys.stdin.isatty() else bar as advance:
        for lines in lines_of(descriptor):
            sink.send([key_and_value(line, separator, marker) for line in lines])
            count += len(lines)
            advance(sum(map(len, lines)) + len(lines) if is_file else len(lines))
            if not select.select([descriptor], [], [], 0)[0]:
                # No input is waiting: flush before blocking.
                producer.flush()
        producer.flush()
    return count


def _ignore(_: int) -> None:
    return
