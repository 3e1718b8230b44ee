"""What kafka-python's own integration tests ask of its consumer, asked of ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kafka
import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from tests.clients.adaptors import Message, librdkafka_produce
from tests.clients.messages import BEGAN_MS, fill
from tests.processes import BrokerProcess, wait_until
from tests.topics import create_topic

# kafka-python 3.0.12 forgets an assignment that comes just when a poll's time is over: polls while joining are longer.
JOINING_MS = 1_000
Make = Callable[..., kafka.KafkaConsumer]


@pytest.fixture
def consumers(broker: BrokerProcess) -> Iterator[Make]:
    """Makes consumers that are closed at the end."""
    made: list[kafka.KafkaConsumer] = []

    def make(*topics: str, **settings: Any) -> kafka.KafkaConsumer:
        chosen = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 20_000, **settings}
        made.append(kafka.KafkaConsumer(*topics, bootstrap_servers=broker.bootstrap, **chosen))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def read(consumer: kafka.KafkaConsumer, count: int, **how: Any) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        for records in consumer.poll(timeout_ms=500, **how).values():
            found += records
    return found


def test_it_iterates_over_all_partitions_in_their_order(consumers: Make, filled: str) -> None:
    consumer = consumers(filled, group_id=None)
    found = [next(consumer) for _ in range(200)]
    for partition in (0, 1):
        mine = [record for record in found if record.partition == partition]
        assert [record.offset for record in mine] == list(range(100))
        assert [record.value for record in mine] == [b"%d-%d" % (partition, n) for n in range(100)]
    one = next(record for record in found if record.offset == 7)
    assert (one.key, one.headers, one.timestamp) == (b"k7", [("n", b"7")], BEGAN_MS + 7)
    assert one.topic == filled


def test_an_iteration_ends_when_nothing_more_comes(consumers: Make, filled: str) -> None:
    consumer = consumers(filled, group_id=None, consumer_timeout_ms=1_000)
    assert len(list(consumer)) == 200


def test_topics_and_partitions_are_listed(consumers: Make, filled: str) -> None:
    consumer = consumers()
    assert filled in consumer.topics()
    assert consumer.partitions_for_topic(filled) == {0, 1}
    assert consumer.bootstrap_connected() in (True, False)


def test_a_paused_partition_gives_nothing_until_it_is_resumed(consumers: Make, filled: str) -> None:
    consumer = consumers(group_id=None)
    first, second = TopicPartition(filled, 0), TopicPartition(filled, 1)
    consumer.assign([first, second])
    assert consumer.paused() == set()
    consumer.pause(first)
    assert consumer.paused() == {first}
    assert {record.partition for record in read(consumer, 100)} == {1}
    assert not consumer.poll(timeout_ms=300)
    consumer.resume(first)
    assert consumer.paused() == set()
    assert [record.offset for record in read(consumer, 100)] == list(range(100))
    consumer.unsubscribe()
    assert consumer.paused() == set()


def test_a_seek_goes_back_forward_to_both_ends(consumers: Make, filled: str) -> None:
    consumer = consumers(group_id=None)
    place = TopicPartition(filled, 0)
    consumer.assign([place])
    assert read(consumer, 1, max_records=1)[0].offset == 0
    for offset in (55, 3, 99):
        consumer.seek(place, offset)
        assert consumer.position(place) == offset
        assert read(consumer, 1, max_records=1)[0].value == b"0-%d" % offset
        assert consumer.position(place) == offset + 1
    consumer.seek_to_end(place)
    assert consumer.position(place) == 100
    assert not consumer.poll(timeout_ms=300)
    consumer.seek_to_beginning(place)
    assert consumer.position(place) == 0
    assert read(consumer, 1, max_records=1)[0].offset == 0
    with pytest.raises(ValueError, match="Unassigned"):
        consumer.seek(TopicPartition(filled, 1), 0)


def test_the_end_is_followed_by_what_is_written_next(
    broker: BrokerProcess, consumers: Make, filled: str
) -> None:
    consumer = consumers(group_id=None, auto_offset_reset="latest")
    place = TopicPartition(filled, 0)
    consumer.assign([place])
    consumer.seek_to_end(place)
    assert consumer.position(place) == 100
    fill(broker, filled, [100, 101])
    assert [record.value for record in read(consumer, 2)] == [b"0-100", b"0-101"]
    assert consumer.highwater(place) == 102


def test_a_committed_position_is_where_the_next_one_goes_on(consumers: Make, filled: str) -> None:
    places = [TopicPartition(filled, partition) for partition in (0, 1)]
    settings: dict[str, Any] = {"group_id": f"g-{filled}", "enable_auto_commit": False}
    first = consumers(**settings)
    first.assign(places)
    seen = read(first, 180, max_records=10)
    wanted = {place: first.position(place) for place in places}
    first.commit()
    assert {place: first.committed(place) for place in places} == wanted
    first.close()
    second = consumers(**settings)
    second.assign(places)
    rest = read(second, 200 - len(seen))
    both = {(record.partition, record.offset) for record in seen + rest}
    assert len(seen) + len(rest) == len(both) == 200


def test_a_commit_keeps_metadata_and_commits_without_records(consumers: Make, filled: str) -> None:
    consumer = consumers(group_id=f"g-{filled}", enable_auto_commit=False)
    place = TopicPartition(filled, 0)
    consumer.assign([place])
    assert consumer.committed(place) is None
    consumer.commit({place: OffsetAndMetadata(42, "half way", -1)})
    assert consumer.committed(place, metadata=True) == OffsetAndMetadata(42, "half way", -1)
    done: list[object] = []
    consumer.commit_async(
        {place: OffsetAndMetadata(43, "", -1)}, callback=lambda *told: done.append(told)
    )
    wait_until("the commit", lambda: consumer.poll(timeout_ms=50) is not None and done)
    assert consumer.committed(place) == 43


def test_what_is_committed_by_itself_is_not_read_again(consumers: Make, filled: str) -> None:
    settings = {"group_id": f"g-{filled}", "auto_commit_interval_ms": 50}
    first = consumers(filled, **settings)
    read(first, 200)
    first.close()
    second = consumers(filled, consumer_timeout_ms=1_500, **settings)
    assert list(second) == []
    assert len(second.assignment()) == 2


def test_few_bytes_at_a_time_reach_all_partitions(consumers: Make, filled: str) -> None:
    consumer = consumers(filled, group_id=None, fetch_max_bytes=300)
    found = read(consumer, 200)
    assert {(record.partition, record.offset) for record in found} == {
        (partition, offset) for partition in (0, 1) for offset in range(100)
    }


def test_less_than_a_batch_still_gives_a_batch(consumers: Make, filled: str) -> None:
    for limit in ({"fetch_max_bytes": 1}, {"max_partition_fetch_bytes": 1}):
        consumer = consumers(group_id=None, **limit)
        consumer.assign([TopicPartition(filled, 0)])
        assert [next(consumer).offset for _ in range(25)] == list(range(25))


def test_records_of_a_poll_are_bounded(consumers: Make, filled: str) -> None:
    consumer = consumers(filled, group_id=None, max_poll_records=7)
    seen = 0
    while seen < 200:
        (count,) = [sum(map(len, consumer.poll(timeout_ms=1_000).values()))]
        assert count <= 7
        seen += count


def test_offsets_for_times(broker: BrokerProcess, consumers: Make, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    early, late = BEGAN_MS, BEGAN_MS + 2_000
    for partition in (0, 1):
        messages = [
            Message(None, b"first", [], early + partition, partition),
            Message(None, b"last", [], late + partition, partition),
        ]
        for message in messages:
            librdkafka_produce(broker.bootstrap, topic, [message])
    consumer = consumers()
    places = [TopicPartition(topic, partition) for partition in (0, 1)]

    def ask(times: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int] | None]:
        found: dict[TopicPartition, OffsetAndTimestamp | None] = consumer.offsets_for_times(times)
        return {p: (f.offset, f.timestamp) if f else None for p, f in found.items()}

    assert ask({places[0]: early}) == {places[0]: (0, early)}
    assert ask({places[0]: early + 1}) == {places[0]: (1, late)}
    assert ask({places[0]: late}) == {places[0]: (1, late)}
    assert ask({places[0]: late + 1}) == {places[0]: None}
    assert ask({places[0]: 0, places[1]: late}) == {
        places[0]: (0, early),
        places[1]: (1, late + 1),
    }
    assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
    assert consumer.end_offsets(places) == dict.fromkeys(places, 2)
    assert consumer.offsets_for_times({}) == {}
    with pytest.raises(ValueError):
        consumer.offsets_for_times({places[0]: -1})


def test_offsets_of_a_partition_that_is_not_there_are_not_found(
    broker: BrokerProcess, consumers: Make, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    consumer = consumers()
    with pytest.raises(KafkaTimeoutError):
        consumer.end_offsets([TopicPartition(topic, 7)], timeout_ms=700)


class RebalanceListener(kafka.ConsumerRebalanceListener):
    """What a consumer was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, frozenset[int]]] = []

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        self.told.append(("revoked", frozenset(place.partition for place in revoked)))

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        self.told.append(("assigned", frozenset(place.partition for place in assigned)))


