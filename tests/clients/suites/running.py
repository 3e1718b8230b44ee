"""Runs single tests of a suite against a broker, each in a process and with a limit of time of its own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.clients.suites.building import CARGO_TEST, KAFKA_GO, go_binary, kafka_path, python_of
from tests.clients.suites.clusters import Cluster
from tests.clients.suites.junit import run_kafka, run_requests, run_streams
from tests.clients.suites.karapace import run_karapace
from tests.clients.suites.outcomes import Outcome, each_of, ended, go_test
from tests.clients.suites.sarama import run_sarama
from tests.clients.suites.spark import run_spark
from tests.clients.suites.streams_smoke import run_streams_smoke
from tests.clients.suites.trogdor import run_trogdor
from tests.clients.suites.trogdor_faults import run_trogdor_faults

# What librdkafka's and kafka-go's tests are told of the broker, so that they ask for all that it can.
KAFKA_VERSION = "4.2.0"


def run_librdkafka(
    source: Path, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `0012_produce_consume`, a part of it `0081_admin/do_test_X`; `@consumer`: with KIP-848's groups."""
    conf = work / "test.conf"
    conf.write_text(f"metadata.broker.list={cluster.bootstrap}\ntest.timeout.multiplier=3\n")
    environment = {
        **os.environ,
        "RDKAFKA_TEST_CONF": str(conf),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_PATH": str(kafka_path(work)),
        "BROKERS": cluster.bootstrap,
        "LD_LIBRARY_PATH": f"{source / 'src'}:{source / 'src-cpp'}",
    }

    def run(test: str) -> Outcome:
        name, _, protocol = test.partition("@")
        name, _, part = name.partition("/")
        report = work / f"{test.replace('/', '-')}.json"
        more = {"TESTS": name, "TEST_REPORT": str(report)}
        if part:
            more["SUBTESTS"] = part
        if protocol:
            more["TEST_CONSUMER_GROUP_PROTOCOL"] = protocol
        # -Q: fewer messages; -E: no emulated network between, which its quick runs leave out, too.
        printed = ended(["./test-runner", "-Q", "-E", "-p1"], source / "tests", environment | more)
        states = json.loads(report.read_text())["tests"] if report.exists() else {}
        state = states.get(name, {}).get("state", "failed").lower()
        return Outcome(test=test, state=state, printed=printed)

    yield from each_of(run, tests)


