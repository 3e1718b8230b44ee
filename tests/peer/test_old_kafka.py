"""Directories written by real old versions of Apache Kafka, stopped or killed: our broker takes all of them over."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import polars
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    DescribeTransactionsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from kafka_ds.protocol.messages.offsets import OffsetForLeaderPartition, OffsetForLeaderTopic
from kafka_ds.protocol.messages.persisted_transactions import (
    TransactionLogValue,
    decode_key,
    decode_value,
)
from kafka_ds.records.batch import MAGIC, iterate_headers
from kafka_ds.segments.checkpoint import decode_epochs
from tests.apache_kafka import ApacheKafka
from tests.in_process import produce_request
from tests.integration.raw_client import RawClient
from tests.peer.old_kafka import CUT_AT, OLD_KAFKAS, OldKafka, OldKafkaWriter, start
from tests.processes import BrokerProcess, wait_until

Key = tuple[str, int]
NO_EPOCH = -1


class ConsumedRecord(NamedTuple):
    """A record as its consumer gets it. `leader_epoch` is -1, and `timestamp` None, where there was none yet."""

    offset: int
    timestamp: tuple[int, int] | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


@dataclass(slots=True, kw_only=True)
class PartitionContents:
    """All that is in a partition. `ends`: where readers of each isolation level stop."""

    first_offset: int = 0
    rows: dict[str, list[ConsumedRecord]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)


ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


def contents(bootstrap: str, topics: Collection[str]) -> dict[Key, PartitionContents]:
    """Topics read from their beginnings to their ends, by each isolation level."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=120).topics
    keys = [(name, index) for name in topics for index in sorted(found[name].partitions)]
    partitions = {key: PartitionContents() for key in keys}
    for level in ISOLATION_LEVELS:
        _read(bootstrap, partitions, level)
    return partitions


def leader_epochs(bootstrap: str) -> dict[Key, int]:
    """Those of the partitions' leaders, as clients are told since 2.1 (KIP-320)."""
    with RawClient(bootstrap) as client:
        topics = client.ask(MetadataRequest(topics=None), 7).topics
    return {
        (topic.name, partition.partition_index): partition.leader_epoch
        for topic in topics
        for partition in topic.partitions
    }


def _consumer(bootstrap: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "enable.partition.eof": True,
            **settings,
        }
    )


def _read(bootstrap: str, partitions: Mapping[Key, PartitionContents], level: str) -> None:
    consumer = _consumer(bootstrap, **{"isolation.level": level})
    consumer.assign([TopicPartition(*key, OFFSET_BEGINNING) for key in partitions])
    left = set(partitions)
    for key, partition in partitions.items():
        partition.rows[level] = []
        partition.first_offset = _first_offset(consumer, key)
    while left:
        message = consumer.poll(120)
        assert message is not None, f"nothing more of {left}"
        key = message.topic(), message.partition()
        if message.error() is None:
            partitions[key].rows[level].append(_row(message))
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            partitions[key].ends[level] = message.offset()
            left.discard(key)
    consumer.close()


def _first_offset(consumer: Consumer, key: Key) -> int:
    """The first offset of a partition, once it has a leader."""
    found: list[int] = []

    def is_told() -> bool:
        try:
            found.append(consumer.get_watermark_offsets(TopicPartition(*key), timeout=120)[0])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
        return bool(found)

    wait_until(f"a leader of {key}", is_told)
    return found[0]


def _row(message: Message) -> ConsumedRecord:
    kind, timestamp = message.timestamp()
    has_timestamp = kind != TIMESTAMP_NOT_AVAILABLE and timestamp >= 0
    epoch = message.leader_epoch()
    return ConsumedRecord(
        offset=message.offset(),
        timestamp=(kind, timestamp) if has_timestamp else None,
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        leader_epoch=NO_EPOCH if epoch is None else epoch,
    )


def offsets_at(
    bootstrap: str, timestamps: Mapping[Key, Iterable[int]]
) -> dict[tuple[Key, int], int]:
    """The offset of the first record from each of these times on, -1 where there is none."""
    consumer = _consumer(bootstrap)
    found = {}
    for key, moments in timestamps.items():
        for moment in moments:
            (at,) = consumer.offsets_for_times([TopicPartition(*key, moment)], timeout=120)
            assert at.error is None, at.error
            found[key, moment] = at.offset
    consumer.close()
    return found


