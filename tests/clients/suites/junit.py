"""Apache Kafka's own integration tests of its clients and of Kafka Streams, on brokers of ours or on Apache Kafka.

The tests and what runs them are Apache Kafka's jars, unchanged. On brokers of ours one class is replaced, which is
compiled when it is needed and comes first on the class path: RaftClusterInvocationContext in java, for Streams
KafkaClusterTestKit in java/streams. A test is `Class.method[n]`, with n of a method's clusters or parameters; what is
run are classes, or `Class#method`. What failed is run once more, alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from spark_conf import jars
from spark_conf.java import java_command
from tests.clients.suites.outcomes import Outcome, ended

CLUSTER = Path(__file__).parent / "java"
PACKAGE = "org.apache.kafka."
# A class of 79 tests took five minutes with Apache Kafka, and takes four times that on a busy machine.
CLASS_LIMIT_S = 3_600
# Most of what runs does so once or twice: the better compiler takes longer than it saves.
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
JAVA = ("-Xmx900m", *QUICK)
DISCOVERY = ("--config", "junit.jupiter.extensions.autodetection.enabled=true")


# Of Streams in addition to the sets of all.
STREAMS = ("kafka-streams-tests", "kafka-streams")
# Of the tests of single requests, which are not in PACKAGE; one starts a program of Streams.
REQUESTS = ("kafka-request-tests", "kafka-streams")


def compiled(folder: Path) -> Path:
    """The folder of our cluster's classes, compiled against Apache Kafka's."""
    return _compiled(folder, sorted(CLUSTER.glob("*.java")))


def compiled_for_streams(folder: Path) -> Path:
    """The folder of the cluster under Streams' tests."""
    return _compiled(folder, [CLUSTER / "Brokers.java", *(CLUSTER / "streams").glob("*.java")])


def _compiled(folder: Path, sources: Sequence[Path]) -> Path:
    return compiled_once(folder, sources, [[*javac(folder), "-cp", _jars(), *map(str, sources)]])


def javac(folder: Path) -> list[str]:
    """How the compiler of Java is called whose classes go to the folder."""
    quick = [f"-J{each}" for each in QUICK]
    return [str(Path(java_command()).parent / "javac"), *quick, "-d", str(folder)]


def compiled_once(folder: Path, sources: Sequence[Path], commands: Sequence[Sequence[str]]) -> Path:
    """The folder that the commands compile the sources to; what is there of the very same is used again.

    A set of jars keeps its folder when its versions change: their names count, too.
    """
    parts = [part for words in commands for word in words for part in word.split(":")]
    folders = {Path(part).parent for part in parts if part.endswith("/*")}
    jar_names = sorted(jar.name for each in folders for jar in each.glob("*.jar"))
    stamp = folder / "sources"
    text = "\n".join((*(each.read_text() for each in sources), *parts, *jar_names))
    if stamp.exists() and stamp.read_text() == text:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for words in commands:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    stamp.write_text(text)
    return folder


def _jars(more: Sequence[str] = ()) -> str:
    return ":".join(f"{jars.fetch(each)}/*" for each in (*more, "kafka-tests", "kafka"))


def run_kafka(
    ours: Path | None,
    work: Path,
    served: str,
    tests: Sequence[str],
    more: Sequence[str] = (),
    package: str = PACKAGE,
) -> Iterator[Outcome]:
    """Each test of the classes, by their names in the package; `ours`: from `compiled`, None for Apache Kafka.

    `served`: the command that keeps brokers; `more`: further sets of jars.
    """
    # Nothing is printed, and tests that capture what a class logs find it.
    quiet = work / "log4j2.xml"
    quiet.write_text('<Configuration><Loggers><Root level="info"/></Loggers></Configuration>')
    head = [java_command(), *JAVA, f"-Dlog4j2.configurationFile={quiet}"]
    head += [f"-Dkafka_ds.python={sys.executable}", f"-Dkafka_ds.served={served}", "-cp"]
    head += [_jars(more) if ours is None else f"{ours}:{_jars(more)}"]
    head += [
        "org.junit.platform.console.ConsoleLauncher",
        "execute",
        "--disable-banner",
        *DISCOVERY,
    ]

    def run(selected: Sequence[str], reports: Path) -> list[tuple[str, Outcome]]:
        words = [*head, "--reports-dir", str(reports), *selected]
        printed = ended(words, work, {**os.environ}, CLASS_LIMIT_S)
        report = reports / "TEST-junit-jupiter.xml"
        if not report.exists():
            return [("", Outcome(test=reports.name, state="failed", printed=printed))]
        return [_outcome(case) for case in ElementTree.parse(report).iter("testcase")]

    for name in tests:
        class_name, _, method = name.partition("#")
        selected = ["--select-class", package + class_name]
        if method:
            selected += ["--include-methodname", f".*[.#]{method}"]
        for unique, outcome in run(selected, work / name):
            if outcome.state == "failed" and unique:
                # `[2]` of a template is given its place anew when it is run alone: its name is the first one's.
                again = run(["--select-unique-id", unique], work / f"{name}-again")
                if len(again) == 1:
                    state, printed = again[0][1].state, again[0][1].printed
                    outcome = Outcome(test=outcome.test, state=state, printed=printed, tries=2)
            yield outcome


def run_streams(
    ours: Path | None, work: Path, served: str, tests: Sequence[str]
) -> Iterator[Outcome]:
    """As `run_kafka`, of Kafka Streams' classes."""
    yield from run_kafka(ours, work, served, tests, STREAMS)


def run_requests(
    ours: Path | None, work: Path, served: str, tests: Sequence[str]
) -> Iterator[Outcome]:
    """As `run_kafka`, of Apache Kafka's tests of single requests, by the whole names of their classes."""
    yield from run_kafka(ours, work, served, tests, REQUESTS, package="")


def _outcome(case: ElementTree.Element) -> tuple[str, Outcome]:
    """Of a test its identifier to run it alone, and what became of it."""
    method, _, number = case.attrib["name"].partition("(")
    index = number.partition("[")[2].rstrip("]")
    test = f"{case.attrib['classname'].rpartition('.')[2]}.{method}" + (index and f"[{index}]")
    said = "".join(each.text or "" for each in case.iter("system-out"))
    unique = next((line[11:] for line in said.splitlines() if line.startswith("unique-id: ")), "")
    state, printed = state_of(case)
    return unique, Outcome(test=test, state=state, printed=printed)


def state_of(case: ElementTree.Element) -> tuple[str, str]:
    """What became of a test in a report of JUnit's form, and why it failed."""
    state, printed = "passed", ""
    for kind in ("failure", "error", "skipped"):
        for found in case.iter(kind):
            state = "skipped" if kind == "skipped" else "failed"
            printed = f"{found.attrib.get('message', '')}\n{found.text or ''}"
    return state, printed
