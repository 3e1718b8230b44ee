"""Shell: a blocking connection to a broker.

Every call has a deadline. Several requests may be in flight; responses come in order. Any error closes the connection,
because the position in the stream is unknown. With TLS and SASL a connection is ready once it is authenticated; before
a session expires the client re-authenticates (KIP-368), after all requests in flight have been answered.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from kafka_ds.client.session import ANY_VERSION, SaslRefused, Session
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import (
    AuthenticationRefused,
    BrokerTimeout,
    BrokerUnreachable,
    ClientError,
    ConnectionRefused,
    NoSuchHost,
)
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.security.gssapi_mechanism import GssapiClient, KerberosFailed, KerberosLogin
from kafka_ds.security.jaas import JaasEntry
from kafka_ds.security.mechanisms import GSSAPI, ClientMechanism, client_mechanism, login
from kafka_ds.security.tls import TlsError, client_context
from kafka_ds.security.tls_settings import TlsSettings
from kafka_ds.security.token_file import TokenUnreadable, read_token

# A new connection is not idle, whatever the option is.
IDLE_MS_MIN = 1_000
# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH, which Python's ssl does not name.
_OF_ANOTHER_HOST = (62, 64)
# Alerts of the broker, and OpenSSL's own errors, by their names in Python's ssl. Without a client certificate Java
# brokers send BAD_CERTIFICATE, and OpenSSL before TLS 1.3 sends HANDSHAKE_FAILURE.
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
# Hosts that were resolved, and addresses that accepted a connection, in this process. Such a name is not a mistake: in
# Kubernetes the name of a headless service is unknown for some seconds while its pods restart. A sink has a new client
# for each task and commit, so this outlives a client. Single operations on a set need no lock, so none can be held
# during a fork.
KNOWN_MAX: Final = 1024
KNOWN: set[str] = set()
Response = TypeVar("Response")


class Connection:
    """A negotiated connection. ``send`` and ``receive`` pair up in order; ``call`` is both."""

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self.address = f"{host}:{port}"
        self._host = host
        self._settings = settings
        self.session = Session(f"broker {self.address}", settings.client_id)
        self._answers: deque[Any] = deque()
        self._socket = self._connect(host, port)
        try:
            self.session.negotiate(time.monotonic(), settings.request_timeout_ms)
            self._wait(lambda: self.session.is_ready)
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
            kind: type[BrokerUnreachable] = BrokerUnreachable
            if _is_no_host(host, problem):
                kind = NoSuchHost
            elif isinstance(problem, ConnectionRefusedError) and not is_known(self.address):
                kind = ConnectionRefused
            reason = getattr(problem, "strerror", None) or problem
            raise kind(f"no connection to broker {self.address}: {reason}") from None
        remember(host)
        remember(self.address)
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
        """Authenticate, in as many steps as the mechanism has."""
        security = self._settings.security
        assert security.jaas is not None
        entry = login(security.mechanism, security.jaas)
        if security.mechanism == GSSAPI:
            exchange: ClientMechanism = self._initiate(entry)
        else:
            path = entry.options.get("tokenFile")
            try:
                token = None if path is None else read_token(path)
            except TokenUnreadable as problem:
                raise AuthenticationRefused(f"option 'kafka.sasl.jaas.config': {problem}") from None
            exchange = client_mechanism(
                security.mechanism, entry, nonce=secrets.token_hex(24), token=token
            )
        self.session.authenticate(
            security.mechanism, exchange, time.monotonic(), self._settings.request_timeout_ms
        )
        self._wait(lambda: self.session.is_ready)

    def _initiate(self, entry: JaasEntry) -> GssapiClient:
        """Get a ticket for the broker's host, by the name that the connection was made with."""
        from kafka_ds.security.kerberos import KerberosUnavailable, initiate

        service = self._settings.security.kerberos_service
        try:
            return initiate(KerberosLogin.of(entry), service, self._host)
        except KerberosUnavailable as problem:
            raise AuthenticationRefused(f"option 'kafka.sasl.mechanism': {problem}") from None
        except KerberosFailed as problem:
            raise AuthenticationRefused(
                f"option 'kafka.sasl.jaas.config': no ticket for {service}/{self._host}: {problem}"
            ) from None

    # -- requests and answers -------------------------------------------------------------------

    def version_of(self, request: type, ceiling: int = ANY_VERSION) -> int:
        """The highest version of a request that both sides support, at most ``ceiling``.

        Raises:
            UnsupportedByBroker: there is none.
        """
        return self.session.version_of(request, ceiling)

    def send(self, request: Any, ceiling: int = ANY_VERSION, *, answered: bool = True) -> None:
        """Send a request; its answer is the one that ``receive`` gives after those still under way.

        Only a Produce with acks=0 is not ``answered``.
        """
        if self.session.must_renew(time.monotonic()):
            while self.session.in_flight:
                self._next_answer()
            self._authenticate()
        self.session.send(
            request,
            time.monotonic(),
            self._settings.request_timeout_ms,
            ceiling=ceiling,
            answered=answered,
        )
        self._write(type(request))

    def receive(self) -> Any:
        """The response to the oldest request, within ``kafka.request.timeout.ms``."""
        if not self._answers:
            self._next_answer()
        return self._answers.popleft()

    def _next_answer(self) -> None:
        # The caller's own time since then does not count.
        self.session.wait_until(time.monotonic() + self._settings.request_timeout_ms / 1_000)
        before = len(self._answers)
        self._wait(lambda: len(self._answers) > before)

    def call(self, request: Any, answer: type[Response], ceiling: int = ANY_VERSION) -> Response:
        """Send a request and wait for its response; no other may be in flight."""
        assert not self.session.in_flight and not self._answers
        self.send(request, ceiling)
        message = self.receive()
        assert isinstance(message, answer)
        return message

    def close(self) -> None:
        """Close the connection; may be called again."""
        self.session.close()
        self._answers.clear()
        with contextlib.suppress(OSError):
            self._socket.close()

    @property
    def idle(self) -> bool:
        """Whether it is open without a request in flight, and was used within ``kafka.connections.max.idle.ms``.

        After that the broker, or a firewall, may have dropped it without notice, and a request would time out.
        """
        is_free = self._socket.fileno() >= 0 and not self.session.in_flight and not self._answers
        most_ms = self._settings.connections_max_idle_ms
        unused_ms = (time.monotonic() - self.session.used_at) * 1_000
        return is_free and (most_ms < 0 or unused_ms <= max(IDLE_MS_MIN, most_ms))

    # -- the socket -----------------------------------------------------------------------------

    def _write(self, request: type) -> None:
        try:
            self._socket.settimeout(self._settings.request_timeout_ms / 1_000)
            for frame in self.session.data_to_send():
                self._socket.sendall(frame)
        except OSError as problem:
            self._fail(problem, request)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Read until `is_done`; responses before an error count."""
        while not is_done():
            if self.session.error is not None:
                self._refuse(self.session.error)
            asked = self.session.oldest
            self._write(asked.request)
            try:
                self._socket.settimeout(max(0.001, asked.deadline - time.monotonic()))
                count = self._socket.recv_into(self.session.get_buffer())
                if not count:
                    raise ConnectionResetError("closed by the broker")
            except OSError as problem:
                self._fail(problem, asked.request)
            answers = self.session.received(count, time.monotonic())
            self._answers.extend(answer.message for answer in answers)
        if self.session.error is not None and not self._answers:
            self._refuse(self.session.error)

    def _fail(self, problem: OSError, request: type) -> NoReturn:
        self.close()
        if isinstance(problem, TimeoutError):
            raise BrokerTimeout(
                f"broker {self.address} did not answer {request.__name__} within "
                f"kafka.request.timeout.ms={self._settings.request_timeout_ms}"
            ) from None
        raise self._ended(problem) from None

    def _refuse(self, error: Exception) -> NoReturn:
        """Close the connection and raise the session's error."""
        self.close()
        if isinstance(error, MalformedFrame):
            raise BrokerUnreachable(f"broker {self.address}: {error}") from None
        if not isinstance(error, SaslRefused):
            raise error
        protocol = self._settings.security.protocol
        option, why = {
            "protocol": (
                "security.protocol",
                f"{protocol} does not seem to be this listener's protocol ({error})",
            ),
            "mechanism": ("sasl.mechanism", str(error)),
            "credentials": ("sasl.jaas.config", str(error)),
        }[error.cause]
        raise AuthenticationRefused(
            f"broker {self.address}: authentication with option 'kafka.{option}' failed: {why}"
        ) from None

    def _ended(self, problem: OSError) -> ClientError:
        """The error for a connection that ended; TLS errors are not retriable."""
        security = self._settings.security
        if isinstance(problem, ssl.SSLCertVerificationError):
            return AuthenticationRefused(
                f"broker {self.address}: certificate verification failed with option "
                f"{_verifying_option(problem, security.tls)}: {problem.verify_message}"
            )
        if isinstance(problem, ssl.SSLError) and not isinstance(problem, ssl.SSLEOFError):
            blamed = _option_at_fault(problem.reason, security.tls)
            return AuthenticationRefused(
                f"broker {self.address}: TLS handshake failed with option {blamed}: {problem.reason or problem}"
            )
        text = f"broker {self.address} disconnected: {problem}"
        if not self.session.is_accepted:
            text += (
                f" (option 'kafka.security.protocol' is {security.protocol}: is it this listener's?"
            )
            # Not every broker sends an alert before it disconnects.
            if security.uses_tls and not security.tls.has_key:
                text += " Or does it want a certificate? 'kafka.ssl.keystore.location' is not given"
            text += ")"
        return BrokerUnreachable(text)


