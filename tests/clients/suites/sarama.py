"""Sarama's functional tests: five brokers behind Toxiproxy, at the ports that the tests have built in.

The tests use Docker Compose to start and stop brokers, and to run Java's tools; `compose` stands in for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.apache_kafka import wait_for_listener
from tests.clients.suites.building import SARAMA, go_binary, kafka_path, toxiproxy
from tests.clients.suites.clusters import Cluster
from tests.clients.suites.compose import ComposeStandIn, command
from tests.clients.suites.outcomes import Outcome, each_of, go_test

# Where the tests expect Toxiproxy, and the port before that of broker 1.
API = "127.0.0.1:8474"
PORT = 29_090
KAFKA_VERSION = "4.3.1"


def run_sarama(
    source: Path, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `TestFuncProducing`; one at a time, since each makes the same topics anew, and mends the proxies."""
    binary = go_binary(source, "", *SARAMA)
    kafka_path(work)
    compose = ComposeStandIn(cluster, work)
    first = cluster.brokers[1].address("INTERNAL")
    path = f"{command(work, first)}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KAFKA_VERSION": KAFKA_VERSION}

    def run(test: str) -> Outcome:
        compose.begin()
        return go_test(binary, source, environment, test)

    with _proxies(work, cluster), contextlib.closing(compose):
        yield from each_of(run, tests, at_once=1)


@contextlib.contextmanager
def _proxies(work: Path, cluster: Cluster) -> Iterator[None]:
    """Toxiproxy before the brokers, at the ports that these advertise."""
    named = [
        {
            "name": f"kafka{number}",
            "listen": f"127.0.0.1:{PORT + number}",
            "upstream": broker.address("LOCAL"),
            "enabled": True,
        }
        for number, broker in cluster.brokers.items()
    ]
    config = work / "toxiproxy.json"
    config.write_text(json.dumps(named))
    host, port = API.split(":")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # An OSError if another run of these tests has it.
        free.bind((host, int(port)))
    words = [str(toxiproxy()), "-host", host, "-port", port, "-config", str(config)]
    log_file = work / "toxiproxy.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        wait_for_listener("Toxiproxy", API, process, log_file)
        yield
    finally:
        process.terminate()
        process.wait()
