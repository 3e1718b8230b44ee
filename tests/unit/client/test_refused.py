"""What a client says whom a broker does not let in: the option that is to blame, and no secret."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_ds.client.connection import Connection
from kafka_ds.client.settings import parse_settings
from kafka_ds.errors import AuthenticationRefused
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import SaslHandshakeRequest, SaslHandshakeResponse
from tests.certificates import Authority
from tests.fakes.scripted_broker import scripted

HOST = "127.0.0.1"
Listening = Callable[..., int]


def told(port: int, given: Mapping[str, str]) -> str:
    settings = parse_settings({"kafka.bootstrap.servers": f"{HOST}:{port}", **given})
    with pytest.raises(AuthenticationRefused) as error:
        Connection(HOST, port, settings)
    return str(error.value)


@pytest.mark.parametrize(
    ("code", "offered", "option"),
    [
        # A listener without SASL, and one with a mechanism that is not ours.
        (ErrorCode.ILLEGAL_SASL_STATE, [], "'kafka.security.protocol' failed: SASL_PLAINTEXT"),
        (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            [],
            "'kafka.security.protocol' failed: SASL_PLAINTEXT",
        ),
        (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            ["GSSAPI"],
            "'kafka.sasl.mechanism' failed: .* GSSAPI",
        ),
    ],
)
def test_a_handshake_of_sasl_that_is_refused(
    code: ErrorCode, offered: list[str], option: str
) -> None:
    def script(request: Any) -> Any:
        assert isinstance(request, SaslHandshakeRequest)
        return SaslHandshakeResponse(error_code=code, mechanisms=offered)

    given = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": 'x.PlainLoginModule required username="a" password="hush";',
    }
    with scripted(script) as broker:
        text = told(broker.port, given)
    assert re.search(option, text) and "hush" not in text, text


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def listening(authority: Authority) -> Iterator[Listening]:
    """Ports with TLS by OpenSSL, which sends the alerts of brokers, and nothing else."""
    with contextlib.ExitStack() as after:

        def start(**changes: Any) -> int:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority.issue("broker").both_file)
            context.load_verify_locations(authority.file)
            for name, value in changes.items():
                setattr(context, name, value)
            listener = after.enter_context(socket.create_server((HOST, 0)))
            serving = threading.Thread(target=_serve, args=(listener, context))
            serving.start()
            after.callback(serving.join)
            after.callback(listener.shutdown, socket.SHUT_RDWR)
            return int(listener.getsockname()[1])

        yield start


def _serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):
        while True:
            bare, _ = listener.accept()
            # The alert is lost if the connection ends before all has been read that the client has sent.
            with bare.dup() as rest, contextlib.suppress(OSError):
                with contextlib.suppress(ssl.SSLError):
                    context.wrap_socket(bare, server_side=True).close()
                while rest.recv(4096):
                    pass


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_certificate_that_is_missing_or_not_trusted(
    authority: Authority, listening: Listening, tmp_path: Path, version: str
) -> None:
    port = listening(verify_mode=ssl.CERT_REQUIRED)
    given = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.enabled.protocols": version,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.file),
    }
    assert "'kafka.ssl.keystore.location', which is not given: " in told(port, given)
    stranger = Authority(tmp_path, "stranger").issue("ann")
    inline = {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.key": stranger.key_pem,
        "kafka.ssl.keystore.certificate.chain": stranger.certificate_pem,
    }
    text = told(port, {**given, **inline})
    assert "option 'kafka.ssl.keystore.key': " in text and "BEGIN" not in text, text


def test_versions_or_suites_that_have_nothing_in_common(
    authority: Authority, listening: Listening
) -> None:
    given = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.enabled.protocols": "TLSv1.2",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.file),
    }
    newer = listening(minimum_version=ssl.TLSVersion.TLSv1_3)
    assert "option 'kafka.ssl.enabled.protocols'=TLSv1.2: " in told(newer, given)
    suites = {"kafka.ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}
    any_version = listening()
    assert "option 'kafka.ssl.cipher.suites' or " in told(any_version, {**given, **suites})
