"""Shell: downloads the jars that Spark and the tests need, with PySpark's Ivy.

All versions are pinned here. Only Java and PySpark are needed; Ivy uses its default resolver (Maven Central). A set is
downloaded into a temporary folder, which is renamed when it is complete. The set of Delta also has kafka-ds' own
LogStores, compiled with PySpark's Scala.

Usage: ``python -m spark_conf.jars [--list] [set ...]`` prints the folder of each set, or its jars.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from spark_conf.java import JavaUnusable, java_command

# The version that the broker is compared with, and whose messages are declared.
KAFKA_VERSION = "4.4.0"
# The version of Apache Kafka's own tests, and of the classes that they run with. Maven Central has neither the test
# jars of kafka-clients and kafka-storage nor kafka-shell of 4.4.0.
KAFKA_TESTS_VERSION = "4.3.1"
DELTA_VERSION = "4.4.0"
SPARK_VERSION = "4.2.0"
# PySpark's Hadoop, and the SDK that its S3A was built with.
HADOOP_VERSION = "3.5.0"
AWS_SDK_VERSION = "2.35.4"
# Versions of Kafka whose data directories the tests adopt, and the Scala of each.
OLD_KAFKAS = {
    "2.0.1": "2.12",
    "2.4.1": "2.12",
    "2.7.2": "2.13",
    "2.8.2": "2.13",
    "3.0.2": "2.13",
    "3.3.2": "2.13",
    "3.9.1": "2.13",
}
# Several sets may share a slow line.
FETCH_TIMEOUT_S = 1800
# Ivy runs for seconds: the optimising compiler and concurrent garbage collection would cost more than they save.
QUICK_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
LOG_STORE = Path(__file__).parent / "log_store.scala"
COMPILE_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A module of Ivy: ``organisation``, ``name``, ``revision``; with its dependencies if ``transitive``."""

    organisation: str
    name: str
    revision: str
    transitive: bool = False
    # Further jars of the module (Kafka's LocalTieredStorage is in kafka-storage's test jar).
    classifiers: tuple[str, ...] = ()
    # The main file's: that of a server is tar.gz.
    extension: str = "jar"
    # The classifier of a tar.gz with the whole program, instead of its jar.
    archive: str = ""

    def jars(self) -> list[str]:
        """The names of the module's files."""
        if self.archive:
            return [f"{self.name}-{self.revision}-{self.archive}.tar.gz"]
        tails = ("", *(f"-{classifier}" for classifier in self.classifiers))
        return [f"{self.name}-{self.revision}{tail}.{self.extension}" for tail in tails]


def _kafka(
    name: str,
    *,
    revision: str = KAFKA_TESTS_VERSION,
    transitive: bool = True,
    classifiers: tuple[str, ...] = (),
) -> Artifact:
    return Artifact(
        organisation="org.apache.kafka",
        name=name,
        revision=revision,
        transitive=transitive,
        classifiers=classifiers,
    )


def _old_kafka(version: str) -> tuple[Artifact, ...]:
    """Kafka before 4, with log4j 1's replacement and ZooKeeper."""
    name = f"kafka_{OLD_KAFKAS[version]}"
    wanted = (
        Artifact(organisation="org.apache.kafka", name=name, revision=version, transitive=True),
        Artifact(
            organisation="org.slf4j", name="slf4j-reload4j", revision="1.7.36", transitive=True
        ),
    )
    if version >= "2.4":
        return wanted
    # ZooKeeper 3.4 parses InetSocketAddress.toString(), whose format changed in Java 14.
    newer = Artifact(
        organisation="org.apache.zookeeper", name="zookeeper", revision="3.5.9", transitive=True
    )
    return (*wanted, newer)


def _log4j(name: str, revision: str = "2.25.4") -> Artifact:
    return Artifact(
        organisation="org.apache.logging.log4j", name=name, revision=revision, transitive=True
    )


def _spark_tests(name: str) -> Artifact:
    return Artifact(
        organisation="org.apache.spark",
        name=name,
        revision=SPARK_VERSION,
        classifiers=("tests",),
    )


