"""Workloads of Trogdor, Apache Kafka's framework of long tests, with its coordinator and an agent as processes.

A test is a workload of WORKLOADS, which is sent to the coordinator as JSON. It passes when Trogdor calls it done
without an error, and has counted what it should.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from spark_conf import jars
from spark_conf.java import java_command
from tests.apache_kafka import free_ports, wait_for_listener
from tests.clients.suites.clusters import Cluster
from tests.clients.suites.outcomes import Outcome, each_of

NODE = "node0"
LIMIT_S = 300
JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
MESSAGES = 10_000
KEYS = {"type": "sequential", "size": 4, "startOffset": 0}
VALUES = {"type": "uniformRandom", "size": 512, "seed": 0, "padding": 0}


def _topics(name: str) -> dict[str, object]:
    return {f"{name}[1-3]": {"numPartitions": 4, "replicationFactor": 1}}


def _round_trip(topic: str) -> dict[str, object]:
    return {
        "clientNode": NODE,
        "targetMessagesPerSec": 5_000,
        "valueGenerator": VALUES,
        "activeTopics": _topics(topic),
        "maxMessages": MESSAGES,
    }


def _produce(topic: str) -> dict[str, object]:
    return {
        "producerNode": NODE,
        "targetMessagesPerSec": 5_000,
        "maxMessages": MESSAGES,
        "keyGenerator": KEYS,
        "valueGenerator": VALUES,
        "activeTopics": _topics(topic),
    }


def _consume(topic: str) -> dict[str, object]:
    return {
        "consumerNode": NODE,
        "targetMessagesPerSec": 5_000,
        "maxMessages": MESSAGES,
        "activeTopics": [f"{topic}[1-3]"],
    }


# For so long; the others end by themselves.
_STRESS = {"durationMs": 10_000, "clientNode": [NODE], "numThreads": 4}
# By name: the class (to `@`) and its specification. What ConsumeBench reads, ProduceBench has written.
WORKLOADS: Mapping[str, Mapping[str, object]] = {
    "RoundTripWorkload": _round_trip("round"),
    "ShareRoundTripWorkload": _round_trip("shared"),
    "ProduceBench": _produce("bench"),
    "ProduceBench@transactions": {
        **_produce("transactional"),
        "transactionGenerator": {"type": "uniform", "messagesPerTransaction": 100},
    },
    "ConsumeBench": _consume("bench"),
    "ConsumeBench@group": {
        **_consume("bench"),
        "consumerGroup": "bench",
        "threadsPerWorker": 2,
        "maxMessages": MESSAGES // 4,
    },
    "ConnectionStress@connect": {**_STRESS, "targetConnectionsPerSec": 100, "action": "CONNECT"},
    "ConnectionStress@metadata": {
        **_STRESS,
        "targetConnectionsPerSec": 50,
        "action": "FETCH_METADATA",
    },
    "SustainedConnection": {
        "durationMs": 10_000,
        "clientNode": NODE,
        "keyGenerator": KEYS,
        "valueGenerator": VALUES,
        "producerConnectionCount": 5,
        "consumerConnectionCount": 5,
        "metadataConnectionCount": 5,
        "topicName": "sustained",
        "numThreads": 4,
        "refreshRateMs": 1_000,
    },
}


def _counts(test: str, status: Any) -> bool:
    """Whether a workload that is done without an error has done what it was asked."""
    name = test.partition("@")[0]
    if name == "ProduceBench":
        transactions = MESSAGES // 100 if "@transactions" in test else 0
        found = (status["totalSent"], status["transactionsCommitted"])
        return bool(found == (MESSAGES, transactions))
    if name == "ConsumeBench":
        return sum(each["totalMessagesReceived"] for each in status.values()) >= MESSAGES // 4
    if name == "ConnectionStress":
        total = status.get(NODE, status)
        return bool(total["totalConnections"] > 0 and not total["totalFailedConnections"])
    return True


def ask(url: str, body: object = None) -> Any:
    """What a daemon answers; an AssertionError with its reason where it refuses."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    try:
        asked = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as refused:
        raise AssertionError(f"{url}: {refused.read().decode()}") from refused


@contextlib.contextmanager
def daemons(work: Path, commands: Path | None = None) -> Iterator[str]:
    """An agent and a coordinator; the coordinator's address. `commands`: a folder of what the agent runs first."""
    ports = free_ports(2)
    named = {"trogdor.agent.port": ports[0], "trogdor.coordinator.port": ports[1]}
    conf = {
        "platform": "org.apache.kafka.trogdor.basic.BasicPlatform",
        "nodes": {NODE: {"hostname": "localhost", **named}},
    }
    file = work / "trogdor.conf"
    file.write_text(json.dumps(conf))
    quiet = work / "log4j2.xml"
    quiet.write_text('<Configuration><Loggers><Root level="off"/></Loggers></Configuration>')
    head = [java_command(), *JAVA, f"-Dlog4j2.configurationFile={quiet}"]
    head += ["-cp", f"{jars.fetch('trogdor')}/*:{jars.fetch('kafka')}/*"]
    environment = dict(os.environ)
    if commands:
        environment["PATH"] = f"{commands}:{environment['PATH']}"
    with contextlib.ExitStack() as stack:
        log = work / "trogdor.log"
        for name, port in zip(("agent.Agent", "coordinator.Coordinator"), ports, strict=True):
            words = [*head, f"org.apache.kafka.trogdor.{name}", "-c", str(file), "-n", NODE]
            with log.open("ab") as out:
                process = subprocess.Popen(words, stdout=out, stderr=out, env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
            wait_for_listener(name, f"localhost:{port}", process, log)
        yield f"http://localhost:{ports[1]}/coordinator"


def run_workload(
    coordinator: str, name: str, test: str, spec: Mapping[str, object], brokers: str
) -> Outcome:
    """Send a workload to the coordinator, and wait until it is done."""
    whole = {
        "class": f"org.apache.kafka.trogdor.workload.{test.partition('@')[0]}Spec",
        "startMs": 0,
        "durationMs": LIMIT_S * 1000,
        "bootstrapServers": brokers,
        **spec,
    }
    ask(f"{coordinator}/task/create", {"id": name, "spec": whole})
    end = time.monotonic() + LIMIT_S + 60
    while (task := ask(f"{coordinator}/tasks/{name}"))["state"] != "DONE":
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    passed = task["state"] == "DONE" and not task.get("error") and _counts(test, task["status"])
    state = "passed" if passed else "failed"
    return Outcome(test=test, state=state, printed=json.dumps(task, indent=1))


def run_trogdor(
    _source: None, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """Each workload, one after the other."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("sustained", 4, 1)])["sustained"].result()
    with daemons(work) as coordinator:
        tries = iter(range(1_000))

        def run(test: str) -> Outcome:
            name = f"{test}-{next(tries)}"
            return run_workload(coordinator, name, test, WORKLOADS[test], cluster.bootstrap)

        yield from each_of(run, tests, at_once=1)
