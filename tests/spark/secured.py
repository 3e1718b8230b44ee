"""Options as users write them for TLS and SCRAM, right and wrong, and a look at all that Spark writes down."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pyspark.sql import SparkSession

from tests.certificates import Authority
from tests.processes import BrokerProcess

USER, PASSWORD, WRONG = "alice", "open-sesame-8714", "shut-sesame-5520"
Options = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Options with which somebody gets in, and those of who does not, by the option that is to blame."""

    right: Options
    wrong: dict[str, Options]
    secrets: tuple[str, ...]


def ways_in(broker: BrokerProcess, authority: Authority) -> Ways:
    """Creates a user with a password and a key, as brokers may require."""
    kept = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(USER, kept, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.alter_user_scram_credentials([change])[USER].result(120)
    identity = authority.issue("client")
    right = {
        "kafka.bootstrap.servers": broker.address("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.file),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.key": identity.key_pem,
        "kafka.ssl.keystore.certificate.chain": identity.certificate_pem,
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": _entry(PASSWORD),
    }
    stranger = Authority(authority.folder / "stranger", "stranger")
    wrong = {
        "kafka.sasl.jaas.config": _entry(WRONG),
        "kafka.ssl.truststore.location": str(stranger.file),
    }
    # What of the key's text is nobody else's.
    lines = [line for line in identity.key_pem.splitlines() if "-----" not in line]
    return Ways(
        right=right,
        wrong={name: {**right, name: value} for name, value in wrong.items()},
        secrets=(PASSWORD, WRONG, *lines),
    )


def _entry(password: str) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{USER}" password="{password}";'


@contextlib.contextmanager
def written(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Spark's event log and all that its log says from INFO on go into the folder, complete when the block is left."""
    folder.mkdir()
    jvm, context = spark._jvm, spark._jsc.sc()
    assert jvm is not None
    conf = context.conf().clone().set("spark.eventLog.compress", "false")
    events = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "secured", jvm.scala.Option.empty(), jvm.java.net.URI(folder.as_uri()), conf
    )
    events.start()
    context.addSparkListener(events)
    try:
        with _logged(jvm, folder / "spark.log"):
            yield
            context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(events)
        events.stop()


@contextlib.contextmanager
def _logged(jvm: Any, file: Path) -> Iterator[None]:
    """Write Spark's log to a file instead of standard error, at a lower level."""
    log4j = jvm.org.apache.logging.log4j
    loggers = log4j.LogManager.getContext(False)
    root = loggers.getConfiguration().getRootLogger()
    others = list(root.getAppenders().values())
    level = root.getLevel()
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%p %c: %m%n%ex").build()
    built = log4j.core.appender.FileAppender.newBuilder()
    appender = built.setName("secured").withFileName(str(file)).setLayout(layout).build()
    appender.start()
    root.addAppender(appender, None, None)
    for each in others:
        root.removeAppender(each.getName())
    root.setLevel(log4j.Level.INFO)
    loggers.updateLoggers()
    try:
        yield
    finally:
        root.setLevel(level)
        for each in others:
            root.addAppender(each, None, None)
        root.removeAppender("secured")
        loggers.updateLoggers()
        appender.stop()


def assert_nothing_secret(ways: Ways, folder: Path, *texts: str) -> None:
    """Assert that no secret is in the folder's files (there must be some) or in these texts."""
    read = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any(b"SparkListenerSQLExecutionStart" in text for text in read.values())
    assert any(b"INFO org.apache.spark" in text for text in read.values())
    read |= {f"text {n}": text.encode() for n, text in enumerate(texts)}
    secrets = [secret.encode() for secret in ways.secrets]
    assert not [name for name, text in read.items() if any(secret in text for secret in secrets)]