def _aws(name: str) -> Artifact:
    return Artifact(
        organisation="software.amazon.awssdk",
        name=name,
        revision=AWS_SDK_VERSION,
        transitive=True,
    )


def _delta(spark: str) -> tuple[Artifact, ...]:
    """Delta's two jars are enough: Spark's distribution has their dependencies."""
    wanted = (f"delta-spark_{spark}_2.13", "delta-storage")
    return tuple(
        Artifact(organisation="io.delta", name=name, revision=DELTA_VERSION) for name in wanted
    )


def _avro(revision: str) -> tuple[Artifact, ...]:
    return (Artifact(organisation="org.apache.spark", name="spark-avro_2.13", revision=revision),)


SETS: dict[str, tuple[Artifact, ...]] = {
    "delta": _delta(".".join(SPARK_VERSION.split(".")[:2])),
    # Delta for Spark 4.1, which is supported, too; `fetch` chooses between the two (and of Avro's readers).
    "delta-4.1": _delta("4.1"),
    # The message definitions with which tests compare kafka_ds/protocol/messages.
    "kafka-clients": (
        Artifact(organisation="org.apache.kafka", name="kafka-clients", revision=KAFKA_VERSION),
    ),
    # Apache Kafka, broker and tools, for tests and benchmarks.
    "kafka-4.4": (
        *(
            _kafka(name, revision=KAFKA_VERSION)
            for name in (
                "kafka_2.13",
                "kafka-server",
                "kafka-group-coordinator",
                "kafka-transaction-coordinator",
                "kafka-share-coordinator",
                "kafka-tools",
            )
        ),
        _log4j("log4j-slf4j-impl", "2.25.5"),
        _log4j("log4j-1.2-api", "2.25.5"),
        _log4j("log4j-core", "2.25.5"),
    ),
    # The same of the version of its own tests, which need it.
    "kafka": (
        _kafka("kafka_2.13"),
        _kafka("kafka-server"),
        _kafka("kafka-storage", classifiers=("test",)),
        _kafka("kafka-group-coordinator"),
        _kafka("kafka-transaction-coordinator"),
        _kafka("kafka-share-coordinator"),
        _kafka("kafka-tools"),
        _kafka("kafka-shell"),
        _log4j("log4j-slf4j-impl"),
        _log4j("log4j-1.2-api"),
        _log4j("log4j-core"),
    ),
    # Kafka Streams, which needs the set "kafka-4.4" for its log and Kafka's tools, or the set "kafka".
    "kafka-streams-4.4": (_kafka("kafka-streams", revision=KAFKA_VERSION),),
    "kafka-streams": (_kafka("kafka-streams"),),
    # Apache Kafka's integration tests of its clients, and what they need in addition to the set "kafka".
    "kafka-tests": (
        _kafka("kafka-clients-integration-tests", transitive=False, classifiers=("test",)),
        _kafka("kafka-clients", transitive=False, classifiers=("test",)),
        _kafka("kafka-server-common", transitive=False, classifiers=("test",)),
        _kafka("kafka_2.13", transitive=False, classifiers=("test",)),
        _kafka("kafka-test-common-runtime", transitive=False),
        _kafka("kafka-test-common-internal-api", transitive=False),
        Artifact(
            organisation="org.junit.platform",
            name="junit-platform-console-standalone",
            revision="1.13.1",
        ),
        Artifact(organisation="org.mockito", name="mockito-core", revision="5.20.0"),
        Artifact(organisation="org.hamcrest", name="hamcrest", revision="3.0"),
    ),
    # What Apache Kafka's own tests of single requests (of kafka_2.13) need in addition to the set "kafka-tests".
    "kafka-request-tests": (
        _kafka("kafka-metadata", transitive=False, classifiers=("test",)),
        _kafka("kafka-group-coordinator", transitive=False, classifiers=("test",)),
    ),
    # Kafka Streams' integration tests, in addition to the sets "kafka", "kafka-tests" and "kafka-streams".
    "kafka-streams-tests": (
        _kafka("kafka-streams-integration-tests", transitive=False, classifiers=("test",)),
        _kafka("kafka-streams", transitive=False, classifiers=("test",)),
        _kafka("kafka-streams-test-utils", transitive=False),
    ),
    # Apache Kafka's framework of long workloads, in addition to the set "kafka".
    "trogdor": (_kafka("trogdor"),),
    # Spark's own tests of its Kafka connector, in addition to PySpark's jars and the set "spark-kafka".
    "spark-kafka-tests": (
        _spark_tests("spark-sql-kafka-0-10_2.13"),
        _spark_tests("spark-sql_2.13"),
        _spark_tests("spark-catalyst_2.13"),
        _spark_tests("spark-core_2.13"),
        Artifact(
            organisation="org.mockito", name="mockito-core", revision="5.20.0", transitive=True
        ),
        Artifact(
            organisation="org.scalatest", name="scalatest_2.13", revision="3.2.19", transitive=True
        ),
    ),
    **{f"kafka-{version}": _old_kafka(version) for version in OLD_KAFKAS},
    # An S3 server for tests, whose conditional writes are atomic.
    "s3proxy": (
        Artifact(organisation="org.gaul", name="s3proxy", revision="4.1.0", transitive=True),
    ),
    # S3A, for Spark's own readers; the parts of the SDK that it uses (15 MB), not the bundle (600 MB).
    "s3a": (
        Artifact(organisation="org.apache.hadoop", name="hadoop-aws", revision=HADOOP_VERSION),
        Artifact(
            organisation="software.amazon.s3.analyticsaccelerator",
            name="analyticsaccelerator-s3",
            revision="1.3.1",
        ),
        _aws("s3"),
        _aws("s3-transfer-manager"),
        _aws("sts"),
        _aws("apache-client"),
    ),
    # A schema registry, for tests; the last one that runs on Java 17.
    "apicurio": (
        Artifact(
            organisation="io.apicurio",
            name="apicurio-registry-app",
            revision="2.6.13.Final",
            archive="all",
        ),
    ),
    # The same project's serializers, which can frame as Confluent's, for a slow test.
    "apicurio-serdes": tuple(
        Artifact(
            organisation="io.apicurio",
            name=f"apicurio-registry-{name}-serde-kafka",
            revision="3.1.7",
            transitive=True,
        )
        for name in ("avro", "jsonschema", "protobuf")
    ),
    # Kafka Connect with Debezium's connector for PostgreSQL, for tests.
    "debezium": (
        _kafka("connect-runtime"),
        _kafka("connect-json"),
        Artifact(
            organisation="io.debezium",
            name="debezium-connector-postgres",
            revision="3.6.1.Final",
            transitive=True,
        ),
        # The Avro converter of the registry above.
        Artifact(
            organisation="io.apicurio",
            name="apicurio-registry-utils-converter",
            revision="2.6.13.Final",
            transitive=True,
        ),
        _log4j("log4j-slf4j2-impl"),
        _log4j("log4j-core"),
    ),
    # Spark's Avro reader, for pipelines; 4.1.1 is the last of Spark 4.1 on Maven Central.
    "spark-avro": _avro(SPARK_VERSION),
    "spark-avro-4.1": _avro("4.1.1"),
    # Iceberg's Spark reader, for a slow test; there is none for Spark 4.2 yet.
    "iceberg": (
        Artifact(
            organisation="org.apache.iceberg",
            name="iceberg-spark-runtime-4.1_2.13",
            revision="1.12.0",
        ),
    ),
    # Trino, an archive of 821 MB, for a slow test with its own Java.
    "trino": (
        Artifact(organisation="io.trino", name="trino-server", revision="476", extension="tar.gz"),
    ),
    # Spark's built-in Kafka source. The only release of its token provider is 4.0.0; the tests do not use it.
    "spark-kafka": (
        Artifact(
            organisation="org.apache.spark",
            name="spark-sql-kafka-0-10_2.13",
            revision=SPARK_VERSION,
        ),
        Artifact(
            organisation="org.apache.spark",
            name="spark-token-provider-kafka-0-10_2.13",
            revision="4.0.0",
        ),
        Artifact(organisation="org.apache.kafka", name="kafka-clients", revision="3.9.1"),
        Artifact(organisation="org.apache.commons", name="commons-pool2", revision="2.12.1"),
    ),
}
# Names for several sets.
GROUPS = {"old-kafkas": tuple(f"kafka-{version}" for version in OLD_KAFKAS)}


