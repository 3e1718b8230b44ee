"""Shell: the network between brokers if their listener is not PLAINTEXT: TLS and SASL.

It implements the Network seam: `connect` returns a connection whose TLS handshake is done, and `exchange` the SASL
mechanism that a `PeerConnection` authenticates with. Keys and trust are the inter-broker listener's; the mechanism is
sasl.mechanism.inter.broker.protocol, with the user and password, token or keytab of its JAAS entry, as in Kafka. Keys,
tokens and tickets are read for each connection, in a thread. Errors never contain what was sent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.config.listeners import JAAS, SERVICE_NAME, names_of
from kafka_ds.process.settings import ConfigError
from kafka_ds.security.gssapi_mechanism import KerberosFailed, KerberosLogin
from kafka_ds.security.jaas import JaasEntry, JaasError
from kafka_ds.security.mechanisms import GSSAPI, ClientMechanism, client_mechanism, login
from kafka_ds.security.secret import Secret
from kafka_ds.security.tls import TlsError, client_context
from kafka_ds.security.tls_settings import TlsSettings
from kafka_ds.security.token_file import TokenUnreadable, read_token

if TYPE_CHECKING:
    from broker.config.dynamic import DynamicBrokerConfig
    from broker.config.loader import BrokerConfig
    from kafka_ds.client.session import SaslRefused
    from kafka_ds.process.seams import BoundListener, Network

_LOGGER = logging.getLogger(__name__)
_NONCE_BYTES = 24


class SecureNetwork:
    """A network whose connections are those of the inter-broker listener's protocol."""

    def __init__(self, network: Network, dynamic_config: DynamicBrokerConfig) -> None:
        """Raises ConfigError for an invalid JAAS entry. Each connection takes its keys from the current settings.

        `ListenerSecurity` checks that they can be read.
        """
        config = dynamic_config.current
        self._network = network
        self._listener = listener = config.inter_broker_listener
        self._protocol = config.protocols[listener]
        self._config = dynamic_config
        self._mechanism = str(config.sasl_mechanism_inter_broker_protocol)
        self._entry: JaasEntry | None = None
        # Logged once, as brokers retry several times a second.
        self._failed_at: set[tuple[str, int]] = set()
        if self._protocol.startswith("SASL"):
            self._entry = self._login(config)

    def bind(self, host: str, port: int) -> BoundListener:
        return self._network.bind(host, port)

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]:
        """Connect, with TLS; the caller sets the timeout."""
        if not self._protocol.endswith("SSL"):
            return await self._network.connect(protocol_factory, host, port)
        loop = asyncio.get_running_loop()
        # Read each time, in a thread: connections are few, and keys change.
        try:
            context = await loop.run_in_executor(None, self._context)
        except ConfigError as error:
            raise ConnectionError(str(error)) from None
        transport, protocol = await loop.create_connection(
            protocol_factory, host, port, ssl=context, server_hostname=host
        )
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return transport, protocol

    def _context(self) -> Any:
        config, listener = self._config.current, self._listener
        values = {name: config.of_listener(listener, name) for name in TlsSettings.names()}
        try:
            return client_context(TlsSettings.of(values))
        except TlsError as error:
            raise ConfigError(f"listener {listener}: {error}") from None

    # -- SASL -----------------------------------------------------------------------------------

    @property
    def has_login(self) -> bool:
        """Whether brokers authenticate by SASL."""
        return self._entry is not None

    def _login(self, config: BrokerConfig) -> JaasEntry:
        text = config.of_listener(self._listener, JAAS, self._mechanism)
        assert isinstance(text, Secret)
        try:
            return login(self._mechanism, text)
        except JaasError as error:
            raise ConfigError(
                f"{self._setting}: brokers authenticate with it, too: {error}"
            ) from None

    @property
    def _setting(self) -> str:
        return names_of(self._listener, JAAS, self._mechanism)[0]

    async def exchange(self, host: str) -> tuple[str, ClientMechanism]:
        """The mechanism, and this broker's side of one SASL exchange with the broker at this host.

        Raises:
            ConnectionError: the token file cannot be read, or the KDC gives no ticket.
        """
        assert self._entry is not None
        loop = asyncio.get_running_loop()
        if self._mechanism == GSSAPI:
            return GSSAPI, await loop.run_in_executor(None, self._initiate, self._entry, host)
        token = None
        if "tokenFile" in self._entry.options:
            path = self._entry.options["tokenFile"]
            try:
                token = await loop.run_in_executor(None, read_token, path)
            except TokenUnreadable as error:
                raise ConnectionError(str(error)) from None
        nonce = secrets.token_hex(_NONCE_BYTES)
        return self._mechanism, client_mechanism(
            self._mechanism, self._entry, nonce=nonce, token=token
        )

    def _initiate(self, entry: JaasEntry, host: str) -> ClientMechanism:
        from kafka_ds.security.kerberos import KerberosUnavailable, initiate

        login_of = KerberosLogin.of(entry)
        given = self._config.current.of_listener(self._listener, SERVICE_NAME, GSSAPI)
        assert login_of.principal is not None, "checked by ListenerSecurity"
        service = str(given or login_of.service or login_of.principal.partition("/")[0])
        try:
            return initiate(login_of, service, host)
        except (KerberosFailed, KerberosUnavailable) as error:
            raise ConnectionError(
                f"{self._setting}: no ticket for {service}/{host}: {error}"
            ) from None

    def login_failed(self, host: str, port: int, refusal: SaslRefused) -> str:
        """Log a failed login of this broker, once; returns the reason."""
        why = f"failed authentication with {self._setting}: {refusal}"
        if refusal.cause != "credentials":
            why = f"it does not enable {self._mechanism}"
        if (host, port) not in self._failed_at:
            self._failed_at.add((host, port))
            _LOGGER.warning("the broker at %s:%d: %s", host, port, why)
        return why

    def login_succeeded(self, host: str, port: int) -> None:
        """A login succeeded: the next failure is logged again."""
        self._failed_at.discard((host, port))


def inter_broker_network(network: Network, dynamic_config: DynamicBrokerConfig) -> Network:
    """The network between brokers: plaintext, or a SecureNetwork."""
    config = dynamic_config.current
    if config.protocols.get(config.inter_broker_listener, "PLAINTEXT") == "PLAINTEXT":
        return network
    return SecureNetwork(network, dynamic_config)