def run_franz_go(
    source: Path, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `TestGroupETL`, of the package `kgo`; `@chaos`: with connections that break at random."""
    binary = go_binary(source, "pkg/kgo")
    environment = {
        **os.environ,
        "KGO_SEEDS": cluster.bootstrap,
        "KGO_TEST_RF": "1",
        # Sessions of 20 s are too short for half a million records on a small machine.
        "KGO_TEST_RECORDS": "10000",
        "KGO_LOG_LEVEL": "none",
    }

    user = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion("kgo", user, b"secret")])[
        "kgo"
    ].result()
    # With these, all tests would log in.
    scram = {
        "KGO_TEST_SCRAM": "kgo:secret",
        "KGO_TEST_SCRAM_SEEDS": cluster.brokers[1].address("SASL_PLAINTEXT"),
    }

    def run(test: str) -> Outcome:
        name, _, chaos = test.partition("@")
        more = dict(scram) if name.startswith("TestSCRAM") else {}
        if chaos:
            more["KGO_TEST_CHAOS"] = "1"
        outcome = go_test(binary, source / "pkg" / "kgo", environment | more, name)
        return replace(outcome, test=test)

    yield from each_of(run, tests)


def run_kafka_go(
    source: Path, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `TestReader`, or `sasl/TestSASL` in a package below; one at a time, as Go runs those of a package."""
    packages = {test.rpartition("/")[0] for test in tests}
    binaries = {each: go_binary(source, each, *KAFKA_GO) for each in packages}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    asked = [
        UserScramCredentialUpsertion(
            f"adminscram{bits}",
            ScramCredentialInfo(mechanism, 4096),
            f"admin-secret-{bits}".encode(),
        )
        for bits, mechanism in (
            (256, ScramMechanism.SCRAM_SHA_256),
            (512, ScramMechanism.SCRAM_SHA_512),
        )
    ]
    for done in admin.alter_user_scram_credentials(asked).values():
        done.result()
    # As kafka-go's own CI has it: without the tests that treat a connection like a pipe's end.
    environment = {**os.environ, "KAFKA_VERSION": KAFKA_VERSION, "KAFKA_SKIP_NETTEST": "1"}

    def run(test: str) -> Outcome:
        package, _, name = test.rpartition("/")
        outcome = go_test(binaries[package], source / package, environment, name)
        return replace(outcome, test=test)

    yield from each_of(run, tests, at_once=1)


def run_kafka_python(
    source: Path, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `test_admin_integration.py::test_elect_leaders`."""
    environment = {
        **os.environ,
        "KAFKA_URI": f"kafka://{cluster.bootstrap}",
        "KAFKA_VERSION": "4.3",
        # Where the tests would look for a broker to start, if they started one.
        "KAFKA_ROOT": str(work),
        "PYTHONPATH": str(source),
    }

    def run(test: str) -> Outcome:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
        printed = ended([*words, f"test/integration/{test}"], source, environment)
        return Outcome(test=test, state=state_of_pytest(printed), printed=printed)

    yield from each_of(run, tests)


def run_rskafka(
    source: Path, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `consumer/test_stream_consumer_start_at_0`, in a file of tests."""
    environment = {
        **os.environ,
        "TEST_INTEGRATION": "1",
        "TEST_BROKER_IMPL": "kafka",
        "KAFKA_CONNECT": cluster.bootstrap,
        "KAFKA_SASL_CONNECT": cluster.brokers[1].address("SASL_PLAINTEXT"),
    }

    def run(test: str) -> Outcome:
        file, _, name = test.partition("/")
        words = [*CARGO_TEST, f"--test={file}", "--", "--exact", name, "--nocapture"]
        printed = ended(words, source, environment)
        state = "passed" if "test result: ok. 1 passed" in printed else "failed"
        # As it says, and returns.
        state = "skipped" if "kipping" in printed else state
        return Outcome(test=test, state=state, printed=printed)

    yield from each_of(run, tests, at_once=1)


def run_confluent_kafka_python(
    source: Path, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `admin/test_list_offsets.py::test_list_offsets`; `@consumer`: with KIP-848's groups.

    One at a time: some count the cluster's groups and ACLs, some delete topics of others.
    """
    python = python_of("confluent-kafka-python")
    sasl = ",".join(each.address("SASL_PLAINTEXT") for each in cluster.brokers.values())
    environment = {
        **os.environ,
        "BROKERS": cluster.bootstrap,
        "SASL_BROKERS": sasl,
        "KAFKA_HOME": str(kafka_path(work)),
        "PYTHONPATH": f"{source}:{python.parents[1] / 'stand-ins'}",
    }

    def run(test: str) -> Outcome:
        name, _, protocol = test.partition("@")
        more = {"TEST_CONSUMER_GROUP_PROTOCOL": protocol}
        words = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
        printed = ended([*words, f"tests/integration/{name}"], source, environment | more)
        return Outcome(test=test, state=state_of_pytest(printed), printed=printed)

    yield from each_of(run, tests, at_once=1)


def state_of_pytest(printed: str) -> str:
    """What its summary says, which threads of a client may print lines after."""
    counted = re.findall(r"^[0-9]+ [a-z]+.* in [0-9.]+s.*$", printed, re.M)
    words = ("failed", "error", "skipped", "passed") if counted else ()
    state = next((word for word in words if f" {word}" in counted[-1]), "failed")
    return "failed" if state == "error" else state


RUN: dict[str, Any] = {
    "librdkafka": run_librdkafka,
    "franz-go": run_franz_go,
    "kafka-go": run_kafka_go,
    "kafka-python": run_kafka_python,
    "karapace": run_karapace,
    "rskafka": run_rskafka,
    "sarama": run_sarama,
    "confluent-kafka-python": run_confluent_kafka_python,
    "kafka": run_kafka,
    "kafka-requests": run_requests,
    "kafka-streams": run_streams,
    "streams-smoke": run_streams_smoke,
    "spark-kafka": run_spark,
    "trogdor": run_trogdor,
    "trogdor-faults": run_trogdor_faults,
}
