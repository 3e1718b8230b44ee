"""A share group on three brokers, of which one after the other is killed: every record is delivered to a member of
librdkafka, and the acknowledgement of each is answered once.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.processes import BrokerCluster, cluster
from tests.topics import create_topic

pytestmark = pytest.mark.slow

TOPIC = GROUP = "shared"
RECORDS, PARTITIONS, KILLS = 2_000, 4, 4
PATIENCE_S = 180
SETTINGS = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "share.coordinator.state.topic.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 3,
    "group.share.min.record.lock.duration.ms": 2_000,
    "group.share.record.lock.duration.ms": 2_000,
    "group.share.max.delivery.count.limit": 10,
    "group.share.delivery.count.limit": 10,
}


# Values whose acknowledgement was answered.
SETTLED: set[bytes] = set()


class AcceptingMember(threading.Thread):
    """A member that accepts everything, and commits after each poll."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self.ends = threading.Event()
        self.delivered: list[bytes] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            member = ShareConsumer({"bootstrap.servers": self._servers, "group.id": GROUP})
            member.subscribe([TOPIC])
            while not self.ends.is_set():
                messages = [each for each in member.poll(0.5) if each.error() is None]
                self.delivered += [value_of(each) for each in messages]
                if messages:
                    self._commit(member, messages)
            member.close()
        except BaseException as failure:
            self.failure = failure

    def _commit(self, member: ShareConsumer, messages: list[Message]) -> None:
        try:
            results = member.commit_sync(10)
        except KafkaException:
            return
        failed = {(each.topic, each.partition) for each, error in results.items() if error}
        for each in messages:
            if (each.topic(), each.partition()) not in failed:
                assert value_of(each) not in SETTLED, "acknowledged twice"
                SETTLED.add(value_of(each))


def value_of(message: Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


def produce_all(brokers: BrokerCluster) -> None:
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True, "linger.ms": 5}
    )
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        if number % 20 == 19:
            producer.flush(PATIENCE_S)
            time.sleep(0.1)
    assert producer.flush(PATIENCE_S) == 0


def test_nothing_is_lost_or_delivered_after_its_acknowledgement(tmp_path: Path) -> None:
    SETTLED.clear()
    with cluster(tmp_path, overrides=SETTINGS) as brokers:
        create_topic(brokers.bootstrap, TOPIC, partitions=PARTITIONS, replicas=3)
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result(PATIENCE_S)
        members = [AcceptingMember(brokers.bootstrap) for _ in range(3)]
        producing = threading.Thread(target=produce_all, args=(brokers,), daemon=True)
        for thread in (*members, producing):
            thread.start()
        for kill in range(KILLS):
            time.sleep(4)
            broker = brokers[1 + kill % 3]
            broker.kill()
            time.sleep(4)
            broker.start()
        producing.join(PATIENCE_S)
        give_up_s = time.monotonic() + PATIENCE_S
        while len(SETTLED) < RECORDS and time.monotonic() < give_up_s:
            time.sleep(0.2)
        for member in members:
            member.ends.set()
        for member in members:
            member.join(60)
            assert member.failure is None, member.failure
    delivered = {value for member in members for value in member.delivered}
    assert delivered == {b"%d" % number for number in range(RECORDS)}
    assert len(SETTLED) == RECORDS
