"""Records of every kind through the lake: consumers and the table return them as produced, byte for byte."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from tests.integration.tier_broker import (
    MIB,
    Feeder,
    ProducedRow,
    assert_table_holds,
    broker_process,
    consume,
    create_topic,
    delete_topic,
    highest_offset_in_remote_storage,
    rows,
    table,
)
from tests.processes import BrokerProcess, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FILLER = (
    2_300  # of 1000 incompressible bytes: at least one more segment is closed behind what is tested
)
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = broker_process(tmp_path_factory.mktemp("records")).start()
    yield process
    process.stop()
    assert "Traceback" not in process.log_file.read_text()


def kinds() -> list[ProducedRow]:
    """Nulls, nothing, headers with nulls and repeats, one byte, many bytes."""
    return [
        ProducedRow(key=None, value=None, timestamp_ms=T0),
        ProducedRow(key=b"", value=b"", timestamp_ms=T0 + 1),
        ProducedRow(key=b"k", value=None, timestamp_ms=T0 - 5),
        ProducedRow(key=None, value=b"v", timestamp_ms=T0 + 2),
        ProducedRow(key=b"\x00\xff", value=b"\x00" * 100, timestamp_ms=T0 + 3),
        ProducedRow(
            key=b"h",
            value=b"headers",
            headers=(("a", b"1"), ("a", None), ("b", b""), ("a", b"1"), ("é", b"\xff")),
            timestamp_ms=T0 + 4,
        ),
        ProducedRow(key=b"early", value=b"1970", timestamp_ms=1),
        ProducedRow(key=b"late", value=b"x", timestamp_ms=int(time.time() * 1000)),
        *rows(200, size=300),
    ]


def noise(count: int) -> list[ProducedRow]:
    """Records that no codec makes smaller."""
    draw = random.Random(count)
    return [
        ProducedRow(key=None, value=draw.randbytes(1000), timestamp_ms=T0 + n) for n in range(count)
    ]


def local_start(broker: BrokerProcess, topic: str, partition: int = 0) -> int:
    names = sorted((broker.data / f"{topic}-{partition}").glob("*.log"))
    return int(names[0].stem)


def make_cold(broker: BrokerProcess, feeder: Feeder, end: int, *, records: int = FILLER) -> None:
    """Push everything below `end` out of the local log."""
    feeder.send(noise(records))
    feeder.flush()
    wait_until(
        "the local segments to be gone",
        lambda: local_start(broker, feeder.topic) >= end,
        every_s=0.2,
    )


def kafka_python(broker: BrokerProcess, topic: str, end: int) -> dict[int, ProducedRow]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    place = KafkaPythonPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    found: dict[int, ProducedRow] = {}
    deadline = time.monotonic() + 120
    while len(found) < end and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            for each in records:
                if each.offset < end:
                    found[each.offset] = ProducedRow(
                        key=each.key,
                        value=each.value,
                        headers=tuple(each.headers),
                        timestamp_ms=each.timestamp,
                    )
    consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_kind_come_back_as_they_were(broker: BrokerProcess, codec: str) -> None:
    topic = f"kinds-{codec}"
    create_topic(broker, topic, local_retention_bytes=1)
    feeder = Feeder(broker.bootstrap, topic, compression_type=codec)
    feeder.send(kinds())
    feeder.flush()
    end = len(kinds())
    make_cold(broker, feeder, end)
    expected = {n: row for n, row in feeder.acknowledged.partition(0).items() if n < end}
    for isolation in ("read_committed", "read_uncommitted"):
        assert consume(broker.bootstrap, topic, 0, end=end, isolation_level=isolation) == expected
    assert kafka_python(broker, topic, end) == expected
    assert_table_holds(broker.lake, topic, feeder.acknowledged)
    found = table(broker.lake, topic).head(end)
    assert found["timestamp"].dt.epoch("ms").to_list() == [
        expected[offset].timestamp_ms for offset in range(end)
    ]
    headers = found["headers"].to_list()
    assert headers[5] == [{"key": key, "value": value} for key, value in expected[5].headers]


def test_records_of_one_byte_and_of_ten_mebibytes(broker: BrokerProcess) -> None:
    # No batch may be larger than a segment.
    create_topic(
        broker,
        "sizes",
        local_retention_bytes=1,
        max_message_bytes=12 * MIB,
        segment_bytes=12 * MIB,
    )
    feeder = Feeder(broker.bootstrap, "sizes")
    sent = [
        *(ProducedRow(key=None, value=b"%d" % (n % 10), timestamp_ms=T0 + n) for n in range(5_000)),
        ProducedRow(key=b"big", value=bytes(range(256)) * (10 * MIB // 256), timestamp_ms=T0),
        ProducedRow(key=b"", value=b"after", timestamp_ms=T0),
    ]
    feeder.send(sent)
    feeder.flush()
    make_cold(broker, feeder, len(sent), records=12_500)
    found = consume(broker.bootstrap, "sizes", 0, end=len(sent))
    assert list(found.values()) == sent
    assert_table_holds(broker.lake, "sizes", feeder.acknowledged)


def test_log_append_time_is_kept(broker: BrokerProcess) -> None:
    create_topic(
        broker, "appended", local_retention_bytes=1, message_timestamp_type="LogAppendTime"
    )
    before = int(time.time() * 1000)
    feeder = Feeder(broker.bootstrap, "appended")
    for number in range(5):
        feeder.send(rows(50, start=number * 50))
        feeder.flush()
        time.sleep(0.01)
    hot = consume(broker.bootstrap, "appended", 0, end=250)
    make_cold(broker, feeder, 250)
    cold = consume(broker.bootstrap, "appended", 0, end=250)
    assert cold == hot
    times = [row.timestamp_ms for row in cold.values()]
    assert all(each is not None and each >= before for each in times)
    assert len(set(times)) >= 5, "each batch has its own time"
    assert kafka_python(broker, "appended", 250) == hot
    assert set(table(broker.lake, "appended")["timestamp_type"]) == {1}


def test_a_consumer_begins_anywhere_and_goes_on_hot(broker: BrokerProcess) -> None:
    create_topic(broker, "seam", local_retention_bytes=1)
    feeder = Feeder(broker.bootstrap, "seam")
    feeder.send(rows(6_000))
    feeder.flush()
    wait_until("something to be cold", lambda: local_start(broker, "seam") > 3_000, every_s=0.2)
    expected = feeder.acknowledged.partition(0)
    cold = local_start(broker, "seam")
    for start in (0, 1, 17, 1_500, cold - 1, cold, cold + 1, 5_999):
        found = consume(broker.bootstrap, "seam", 0, start=start, end=6_000)
        assert found == {n: row for n, row in expected.items() if n >= start}


def test_times_are_found_in_the_lake(broker: BrokerProcess) -> None:
    create_topic(broker, "times", local_retention_bytes=1)
    feeder = Feeder(broker.bootstrap, "times")
    feeder.send(rows(3_000))
    feeder.flush()
    wait_until("something to be cold", lambda: local_start(broker, "times") > 1_000, every_s=0.2)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap)
    place = KafkaPythonPartition("times", 0)
    for offset in (0, 1, 999, 2_999):
        found = consumer.offsets_for_times({place: T0 + offset})[place]
        assert (found.offset, found.timestamp) == (offset, T0 + offset)
    assert consumer.offsets_for_times({place: T0 + 3_000})[place] is None
    assert consumer.beginning_offsets([place])[place] == 0
    consumer.close()


def test_a_recreated_topic_goes_on_in_the_same_table(broker: BrokerProcess) -> None:
    create_topic(broker, "again", local_retention_bytes=1)
    feeder = Feeder(broker.bootstrap, "again")
    feeder.send(rows(2_500))
    feeder.flush()
    wait_until(
        "the first rows",
        lambda: highest_offset_in_remote_storage(broker.lake, "again", 0) > 0,
        every_s=0.2,
    )
    delete_topic(broker, "again")
    wait_until(
        "no rows",
        lambda: highest_offset_in_remote_storage(broker.lake, "again", 0) == -1,
        every_s=0.2,
    )
    create_topic(broker, "again", local_retention_bytes=1)
    second = Feeder(broker.bootstrap, "again")
    second.send(rows(3_500, start=50_000))
    second.flush()
    wait_until("new rows", lambda: local_start(broker, "again") > 2_000, every_s=0.2)
    assert_table_holds(broker.lake, "again", second.acknowledged)
    found = consume(broker.bootstrap, "again", 0, end=3_500)
    assert found == second.acknowledged.partition(0)
    events = pl.read_delta(str(broker.lake / "__cluster_metadata"))
    mine = events.filter(pl.col("topic") == "again").sort("version", "sequence")["type"]
    assert [each for each in mine if each.startswith("Topic")] == [
        "TopicCreated",
        "TopicDeleted",
        "TopicCreated",
    ]
    former = mine_of(events)
    wait_until(
        "the end of all segments", lambda: states_of(broker, former) == {DELETED}, every_s=0.2
    )


DELETED = "DELETE_SEGMENT_FINISHED"


def mine_of(events: pl.DataFrame) -> str:
    """The id of the topic that was deleted."""
    deleted = events.filter((pl.col("topic") == "again") & (pl.col("type") == "TopicDeleted"))
    return str(deleted["topic_id"][0])


def states_of(broker: BrokerProcess, topic_id: str) -> set[str]:
    """The last states of a topic's segments."""
    events = pl.read_delta(str(broker.lake / "__remote_log_metadata")).sort("version", "sequence")
    mine = events.filter(pl.col("topic_id") == topic_id)
    return set(mine.group_by("segment_id", maintain_order=True).last()["state"])


def test_each_event_of_the_cluster_is_a_row_once(broker: BrokerProcess) -> None:
    create_topic(broker, "evented", 3)

    def types() -> list[str]:
        events = pl.read_delta(str(broker.lake / "__cluster_metadata"))
        return list(events.filter(pl.col("kind") == "event")["type"])

    wait_until("rows of the topic", lambda: "evented" in _topics(broker.lake), every_s=0.2)
    events = pl.read_delta(str(broker.lake / "__cluster_metadata"))
    places = list(events.select("version", "sequence", "kind").iter_rows())
    assert len(places) == len(set(places))
    assert types().count("ClusterCreated") == 1
    assert types().count("RegisterBroker") == 1


def _topics(lake: Path) -> set[str]:
    return set(pl.read_delta(str(lake / "__cluster_metadata"))["topic"])
