"""Shell: one connection to one broker: requests out, answers in, in order.

Rules of this file: calls block, with a deadline on every wait. Versions are negotiated once per connection
(ApiVersions). Answers arrive in the order of requests, so several may be in flight. Any error ends the connection,
since the bytes that follow are unknown. With TLS and SASL a connection is ready only when both sides are authenticated.
If the broker limits the session, the client authenticates again in time, on the same connection (KIP-368), once all
requests in flight have been answered.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import struct
import time
from collections import deque
from typing import Any, TypeVar, cast

from kafka_ds.client.errors import (
    AuthenticationRefused,
    BrokerTimeout,
    BrokerUnreachable,
    ClientError,
    NoSuchHost,
    UnsupportedByBroker,
)
from kafka_ds.client.hosts import had_address, has_address
from kafka_ds.client.settings import ClientSettings
from kafka_ds.protocol.errors import ErrorCode, MalformedFrame
from kafka_ds.protocol.frame import decode_response, encode_request
from kafka_ds.protocol.messages import (
    RESPONSES,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kafka_ds.protocol.types import Versions, message_info
from kafka_ds.security.mechanisms import Refused, client_mechanism, login
from kafka_ds.security.scram import ScramError
from kafka_ds.security.secret import Secret
from kafka_ds.security.tls import TlsError, client_context
from kafka_ds.security.tls_settings import TlsSettings
from kafka_ds.version import CLIENT_SOFTWARE, VERSION

_LENGTH = struct.Struct(">i")
ALLOCATED_BYTES_MAX = 64 * 1024 * 1024
# A connection that was just made is not idle, whatever the option says.
IDLE_MS_MIN = 1_000
# After which part of its life a session is renewed (Kafka's clients: between 0.85 and 0.95).
RENEWED_AFTER = 0.85
# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH, which Python's ssl does not name.
_OF_ANOTHER_HOST = (62, 64)
# Alerts by which a broker refuses us, and what OpenSSL finds by itself, by the names of Python's ssl. Brokers in Java
# tell of a certificate that is missing by BAD_CERTIFICATE, those with OpenSSL before TLS 1.3 by HANDSHAKE_FAILURE.
_OF_OUR_KEY = frozenset({
    "TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_ACCESS_DENIED",
    "TLSV1_ALERT_DECRYPT_ERROR", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_NO_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
})  # fmt: skip
_OF_OUR_VERSIONS = frozenset({
    "TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE",
})  # fmt: skip
_OF_OUR_KEY_OR_SUITES = frozenset({
    "SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV1_ALERT_INSUFFICIENT_SECURITY", "NO_CIPHERS_AVAILABLE",
})  # fmt: skip
Response = TypeVar("Response")


class Connection:
    """A negotiated connection. ``send`` and ``receive`` pair up in order; ``call`` is both."""

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self.address = f"{host}:{port}"
        self._settings = settings
        self._correlation_id = 0
        self._pending: deque[tuple[int, type, int]] = deque()
        self._early: deque[Any] = deque()  # answers that came before they were asked for
        self._renew_at: float | None = None
        self._used_at = self._now()
        self._is_let_in = False  # something beside its versions was answered
        self._socket = self._connect(host, port)
        self._versions: dict[int, Versions] = {}
        try:
            self._negotiate()
            if settings.security.uses_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def _connect(self, host: str, port: int) -> socket.socket:
        setup_ms = self._settings.socket_connection_setup_timeout_ms
        try:
            connected = socket.create_connection((host, port), timeout=setup_ms / 1_000)
        except TimeoutError:
            raise BrokerTimeout(
                f"no connection to broker {self.address} within "
                f"kafka.socket.connection.setup.timeout.ms={setup_ms}"
            ) from None
        except (OSError, UnicodeError) as problem:
            kind = NoSuchHost if _is_no_host(host, problem) else BrokerUnreachable
            raise kind(f"no connection to broker {self.address}: {problem}") from None
        has_address(host)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffers = (
            (socket.SO_RCVBUF, self._settings.receive_buffer_bytes),
            (socket.SO_SNDBUF, self._settings.send_buffer_bytes),
        )
        for option, size in buffers:
            if size > 0:
                connected.setsockopt(socket.SOL_SOCKET, option, size)
        return self._encrypted(connected, host) if self._settings.security.uses_tls else connected

    def _encrypted(self, connected: socket.socket, host: str) -> socket.socket:
        try:
            context = client_context(self._settings.security.tls)
            return context.wrap_socket(connected, server_hostname=host)
        except TlsError as problem:
            connected.close()
            raise AuthenticationRefused(f"option kafka.{problem}") from None
        except OSError as problem:
            connected.close()
            raise self._ended(problem) from None

    def _authenticate(self) -> None:
        """Say who we are, in as many steps as the mechanism has."""
        security = self._settings.security
        assert security.jaas is not None
        entry = login(security.mechanism, security.jaas)
        token = _token_of(entry.options.get("tokenFile"))
        exchange = client_mechanism(
            security.mechanism, entry, nonce=secrets.token_hex(24), token=token
        )
        answer = self._step(SaslHandshakeRequest(mechanism=security.mechanism))
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            if code != ErrorCode.UNSUPPORTED_SASL_MECHANISM or not answer.mechanisms:
                why = f"{security.protocol} is not this listener's, it seems ({code.name})"
                raise self._refused("security.protocol", why)
            raise self._refused("sasl.mechanism", f"it offers {', '.join(answer.mechanisms)}")
        message = exchange.first()
        began_at = time.monotonic()
        while True:
            answer = self._step(SaslAuthenticateRequest(auth_bytes=message))
            if answer.error_code:
                why = answer.error_message or ErrorCode(answer.error_code).name
                raise self._refused("sasl.jaas.config", why)
            try:
                message = exchange.respond(bytes(answer.auth_bytes))
            except (ScramError, Refused) as problem:
                raise self._refused("sasl.jaas.config", str(problem)) from None
            if exchange.is_done:
                break
        lifetime_s = answer.session_lifetime_ms / 1_000
        self._renew_at = began_at + RENEWED_AFTER * lifetime_s if lifetime_s > 0 else None

    def _step(self, request: Any) -> Any:
        self._send(request, self.version_of(type(request)))
        return self._receive()

    def _renew_if_due(self) -> None:
        if self._renew_at is None or time.monotonic() < self._renew_at:
            return
        while self._pending:
            self._early.append(self._receive())
        self._authenticate()

    def _refused(self, setting: str, why: str) -> AuthenticationRefused:
        self.close()
        return AuthenticationRefused(
            f"broker {self.address} does not let us in by option 'kafka.{setting}': {why}"
        )

    def _ended(self, problem: OSError) -> ClientError:
        """What an end of the connection means: TLS that fails does so again."""
        if isinstance(problem, ssl.SSLCertVerificationError):
            return AuthenticationRefused(
                f"broker {self.address}: its certificate is not accepted by option "
                f"{_which_refuses(problem, self._settings.security.tls)}: {problem.verify_message}"
            )
        if isinstance(problem, ssl.SSLError) and not isinstance(problem, ssl.SSLEOFError):
            blamed = _which_is_to_blame(problem.reason, self._settings.security.tls)
            return AuthenticationRefused(
                f"broker {self.address}: TLS fails by option {blamed}: {problem.reason or problem}"
            )
        text = f"broker {self.address} ended the connection: {problem}"
        if not self._is_let_in:
            protocol = self._settings.security.protocol
            text += f" (option 'kafka.security.protocol' is {protocol}: is it this listener's?"
            # Not every broker sends an alert before it hangs up.
            if self._settings.security.uses_tls and not self._settings.security.tls.has_key:
                text += " Or does it want a certificate? 'kafka.ssl.keystore.location' is not given"
            text += ")"
        return BrokerUnreachable(text)

    def _negotiate(self) -> None:
        """Learn what the broker speaks; one that is older than our question says so in version 0 (KIP-511)."""
        ours = message_info(ApiVersionsRequest).versions
        question = ApiVersionsRequest(
            client_software_name=CLIENT_SOFTWARE, client_software_version=VERSION
        )
        for version in (ours.last, 0):
            self._send(question, version)
            try:
                answer = cast(ApiVersionsResponse, self._receive())
            except MalformedFrame:
                # An answer in the form of version 0 to a question of a later one.
                self._pending.clear()
                continue
            if answer.error_code == ErrorCode.NONE:
                self._versions = {
                    api.api_key: Versions(api.min_version, api.max_version)
                    for api in answer.api_keys
                }
                return
        raise UnsupportedByBroker(f"broker {self.address} does not answer ApiVersions")

    def version_of(self, request: type, ceiling: int = 2**15) -> int:
        """The highest version of a request that both sides speak, at most ``ceiling``.

        Raises:
            UnsupportedByBroker: there is none.
        """
        info = message_info(request)
        assert info.key is not None
        theirs = self._versions.get(info.key, Versions(0, -1))
        version = min(info.versions.last, theirs.last, ceiling)
        if version < max(info.versions.first, theirs.first):
            raise UnsupportedByBroker(
                f"broker {self.address} speaks {request.__name__} {theirs.first} to {theirs.last}, "
                f"we speak {info.versions}"
            )
        return version

    def send(self, request: Any, ceiling: int = 2**15, *, answered: bool = True) -> None:
        """Send a request; its answer is the one that ``receive`` gives after those still under way.

        Only a Produce with acks=0 is not ``answered``.
        """
        self._renew_if_due()
        self._send(request, self.version_of(type(request), ceiling), answered=answered)

    def _send(self, request: Any, version: int, *, answered: bool = True) -> None:
        self._used_at = self._now()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        frame = encode_request(request, version, self._correlation_id, self._settings.client_id)
        if answered:
            self._pending.append((self._correlation_id, type(request), version))
        try:
            self._socket.settimeout(self._settings.request_timeout_ms / 1_000)
            self._socket.sendall(frame)
        except TimeoutError:
            self.close()
            raise self._late(type(request)) from None
        except OSError as problem:
            self.close()
            raise self._ended(problem) from None

    def receive(self) -> Any:
        """The answer to the oldest request under way, within ``kafka.request.timeout.ms``."""
        return self._early.popleft() if self._early else self._receive()

    def _receive(self) -> Any:
        correlation_id, request, version = self._pending.popleft()
        deadline = time.monotonic() + self._settings.request_timeout_ms / 1_000
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
            if length < 0:
                raise ConnectionError(f"a frame of {length} bytes")
            frame = self._read(length, deadline)
        except TimeoutError:
            self.close()
            raise self._late(request) from None
        except OSError as problem:
            self.close()
            raise self._ended(problem) from None
        key = message_info(request).key
        assert key is not None
        try:
            answered, message = _decode(RESPONSES[key], memoryview(frame), version)
        except MalformedFrame:
            # Before the versions are agreed on, an answer may be of another version than the question.
            if self._versions:
                self.close()
            raise
        if answered != correlation_id:
            self.close()
            raise BrokerUnreachable(f"broker {self.address} answered out of order")
        self._is_let_in |= request is not ApiVersionsRequest
        return message

    def call(self, request: Any, answer: type[Response], ceiling: int = 2**15) -> Response:
        """Send a request and wait for its answer; nothing else may be under way."""
        assert not self._pending
        self.send(request, ceiling)
        message = self.receive()
        assert isinstance(message, answer)
        return message

    def close(self) -> None:
        """End it; harmless when ended."""
        self._pending.clear()
        self._early.clear()
        with contextlib.suppress(OSError):
            self._socket.close()

    @property
    def idle(self) -> bool:
        """Whether it is open with no answer outstanding, and was used within ``kafka.connections.max.idle.ms``.

        After that the broker, or what lies between, may have forgotten it; some do so without a word, and a request
        would wait until its time is over.
        """
        is_free = self._socket.fileno() >= 0 and not self._pending and not self._early
        most_ms = self._settings.connections_max_idle_ms
        unused_ms = (self._now() - self._used_at) * 1_000
        return is_free and (most_ms < 0 or unused_ms <= max(IDLE_MS_MIN, most_ms))

    @staticmethod
    def _now() -> float:
        return time.monotonic()

    def _read(self, count: int, deadline: float) -> bytearray:
        data = bytearray(min(count, ALLOCATED_BYTES_MAX))
        done = 0
        while done < count:
            if done == len(data):
                # A length is a claim: more is allocated only when as much has come.
                data.extend(bytes(min(count - done, done)))
            done += self._read_into(data, done, deadline)
        return data

    def _read_into(self, data: bytearray, done: int, deadline: float) -> int:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        with memoryview(data) as whole, whole[done:] as rest:
            got = self._socket.recv_into(rest)
        if not got:
            raise ConnectionResetError("closed by the broker")
        return got

    def _late(self, request: type) -> BrokerTimeout:
        return BrokerTimeout(
            f"broker {self.address} did not answer {request.__name__} within "
            f"kafka.request.timeout.ms={self._settings.request_timeout_ms}"
        )


def _is_no_host(host: str, problem: OSError | UnicodeError) -> bool:
    """Whether the name is a mistake, by how it failed: no name server knows it, and none did before."""
    if isinstance(problem, UnicodeError):
        # An empty label, or one of more than 63 characters: it cannot be asked for (RFC 1035, section 2.3.4).
        return True
    if not isinstance(problem, socket.gaierror):
        has_address(host)
        return False
    return problem.errno == socket.EAI_NONAME and not had_address(host)


def _which_refuses(problem: ssl.SSLCertVerificationError, tls: TlsSettings) -> str:
    """The option by which a certificate was looked at, as it is to be named in an error."""
    if problem.verify_code in _OF_ANOTHER_HOST:
        return "'kafka.ssl.endpoint.identification.algorithm'"
    if tls.ssl_truststore_certificates is not None:
        return "'kafka.ssl.truststore.certificates'"
    given = tls.ssl_truststore_location
    where = f"={given}" if given else ", which is not given (the system's authorities are trusted)"
    return f"'kafka.ssl.truststore.location'{where}"


def _which_is_to_blame(reason: str | None, tls: TlsSettings) -> str:
    """The option by which the broker, or OpenSSL here, refused, as it is to be named in an error."""
    given = "" if tls.has_key else ", which is not given"
    key = "'kafka.ssl.keystore.key'" if tls.ssl_keystore_key else "'kafka.ssl.keystore.location'"
    if reason in _OF_OUR_KEY:
        return f"{key}{given}"
    if reason in _OF_OUR_VERSIONS:
        return f"'kafka.ssl.enabled.protocols'={','.join(tls.ssl_enabled_protocols)}"
    if reason in _OF_OUR_KEY_OR_SUITES:
        return f"'kafka.ssl.cipher.suites' or {key}{given}"
    return "'kafka.security.protocol', or another of kafka.ssl.*"


def _decode(answer: type, frame: memoryview, version: int) -> tuple[int, Any]:
    found: tuple[int, Any] = decode_response(answer, frame, version)
    return found


def _token_of(path: str | None) -> Secret | None:
    """A token that stands in a file of its own, so that it can be renewed there."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return Secret(file.read().strip())
    except OSError as problem:
        why = (problem.strerror or "cannot be read").lower()
        raise AuthenticationRefused(
            f"option 'kafka.sasl.jaas.config': tokenFile={path}: {why}"
        ) from None