class JarsUnavailable(RuntimeError):
    """A set could not be downloaded or compiled; the message names the set and what is missing."""


def cache_folder() -> Path:
    """The folder of all sets: ``KAFKA_DS_JARS``, else ``.cache/jars`` of the checkout, else the user's cache."""
    named = os.environ.get("KAFKA_DS_JARS")
    if named:
        return Path(named)
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").exists():
        return checkout / ".cache" / "jars"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-ds" / "jars"


def _sparks(pattern: str) -> list[Path]:
    """PySpark's jars with such names."""
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob(pattern))
    if not jars:
        raise JarsUnavailable(f"PySpark's folder has no {pattern}")
    return jars


def _ivy_module(artifacts: tuple[Artifact, ...]) -> str:
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '<info organisation="local" module="jars"/>',
        '<configurations><conf name="default"/></configurations>',
        "<dependencies>",
    ]
    for artifact in artifacts:
        head = (
            f'<dependency org="{artifact.organisation}" name="{artifact.name}" '
            f'rev="{artifact.revision}" transitive="{str(artifact.transitive).lower()}" '
            f'conf="default->{"default" if artifact.transitive else "master"}"'
        )
        if artifact.archive:
            packed = f'<artifact name="{artifact.name}" type="tar.gz" ext="tar.gz" '
            lines.append(f'{head}>{packed}m:classifier="{artifact.archive}"/></dependency>')
            continue
        if not artifact.classifiers and artifact.extension == "jar":
            lines.append(f"{head}/>")
            continue
        kind = artifact.extension
        jar = f'<artifact name="{artifact.name}" type="{kind}" ext="{kind}"'
        named = "".join(f'{jar} m:classifier="{c}"/>' for c in artifact.classifiers)
        lines.append(f"{head}>{jar}/>{named}</dependency>")
    # log4j 1 does not start on Java 9 or later; its replacement (reload4j) has another name.
    lines += ['<exclude org="log4j"/>', '<exclude org="org.slf4j" module="slf4j-log4j12"/>']
    return "\n".join([*lines, "</dependencies>", "</ivy-module>"])


