"""Writes docs/internals/compatibility.md from results.json and suites.toml: `python -m tests.clients.suites.page`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from pathlib import Path

from tests.clients.suites.allowances import Suite, suites
from tests.clients.suites.results import Results, read

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "compatibility.md"
NAMES = {
    "kafka": "Apache Kafka's clients",
    "kafka-requests": "Apache Kafka's single requests",
    "kafka-streams": "Kafka Streams",
    "sarama": "Sarama",
    "spark-kafka": "Spark's Kafka connector",
    "karapace": "Karapace",
    "streams-smoke": "Kafka Streams' smoke tests",
    "trogdor": "Trogdor",
    "trogdor-faults": "Trogdor with faults",
}
HEAD = """# Compatibility: tests that others wrote

Test suites of other projects, fetched and run unchanged: `make suites`, or `make suites SUITES="kafka sarama"`. Each
suite runs to its end, whatever the others do; the last lines are each one's summary, and the status is not 0 where one
was not as expected. The runs record what becomes of each test (`python -m tests.clients.suites sarama --record`), and
`python -m tests.clients.suites.page` writes this page. `--apache` runs them on Apache Kafka 4.3.1. Where the harness
starts the brokers, both have the same settings, but for the tier, for which Apache Kafka needs a plugin; the three
suites of Apache Kafka's own start its brokers as Kafka's own harness does, within the tests' process.

Apache Kafka's integration tests of its Java clients come from Maven Central (`kafka-clients-integration-tests`). One
class of the extension that starts their clusters is replaced: the brokers are processes of ours, without a tier.
A test can use a broker's address, settings and state, stop it and start it, and see whether it has or leads a replica.
Of metrics it sees what the broker's page for Prometheus shows; of producers' expiration what the broker says; of its
cache of metadata how it answers Metadata.
Of a log it sees the high watermark that the broker keeps in its folder, its end as clients know it, and how far it was
cleaned, by the checkpoint. A segment that a test rolls is rolled by a short `segment.ms`. Old messages that a test
appends are written to its file while the broker is stopped. Where a class is to say who clients are, ACLs of what it
says are made for `User:ANONYMOUS`, which clients are here. Tests that reach further into Apache Kafka's process fail,
and so does each test that leaves a traceback in a broker's log. These settings of the tests are left out: those that
Apache Kafka does not know (it ignores them) or calls internal; so are the level of `transaction.version`, of which
there is one, and `group.coordinator.append.linger.ms`, as records of groups are appended at once. The time after
which a silent broker is fenced is at least 1.5 s. Brokers have what a test sets for controllers, too, where it sets
nothing else for them.

Apache Kafka's tests of single requests (`*RequestTest`, and two other classes for groups) are in its test jar of the
server (`kafka_2.13`), and run in the same way, but for those that start brokers within their own process. All three
suites of Apache Kafka's are of 4.3.1: of 4.4.0 some test jars are not on Maven Central.

Kafka Streams' integration tests come from Maven Central (`kafka-streams-integration-tests`), too. Their clusters stand
on a class of Apache Kafka's test kit, which is replaced: brokers are processes of ours, and a traceback in a log
fails the class. A test `[1]`, `[2]` is one with parameters, as with classic groups and with streams groups (KIP-1071).

Kafka Streams' smoke tests are programs in its test jar, `StreamsSmokeTest` and `RelationalSmokeTest`: a driver makes
records for a minute or more, and checks all that applications made of them. They run on three brokers, with topics of
three replicas. Meanwhile, as in Kafka's system tests, one application after the other is killed, and so are the leader
of what they read, the broker that clients know as the controller, and the leader again; each is started again once
others have replaced it. A name says the guarantee, and whether the applications are streams groups. With
`at_least_once` a record may be processed more than once.

franz-go's tests of its package `kgo` come by Go's module proxy. `@chaos` is a test with `KGO_TEST_CHAOS`: connections
break at random. Sarama's functional tests come the same way, and want five brokers, each in a rack of its own.
Toxiproxy, between clients and brokers, cuts connections. The tests call Docker Compose to stop a broker and start it
again, and to run Apache Kafka's console producer, console consumer and verifiable consumer; a command `docker` of ours
does that with processes.

librdkafka's tests run as its own quick runs do, with fewer messages, and without those of a network that is emulated
within the client.

kafka-go's tests come by Go's module proxy, too. Those that need a broker are run; they expect it at the ports 9092 and
9093 (SASL). As in its own CI, they run without the tests that treat a connection like a pipe.

rskafka's tests are in its crate, which Cargo fetches. They run with a newer version of the crate `rsasl`, because Rust
1.95 does not compile the pinned one.

Karapace is a schema registry and a REST proxy that keep what they know in topics. Its integration tests start both,
with the broker's address. Karapace runs with its pinned packages, but for Avro's, of which it pins a fork. Its library
in Go is built of the fork of buf that it names.

confluent-kafka-python's integration tests of administration, consumers, share consumers, producers and serializers run
with the client of the same version, with classic groups and, where a name ends in `@consumer`, with KIP-848's.

Spark's tests of its own Kafka source and sink, real-time mode among them, come from Maven Central
(`spark-sql-kafka-0-10_2.13`), and run with its Kafka clients, of 3.9.1. One class of theirs is replaced,
`KafkaTestUtils`: each suite has a broker that is a process, of ours or Apache Kafka's. Where Spark's tests ask for
segments of some bytes, which Kafka 4 refuses, segments are rolled with each millisecond. Brokers are not given
`delete.retention.ms`: it is no setting of brokers, Kafka ignores it, and kafka-ds refuses it. Suites without a broker
are not listed.

