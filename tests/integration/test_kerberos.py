"""docs/how-to/kerberos.md with a real KDC: Java's, kafka-python's and our own clients; failures are Apache Kafka's."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.config.listeners import LOCAL_RULES
from broker.config.properties import parse_properties
from kafka_ds.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.apache_kafka import TOOL_OPTIONS, ApacheKafka, free_ports, java
from tests.certificates import Authority
from tests.command_line import CommandLine, Done
from tests.integration.raw_client import RawClient
from tests.kerberos import CLOCK_SKEW_S, HOST, REALM, Realm, python_path, unpacked
from tests.pages import own_blocks
from tests.processes import BrokerDied, BrokerProcess, running_broker

pytestmark = pytest.mark.skipif(
    unpacked() is None or python_path() is None, reason="needs Debian's krb5-kdc and python3-gssapi"
)

LISTENER = "SASL_SSL"
JAAS = "listener.name.sasl_ssl.gssapi.sasl.jaas.config"
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
SERVICE = f"kafka/{HOST}"
REFUSED = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"


PAGE = {
    block.title: {each.key: each.value for each in parse_properties(block.code)}
    for block in own_blocks("docs/how-to/kerberos.md", __file__)
}


def login(keytab: Path, principal: str) -> str:
    return (
        f'{MODULE} useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}";'
    )


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """And the certificates of its brokers."""
    made = Realm(tmp_path_factory.mktemp("realm"))
    Authority(made.folder).issue("broker")
    with made.running():
        made.add(SERVICE)
        for user in ("alice", "bob", "outsider"):
            made.add(user)
        yield made


def settings(keytab: Path, **more: object) -> dict[str, object]:
    """The page's, with this keytab and principal."""
    assert "kafka/broker1.internal@EXAMPLE.COM" in PAGE["server.properties"][JAAS]
    # Of outsider no rule makes a user.
    rules = "RULE:[1:$1](outsider)s/.*/not@one/," + PAGE["server.properties"][LOCAL_RULES]
    return {
        **PAGE["server.properties"],
        LOCAL_RULES: rules,
        JAAS: login(keytab, SERVICE),
        "ssl.keystore.location": keytab.parent / "broker.both.pem",
        "ssl.truststore.location": keytab.parent / "authority.pem",
        **more,
    }


