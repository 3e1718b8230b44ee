"""Kafka Streams' smoke tests: applications and brokers are killed while records are made, then all results are checked.

The programs are Apache Kafka's, from the test jar of Kafka Streams; what happens meanwhile is of Kafka's system tests:
one application after the other is killed (`crash`), and so are the leader of what they read, the controller, and the
leader again (`hard_bounce`); each of these is started again. A test is `StreamsSmokeTest@exactly_once_v2`, and with
`@streams` after it one with groups of KIP-1071.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from spark_conf import jars
from spark_conf.java import java_command
from tests.clients.suites.clusters import Cluster
from tests.clients.suites.outcomes import Outcome, each_of
from tests.processes import wait_until

PACKAGE = "org.apache.kafka.streams.tests."
JARS = ("kafka-streams-tests", "kafka-streams", "kafka-tests", "kafka")
JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# What the programs say of what they do, and no more.
LOG = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %m%n"/></Console></Appenders>
<Loggers><Logger name="org.apache.kafka.streams.tests" level="info"/>
<Root level="error"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""
APPLICATIONS = 3
LIMIT_S = 420
PRINTED = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What differs between the two: the topics, the first of which is read, and what their programs print."""

    topics: tuple[str, ...]
    partitions: int
    # How many applications run at first.
    at_once: int
    started: str
    processed: str
    passed: str