def some_moments(rows: Sequence[ConsumedRecord]) -> list[int]:
    """Times of some records, and between them."""
    chosen = [rows[0], rows[len(rows) // 3], rows[len(rows) // 2], rows[-1]] if rows else []
    known = {row.timestamp[1] for row in chosen if row.timestamp is not None}
    return sorted({moment + more for moment in known for more in (-1, 0, 1)})


class Group(NamedTuple):
    """A group: what it committed, with its metadata, and its members as far as they have names of their own."""

    committed: dict[Key, tuple[int, str | None]]
    state: str
    members: list[tuple[str | None, tuple[Key, ...]]]


def groups(bootstrap: str) -> dict[str, Group]:
    """All groups that there are."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups(request_timeout=120).result(120)
    assert not listed.errors, listed.errors
    names = sorted(group.group_id for group in listed.valid)
    described = admin.describe_consumer_groups(names, request_timeout=120) if names else {}
    found = {}
    for name in names:
        asked = ConsumerGroupTopicPartitions(name)
        (answer,) = admin.list_consumer_group_offsets([asked], request_timeout=120).values()
        committed = {
            (each.topic, each.partition): (each.offset, each.metadata)
            for each in answer.result(120).topic_partitions
        }
        group = described[name].result(120)
        members = [
            (
                each.group_instance_id,
                tuple(sorted((at.topic, at.partition) for at in each.assignment.topic_partitions)),
            )
            for each in group.members
        ]
        found[name] = Group(committed, group.state.name, sorted(members, key=repr))
    return found


def transactions(bootstrap: str) -> dict[str, TransactionLogValue]:
    """What the log of the transactional ids says of each."""
    topic = "__transaction_state"
    found: dict[str, TransactionLogValue] = {}
    for partition in contents(bootstrap, [topic]).values():
        for row in partition.rows["read_uncommitted"]:
            key = decode_key(row.key or b"")
            if key is not None and row.value is not None:
                found[key.transactional_id] = decode_value(row.value)
    return found


pytestmark = [pytest.mark.jars, pytest.mark.slow]

# By the number that the log of transactional ids has for each.
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
# Topics of which Kafka closes segments, and that are not compacted.
TABLES = ("codecs", "once", "cut", "old-0", "old-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a Kafka said of itself before it ended."""

    partitions: Mapping[Key, PartitionContents]
    leader_epochs: Mapping[Key, int]
    times: Mapping[tuple[Key, int], int]
    groups: Mapping[str, Group]
    transactions: Mapping[str, TransactionLogValue]


def told_by(kafka: ApacheKafka, old: OldKafka) -> Left:
    partitions = contents(kafka.bootstrap, old.topics)
    moments = {
        key: some_moments(partition.rows["read_uncommitted"])
        for key, partition in partitions.items()
    }
    # Kafka looks into one segment, by the greatest time that it ever had: where that record was deleted, or removed by
    # the cleaner, it finds nothing.
    thinned = ("cut", *old.compacted)
    times = offsets_at(
        kafka.bootstrap,
        # Format 0 knows no times.
        {key: each for key, each in moments.items() if key[0] not in ("old-0", *thinned)},
    )
    # Markers have times, too, and are no rows.
    for key in partitions.keys() & {("cut", 0), ("old-state", 0)}:
        rows = partitions[key].rows["read_uncommitted"]
        times |= {(key, moment): first_from(rows, moment) for moment in moments[key]}
    return Left(
        partitions=partitions,
        leader_epochs=leader_epochs(kafka.bootstrap) if old.number >= (2, 1) else {},
        times=times,
        groups=groups(kafka.bootstrap),
        transactions=transactions(kafka.bootstrap),
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("old", OLD_KAFKAS, ids=str)
def test_a_broker_goes_on_where_an_old_kafka_ended(old: OldKafka, tmp_path: Path) -> None:
    with old.running(tmp_path) as kafka, closing(OldKafkaWriter(old, kafka)) as writer:
        start(kafka)
        writer.fill()
        left = told_by(kafka, old)
        assert_it_is_worth_it(old, left)
        kafka.stop()
        clean = tmp_path / "clean"
        shutil.copytree(kafka.data, clean)
        start(kafka)
        writer.go_on()
        left_later = told_by(kafka, old)
        kafka.kill()
    Successor(old, clean, tmp_path / "after-clean").goes_on(left)
    Successor(old, kafka.data, tmp_path / "after-killed").goes_on(left_later)


def assert_it_is_worth_it(old: OldKafka, left: Left) -> None:
    """Kafka has done what we think that it has."""
    committed, uncommitted = (
        left.partitions["pay", 1].rows[level] for level in ("read_committed", "read_uncommitted")
    )
    assert 0 < len(committed) < len(uncommitted)
    for topic in old.compacted:
        rows = left.partitions[topic, 0].rows["read_uncommitted"]
        assert len(rows) < rows[-1].offset / 2
        assert any(row.value is None for row in rows)
    assert left.partitions["cut", 0].first_offset == CUT_AT
    if old.has_old_formats:
        old_epochs = {
            row.leader_epoch for row in left.partitions["old-1", 0].rows["read_committed"]
        }
        assert old_epochs == {NO_EPOCH}
        mixed = left.partitions["old-mixed", 0].rows["read_committed"]
        assert {row.leader_epoch for row in mixed} == {NO_EPOCH, 0}
        no_times = left.partitions["old-0", 0].rows["read_committed"]
        assert {row.timestamp for row in no_times} == {None}
    states = {name: STATES[value.transaction_status] for name, value in left.transactions.items()}
    assert (states["commits"], states["aborts"], states["open"]) == (
        "CompleteCommit",
        "CompleteAbort",
        "Ongoing",
    )
    if old.has_static_members:
        ((name, assigned),) = left.groups["named"].members
        assert (name, len(assigned)) == ("first", 2)


class Successor:
    """A broker of ours on a directory of Kafka's."""

    def __init__(self, old: OldKafka, data: Path, folder: Path) -> None:
        self._old = old
        self._data = data
        self._epochs = {
            key: decode_epochs(
                (data / f"{key[0]}-{key[1]}" / "leader-epoch-checkpoint").read_bytes()
            )
            for key in [("codecs", 0), ("codecs", 1), ("once", 0), ("cut", 0), ("state", 0)]
        }
        self._last_batch = last_batch(data / "once-0")
        # Where the segment begins that Kafka was writing to.
        self._closed = {
            (name, index): max(int(path.stem) for path in data.glob(f"{name}-{index}/*.log"))
            for name, index in [(each, 0) for each in TABLES if each in old.topics]
            + [("codecs", 1)]
        }
        self._broker = BrokerProcess(folder, {"node.id": 1, "log.dirs": data})

    def goes_on(self, left: Left) -> None:
        said = self._adopt()
        print(said)
        self._broker.start()
        try:
            self._holds(left)
            self._writes_on(left)
            self._is_table(left)
        finally:
            self._broker.stop()
        log = self._broker.log_file.read_text()
        assert "Traceback" not in log
        for path in self._data.glob("*/*.log"):
            # A message of format 0 or 1 would be none of its headers.
            assert all(header.magic == MAGIC for _, header in iterate_headers(path.read_bytes()))
        assert not [path.name for path in self._data.iterdir() if "stray" in path.name]

    def _adopt(self) -> str:
        command = self._broker.command()
        command.insert(command.index("broker") + 1, "adopt")
        if self._old.has_zookeeper:
            for topic in self._old.topics:
                policy = "compact" if topic in self._old.compacted else "delete"
                command += ["--topic-config", f"{topic}:cleanup.policy={policy}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _holds(self, left: Left) -> None:
        bootstrap = self._broker.bootstrap
        found = contents(bootstrap, self._old.topics)
        assert list(found) == list(left.partitions)
        for key, theirs in left.partitions.items():
            ours = found[key]
            assert (ours.first_offset, ours.ends) == (theirs.first_offset, theirs.ends), key
            for level, rows in theirs.rows.items():
                assert len(ours.rows[level]) == len(rows), (key, level)
                pairs = zip(ours.rows[level], rows, strict=True)
                assert [without_new_epoch(*pair) for pair in pairs] == rows, (key, level)
        moments: dict[Key, list[int]] = {}
        for key, moment in left.times:
            moments.setdefault(key, []).append(moment)
        assert offsets_at(bootstrap, moments) == left.times
        assert groups(bootstrap) == left.groups
        higher = leader_epochs(bootstrap)
        assert all(higher[key] > epoch for key, epoch in left.leader_epochs.items())
        self._knows_epochs(found)
        self._knows_transactions(left)

    def _knows_epochs(self, found: Mapping[Key, PartitionContents]) -> None:
        with RawClient(self._broker.bootstrap) as client:
            for key, entries in self._epochs.items():
                end_offset = found[key].ends["read_uncommitted"]
                # One without records is forgotten at a start, by Kafka, too.
                used = [entry for entry in entries if entry[1] < end_offset]
                ends = [*(start for _, start in used[1:]), end_offset]
                assert used
                for (epoch, _), end in zip(used, ends, strict=True):
                    asked = OffsetForLeaderPartition(partition=key[1], leader_epoch=epoch)
                    topic = OffsetForLeaderTopic(topic=key[0], partitions=[asked])
                    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
                    (answer,) = client.ask(request, 4).topics[0].partitions
                    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (
                        ErrorCode.NONE,
                        epoch,
                        end,
                    ), key

    def _knows_transactions(self, left: Left) -> None:
        names = sorted(left.transactions)
        with RawClient(self._broker.bootstrap) as client:

            def answers() -> list[object]:
                request = DescribeTransactionsRequest(transactional_ids=names)
                return client.ask(request, 0).transaction_states

            wait_until(
                "the transactional ids to be read",
                lambda: all(each.error_code == ErrorCode.NONE for each in answers()),
            )
            for ours in answers():
                theirs = left.transactions[ours.transactional_id]
                partitions = sorted(
                    (each.topic, sorted(each.partition_ids))
                    for each in theirs.transaction_partitions or ()
                )
                assert (
                    ours.transaction_state,
                    ours.producer_id,
                    ours.producer_epoch,
                    ours.transaction_timeout_ms,
                    ours.transaction_start_time_ms,
                    sorted((each.topic, sorted(each.partitions)) for each in ours.topics),
                ) == (
                    STATES[theirs.transaction_status],
                    theirs.producer_id,
                    theirs.producer_epoch,
                    theirs.transaction_timeout_ms,
                    theirs.transaction_start_timestamp_ms,
                    partitions,
                ), ours.transactional_id

    def _is_table(self, left: Left) -> None:
        """What Kafka had closed is rows."""
        for (topic, partition), end in self._closed.items():
            assert end > 0, topic
            theirs = left.partitions[topic, partition]
            folder = self._broker.lake / "topics" / topic
            expected = [row for row in theirs.rows["read_committed"] if row.offset < end]

            def rows(
                folder: Path = folder,
                partition: int = partition,
                end: int = end,
                start: int = theirs.first_offset,
            ) -> list[ConsumedRecord]:
                found = table_rows(folder, partition)
                return [row for row in found if start <= row.offset < end]

            wait_until(
                f"{topic}-{partition} to be rows up to {end}",
                lambda rows=rows, expected=expected: len(rows()) >= len(expected),
                every_s=1,
            )
            pairs = zip(rows(), expected, strict=True)
            assert [without_new_epoch(*pair) for pair in pairs] == expected, topic

    def _writes_on(self, left: Left) -> None:
        """A batch sent again is known, a transaction that was open is ended, and each log goes on at its end."""
        bootstrap = self._broker.bootstrap
        base_offset, batch = self._last_batch
        with RawClient(bootstrap) as client:
            answer = client.ask(produce_request("once", batch), 9)
            ((again,),) = [each.partition_responses for each in answer.responses]
            assert (again.error_code, again.base_offset) == (ErrorCode.NONE, base_offset)
        for name in (each for each in left.transactions if each.startswith("open")):
            producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
            producer.init_transactions(120)
        written: dict[Key, int] = {}

        def note(error: object, message: object) -> None:
            assert error is None, error
            written[message.topic(), message.partition()] = message.offset()

        producer = Producer({"bootstrap.servers": bootstrap})
        for topic, partition in left.partitions:
            producer.produce(topic, b"new", b"new", partition, on_delivery=note)
        assert producer.flush(120) == 0
        found = contents(bootstrap, self._old.topics)
        for key, partition in found.items():
            end = left.partitions[key].ends["read_uncommitted"]
            assert written[key] >= end, key
            assert written[key] == end or key[0] == "pay", key  # with markers
            assert partition.ends == dict.fromkeys(partition.ends, written[key] + 1), key
            for level in partition.rows:
                assert partition.rows[level][-1].value == b"new", (key, level)


def table_rows(folder: Path, partition: int) -> list[ConsumedRecord]:
    """What the table of a topic has of a partition, if there is one already."""
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    columns = ["offset", "timestamp_type", "timestamp", "key", "value", "headers", "leader_epoch"]
    rows = polars.read_delta(str(folder)).filter(polars.col("partition") == partition)
    return [
        ConsumedRecord(
            offset=offset,
            timestamp=None if at is None else (kind + 1, round(at.timestamp() * 1000)),
            key=key,
            value=value,
            headers=tuple((each["key"], each["value"]) for each in headers or ()),
            leader_epoch=epoch,
        )
        for offset, kind, at, key, value, headers, epoch in rows.sort("offset")
        .select(columns)
        .iter_rows()
    ]


def first_from(rows: Sequence[ConsumedRecord], moment: int) -> int:
    """The offset of the first record of this time or a later one, or -1."""
    return next((row.offset for row in rows if row.timestamp and row.timestamp[1] >= moment), -1)


def without_new_epoch(ours: ConsumedRecord, theirs: ConsumedRecord) -> ConsumedRecord:
    """Messages of formats 0 and 1 had no leader epoch; as record batches they have the first."""
    if theirs.leader_epoch == NO_EPOCH and ours.leader_epoch == 0:
        return ours._replace(leader_epoch=NO_EPOCH)
    return ours


def last_batch(folder: Path) -> tuple[int, bytes]:
    """The offset of the last batch of a log, and its bytes as a producer sent them, from offset 0 on."""
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    position, header = list(iterate_headers(data))[-1]
    return header.base_offset, bytes(8) + data[position + 8 : position + header.size_in_bytes]
