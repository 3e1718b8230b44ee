"""The stand-in for Docker Compose, as Sarama's tests call it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.suites.compose import ComposeStandIn, command


class FakeBroker:
    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self.runs = True
        log_file.write_text("of an earlier test\n")

    def start(self) -> None:
        self.runs = True

    def stop(self) -> None:
        self.runs = False

    def address(self, listener: str) -> str:
        return f"{listener}:1"


class FakeCluster:
    bootstrap = ""

    def __init__(self, folder: Path) -> None:
        self.brokers = {number: FakeBroker(folder / f"{number}.log") for number in (1, 2)}

    def start(self) -> None:
        for each in self.brokers.values():
            each.start()

    def stop(self) -> None:
        raise AssertionError("a test of Sarama's stops single brokers")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[int, FakeBroker]]:
    cluster = FakeCluster(tmp_path)
    compose = ComposeStandIn(cluster, tmp_path)
    with contextlib.closing(compose):
        compose.begin()
        yield cluster.brokers


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{command(tmp_path, '127.0.0.1:7')}:{os.environ['PATH']}"


def docker(path: str, *words: str) -> str:
    """What the command prints, on both streams."""
    done = subprocess.run(
        ["docker", *words],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_a_broker_is_stopped_and_started(brokers: dict[int, FakeBroker], path: str) -> None:
    assert docker(path, "compose", "stop", "kafka-2") == ""
    assert [each.runs for each in brokers.values()] == [True, False]
    docker(path, "compose", "start", "kafka-2")
    assert brokers[2].runs


def test_a_log_begins_with_the_test(brokers: dict[int, FakeBroker], path: str) -> None:
    with brokers[1].log_file.open("a") as log:
        log.write("of this one: ä\n")
    assert docker(path, "compose", "logs", "--since", "now", "kafka-1") == "of this one: ä\n"


def test_the_cluster_stays_up(brokers: dict[int, FakeBroker], path: str) -> None:
    for words in (("up", "-d"), ("down", "--volumes"), ("rm", "-v", "--force")):
        assert docker(path, "compose", *words) == ""
    assert all(each.runs for each in brokers.values())


def test_a_program_of_kafka_s_is_that_of_the_folder(path: str, tmp_path: Path) -> None:
    words = ("echo", "/opt/kafka-4.3.1/bin/x.sh", "--bootstrap-server", "kafka-1:9091", "a b")
    said = docker(path, "compose", "exec", "-T", "kafka-1", *words)
    assert said == f"{tmp_path}/kafka/bin/x.sh --bootstrap-server 127.0.0.1:7 a b\n"
    script = 'echo $$ > /dev/null; exec echo /opt/kafka-4.3.1/bin/x.sh "$@"'
    said = docker(path, "compose", "exec", "-T", "kafka-1", "bash", "-c", script, "bash", "c")
    assert said == f"{tmp_path}/kafka/bin/x.sh c\n"


def test_a_program_s_end_is_the_command_s(path: str, tmp_path: Path) -> None:
    script = ("bash", "-c", "read line; echo $line; exit 3")
    words = ("docker", "compose", "exec", "-T", "kafka-1", *script)
    done = subprocess.run(
        words,
        env={**os.environ, "PATH": path},
        input="x\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "x\n")