KINDS = {
    "StreamsSmokeTest": _Kind(
        topics=(
            *("data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "cnt"),
            *("sws-raw", "sws-suppressed", "avg", "tagg", "fk"),
        ),
        partitions=3,
        at_once=1,
        started="REBALANCING -> RUNNING",
        processed="processed",
        passed="\nSUCCESS\n",
    ),
    # Each of its applications is a group of its own, and makes the whole result.
    "RelationalSmokeTest": _Kind(
        topics=("in-article", "in-comment", "out-augmented-article", "out-augmented-comment"),
        partitions=3,
        at_once=2,
        started="Streams has started",
        processed="Streams has started",
        passed="Smoke test complete: passed",
    ),
}


class _Programs:
    """The processes of one test, each of which prints to a file of its own."""

    def __init__(self, work: Path, bootstrap: str, test: str) -> None:
        self.kind_name, self.guarantee, *more = test.split("@")
        self._protocol = "streams" if more else "classic"
        self._work, self._bootstrap = work, bootstrap
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._group = f"smoke-{work.name}"
        (work / "log4j2.xml").write_text(LOG)

    def start(self, name: str) -> None:
        """The driver, which makes the records and checks the results, or an application."""
        words = [java_command(), *JAVA, f"-Dlog4j2.configurationFile={self._work / 'log4j2.xml'}"]
        words += ["-cp", ":".join(f"{jars.fetch(each)}/*" for each in JARS)]
        words += [f"-Djava.io.tmpdir={self._work}", PACKAGE + self.kind_name]
        driver = name == "driver"
        if self.kind_name == "StreamsSmokeTest":
            words += [str(self._settings()), "run" if driver else "process"]
        else:
            words += ["driver" if driver else "application", self._bootstrap, name]
            words += [self.guarantee, self._protocol, str(self._work / name)]
        with (self._work / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)

    def _settings(self) -> Path:
        """The properties that Kafka's system tests give these programs."""
        settings = {
            "bootstrap.servers": self._bootstrap,
            "processing.guarantee": self.guarantee,
            "application.id": self._group,
            "group.protocol": self._protocol,
            "num.stream.threads": 3,
            "replication.factor": 3,
            "buffered.records.per.partition": 100,
            "commit.interval.ms": 1_000,
            "auto.offset.reset": "earliest",
            "acks": "all",
        }
        if self._protocol == "classic":
            settings |= {
                "num.standby.replicas": 2,
                "acceptable.recovery.lag": 2**63 - 1,
                "session.timeout.ms": 10_000,
            }
        file = self._work / "streams.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return file

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def kill_all(self) -> None:
        for name in self._running:
            self.kill(name)

    def printed(self, name: str) -> str:
        return (self._work / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, text: str) -> None:
        wait_until(f"{text!r} of {name}", lambda: text in self.printed(name))

    def wait_for_end(self, name: str) -> None:
        self._running[name].wait(LIMIT_S)

    def ends(self) -> str:
        """What each of them printed last."""
        return "\n".join(
            f"--- {name}\n{self.printed(name)[-PRINTED:]}" for name in sorted(self._running)
        )


def run_streams_smoke(
    _source: None, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """Each test, one after the other, with topics of its own."""
    tries = itertools.count(1)

    def run(test: str) -> Outcome:
        folder = work / f"try-{next(tries)}-{os.getpid()}"
        folder.mkdir()
        programs = _Programs(folder, cluster.bootstrap, test)
        state, why = "failed", ""
        with contextlib.ExitStack() as stack:
            stack.callback(programs.kill_all)
            try:
                state = "passed" if _passes(programs, cluster) else "failed"
            except (TimeoutError, subprocess.TimeoutExpired) as late:
                why = f"{late}\n"
            return Outcome(test=test, state=state, printed=why + programs.ends())

    yield from each_of(run, tests, at_once=1)


def _passes(programs: _Programs, cluster: Cluster) -> bool:
    """Whether the driver finds each result after all the deaths."""
    kind = KINDS[programs.kind_name]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    _make_topics(admin, kind)
    names = [f"application-{number}" for number in range(1, APPLICATIONS + 1)]
    waiting = iter(names)
    for name in itertools.islice(waiting, kind.at_once):
        programs.start(name)
        programs.wait_for(name, kind.started)
    programs.start("driver")
    for name, role in zip(names[:-1], ("leader", "controller"), strict=True):
        programs.wait_for(name, kind.processed)
        _kill_broker(admin, cluster, kind, role)
        programs.kill(name)
        for following in itertools.islice(waiting, 1):
            programs.start(following)
            programs.wait_for(following, kind.started)
    programs.wait_for(names[-1], kind.processed)
    _kill_broker(admin, cluster, kind, "leader")
    programs.wait_for_end("driver")
    said = programs.printed("driver")
    twice = programs.guarantee == "at_least_once" and "PROCESSED-MORE-THAN-GENERATED" in said
    return twice or kind.passed in said


def _make_topics(admin: AdminClient, kind: _Kind) -> None:
    """Make them anew."""
    old = [each for each in admin.list_topics(timeout=60).topics if not each.startswith("__")]
    if old:
        for deleted in admin.delete_topics(old).values():
            deleted.result()
    for name in kind.topics:
        topic = NewTopic(name, kind.partitions, 3, config={"min.insync.replicas": "2"})
        wait_until(f"topic {name}", lambda topic=topic: _is_made(admin, topic))


def _is_made(admin: AdminClient, topic: NewTopic) -> bool:
    """Not while the one before is being deleted."""
    try:
        admin.create_topics([topic])[topic.topic].result()
    except KafkaException:
        return False
    return True


def _kill_broker(admin: AdminClient, cluster: Cluster, kind: _Kind, role: str) -> None:
    """Kill it, and start it again once the others have replaced it; wait until all replicas are in sync."""
    read = kind.topics[0]

    def found() -> int:
        """The leader of what is read, or who clients are told is the controller."""
        metadata = admin.list_topics(read, timeout=60)
        leader: int = metadata.topics[read].partitions[0].leader
        return leader if role == "leader" else metadata.controller_id

    wait_until(f"a {role}", lambda: found() in cluster.brokers)
    killed = found()
    cluster.brokers[killed].kill()
    wait_until(f"another {role}", lambda: found() in cluster.brokers.keys() - {killed})
    cluster.brokers[killed].start()

    def in_sync() -> bool:
        time.sleep(0.5)  # all topics' metadata are large
        return all(
            len(partition.isrs) == len(partition.replicas)
            for topic in admin.list_topics(timeout=60).topics.values()
            for partition in topic.partitions.values()
        )

    wait_until("all replicas to be in sync", in_sync)