def remember(place: str) -> None:
    """Remember a host that was resolved, or an address that accepted a connection."""
    if place not in KNOWN and len(KNOWN) >= KNOWN_MAX:
        KNOWN.clear()
    KNOWN.add(place)


def is_known(place: str) -> bool:
    """Whether a host or an address is remembered; also in a forked child."""
    return place in KNOWN


def _is_no_host(host: str, problem: OSError | UnicodeError) -> bool:
    """Whether the host name is unknown, and was not resolved before in this process."""
    if isinstance(problem, UnicodeError):
        # An empty label, or one of more than 63 characters (RFC 1035, section 2.3.4).
        return True
    if not isinstance(problem, socket.gaierror):
        remember(host)
        return False
    return problem.errno == socket.EAI_NONAME and not is_known(host)


def _verifying_option(problem: ssl.SSLCertVerificationError, tls: TlsSettings) -> str:
    """The option, for an error message, with which the broker's certificate was verified."""
    if problem.verify_code in _OF_ANOTHER_HOST:
        return "'kafka.ssl.endpoint.identification.algorithm'"
    if tls.ssl_truststore_certificates is not None:
        return "'kafka.ssl.truststore.certificates'"
    given = tls.ssl_truststore_location
    where = f"={given}" if given else ", which is not given (the system's authorities are trusted)"
    return f"'kafka.ssl.truststore.location'{where}"


def _option_at_fault(reason: str | None, tls: TlsSettings) -> str:
    """The option, for an error message, because of which the handshake failed."""
    given = "" if tls.has_key else ", which is not given"
    key = "'kafka.ssl.keystore.key'" if tls.ssl_keystore_key else "'kafka.ssl.keystore.location'"
    if reason in _OF_OUR_KEY:
        return f"{key}{given}"
    if reason in _OF_OUR_VERSIONS:
        return f"'kafka.ssl.enabled.protocols'={','.join(tls.ssl_enabled_protocols)}"
    if reason in _OF_OUR_KEY_OR_SUITES:
        return f"'kafka.ssl.cipher.suites' or {key}{given}"
    return "'kafka.security.protocol', or another of kafka.ssl.*"
