"""Writes docs/internals/compatibility.md from results.json and suites.toml: `python -m tests.clients.suites.page`."""

from __future__ import annotations

from collections.abc import Mapping
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
    "trogdor": "Trogdor",
}
HEAD = """# Compatibility: tests that others wrote

Test suites of other projects, fetched and run unchanged (`make client-suites SUITES="kafka sarama"`). The runs record
what becomes of each test (`python -m tests.clients.suites sarama --record`; `--apache`: on Apache Kafka 4.3.1, with the
same settings), and `python -m tests.clients.suites.page` writes this page. For librdkafka's suite see
[proof](proof.md#clients-own-test-suites).

Apache Kafka's integration tests of its Java clients come from Maven Central (`kafka-clients-integration-tests`). One
class of the extension that starts their clusters is replaced: the brokers are processes of ours, without a tier.
A test can use a broker's address, settings and state, stop it and start it, and see whether it has or leads a replica.
Of metrics it sees what the broker's page for Prometheus shows; of producers' expiration what the broker says; of its
cache of metadata how it answers Metadata.
Old messages that a test appends to a log are written to its file while the broker is stopped. Where a class is to say
who clients are, ACLs of what it says are made for `User:ANONYMOUS`, which clients are here. Tests that reach further
into Apache Kafka's process fail, and so does each test that leaves a traceback in a broker's log. These settings of the
tests are left out: those that Apache Kafka does not know (it ignores them) or calls internal, and the time after which
a silent broker is fenced; so is the level of `transaction.version`, of which there is one. Brokers have what a test
sets for controllers, too, where it sets nothing else for them.

Apache Kafka's tests of single requests (`*RequestTest`, and two other classes for groups) are in its test jar of the
server (`kafka_2.13`), and run in the same way. Those of them that start brokers within their own process, 13 classes,
are not run.

Kafka Streams' integration tests come from Maven Central (`kafka-streams-integration-tests`), too. Their clusters stand
on a class of Apache Kafka's test kit, which is replaced: brokers are processes of ours, and a traceback in a log
fails the class. A test `[1]`, `[2]` is one with parameters, as with classic groups and with streams groups (KIP-1071).

franz-go's tests of its package `kgo` come by Go's module proxy. `@chaos` is a test with `KGO_TEST_CHAOS`: connections
break at random. Sarama's functional tests come the same way, and want five brokers, each in a rack of its own.
Toxiproxy, between clients and brokers, cuts connections. The tests call Docker Compose to stop a broker and start it
again, and to run Apache Kafka's console producer, console consumer and verifiable consumer; a command `docker` of ours
does that with processes.

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
failed. No faults are injected.

Results are merged test by test from runs since 2026-11-24, of the code as it was then; a test may have passed at the
second try. Not run at all: Karapace's tests, and the suites of kafka-go and rskafka, with which programs of ours run
instead. Of confluent-kafka-python's tests only some have been run
on Apache Kafka, where this harness cannot make what the others ask for.
"""


def page(recorded: Mapping[str, Results], known: Mapping[str, Suite]) -> str:
    """The page as text."""
    lines = [HEAD, "| suite | version | tests | passed on Apache Kafka | passed here |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name, results in recorded.items():
        counts = f"{len(results.here)} | {_on_apache(results)} | {_passed(results.here)}"
        lines.append(f"| {NAMES.get(name, name)} | {known[name].tag} | {counts} |")
    for name, results in recorded.items():
        lines += ["", f"## {NAMES.get(name, name)}", ""]
        if known[name].by_class:
            lines += [*_classes(results), ""]
        lines += _reasons(results, known[name])
    return "\n".join(lines) + "\n"


def _passed(states: Mapping[str, str]) -> int:
    return sum(state == "passed" for state in states.values())


def _on_apache(results: Results) -> str:
    """How many of those that were run there passed."""
    both = {test: state for test, state in results.apache.items() if test in results.here}
    return f"{_passed(both)} of {len(both)}" if both else "not run"


def _classes(results: Results) -> list[str]:
    lines = [
        "| class | tests | passed on Apache Kafka | passed here |",
        "| --- | --- | --- | --- |",
    ]
    for name, tests in groupby(sorted(results.here), key=lambda test: test.partition(".")[0]):
        names = list(tests)
        there = [results.apache[each] for each in names if each in results.apache]
        on_apache = str(there.count("passed")) if there else "–"
        passed = sum(results.here[each] == "passed" for each in names)
        lines.append(f"| `{name}` | {len(names)} | {on_apache} | {passed} |")
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
        lines.append(
            f"- Not run yet, since a class takes minutes on both sides: {_quoted(waiting)}."
        )
    return lines


def _quoted(tests: object) -> str:
    assert isinstance(tests, list | tuple)
    return ", ".join(f"`{each.replace('.py::', '::')}`" for each in tests)


if __name__ == "__main__":
    PAGE.write_text(page(read(), suites()))
