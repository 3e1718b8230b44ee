"""docker-compose.yml, run without containers: the services of a plain `docker compose up` work together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compose_machine import BROKERS, ROOT, ComposeMachine, compose
from tests.processes import wait_until
from tests.spark.java import QUICK_JAVA

COUNT = 3_000


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[ComposeMachine]:
    running = ComposeMachine(tmp_path)
    try:
        yield running
    finally:
        running.stop()


@pytest.mark.timeout(600)
def test_the_services_work_together(machine: ComposeMachine) -> None:
    machine.start_cluster()
    outside = ",".join(
        f"127.0.0.1:{machine.port(service, 19092 + number)}"
        for number, service in enumerate(BROKERS)
    )
    admin = AdminClient({"bootstrap.servers": outside})
    wait_until("three brokers", lambda: len(admin.list_topics(timeout=120).brokers) == 3)
    admin.create_topics([NewTopic("orders", 3)])["orders"].result(120)
    replicas = admin.list_topics("orders", timeout=120).topics["orders"].partitions
    assert [sorted(each.replicas) for each in replicas.values()] == [[1, 2, 3]] * 3
    producer = Producer({"bootstrap.servers": outside, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce("orders", key=b"%d" % (number % 7), value=b"%d" % number)
    assert producer.flush(120) == 0, machine.log("broker-1")
    console = compose()["services"]["spark"]["entrypoint"]
    words = [machine.here("spark", word) for word in console[1:]]
    asked = subprocess.run(
        [
            sys.executable,
            *words,
            "SELECT count(*) AS n, sum(CAST(CAST(value AS STRING) AS BIGINT)) AS total FROM orders",
        ],
        env={
            **os.environ,
            **machine.environment("spark"),
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr[-3000:]
    assert re.search(rf"\|{COUNT}\s*\|{COUNT * (COUNT - 1) // 2}\s*\|", asked.stdout), asked.stdout
