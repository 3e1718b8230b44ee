"""Spark's own tests of its Kafka connector, suite by suite, on brokers of ours or on Apache Kafka.

The tests are Spark's jar, unchanged. One class is replaced, scala/KafkaTestUtils.scala, which is compiled when it is
needed and comes first on the class path; a suite has a broker of its own. A test is `Suite.what it says`. What failed
is run once more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import pyspark

from spark_conf import jars
from spark_conf.java import java_command
from tests.clients.suites.junit import QUICK, compiled_once, javac, state_of
from tests.clients.suites.outcomes import Outcome, ended

HERE = Path(__file__).parent
SOURCES = (HERE / "java" / "Brokers.java", HERE / "scala" / "KafkaTestUtils.scala")
PACKAGE = "org.apache.spark.sql.kafka010."
SUITE_LIMIT_S = 1_800
JAVA = ("-Xmx1500m", "-Xss4m", *QUICK, "-XX:ReservedCodeCacheSize=256m", "-Dspark.testing=true")
# What Spark reaches into, as its launcher lets it.
OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)
# Spark sets a log of its own where the root logger has no appender. Some tests look at what is logged.
QUIET = """<Configuration><Appenders><Null name="none"/></Appenders>
<Loggers><Root level="info"><AppenderRef ref="none"/></Root></Loggers></Configuration>
"""


def compiled_for_spark(folder: Path) -> Path:
    """The folder of the class that starts brokers, compiled with PySpark's Scala."""
    brokers, utils = SOURCES
    scala = ":".join(str(each) for each in _pyspark().glob("scala-*.jar"))
    clients = next(jars.fetch("spark-kafka").glob("kafka-clients-*.jar"))
    words = [java_command(), *QUICK, "-cp", scala, "scala.tools.nsc.Main", "-nowarn", "-usejavacp"]
    words += ["-classpath", f"{scala}:{folder}:{clients}", "-d", str(folder), str(utils)]
    return compiled_once(folder, SOURCES, [[*javac(folder), str(brokers)], words])


def _pyspark() -> Path:
    return Path(pyspark.__file__).parent / "jars"


def _class_path(ours: Path, unpacked: Path) -> str:
    """PySpark's jars come after Spark's tests, and before those that scalatest brings for another Scala."""
    fetched = jars.fetch("spark-kafka-tests")
    tests = [str(each) for each in sorted(fetched.glob("*-tests.jar"))]
    kinds = ("scala[tc]*.jar", "mockito-*.jar", "byte-buddy*.jar", "objenesis-*.jar")
    runner = [str(each) for kind in kinds for each in sorted(fetched.glob(kind))]
    connector = f"{jars.fetch('spark-kafka')}/*"
    path = [str(ours), connector, str(unpacked), *tests, f"{_pyspark()}/*", *runner]
    return ":".join(path)


def run_spark(ours: Path, work: Path, served: str, tests: Sequence[str]) -> Iterator[Outcome]:
    """Each test of the suites, by their names without PACKAGE; `served`: the command that keeps brokers."""
    quiet = work / "log4j2.xml"
    quiet.write_text(QUIET)
    path = next(jars.fetch("spark-kafka-tests").glob("spark-sql-kafka-*-tests.jar"))
    # Some tests read what lies beside them as files.
    unpacked = work / "unpacked"
    with ZipFile(path) as jar:
        jar.extractall(unpacked)
    head = [java_command(), *JAVA, f"-Dlog4j2.configurationFile={quiet}"]
    head += [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in OPENED]
    head += [
        f"-Dkafka_ds.served={served}",
        f"-Dspark.test.home={work}",
        "-cp",
        _class_path(ours, unpacked),
    ]
    head += ["org.scalatest.tools.Runner", "-R", str(path), "-oW"]
    environment = {**os.environ, "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(suite: str, reports: Path, names: Sequence[str] = ()) -> dict[str, Outcome]:
        words = [*head, "-u", str(reports), "-s", PACKAGE + suite]
        for name in names:
            words += ["-t", name]
        printed = ended(words, work, environment, SUITE_LIMIT_S)
        report = reports / f"TEST-{PACKAGE}{suite}.xml"
        if not report.exists():
            return {suite: Outcome(test=suite, state="failed", printed=printed)}
        found = {}
        tree = ElementTree.parse(report)
        if tree.getroot().attrib["errors"] != "0":
            # As where a broker does not start, or has a traceback in its log.
            found[suite] = Outcome(test=f"{suite}.aborted", state="failed", printed=printed)
        for case in tree.iter("testcase"):
            state, why = state_of(case)
            name = case.attrib["name"]
            found[name] = Outcome(test=f"{suite}.{name}", state=state, printed=why or "")
        return found

    for suite in tests:
        first = run(suite, work / suite)
        failed = [name for name, each in first.items() if each.state == "failed" and name != suite]
        again = run(suite, work / f"{suite}-again", failed) if failed else {}
        for name, outcome in first.items():
            second = again.get(name)
            yield (
                Outcome(test=second.test, state=second.state, printed=second.printed, tries=2)
                if second
                else outcome
            )
