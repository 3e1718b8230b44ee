"""Several brokers of one file as one unit (`broker.processes`): their start, metrics, deaths and end."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from broker.metadata.events import ClusterFenced
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.local import LocalStore
from tests.command_line import CommandLine
from tests.processes import BrokerCluster, BrokerDied, BrokerProcess, wait_until

CLEAN = ".kafka_cleanshutdown"
RECORDS = 400
PARTITIONS = 8


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[int]:
    """The first of so many ports in a row that nobody else is given as free ones; brokers can bind them."""
    with contextlib.ExitStack() as held:
        while True:
            first = random.randrange(20_000, 32_000)
            with contextlib.ExitStack() as tried, contextlib.suppress(OSError):
                for port in range(first, first + count):
                    each = tried.enter_context(socket.socket())
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    each.bind(("127.0.0.1", port))
                held.enter_context(tried.pop_all())
                yield first
                return


@contextlib.contextmanager
def unit(folder: Path, **settings: object) -> Iterator[BrokerProcess]:
    """Two brokers, not started yet; the process is the unit's."""
    with held_ports(3) as port:
        made = BrokerProcess(
            folder,
            {
                **BrokerCluster.SETTINGS,
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "metrics.port": port + 2,
                **{name.replace("_", "."): value for name, value in settings.items()},
            },
        )
        made.program = (sys.executable, "-m", "broker.cli", "broker", "--processes", "2")
        try:
            yield made
        finally:
            made.kill()


def log_of(brokers: BrokerProcess) -> str:
    return brokers.log_file.read_text(errors="replace")


def pids(brokers: BrokerProcess) -> dict[int, int]:
    """The last process of each broker, by node id."""
    found = re.findall(r"broker (\d+) is process (\d+)", log_of(brokers))
    return {int(node_id): int(pid) for node_id, pid in found}


