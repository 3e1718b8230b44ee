"""Shell: the network between brokers where their listener is not PLAINTEXT: encrypted and authenticated.

Rules of this file:
- It stands in the place of the Network seam, so that no user of connections knows of it: `connect` gives a connection
  whose TLS handshake and SASL exchange are done. Listening is the network's own.
- A broker shows the key of its inter-broker listener and trusts whom that listener trusts; it authenticates by
  sasl.mechanism.inter.broker.protocol, with the name and password (or token) of its JAAS entry there, as in Kafka.
- Where a session has an end (KIP-368) the connection's protocol is given a `Session`, if it has a place for one, and
  authenticates anew before that; what it logs in with is read again then. Else the other broker closes the connection.
- Whatever is refused is a ConnectionError without a word of what was sent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from broker.config.listeners import JAAS, names_of
from broker.config.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, MalformedFrame
from kafka_ds.protocol.frame import decode_response, encode_request
from kafka_ds.protocol.frame_assembler import SCRATCH_BYTES
from kafka_ds.protocol.messages import (
    RESPONSES,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from kafka_ds.protocol.types import api_key_of
from kafka_ds.security.jaas import JaasEntry, JaasError
from kafka_ds.security.mechanisms import ClientMechanism, Refused, client_mechanism, login
from kafka_ds.security.scram import ScramError
from kafka_ds.security.secret import Secret
from kafka_ds.security.tls import TlsError, client_context
from kafka_ds.security.tls_settings import TlsSettings

if TYPE_CHECKING:
    from broker.config.loading import BrokerConfig
    from broker.seams import Listener, Network

_LOGGER = logging.getLogger(__name__)
_LENGTH = struct.Struct(">i")
_HANDSHAKE_VERSION = 1
_AUTHENTICATE_VERSION = 2
_ANSWER_BYTES_MAX = 1 << 20
_NONCE_BYTES = 24
# After which part of its life a session is renewed (Kafka's clients: between 0.85 and 0.95).
RENEWED_AFTER = 0.85


# Sends a request in this version; its answer.
Ask = Callable[[Any, int], Awaitable[Any]]


@dataclass(slots=True)
class Session:
    """Until when a connection may go on, by the event loop's time in seconds (None: for ever), and how it gets longer.

    `authenticate` wants the connection for itself, and returns the next `renew_at_s`; it raises ConnectionError.
    """

    renew_at_s: float | None
    authenticate: Callable[[Ask], Awaitable[float | None]]


class NotLetIn(ConnectionRefusedError):
    """Another broker refuses what this one logs in with: nothing goes on until a human being mends that."""


class _Talk(asyncio.BufferedProtocol):
    """One question and one answer at a time, before the connection's own protocol takes over."""

    def __init__(self) -> None:
        self._buffer = bytearray(SCRATCH_BYTES)
        self._came = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._ended: str | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self._came += memoryview(self._buffer)[:nbytes]
        if len(self._came) < _LENGTH.size or self._answer is None:
            return
        (size,) = _LENGTH.unpack_from(self._came)
        if not 0 < size <= _ANSWER_BYTES_MAX:
            self._end("what came is no answer")
        elif len(self._came) >= _LENGTH.size + size and not self._answer.done():
            self._answer.set_result(bytes(self._came[_LENGTH.size : _LENGTH.size + size]))
            self._came.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "the connection was closed"))

    def _end(self, why: str) -> None:
        self._ended = why
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(why))

    async def ask(self, request: bytes) -> bytes:
        """The answer, without its length."""
        if self._ended is not None:
            raise ConnectionResetError(self._ended)
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