def test_listeners_hear_of_each_rebalance(consumers: Make, filled: str) -> None:
    heard = [RebalanceListener(), RebalanceListener()]
    settings = {"group_id": f"g-{filled}", "heartbeat_interval_ms": 200, "session_timeout_ms": 6000}
    first = consumers(**settings)
    first.subscribe([filled], listener=heard[0])
    wait_until(
        "both", lambda: first.poll(timeout_ms=JOINING_MS) is None or len(first.assignment()) == 2
    )
    second = consumers(**settings)
    second.subscribe([filled], listener=heard[1])

    def share() -> bool:
        first.poll(timeout_ms=JOINING_MS)
        second.poll(timeout_ms=JOINING_MS)
        return len(first.assignment()) == len(second.assignment()) == 1

    wait_until("one each", share)
    assert first.assignment() | second.assignment() == {
        TopicPartition(filled, partition) for partition in (0, 1)
    }
    assert ("assigned", frozenset({0, 1})) in heard[0].told
    assert ("revoked", frozenset({0, 1})) in heard[0].told
    assert heard[0].told[-1] == ("assigned", frozenset(p.partition for p in first.assignment()))
    assert heard[1].told[-1] == ("assigned", frozenset(p.partition for p in second.assignment()))
    second.close()
    wait_until(
        "both", lambda: first.poll(timeout_ms=JOINING_MS) is None or len(first.assignment()) == 2
    )


def test_a_pattern_finds_topics_that_are_made_later(
    broker: BrokerProcess, consumers: Make, topic: str
) -> None:
    create_topic(broker.bootstrap, f"{topic}-1")
    fill(broker, f"{topic}-1", range(3))
    consumer = consumers(group_id=f"g-{topic}", metadata_max_age_ms=300)
    consumer.subscribe(pattern=f"^{topic}-.*")
    assert {record.topic for record in read(consumer, 3)} == {f"{topic}-1"}
    create_topic(broker.bootstrap, f"{topic}-2")
    fill(broker, f"{topic}-2", range(4))
    assert {record.topic for record in read(consumer, 4)} == {f"{topic}-2"}
    assert consumer.subscription() == {f"{topic}-1", f"{topic}-2"}


def test_it_takes_our_broker_for_a_late_kafka(consumers: Make) -> None:
    consumer = consumers()
    assert consumer.config["api_version"] >= (3, 0)
