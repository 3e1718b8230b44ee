"""One broker, a listener of each protocol, and clients that others wrote: who gets in, as whom, and who does not."""

from __future__ import annotations

import contextlib
import pickle
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kafka
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.errors import AuthenticationRefused, ClientError
from kafka_ds.protocol.messages import MetadataRequest, MetadataResponse
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.sink.writer import BatchSink
from kafka_ds.source.batch import KafkaBatchReader
from kafka_ds.source.options.options import parse_options
from tests.certificates import Authority, Identity
from tests.integration.secured_broker import (
    HOST,
    LISTENERS,
    PASSWORD,
    SCRAM,
    TIMEOUT_S,
    SecuredBroker,
)
from tests.processes import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("listeners")) as running:
        yield running


def librdkafka(broker: SecuredBroker, listener: str, **settings: Any) -> dict[str, Any]:
    protocol = LISTENERS[listener].lower()
    given = {
        "bootstrap.servers": broker.bootstrap(listener),
        "security.protocol": protocol,
        **{n if n == "oauth_cb" else n.replace("_", "."): v for n, v in settings.items()},
    }
    if protocol.endswith("ssl"):
        given["ssl.ca.location"] = str(broker.authority.file)
    return given


WAYS: dict[str, tuple[str, Callable[[SecuredBroker], Mapping[str, Any]], str]] = {
    "plaintext": ("PLAINTEXT", lambda broker: {}, "User:ANONYMOUS"),
    "plain": (
        "OPEN_SASL",
        lambda broker: {
            "sasl_mechanism": "PLAIN",
            "sasl_username": "alice",
            "sasl_password": PASSWORD,
        },
        "User:alice",
    ),
    "scram": (
        "SAFE_SASL",
        lambda broker: {
            "sasl_mechanism": SCRAM,
            "sasl_username": "alice",
            "sasl_password": PASSWORD,
        },
        "User:alice",
    ),
    "oauth": (
        "SAFE_SASL",
        lambda broker: {
            "sasl_mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (broker.issuer.token("carol"), time.time() + 3600),
        },
        "User:carol",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_librdkafka_gets_in_and_stays_on_its_listener(broker: SecuredBroker, way: str) -> None:
    listener, settings, user = WAYS[way]
    config = librdkafka(broker, listener, **settings(broker))
    producer = Producer(config)
    producer.produce(way, b"value" * 40_000, key=b"k")  # more than one TLS record
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**config, "group.id": way, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(way, 0, 0)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None and message.error() is None, message
    assert message.value() == b"value" * 40_000
    # What it was told to connect to is the listener that it came by.
    (told,) = consumer.list_topics(timeout=TIMEOUT_S).brokers.values()
    assert told.port == broker.address(listener)[1]
    assert user in broker.principals(listener)
    consumer.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"sasl_password": "wrong"}, "invalid credentials"),
        ({"sasl_username": "nobody"}, "invalid credentials"),
        (
            {"sasl_mechanism": "SCRAM-SHA-256"},
            "this listener offers|Unsupported|UNSUPPORTED|unsupported",
        ),
    ],
    ids=["password", "user", "mechanism"],
)
def test_librdkafka_is_told_why_it_does_not_get_in(
    broker: SecuredBroker, settings: dict[str, str], why: str
) -> None:
    listener, known, _ = WAYS["scram"]
    given = {**known(broker), **settings}
    told = told_by_librdkafka(broker, listener, KafkaError._AUTHENTICATION, **given)
    assert re.search(why, told), told


def told_by_librdkafka(broker: SecuredBroker, listener: str, code: int, **settings: Any) -> str:
    """The first error of this code that it reports."""
    told: list[str] = []

    def heard(error: KafkaError) -> None:
        if error.code() == code:
            told.append(error.str())

    admin = AdminClient({**librdkafka(broker, listener, **settings), "error_cb": heard})
    deadline = time.monotonic() + TIMEOUT_S
    while not told and time.monotonic() < deadline:
        admin.poll(0.1)
    assert told, "it has reported nothing"
    return told[0]