def fetch(name: str) -> Path:
    """The folder of the set ``name``, downloaded if it is missing; ``delta`` and ``spark-avro`` are those of the
    installed PySpark.

    Raises:
        JarsUnavailable: the set is unknown, or Ivy could not download all of it.
        JavaUnusable: there is no Java.
    """
    if name in ("delta", "spark-avro"):
        name = of_pyspark(name)
    if name not in SETS:
        raise JarsUnavailable(f"unknown set of jars {name!r}; there are {', '.join(SETS)}")
    target = cache_folder() / name
    if not _missing(name, target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{name}.lock"):
        # Another process may have downloaded it meanwhile.
        missing = _missing(name, target)
        if any(not jar.startswith(LOG_STORE.stem) for jar in missing):
            _download(name, target)
        elif missing:
            _compile_log_stores(target)
    return target


def _missing(name: str, folder: Path) -> list[str]:
    """The jars of a set that are not in the folder: all, or those whose version or source has changed."""
    jars = [jar for each in SETS[name] for jar in each.jars()]
    if name.startswith("delta"):
        jars.append(_log_stores_jar())
    return [jar for jar in jars if not (folder / jar).exists()]


def _log_stores_jar() -> str:
    """The file name of the LogStores' jar, with a hash of the source."""
    return f"{LOG_STORE.stem}-{hashlib.sha256(LOG_STORE.read_bytes()).hexdigest()[:8]}.jar"


def _compile_log_stores(folder: Path) -> None:
    """Compile the LogStores into a jar next to Delta's, and delete jars of an older source."""
    jars = [str(path) for path in (*_sparks("scala-*.jar"), *_sparks("hadoop-client-api-*.jar"))]
    jars += [str(path) for path in folder.glob("delta-storage-*.jar")]
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".log-stores-") as scratch:
        made = Path(scratch) / "made.jar"
        command = [java_command(), *QUICK_JAVA, "-cp", os.pathsep.join(jars)]
        command += ["scala.tools.nsc.Main", "-usejavacp", "-d", str(made), str(LOG_STORE)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise JarsUnavailable(
                f"compiling {LOG_STORE.name} took longer than {COMPILE_TIMEOUT_S} s"
            ) from None
        if done.returncode != 0:
            detail = (done.stdout + done.stderr).strip() or "no output"
            raise JarsUnavailable(f"compiling {LOG_STORE.name} failed: {detail}")
        for old in folder.glob(f"{LOG_STORE.stem}-*.jar"):
            old.unlink()
        made.rename(folder / _log_stores_jar())


def of_pyspark(name: str) -> str:
    """The set for the installed PySpark: Delta and Avro's reader are built for each minor version of Spark."""
    import pyspark

    own = f"{name}-{'.'.join(pyspark.__version__.split('.')[:2])}"
    return own if own in SETS else name


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time downloads a set: two must not share Ivy's cache."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(name: str, target: Path) -> None:
    named = ", ".join(f"{each.name} {each.revision}" for each in SETS[name])
    _say(f"downloading {named} from Maven Central (or where Ivy is told to look) into {target}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch:
        folder = Path(scratch)
        module = folder / "ivy.xml"
        module.write_text(_ivy_module(SETS[name]))
        try:
            result = subprocess.run(
                [
                    java_command(),
                    *QUICK_JAVA,
                    f"-Divy.default.ivy.user.dir={target.parent / '.ivy' / name}",
                    "-jar",
                    str(_sparks("ivy-*.jar")[0]),
                    "-ivy",
                    str(module),
                    "-confs",
                    "default",
                    "-types",
                    "jar",
                    "bundle",
                    "tar.gz",
                    "-retrieve",
                    str(folder / "jars" / "[artifact]-[revision](-[classifier]).[ext]"),
                ],
                capture_output=True,
                text=True,
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise JarsUnavailable(
                f"jars {name!r}: the download took longer than {FETCH_TIMEOUT_S} s; run it again, it will continue"
            ) from None
        found = folder / "jars"
        if name.startswith("delta") and list(found.glob("delta-storage-*.jar")):
            _compile_log_stores(found)
        missing = _missing(name, found)
        if result.returncode != 0 or missing:
            detail = (result.stdout + result.stderr).strip().splitlines()[-1:] or ["no output"]
            raise JarsUnavailable(f"jars {name!r}: missing {missing or 'some'}; Ivy: {detail[0]}")
        with contextlib.suppress(FileNotFoundError):
            target.rename(folder / "replaced")
        found.rename(target)


def _say(text: str) -> None:
    print(f"spark_conf.jars: {text}", file=sys.stderr, flush=True)  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_conf.jars",
        description="Print the folder of each set of jars, which is downloaded first if it is missing. The folders "
        f"are in {cache_folder()} ($KAFKA_DS_JARS names another). Needs Java and PySpark.",
    )
    parser.add_argument(
        "sets",
        nargs="*",
        default=["delta"],
        metavar="set",
        help=f"delta (the default: what a session needs), or any of {', '.join([*list(SETS)[2:], *GROUPS])}",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the jars, as Spark's --jars takes them"
    )
    given = parser.parse_args()
    names = [each for name in given.sets for each in GROUPS.get(name, (name,))]
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        fetched = [pool.submit(fetch, name) for name in names]
    try:
        folders = [each.result() for each in fetched]
    except (JarsUnavailable, JavaUnusable) as problem:
        _say(str(problem))
        return 1
    if given.list:
        jars = [str(jar) for folder in folders for jar in sorted(folder.glob("*.jar"))]
        print(",".join(jars))  # noqa: T201 (this is the command's output)
    else:
        print(*folders, sep="\n")  # noqa: T201 (this is the command's output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