def is_there(pid: int) -> bool:
    """Whether the process lives; where nobody waits for it, a dead one stays a zombie."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def values(brokers: BrokerProcess, name: str) -> dict[str, float]:
    """The samples of this name that have only the label `node_id`, by that."""
    try:
        text = brokers.metrics()
    except urllib.error.URLError:
        return {}
    families = text_string_to_metric_families(text)
    samples = [each for family in families for each in family.samples if each.name == name]
    return {s.labels["node_id"]: s.value for s in samples if set(s.labels) == {"node_id"}}


def create(brokers: BrokerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)


def produce(brokers: BrokerProcess, topic: str) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "log_level": 0, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce(
            topic,
            b"%d" % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(120) == 0
    assert not failed


def consume(brokers: BrokerProcess, topic: str, count: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    seen = 0
    while seen < count:
        message = consumer.poll(120)
        assert message is not None
        if message.error() is not None:
            raise KafkaException(message.error())
        seen += 1
    consumer.close()


def test_a_unit_is_one_cluster_with_one_banner_one_scrape_and_one_stop(tmp_path: Path) -> None:
    with unit(tmp_path, broker_rack="az-1") as brokers:
        brokers.start()
        assert f"PLAINTEXT://{brokers.bootstrap}" == brokers.overrides["listeners"]
        create(brokers, "t")
        produce(brokers, "t")
        consume(brokers, "t", RECORDS)
        status = CommandLine(brokers.bootstrap, tmp_path).json("cluster", "status")
        assert [(each["id"], each["rack"], each["state"]) for each in status["brokers"]] == [
            (1, "az-1", "alive"),
            (2, "az-1", "alive"),
        ]
        text = brokers.metrics()
        produced = "kafka_server_brokertopicmetrics_messagesin_total"
        assert text.count(f"# TYPE {produced} ") == 1
        assert values(brokers, "kafka_server_brokerunit_processup") == {"1": 1, "2": 1}
        assert values(brokers, "kafka_server_brokerunit_processrestarts_total") == {"1": 0, "2": 0}
        assert min(values(brokers, produced).values()) >= RECORDS / 4
        assert "process_open_fds " in text and 'process_open_fds{node_id="2"}' in text
        processes = pids(brokers)
        assert set(processes) == {1, 2}
        assert brokers.stop() == 0
        assert not any(map(is_there, processes.values()))
        said = log_of(brokers)
        assert said.count("as one unit, nodes 1 to 2") == 1 and "starts as node" not in said
        assert "Traceback" not in said and "[node 2]" in said
        for node_id in ("1", "2"):
            assert (brokers.data / node_id / CLEAN).exists()
        brokers.start()  # on the same folders
        produce(brokers, "t")
        consume(brokers, "t", RECORDS)
        assert brokers.stop() == 0


def test_a_broker_that_dies_is_told_and_started_again(tmp_path: Path) -> None:
    with unit(tmp_path) as brokers:
        brokers.start()
        create(brokers, "t")
        produce(brokers, "t")
        killed = pids(brokers)[2]
        os.kill(killed, signal.SIGKILL)
        wait_until("another process", lambda: pids(brokers)[2] != killed)
        assert "broker 2 has ended unexpectedly (killed by SIGKILL)" in log_of(brokers)
        up = "kafka_server_brokerunit_processup"
        wait_until("its answer", lambda: values(brokers, up) == {"1": 1, "2": 1})
        restarts = values(brokers, "kafka_server_brokerunit_processrestarts_total")
        assert restarts == {"1": 0, "2": 1}
        produce(brokers, "t")
        consume(brokers, "t", 2 * RECORDS)
        assert brokers.stop() == 0


def test_a_unit_whose_lake_was_fenced_ends(tmp_path: Path) -> None:
    """Its brokers would be started again, and end again, for ever."""
    with unit(tmp_path) as brokers:
        brokers.start()
        create(brokers, "t")
        first = MetadataLog(LocalStore(str(brokers.lake)))
        first.commit(
            first.begin([ClusterFenced(successor="s3://elsewhere")], first.load(begins=False))
        )
        wait_until("the unit's end", lambda: not brokers.running(), timeout_s=60)
        assert brokers.stop() == os.EX_CONFIG
        said = log_of(brokers)
        assert "was fenced by kafka-ds promote, as it says: the unit has stopped" in said
        assert "it goes on in the lake s3://elsewhere" in said
        assert not any(map(is_there, pids(brokers).values()))


def test_no_broker_outlives_its_unit(tmp_path: Path) -> None:
    with unit(tmp_path) as brokers:
        brokers.start()
        processes = pids(brokers)
        assert all(map(is_there, processes.values()))
        brokers.kill()
        wait_until("their end", lambda: not any(map(is_there, processes.values())))
        for node_id in ("1", "2"):  # They had time to stop.
            assert (brokers.data / node_id / CLEAN).exists()


def test_a_second_signal_kills_what_does_not_stop(tmp_path: Path) -> None:
    with unit(tmp_path) as brokers:
        brokers.start()
        processes = pids(brokers)
        os.kill(processes[2], signal.SIGSTOP)
        os.kill(brokers.pid, signal.SIGTERM)
        wait_until("the first to stop", lambda: not is_there(processes[1]))
        assert is_there(processes[2]) and brokers.running()
        assert brokers.stop() == 1
        assert not is_there(processes[2])
        assert "broker 2 did not stop cleanly (killed by SIGKILL)" in log_of(brokers)


def test_a_unit_of_which_one_cannot_start_ends(tmp_path: Path) -> None:
    with unit(tmp_path) as brokers, socket.socket() as taken:
        port = int(str(brokers.overrides["listeners"]).rpartition(":")[2]) + 1
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(BrokerDied, match="exit status 1"):
            brokers.start()
        said = log_of(brokers)
        assert f"failed to bind to 127.0.0.1:{port}: address already in use" in said
        assert "kafka-ds: broker 2 did not start (exit status 1): the unit has stopped" in said
        assert not any(map(is_there, pids(brokers).values()))


def test_folders_of_a_single_broker_are_not_begun_beside(tmp_path: Path) -> None:
    with unit(tmp_path) as brokers:
        brokers.data.mkdir()
        (brokers.data / "meta.properties").write_text("node.id=1\n")
        with pytest.raises(BrokerDied, match="is a single broker's"):
            brokers.start()


def test_the_disks_of_all_its_brokers_are_brought_back(tmp_path: Path) -> None:
    tiers = {"remote_log_storage_system_enable": "true", "lake_max_lag_ms": 300}
    with unit(tmp_path, **tiers, lake_offsets_interval_ms=300) as brokers:
        brokers.start()
        kafka_ds = CommandLine(brokers.bootstrap, tmp_path)
        create(brokers, "t")
        produce(brokers, "t")

        def is_tiered() -> bool:
            (row,) = kafka_ds.json("tier", "status")
            return (row["lag"], row["lake_rows"]) == (0, RECORDS)

        wait_until("the lake to have it all", is_tiered)
        assert brokers.stop() == 0
        words = [*brokers.command()[len(brokers.program) :], "--override", "broker.processes=2"]
        shutil.rmtree(brokers.data)
        told = kafka_ds.ok("restore", *words)
        assert "broker 1 restored" in told and "broker 2 restored" in told
        refused = kafka_ds.run("restore", *words).complaint
        assert f"log.dirs: {brokers.data}/1 is not empty" in refused
        adopted = kafka_ds.run("adopt", *words).complaint
        assert "broker.processes=2: Kafka's directories are one broker's" in adopted
        brokers.start()
        consume(brokers, "t", RECORDS)
        assert brokers.stop() == 0