class SecureNetwork:
    """A network whose connections are those of the inter-broker listener's protocol."""

    def __init__(
        self, network: Network, config: BrokerConfig, current: Callable[[], BrokerConfig]
    ) -> None:
        """ConfigError: nobody can log in so. Keys are those of `current`, whenever a connection is made.

        That they can be read is for the listener to find out, which has the same (`ListenerSecurity`).
        """
        self._network = network
        self._listener = listener = config.inter_broker_listener
        self._protocol = config.protocols[listener]
        self._client_id = f"broker-{config.node_id}"
        self._config = current
        self._mechanism = str(config.sasl_mechanism_inter_broker_protocol)
        self._entry: JaasEntry | None = None
        # Where it was said already: it is tried again several times a second.
        self._refused_at: set[tuple[str, int]] = set()
        if self._protocol.startswith("SASL"):
            self._entry = self._login(config)

    def bind(self, host: str, port: int) -> Listener:
        return self._network.bind(host, port)

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]:
        """As the seam's, encrypted and authenticated; who calls says how long it may take."""
        loop, talk = asyncio.get_running_loop(), _Talk()
        if self._protocol.endswith("SSL"):
            # Read anew each time, in a thread: such connections are few, and keys change.
            try:
                context = await loop.run_in_executor(None, self._context)
            except ConfigError as error:
                raise ConnectionError(str(error)) from None
            transport, _ = await loop.create_connection(
                lambda: talk, host, port, ssl=context, server_hostname=host
            )
        else:
            transport, _ = await self._network.connect(lambda: talk, host, port)
        _send_at_once(transport)
        session: Session | None = None
        try:
            if self._entry is not None:
                authenticate = partial(self._authenticate, self._entry)
                session = Session(await authenticate(partial(self._ask, talk)), authenticate)
        except BaseException as error:
            transport.abort()
            if isinstance(error, NotLetIn) and (host, port) not in self._refused_at:
                self._refused_at.add((host, port))
                _LOGGER.warning("the broker at %s:%d: %s", host, port, error)
            raise
        self._refused_at.discard((host, port))
        protocol = protocol_factory()
        if session is not None and hasattr(protocol, "session"):
            protocol.session = session
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return transport, protocol

    def _context(self) -> Any:
        config, listener = self._config(), self._listener
        values = {name: config.of_listener(listener, name) for name in TlsSettings.names()}
        try:
            return client_context(TlsSettings.of(values))
        except TlsError as error:
            raise ConfigError(f"listener {listener}: {error}") from None

    def _login(self, config: BrokerConfig) -> JaasEntry:
        text = config.of_listener(self._listener, JAAS, self._mechanism)
        assert isinstance(text, Secret)
        try:
            return login(self._mechanism, text)
        except JaasError as error:
            name = names_of(self._listener, JAAS, self._mechanism)[0]
            raise ConfigError(f"{name}: brokers log in by it, too: {error}") from None

    async def _authenticate(self, entry: JaasEntry, ask: Ask) -> float | None:
        """Say who this broker is; when it is time to say it again."""
        token = None
        if "tokenFile" in entry.options:
            loop = asyncio.get_running_loop()
            token = await loop.run_in_executor(None, _read_token, entry.options["tokenFile"])
        exchange: ClientMechanism = client_mechanism(
            self._mechanism, entry, nonce=secrets.token_hex(_NONCE_BYTES), token=token
        )
        handshake = SaslHandshakeRequest(mechanism=self._mechanism)
        answer = await ask(handshake, _HANDSHAKE_VERSION)
        if answer.error_code:
            raise NotLetIn(f"it does not offer {self._mechanism}")
        message, began_s, lifetime_ms = exchange.first(), asyncio.get_running_loop().time(), 0
        while not exchange.is_done:
            request = SaslAuthenticateRequest(auth_bytes=message)
            step: SaslAuthenticateResponse = await ask(request, _AUTHENTICATE_VERSION)
            if step.error_code:
                why = step.error_message or ErrorCode(step.error_code).name
                setting = names_of(self._listener, JAAS, self._mechanism)[0]
                raise NotLetIn(f"it does not let this broker in by {setting}: {why}")
            try:
                message = exchange.respond(bytes(step.auth_bytes))
            except (ScramError, Refused) as error:
                raise NotLetIn(str(error)) from None
            lifetime_ms = step.session_lifetime_ms
        return began_s + RENEWED_AFTER * lifetime_ms / 1_000 if lifetime_ms > 0 else None

    async def _ask(self, talk: _Talk, request: Any, version: int) -> Any:
        frame = await talk.ask(bytes(encode_request(request, version, 0, self._client_id)))
        answer = RESPONSES[api_key_of(type(request))]
        try:
            return decode_response(answer, memoryview(frame), version)[1]
        except MalformedFrame as error:
            raise ConnectionResetError(f"it answered with {error}") from None


def _read_token(path: str) -> Secret:
    try:
        with open(path, encoding="utf-8") as file:
            return Secret(file.read().strip())
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise ConnectionError(f"tokenFile={path}: {reason}") from None
    except UnicodeDecodeError:
        raise ConnectionError(f"tokenFile={path}: is not UTF-8") from None


def _send_at_once(transport: asyncio.Transport) -> None:
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def between_brokers(
    network: Network, config: BrokerConfig, current: Callable[[], BrokerConfig]
) -> Network:
    """The network by which brokers reach each other: as it is, or secured."""
    if config.protocols.get(config.inter_broker_listener, "PLAINTEXT") == "PLAINTEXT":
        return network
    return SecureNetwork(network, config, current)