def test_a_certificate_tells_who_a_client_is(broker: SecuredBroker) -> None:
    identity = broker.authority.issue("ann", {"O": "A", "OU": "clients", "CN": "Ann"})
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap("MUTUAL"),
        security_protocol="SSL",
        ssl_cafile=str(broker.authority.file),
        ssl_certfile=str(identity.certificate_file),
        ssl_keyfile=str(identity.key_file),
    )
    assert consumer.topics() is not None
    assert broker.principals("MUTUAL") == {"User:ann"}
    consumer.close()


def context_of(broker: SecuredBroker, identity: Identity | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(broker.authority.file))
    if identity is not None:
        context.load_cert_chain(identity.both_file)
    return context


# An ApiVersions.
QUESTION = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def asks(connected: socket.socket) -> bytes:
    """What the broker answers to an ApiVersions; nothing where it hangs up."""
    connected.settimeout(TIMEOUT_S)
    try:
        connected.sendall(QUESTION)
        return connected.recv(8)
    except (ssl.SSLError, ConnectionError):
        return b""


# By which alert a client is told that its certificate is missing, or of an authority that is not trusted.
ALERTS = {
    ssl.TLSVersion.TLSv1_2: ("SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV1_ALERT_UNKNOWN_CA"),
    ssl.TLSVersion.TLSv1_3: ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA"),
}


@pytest.fixture
def stranger(tmp_path: Path) -> Identity:
    """Of an authority that the broker does not trust."""
    return Authority(tmp_path, "stranger").issue("ann")


@pytest.mark.parametrize("version", ALERTS, ids=lambda version: str(version.name))
def test_who_is_refused_gets_an_alert(
    broker: SecuredBroker, stranger: Identity, version: ssl.TLSVersion
) -> None:
    """Also where it has asked something by then, as clients of TLS 1.3 do: they think that they are in."""
    failed = broker.owner.metrics.net.failed_authentications
    for identity, alert in zip((None, stranger), ALERTS[version], strict=True):
        context = context_of(broker, identity)
        context.maximum_version = version
        with socket.create_connection(broker.address("MUTUAL")) as bare:
            bare.settimeout(TIMEOUT_S)
            # By 1.2 the handshake itself is refused.
            with (
                pytest.raises(ssl.SSLError) as told,
                context.wrap_socket(bare, server_hostname=HOST) as safe,
            ):
                safe.sendall(QUESTION * 1_000)
                safe.recv(8)
            assert told.value.reason == alert
    assert broker.owner.metrics.net.failed_authentications == failed + 2


def test_librdkafka_is_told_that_it_needs_a_certificate(
    broker: SecuredBroker, stranger: Identity
) -> None:
    keys = {
        "ssl_certificate_location": str(stranger.certificate_file),
        "ssl_key_location": str(stranger.key_file),
    }
    for settings, why in (({}, "certificate required"), (keys, "unknown ca")):
        told = told_by_librdkafka(broker, "MUTUAL", KafkaError._TRANSPORT, **settings)
        assert why in told, told


def test_keys_are_read_anew(broker: SecuredBroker) -> None:
    known = broker.authority.issue("client")

    def serial() -> int:
        with (
            socket.create_connection(broker.address("MUTUAL")) as bare,
            context_of(broker, known).wrap_socket(bare, server_hostname=HOST) as safe,
        ):
            assert asks(safe)
            shown = safe.getpeercert()
            assert shown is not None
            return int(str(shown["serialNumber"]), 16)

    assert serial() == broker.identity.certificate.serial_number
    renewed = broker.authority.issue("broker-2")
    broker.keys.write_text(renewed.both_file.read_text())
    broker.run(broker.node.keys.look())
    assert serial() == renewed.certificate.serial_number
    broker.keys.write_text("no key")
    broker.run(broker.node.keys.look())  # is an error in the log, and nothing else
    assert serial() == renewed.certificate.serial_number
    broker.keys.write_text(renewed.both_file.read_text())
    broker.run(broker.node.keys.look())
    # Or other files are named, as kafka-configs.sh does: those of one listener alone, and back.
    third = broker.authority.issue("broker-3", {"CN": "broker-2"})
    missing = str(third.both_file) + ".not"
    for operation, named, expected in (
        (AlterConfigOpType.SET, missing, None),
        (AlterConfigOpType.SET, str(third.both_file), third),
        (AlterConfigOpType.DELETE, None, renewed),
    ):
        entry = ConfigEntry(
            "listener.name.mutual.ssl.keystore.location", named, incremental_operation=operation
        )
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin = AdminClient(librdkafka(broker, "PLAINTEXT"))
        changed = admin.incremental_alter_configs([resource])[resource]
        if expected is None:
            with pytest.raises(KafkaException, match=r"keystore\.location=.*\.not: no such file"):
                changed.result(TIMEOUT_S)
            continue
        changed.result(TIMEOUT_S)
        number = expected.certificate.serial_number
        wait_until("the other keys", lambda number=number: serial() == number)


