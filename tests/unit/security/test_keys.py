"""Keys, certificates and tokens from files and settings: formats, refusals, and that no secret is shown."""

from __future__ import annotations

import logging
import math
import pickle
import ssl
from pathlib import Path

import jwt
import pytest

from broker.config.dynamic import with_changes
from broker.config.loader import BrokerConfig, from_given
from broker.security.authentication.failures import InvalidCredentials
from broker.security.authentication.listener_security import ListenerSecurity
from broker.security.authentication.oauth_tokens import OauthSettings, TokenVerifier
from kafka_ds.client.settings import parse_settings
from kafka_ds.errors import OptionError
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import AlterConfigsRequest
from kafka_ds.protocol.messages.configs import AlterableConfig, AlterConfigsResource
from kafka_ds.protocol.types import MAX_I64
from kafka_ds.security.holders import check_same_holder, holder_of
from kafka_ds.security.secret import Secret
from kafka_ds.security.tls import TlsError, client_context, server_context
from kafka_ds.security.tls_settings import TlsSettings
from kafka_ds.source.options.options import parse_options
from tests.certificates import Authority, TokenIssuer
from tests.in_process import in_process, new_node
from tests.loops import in_loop

HUSH = "hush-hush"


def talks(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """The TLS version that both agree on, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return one.version()


def test_keys_come_as_pem_and_pkcs12_in_files_and_settings(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("broker")
    locked = tmp_path / "locked.pem"
    locked.write_text(identity.encrypted_pem(HUSH) + identity.certificate_pem)
    trusted = Secret(authority.file.read_text())
    client = client_context(
        TlsSettings(ssl_truststore_type="PEM", ssl_truststore_certificates=trusted)
    )
    p12 = str(authority.pkcs12(identity, HUSH))
    ways = [
        TlsSettings(ssl_keystore_type="PEM", ssl_keystore_location=str(identity.both_file)),
        TlsSettings(
            ssl_keystore_type="PEM",
            ssl_keystore_location=str(locked),
            ssl_key_password=Secret(HUSH),
        ),
        TlsSettings(
            ssl_keystore_type="PEM",
            ssl_keystore_key=Secret(identity.encrypted_pem(HUSH)),
            ssl_keystore_certificate_chain=Secret(identity.certificate_pem),
            ssl_key_password=Secret(HUSH),
        ),
        TlsSettings(
            ssl_keystore_type="PKCS12",
            ssl_keystore_location=p12,
            ssl_keystore_password=Secret(HUSH),
        ),
        TlsSettings(ssl_keystore_location=p12, ssl_keystore_password=Secret(HUSH)),
    ]
    for way in ways:
        assert talks(server_context(way, "none"), client) == "TLSv1.3", way
        assert HUSH not in repr(way) and "PRIVATE" not in repr(way)
    old = TlsSettings(
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(identity.both_file),
        ssl_cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",),
    )
    serving = server_context(old, "none")
    assert talks(serving, client) == "TLSv1.2"
    assert serving.options & ssl.OP_NO_RENEGOTIATION


def test_keys_that_cannot_be_read_are_told_by_their_setting(tmp_path: Path) -> None:
    identity = Authority(tmp_path).issue("broker")
    jks = tmp_path / "keys.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\x00\x00")
    p12 = str(Authority(tmp_path).pkcs12(identity, HUSH))
    both = str(identity.both_file)
    for given, why in (
        ({}, "neither ssl.keystore.location nor"),
        ({"ssl_keystore_location": str(jks)}, "ssl.keystore.type=JKS.*keytool"),
        ({"ssl_keystore_location": both}, "set ssl.keystore.type=PEM"),
        ({"ssl_keystore_location": str(tmp_path / "no")}, "no such file"),
        (
            {
                "ssl_keystore_type": "PKCS12",
                "ssl_keystore_location": p12,
                "ssl_keystore_password": Secret("x"),
            },
            "ssl.keystore.password is wrong",
        ),
        ({"ssl_keystore_type": "PEM", "ssl_keystore_location": str(jks)}, "no private key"),
        (
            {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(tmp_path / "no")},
            "ssl.keystore.location=.*no: no such file",
        ),
        (
            {"ssl_keystore_type": "PEM", "ssl_keystore_key": Secret(HUSH)},
            "needs ssl.keystore.certificate.chain",
        ),
        (
            {
                "ssl_keystore_type": "PEM",
                "ssl_keystore_location": both,
                "ssl_cipher_suites": ("TLS_AES_128_GCM_SHA256",),
            },
            "only all or none",
        ),
    ):
        with pytest.raises(TlsError, match=why) as error:
            server_context(TlsSettings(**given), "none")  # type: ignore[arg-type]
        assert HUSH not in str(error.value)


def test_tokens_are_held_against_the_keys(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path)
    verify = TokenVerifier(
        OauthSettings(
            jwks_url=issuer.file.as_uri(),
            audience=("kafka",),
            issuer=issuer.issuer,
            clock_skew_seconds=5,
        )
    )
    assert verify(issuer.token("carol")).subject == "carol"
    assert verify(issuer.token("carol", seconds=-2)).subject == "carol"  # clocks differ
    for bad in (
        issuer.token("carol", seconds=-60),
        issuer.token("carol", aud="other"),
        issuer.token("carol", iss="other"),
        issuer.token("carol", exp=None),
        *(issuer.token("carol", exp=exp) for exp in (-1, -(10**30), math.nan, math.inf, "soon")),
        issuer.token("carol", iat=None),
        issuer.token(" "),
        issuer.token("carol\ud800"),
        TokenIssuer(tmp_path / "other").token("carol"),
        jwt.encode({"sub": "carol"}, "k" * 64, "HS256", headers={"kid": "1"}),
        jwt.encode({"sub": "carol"}, None, "none", headers={"kid": "1"}),  # type: ignore[arg-type]
        "nonsense",
    ):
        with pytest.raises(InvalidCredentials) as refusal:
            verify(bad)
        assert bad not in str(refusal.value)
    # As in Kafka a session ends with its token, and its length is told as an int64.
    for exp in (10**30, 1e300):
        assert verify(issuer.token("carol", exp=exp)).expires_ms == MAX_I64
    verify = TokenVerifier(OauthSettings(jwks_url=issuer.file.as_uri()))
    assert verify(issuer.token("carol", aud=None)).subject == "carol"
    with pytest.raises(InvalidCredentials):
        verify(
            issuer.token("carol")
        )  # for an audience, of which nobody has said that it is this broker
    issuer.file.write_text('{"keys": []}')
    with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url=.*contains no key"):
        TokenVerifier(OauthSettings(jwks_url=issuer.file.as_uri()))


def test_no_secret_of_a_broker_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    given = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "ssl.key.password": HUSH,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'x.PlainLoginModule required user_a="{HUSH}";',
    }
    config = from_given({name: (text, "test") for name, text in given.items()})
    ListenerSecurity("SASL_PLAINTEXT", config, lambda user, mechanism: None)
    assert HUSH not in repr(config) + caplog.text
    jaas = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    for name in ("ssl.key.password", jaas):
        with pytest.raises(ConfigError, match="is a secret") as error:
            with_changes(config, {"1": {name: HUSH}})
        assert HUSH not in str(error.value)
    bad = from_given({**{n: (t, "test") for n, t in given.items()}, jaas: (f'M "{HUSH}', "test")})
    with pytest.raises(ConfigError, match="jaas") as error:
        ListenerSecurity("SASL_PLAINTEXT", bad, lambda user, mechanism: None)
    assert HUSH not in str(error.value)
    changed = with_changes(
        config, {"": {"listener.name.sasl_plaintext.ssl.keystore.location": "/new"}}
    )
    assert changed.of_listener("SASL_PLAINTEXT", "ssl.keystore.location") == "/new"
    assert changed.of_listener("PLAINTEXT", "ssl.keystore.location") is None


def test_no_secret_of_a_job_is_shown() -> None:
    jaas = f'x.ScramLoginModule required username="a" password="{HUSH}";'
    given = {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "t",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": jaas,
        "kafka.ssl.keystore.password": HUSH,
        "kafka.ssl.keystore.key": HUSH,
    }
    options = parse_options(given, stream=False)
    assert HUSH not in repr(options) and HUSH not in str(options)
    again = pickle.loads(pickle.dumps(options))
    assert again == options and again.client.security.jaas.reveal() == jaas
    for name, text in (
        ("kafka.sasl.jaas.config", f'x.PlainLoginModule required password="{HUSH}";'),
        ("kafka.sasl.jaas.config", f'x.ScramLoginModule required username="{HUSH}"'),
        ("kafka.sasl.mechanism", "NTLM"),
        ("kafka.ssl.provider", HUSH),
        ("kafka.security.protocol", "PLAINTEXT"),
    ):
        with pytest.raises(OptionError) as error:
            parse_settings({**given, name: text})
        assert HUSH not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, r"'kafka\.sasl\.jaas\.config' must be given where .* is SASL_SSL"),
        ({"sasl.jaas.config": " "}, r"'kafka\.sasl\.jaas\.config' must be given"),
        ({"sasl.jaas.confg": HUSH}, r"did you mean 'kafka\.sasl\.jaas\.config'\?"),
        ({"security.protocoll": "SSL"}, r"did you mean 'kafka\.security\.protocol'\?"),
        ({"ssl.trustore.location": "x"}, r"did you mean 'kafka\.ssl\.truststore\.location'\?"),
        ({"ssl.provider": "x"}, r"'kafka\.ssl\.provider' is not supported$"),
        ({"sasl.oauthbearer.scope": "x"}, r"is not supported: a token is given by sasl\.jaas"),
    ],
)
def test_an_option_of_a_job_that_is_missing_or_misspelt_is_named(
    changes: dict[str, str], said: str
) -> None:
    given = {
        "kafka.bootstrap.servers": "b:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        **{f"kafka.{name}": text for name, text in changes.items()},
    }
    with pytest.raises(OptionError, match=said) as error:
        parse_settings(given)
    assert HUSH not in str(error.value)


def test_a_listener_goes_on_with_new_keys_of_the_same_holder(tmp_path: Path) -> None:
    """KIP-978, and that what cannot be read is refused before it is set."""
    authority = Authority(tmp_path)
    first = authority.issue("broker")
    renewed, other = authority.issue("renewed", {"CN": "broker"}), authority.issue("other")
    key = "listener.name.outside.ssl.keystore.location"

    def listener(**more: str) -> tuple[BrokerConfig, ListenerSecurity]:
        given = {
            "listeners": "OUTSIDE://127.0.0.1:0",
            "listener.security.protocol.map": "OUTSIDE:SSL",
            "inter.broker.listener.name": "OUTSIDE",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(first.both_file),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.file),
            "lake.uri": str(tmp_path),
            "log.dirs": str(tmp_path),
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        config = from_given({name: (value, "test") for name, value in given.items()})
        return config, ListenerSecurity("OUTSIDE", config, lambda user, mechanism: None)

    def judged(changes: dict[str, str], **more: str) -> None:
        config, security = listener(**more)
        security.validate(with_changes(config, {"": changes}))
        assert security.read_if_changed() is False

    judged({})
    judged({key: str(renewed.both_file)})
    for changes, why in (
        (
            {key: str(other.both_file)},
            r"ssl\.allow\.dn\.changes=false.* CN=other, and not of CN=broker",
        ),
        ({key: str(tmp_path / "none")}, r"OUTSIDE: ssl\.keystore\.location=.*none"),
        ({key: str(authority.file)}, "no private key"),
        ({"ssl.truststore.location": str(first.key_file)}, "no valid certificates"),
    ):
        with pytest.raises(ConfigError, match=why):
            judged(changes)
    judged({key: str(other.both_file)}, ssl_allow_dn_changes="true")
    # What is in use counts, not what lies where it was read: that may be gone, or rubbish.
    (tmp_path / "lost.pem").write_bytes(first.both_file.read_bytes())
    config, security = listener(ssl_keystore_location=str(tmp_path / "lost.pem"))
    (tmp_path / "lost.pem").unlink()
    security.validate(with_changes(config, {"": {key: str(renewed.both_file)}}))
    with pytest.raises(ConfigError, match="CN=other, and not of CN=broker"):
        security.validate(with_changes(config, {"": {key: str(other.both_file)}}))
    before = holder_of(
        TlsSettings(ssl_keystore_type="PEM", ssl_keystore_location=str(first.both_file))
    )
    assert before.alternatives == {"DNSName:localhost", "IPAddress:127.0.0.1"}
    fewer = before._replace(alternatives=frozenset({"DNSName:localhost", "DNSName:new"}))
    with pytest.raises(TlsError, match="is not of IPAddress:127.0.0.1 any more"):
        check_same_holder(before, fewer, may_change_name=False, may_lose_hosts=False)
    check_same_holder(before, fewer, may_change_name=False, may_lose_hosts=True)
    p12 = str(authority.pkcs12(first, HUSH))
    assert before == holder_of(
        TlsSettings(ssl_keystore_location=p12, ssl_keystore_password=Secret(HUSH))
    )


@in_loop
async def test_a_broker_starts_with_the_keys_that_were_set_by_command(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where those that its file names are gone since, and the other way round."""
    authority = Authority(memory_path)
    first, renewed = authority.issue("broker"), authority.issue("renewed", {"CN": "broker"})
    settings: dict[str, object] = {
        "listeners": "OUTSIDE://127.0.0.1:0",
        "listener_security_protocol_map": "OUTSIDE:SSL",
        "inter_broker_listener_name": "OUTSIDE",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": first.both_file,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": authority.file,
    }
    key = "listener.name.outside.ssl.keystore.location"
    kept = renewed.both_file.read_bytes()
    async with in_process(memory_path, **settings) as broker:
        change = AlterableConfig(name=key, value=str(renewed.both_file))
        resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
        answer = await broker.ask(AlterConfigsRequest(resources=[resource], validate_only=False), 2)
        assert answer.responses[0].error_code == ErrorCode.NONE, answer
    renewed.both_file.unlink()
    async with in_process(memory_path, **settings):
        assert (
            "listener OUTSIDE: ignoring dynamic keys, using those of the file: listener OUTSIDE: ssl.keystore.location="
            in (caplog.text)
        )
    renewed.both_file.write_bytes(kept)
    first.both_file.unlink()
    async with in_process(memory_path, **settings) as broker:
        assert broker.node.config.of_listener("OUTSIDE", "ssl.keystore.location") == str(
            renewed.both_file
        )
    renewed.both_file.unlink()
    node = new_node(memory_path, **settings)
    with pytest.raises(ConfigError, match="OUTSIDE: ssl.keystore.location=.*renewed"):
        changed = with_changes(node.config, {"": {key: str(renewed.both_file)}})
        await node.server.open(changed, lambda *_: None, lambda *_: None)