Trogdor is Apache Kafka's framework of long tests. Its coordinator and an agent are processes. A test is a workload; it
passes when Trogdor calls it done without an error, each record was sent, each transaction committed, and no connection
failed. "Trogdor with faults" has three brokers and three replicas of each partition. While a workload runs, one broker
after the other is stopped for 6 s by Trogdor's own ProcessStopFault (`+stop`), or killed by the harness and started
again (`+kill`). The fault looks for Java's processes by `jcmd`, for which a command of ours stands in. Where Apache
Kafka runs, its controller is a process apart, which no fault meets; here it is one of the three brokers.

CI runs a test of each suite that package registries have, but for rskafka's, which takes two minutes to compile and is
among the slow tests (`tests/clients/suites/test_smoke.py`), and those that stop and kill brokers, which take minutes.

Results are merged test by test; `recorded` has the days of the first and of the last run here that they are from, and
the commit of the last. A test may have passed at the second try.
"""

# Suites by their source.
OF_KAFKA = "org.apache.kafka:"


def page(recorded: Mapping[str, Results], known: Mapping[str, Suite]) -> str:
    """The page as text."""
    lines = [
        HEAD,
        "| suite | version | tests | passed on Apache Kafka | passed here | of those that passed there | recorded |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    counts = {name: _Counts.of(results) for name, results in recorded.items()}
    for name, results in recorded.items():
        version, cells = known[name].tag, counts[name].cells
        lines.append(f"| {NAMES.get(name, name)} | {version} | {cells} | {_when(results)} |")
    of_kafka = [each for name, each in counts.items() if known[name].source.startswith(OF_KAFKA)]
    for title, some in (("Apache Kafka's own", of_kafka), ("all", counts.values())):
        if some:
            lines.append(f"| {title} | | {reduce(_Counts.plus, some).cells} | |")
    for name, results in recorded.items():
        lines += ["", f"## {NAMES.get(name, name)}", ""]
        if known[name].by_class:
            lines += [*_classes(results), ""]
        lines += _reasons(results, known[name]) or ["All of them pass."]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """How many tests there are, how many ran and passed at each place, and passed at both."""

    tests: int
    there: int
    passed_there: int
    here: int
    passed_here: int
    passed_at_both: int

    @classmethod
    def of(cls, results: Results) -> _Counts:
        there, here = _passed(results.apache), _passed(results.here)
        return cls(
            tests=len(_tests(results)),
            there=len(results.apache),
            passed_there=len(there),
            here=len(results.here),
            passed_here=len(here),
            passed_at_both=len(there & here),
        )

    def plus(self, other: _Counts) -> _Counts:
        return _Counts(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        )

    @property
    def cells(self) -> str:
        """Of a line of the table."""
        there = f"{self.passed_there:,} of {self.there:,}" if self.there else "not run"
        share = f"{self.passed_at_both / self.passed_there:.1%}" if self.passed_there else ""
        return f"{self.tests:,} | {there} | {self.passed_here:,} of {self.here:,} | {share}"


def _tests(results: Results) -> set[str]:
    """All tests. One that failed before its parameters were known stands for those with parameters."""
    every = results.here.keys() | results.apache.keys()
    return every - {test.partition("[")[0] for test in every if "[" in test}


def _passed(states: Mapping[str, str]) -> set[str]:
    return {test for test, state in states.items() if state == "passed"}


def _when(results: Results) -> str:
    """The days of the first and of the last run of what is shown, and the commit of the last."""
    first, last = min(results.recorded, default=""), max(results.recorded, default="")
    days = dict.fromkeys((first.partition("T")[0], last.partition("T")[0]))
    return f"{' to '.join(days)}, {last.partition(' ')[2]}"


def _classes(results: Results) -> list[str]:
    lines = [
        "| class | tests | passed on Apache Kafka | passed here |",
        "| --- | --- | --- | --- |",
    ]
    for name, tests in groupby(sorted(_tests(results)), key=lambda test: test.partition(".")[0]):
        names = set(tests)
        cells = [
            str(len(names & _passed(states))) if names & states.keys() else "–"
            for states in (results.apache, results.here)
        ]
        lines.append(f"| `{name}` | {len(names)} | {' | '.join(cells)} |")
    return lines


def _reasons(results: Results, suite: Suite) -> list[str]:
    """What does not pass, or is not run, and why."""
    lines = []
    failed = [test for test, state in results.here.items() if state != "passed"]
    for each in suite.failing:
        tests = [test for test in each.tests if test in failed]
        if tests:
            lines.append(f"- Fails: {_quoted(tests)}: {each.reason}.")
    unknown = [test for test in failed if suite.why_failing(test) is None]
    if unknown:
        lines.append(f"- Fails, and is not understood yet: {_quoted(unknown)}.")
    for each in suite.left_out:
        lines.append(f"- Not run: {_quoted(each.tests)}: {each.reason}.")
    run = {test.partition(".")[0] for test in results.here}
    waiting = [
        each for each in suite.tests if suite.by_class and each.rpartition(".")[2] not in run
    ]
    if waiting:
        lines.append(f"- Not run yet, since each takes minutes on both sides: {_quoted(waiting)}.")
    return lines


def _quoted(tests: object) -> str:
    assert isinstance(tests, list | tuple)
    return ", ".join(f"`{each.replace('.py::', '::')}`" for each in tests)


if __name__ == "__main__":
    PAGE.write_text(page(read(), suites()))