@pytest.mark.parametrize("listener", ["OPEN_SASL", "SAFE_SASL"])
def test_who_never_says_who_it_is_is_sent_away(
    broker: SecuredBroker, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a handshake of TLS, or TLS and then not a word of SASL."""
    monkeypatch.setattr("broker.server.tls_handshake.HANDSHAKE_SECONDS_MAX", 0.5)
    monkeypatch.setattr("broker.server.connection.AUTHENTICATION_SECONDS_MAX", 0.5)
    with socket.create_connection(broker.address(listener)) as bare:
        bare.settimeout(TIMEOUT_S)
        with contextlib.suppress(ConnectionError):
            assert bare.recv(1) == b""
    if listener != "SAFE_SASL":
        return
    monkeypatch.setattr("broker.server.tls_handshake.HANDSHAKE_SECONDS_MAX", TIMEOUT_S)
    with (
        socket.create_connection(broker.address(listener)) as bare,
        context_of(broker).wrap_socket(bare, server_hostname=HOST) as safe,
    ):
        safe.settimeout(TIMEOUT_S)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert safe.recv(1) == b""


OURS: dict[str, tuple[str, Callable[[SecuredBroker], dict[str, str]]]] = {
    "plain": (
        "OPEN_SASL",
        lambda broker: {
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'x.PlainLoginModule required username="alice" password="{PASSWORD}";',
        },
    ),
    "scram": (
        "SAFE_SASL",
        lambda broker: {
            "kafka.sasl.mechanism": SCRAM,
            "kafka.sasl.jaas.config": f'x.ScramLoginModule required username="alice" password="{PASSWORD}";',
        },
    ),
    "oauth": (
        "SAFE_SASL",
        lambda broker: {
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.jaas.config": "x.OAuthBearerLoginModule required "
            f'token="{broker.issuer.token("dave")}";',
        },
    ),
    "mutual": (
        "MUTUAL",
        lambda broker: {
            "kafka.ssl.keystore.type": "PKCS12",
            "kafka.ssl.keystore.location": str(
                broker.authority.pkcs12(broker.authority.issue("erin"), "hush")
            ),
            "kafka.ssl.keystore.password": "hush",
        },
    ),
}


def ours(broker: SecuredBroker, way: str) -> dict[str, str]:
    listener, settings = OURS[way]
    given = {
        "kafka.bootstrap.servers": broker.bootstrap(listener),
        "kafka.security.protocol": LISTENERS[listener],
        **settings(broker),
    }
    if LISTENERS[listener].endswith("SSL"):
        given |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(broker.authority.file),
        }
    return given


@pytest.mark.parametrize("way", OURS)
def test_our_own_client_gets_in(broker: SecuredBroker, way: str) -> None:
    settings = parse_settings(ours(broker, way))
    assert "hush" not in repr(settings) and PASSWORD not in repr(settings)
    with Cluster(settings) as cluster:
        assert cluster.topics(None) is not None
        # Of a secret it is told that there is one, and no more.
        name = "listener.name.safe_sasl.plain.sasl.jaas.config"
        assert cluster.broker_setting(name) is None
        assert cluster.broker_setting("listener.name.mutual.ssl.client.auth") == "required"


def test_queries_get_in_where_they_are_planned_and_where_they_run(broker: SecuredBroker) -> None:
    """As Spark runs source and sink: objects made on the driver reach the planner and each task as pickles."""
    given = {**ours(broker, "scram"), "topic": "asked"}
    columns = check_columns({"value": "binary"}, "asked")
    sink = BatchSink(parse_sink_options(given, stream=False), columns)
    rows = pa.record_batch([pa.array([b"one", b"two"])], names=["value"])
    assert pickle.loads(pickle.dumps(sink)).write(iter([rows])).row_count == 2
    del given["topic"]
    options = parse_options({**given, "subscribe": "asked"}, stream=False)
    reader = KafkaBatchReader(options, pa.schema([pa.field("value", pa.binary())]))
    assert PASSWORD not in repr(options) + repr(vars(sink))
    tasks = pickle.loads(pickle.dumps(reader)).partitions()
    assert PASSWORD not in repr(vars(tasks[0]))
    found = [
        value.as_py()
        for task in pickle.loads(pickle.dumps(tasks))
        for batch in pickle.loads(pickle.dumps(reader)).read(task)
        for value in batch.column("value")
    ]
    assert sorted(found) == [b"one", b"two"]


MISTAKES = {
    "sasl.jaas.config": 'x.ScramLoginModule required username="alice" password="a-secret";',
    "ssl.truststore.location": "",
    "sasl.mechanism": "SCRAM-SHA-256",
}


@pytest.mark.parametrize("setting", MISTAKES)
def test_our_own_client_says_at_once_why_it_does_not_get_in(
    broker: SecuredBroker, setting: str
) -> None:
    changed = {f"kafka.{setting}": MISTAKES[setting]}
    given = {name: value for name, value in {**ours(broker, "scram"), **changed}.items() if value}
    refused = pytest.raises(AuthenticationRefused, match=rf"option 'kafka\.{setting}'")
    with Cluster(parse_settings(given)) as cluster, refused as error:
        cluster.topics(None)
    assert "a-secret" not in str(error.value) and PASSWORD not in str(error.value)


def test_our_own_client_says_at_once_that_it_needs_a_certificate(
    broker: SecuredBroker, stranger: Identity
) -> None:
    without = {n: v for n, v in ours(broker, "mutual").items() if "keystore" not in n}
    with_another = {
        **without,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(stranger.both_file),
    }
    for given, told in ((without, "which is not given"), (with_another, "UNKNOWN_CA")):
        blamed = rf"option 'kafka\.ssl\.keystore\.location'.*{told}"
        refused = pytest.raises(AuthenticationRefused, match=blamed)
        with Cluster(parse_settings(given)) as cluster, refused:
            cluster.topics(None)


def test_a_certificate_of_another_host_is_told(broker: SecuredBroker) -> None:
    algorithm = "kafka.ssl.endpoint.identification.algorithm"
    given = ours(broker, "scram")
    given["kafka.bootstrap.servers"] = given["kafka.bootstrap.servers"].replace(HOST, "127.1")
    refused = pytest.raises(AuthenticationRefused, match=f"option '{algorithm}'")
    with Cluster(parse_settings(given)) as cluster, refused:
        cluster.topics(None)
    with Cluster(parse_settings({**given, algorithm: ""})) as cluster:
        assert cluster.topics([]) == {}


def test_a_session_is_renewed_or_ends(broker: SecuredBroker) -> None:
    """A client that re-authenticates stays connected, also after its session expired; one that does not is closed."""
    metrics = broker.owner.metrics.net

    async def end_sessions() -> None:
        for each in broker.owner.server.connections:
            if str(each.principal) == "User:dave" and each.authenticator is not None:
                each.authenticator.machine.ends_ms = 0

    with Cluster(parse_settings(ours(broker, "oauth"))) as cluster:
        connection = cluster.any_broker()
        assert connection.session.renew_at is not None
        broker.run(end_sessions())
        connection.session.renew_at, before = 0.0, metrics.reauthentications
        connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert metrics.reauthentications == before + 1
        broker.run(end_sessions())
        ended = metrics.sessions_expired
        with pytest.raises(ClientError):
            connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert metrics.sessions_expired == ended + 1