def broker_settings(keytab: Path, **more: object) -> dict[str, object]:
    return {
        **settings(keytab),
        "listeners": f"{LISTENER}://127.0.0.1:0",
        "metrics.port": free_ports(1)[0],
        "remote.log.storage.system.enable": "false",
        "connection.failed.authentication.delay.ms": 1,
        "offsets.topic.num.partitions": 1,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture(scope="module")
def broker(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    own = broker_settings(realm.folder / f"{SERVICE.replace('/', '-')}.keytab")
    folder = tmp_path_factory.mktemp("broker")
    with running_broker(folder, own, environment=realm.environment) as running:
        yield running
    assert "Traceback" not in running.log_file.read_text()


def client_file(realm: Realm, folder: Path, jaas: str) -> Path:
    """The page's properties of a client, with another login."""
    file = folder / "client.properties"
    own = {**PAGE["client.properties"], "sasl.jaas.config": jaas}
    own["ssl.truststore.location"] = str(realm.folder / "authority.pem")
    file.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
    return file


def topics(
    realm: Realm,
    bootstrap: str,
    folder: Path,
    jaas: str,
    *words: str,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """What our own client says, that comes with such a login."""
    file = client_file(realm, folder, jaas)
    command = CommandLine(bootstrap, folder, **(environment or realm.environment))
    return command.run("topic", *(words or ("list",)), "--command-config", str(file))


def refusal(*where: Any, **environment: Any) -> str:
    """What it complains of, without that it was waiting."""
    return topics(*where, **environment).complaint.rpartition(" … ")[2]


def by_keytab(realm: Realm, user: str) -> str:
    return login(realm.folder / f"{user}.keytab", user)


# -- who comes in -----------------------------------------------------------------------------------


def test_our_own_client_comes_by_a_keytab_and_by_a_ticket(
    realm: Realm, broker: BrokerProcess, tmp_path: Path
) -> None:
    done = topics(realm, broker.bootstrap, tmp_path, by_keytab(realm, "alice"), "create", "mine")
    assert done.status == 0, done.errors
    realm.kinit("alice", realm.folder / "alice.keytab")
    done = topics(realm, broker.bootstrap, tmp_path, f"{MODULE} useTicketCache=true;")
    assert done.status == 0 and "mine" in done.output, done.errors
    # Bob has authenticated, and may not see a topic.
    done = topics(realm, broker.bootstrap, tmp_path, by_keytab(realm, "bob"))
    assert done.status == 0 and "mine" not in done.output, done.errors


KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
own = dict(bootstrap_servers=sys.argv[1], security_protocol="SASL_SSL", ssl_cafile=sys.argv[3],
           sasl_mechanism="GSSAPI", sasl_kerberos_service_name="kafka",
           sasl_kerberos_domain_name=sys.argv[2])
producer = KafkaProducer(**own)
offset = producer.send("python", b"by a ticket", partition=0).get(30).offset
producer.close()
consumer = KafkaConsumer(**own, auto_offset_reset="earliest")
consumer.assign([TopicPartition("python", 0)])
print(offset, next(iter(consumer)).value.decode())
"""


def test_kafka_python_comes_by_a_ticket(
    realm: Realm, broker: BrokerProcess, tmp_path: Path
) -> None:
    jaas = by_keytab(realm, "alice")
    done = topics(realm, broker.bootstrap, tmp_path, jaas, "create", "python")
    assert done.status == 0, done.errors
    realm.kinit("alice", realm.folder / "alice.keytab")
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            KAFKA_PYTHON,
            broker.bootstrap,
            HOST,
            str(realm.folder / "authority.pem"),
        ],
        env={**os.environ, **realm.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert said.stdout == "0 by a ticket\n", said.stderr


# -- who does not -----------------------------------------------------------------------------------


def old_ticket(realm: Realm, *words: str) -> None:
    """A ticket for the brokers, in the user's cache."""
    realm.kinit("alice", realm.folder / "alice.keytab", *words)
    realm.get_ticket(SERVICE)


def refusals(realm: Realm, bootstrap: str, folder: Path) -> dict[str, str]:
    """What our own client is told, and why it should be."""
    said = {}
    cache = f"{MODULE} useTicketCache=true;"
    behind = realm.at_another_time(-10 * CLOCK_SKEW_S)
    old_ticket(realm)
    said["clock"] = refusal(realm, bootstrap, folder, cache, environment=behind)
    old_ticket(realm, "-l", "1s")
    time.sleep(CLOCK_SKEW_S + 2)
    said["expired"] = refusal(realm, bootstrap, folder, cache, environment=behind)
    # Kerberos's keys of the service are new, and its keytab is not.
    keytab = realm.folder / f"{SERVICE.replace('/', '-')}.keytab"
    old = keytab.read_bytes()
    realm.keytab(SERVICE)
    new = keytab.read_bytes()
    keytab.write_bytes(old)
    alice = by_keytab(realm, "alice")
    said["keytab"] = refusal(realm, bootstrap, folder, alice)
    keytab.write_bytes(new)
    done = topics(realm, bootstrap, folder, alice)
    assert done.status == 0, done.errors
    return said


@pytest.mark.slow
def test_failures_are_those_of_apache_kafka(
    realm: Realm, broker: BrokerProcess, kafka_jars: Path, tmp_path: Path
) -> None:
    before = broker.metric("kafka_server_socket_server_metrics_failed_authentication_total")
    ours = refusals(realm, broker.bootstrap, tmp_path)
    # Whom no rule names, Apache Kafka disconnects without an answer, by an exception that it does not catch.
    nobody = by_keytab(realm, "outsider")
    nobody_told = refusal(realm, broker.bootstrap, tmp_path, nobody)
    assert nobody_told == ours["clock"]
    assert set(ours.values()) == {
        f"broker {broker.bootstrap}: authentication with sasl.jaas.config failed: {REFUSED}"
    }, ours
    after = broker.metric("kafka_server_socket_server_metrics_failed_authentication_total")
    assert after > before + len(ours)
    log = broker.log_file.read_text()
    for reason in (
        "Clock skew too great",
        "Ticket expired",
        "not@one is not a user name",
        f"Cannot find key for {SERVICE}@{REALM} kvno ",
    ):
        assert reason in log
    theirs = apache_kafka(realm, kafka_jars, tmp_path / "theirs")
    theirs.start()
    try:
        address = theirs.address(LISTENER)
        assert {
            what: text.replace(address, broker.bootstrap)
            for what, text in refusals(realm, address, tmp_path).items()
        } == ours
    finally:
        theirs.stop()


def apache_kafka(realm: Realm, kafka_jars: Path, folder: Path) -> ApacheKafka:
    keytab = realm.folder / f"{SERVICE.replace('/', '-')}.keytab"
    # Its brokers and its controller are one process, which does not log in.
    between = ("listeners", "protocol", "authorizer.class.name", "super.users")
    more = {name: value for name, value in settings(keytab).items() if not name.endswith(between)}
    own = ("-Xmx512M", f"-Djava.security.krb5.conf={realm.config}")
    return ApacheKafka(kafka_jars, folder, more, listeners={LISTENER: LISTENER}, options=own)


def test_bytes_that_are_no_token_are_refused(realm: Realm, broker: BrokerProcess) -> None:
    """And a token of another mechanism than Kerberos (here SPNEGO)."""
    tls = ssl.create_default_context(cafile=str(realm.folder / "authority.pem"))
    for token in (b"", b"nonsense", bytes.fromhex("6006060a2b06010401823702021e")):
        with RawClient(broker.bootstrap) as client:
            client.socket = tls.wrap_socket(client.socket, server_hostname="127.0.0.1")
            client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
            answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
            assert (answer.error_code, answer.error_message) == (58, REFUSED)


# -- Java's clients, other brokers ------------------------------------------------------------------


@pytest.mark.slow
def test_javas_clients_write_read_and_authenticate_again(
    realm: Realm, kafka_jars: Path, tmp_path: Path
) -> None:
    """And brokers among themselves, who also do so by Kerberos."""
    keytab = realm.folder / f"{SERVICE.replace('/', '-')}.keytab"
    more = {"connections_max_reauth_ms": 1_500, "lake_uri": tmp_path / "lake"}
    own = [broker_settings(keytab, **more, node_id=number) for number in (1, 2)]
    with (
        running_broker(tmp_path / "1", own[0], environment=realm.environment) as first,
        running_broker(tmp_path / "2", own[1], environment=realm.environment) as second,
    ):
        alice = client_file(realm, tmp_path, by_keytab(realm, "alice"))

        def tool(name: str, *words: str) -> str:
            options = (*TOOL_OPTIONS, f"-Djava.security.krb5.conf={realm.config}")
            done = subprocess.run(
                java(kafka_jars, options, name, "--bootstrap-server", first.bootstrap, *words),
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout + done.stderr

        config = ("--command-config", str(alice))
        topic = ("--topic", "java", "--partitions", "2", "--replication-factor", "2")
        tool("org.apache.kafka.tools.TopicCommand", *config, "--create", *topic)
        written = ("--num-records", "300", "--record-size", "10", "--throughput", "60")
        performance = "org.apache.kafka.tools.ProducerPerformance"
        tool(performance, *written, "--topic", "java", *config, "--command-property", "acks=all")
        read = ("--topic", "java", "--from-beginning", "--max-messages", "300")
        tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *read, *config)
        again = "kafka_server_socket_server_metrics_successful_reauthentication_total"
        assert first.metric(again) > 2
        # The second broker has followed partitions all the time.
        assert second.metric(again) + first.metric(again) > 4
        for each in (first, second):
            assert "Failed authentication" not in each.log_file.read_text()


# -- a broker's own login ---------------------------------------------------------------------------


def test_a_wrong_keytab_ends_the_start(realm: Realm, tmp_path: Path) -> None:
    own = broker_settings(realm.folder / "alice.keytab")
    said = rf"kafka-ds: {JAAS}: .*/alice\.keytab: No key table entry found for {SERVICE}@{REALM}"
    with pytest.raises(BrokerDied, match=said):
        BrokerProcess(tmp_path, own, environment=realm.environment).start()
