"""The wheel: built from what Git holds, installed into an environment without this checkout, and run."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.processes import BrokerProcess
from tests.wheels import installed, run

TIMEOUT_S = 120

# What the packages hold beside Python, read from where the wheel was installed.
CONTENTS = """
import broker, kafka_ds, spark_conf
from importlib.metadata import version
from importlib.resources import files
from spark_conf.system_views import questions
assert version("kafka-ds")
assert files("kafka_ds").joinpath("py.typed").is_file()
assert files("spark_conf").joinpath("spark-defaults.conf").is_file()
assert len(questions()) > 10
for name in ("page.html", "console.css", "console.js"):
    assert files("broker.console").joinpath(name).is_file()
print(files("broker"), files("kafka_ds"), files("spark_conf"), sep="\\n")
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of an environment that has the wheel, and of this one the packages it requires."""
    return installed(tmp_path_factory.mktemp("wheel"))


def test_it_holds_what_the_packages_need(programs: Path, tmp_path: Path) -> None:
    places = run(programs / "python", "-c", CONTENTS, cwd=tmp_path).split()
    assert len(places) == 3
    assert all(Path(each).is_relative_to(programs.parent) for each in places), places


def read_one(bootstrap: str, topic: str) -> bytes | None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_its_broker_runs(programs: Path, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.program = (str(programs / "kafka-ds-broker"),)
    broker.start()
    try:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"one")
        assert producer.flush(TIMEOUT_S) == 0
        assert read_one(broker.bootstrap, "orders") == b"one"
    finally:
        assert broker.stop() == 0


def test_its_demo_runs(programs: Path, tmp_path: Path) -> None:
    said = run(programs / "kafka-ds", "demo", "--records", "2000", cwd=tmp_path)
    assert "2000 records produced to orders" in said
    assert "CREATE TOPIC" in said
    assert not list(tmp_path.iterdir()), "it leaves nothing where it was called"
