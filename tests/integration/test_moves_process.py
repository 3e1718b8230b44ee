"""A replica that moves to another log directory while a producer writes, and the broker is killed on the way."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import kafka
from confluent_kafka import Consumer, Producer, TopicPartition

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DescribeLogDirsRequest
from tests.integration.raw_client import RawClient
from tests.processes import BrokerProcess, wait_until
from tests.topics import create_topic

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
VALUE = b"x" * 1_000
BEFORE = 3_000


class AcknowledgedWriter(threading.Thread):
    """Produces numbered records with acks=all and idempotence until stopped; counts the acknowledged ones."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.acknowledged: set[int] = set()
        self.stopping = threading.Event()
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
            }
        )

    def send(self) -> None:
        number = self.sent
        self.sent += 1

        def told(error: Any, _message: Any) -> None:
            if error is None:
                self.acknowledged.add(number)

        self._producer.produce("t", VALUE, key=b"%d" % number, partition=0, on_delivery=told)
        self._producer.poll(0)

    def run(self) -> None:
        while not self.stopping.wait(0.002):
            self.send()
        self._producer.flush(120)

    def flush(self) -> None:
        self._producer.flush(120)


class MovingBroker:
    """A broker with two directories, one partition in the first."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = folder / "first", folder / "second"
        self.broker = BrokerProcess(
            folder,
            {
                "log.dirs": f"{self.first},{self.second}",
                "remote.log.storage.system.enable": "false",
                "log.segment.bytes": 1 << 20,
                RATE: 1_000_000,
            },
        )
        self.broker.start()
        create_topic(self.broker.bootstrap, "t")

    def move(self, folder: Path) -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=self.broker.bootstrap)
        try:
            replica = kafka.TopicPartitionReplica("t", 0, 1)
            told = admin.alter_replica_log_dirs({replica: str(folder)})
            assert told[replica].errno == 0
        finally:
            admin.close()

    def places(self) -> dict[tuple[str, bool], tuple[int, int]]:
        """Size and lag by directory and whether it is a future one."""
        with RawClient(self.broker.bootstrap) as client:
            answer = client.ask(DescribeLogDirsRequest(topics=None), 4)
        assert all(each.error_code == ErrorCode.NONE for each in answer.results)
        return {
            (Path(each.log_dir).name, partition.is_future_key): (
                partition.partition_size,
                partition.offset_lag,
            )
            for each in answer.results
            for topic in each.topics
            if topic.name == "t"
            for partition in topic.partitions
        }

    def throttle(self, rate: int) -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=self.broker.bootstrap)
        try:
            resource = kafka.admin.ConfigResource("BROKER", "1", {RATE: str(rate)})
            admin.alter_configs([resource])
        finally:
            admin.close()

    def keys(self) -> list[int]:
        """The records' numbers, in the order of the log."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "g"})
        try:
            place = TopicPartition("t", 0, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=120)
            consumer.assign([place])
            found: list[int] = []
            while len(found) < end:
                message = consumer.poll(120)
                assert message is not None
                assert message.error() is None, message.error()
                key = message.key()
                assert key is not None
                found.append(int(key))
            return found
        finally:
            consumer.close()


def test_a_replica_moves_under_load_and_through_a_crash(tmp_path: Path) -> None:
    desk = MovingBroker(tmp_path)
    writer = AcknowledgedWriter(desk.broker.bootstrap)
    try:
        for _ in range(BEFORE):
            writer.send()
        writer.flush()
        writer.start()
        assert set(desk.places()) == {("first", False)}
        desk.move(desk.second)
        wait_until("some of it is copied", lambda: desk.places()["second", True][0] > 0)
        size, lag = desk.places()["second", True]
        assert 0 < lag < writer.sent, "it is throttled"
        assert size < desk.places()["first", False][0]

        desk.broker.kill()
        desk.broker.start()
        assert set(desk.places()) == {("first", False), ("second", True)}, "it goes on"
        desk.throttle(1 << 40)
        wait_until("its end", lambda: set(desk.places()) == {("second", False)})
        # Only then is its folder renamed, to be deleted later.
        wait_until("the old place to be empty", lambda: not (desk.first / "t-0").exists())
        assert (desk.second / "t-0").exists()

        desk.broker.kill()
        desk.broker.start()
        assert set(desk.places()) == {("second", False)}
        writer.stopping.set()
        writer.join(120)
        keys = desk.keys()
        assert len(writer.acknowledged) == writer.sent
        assert keys == list(range(writer.sent)), "each once, in order"
        assert "Traceback" not in desk.broker.log_file.read_text()
    finally:
        writer.stopping.set()
        desk.broker.kill()
        if writer.ident is not None:
            writer.join(120)
