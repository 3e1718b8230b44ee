"""Shell: the security of one listener: TLS context, SASL mechanisms, mapping of certificates to users.

- `read` blocks on files, so it runs in a thread. It replaces everything or, on an error, nothing. Open connections keep
  the context that they were made with.
- A new certificate is compared with the one in use, even if that file is gone.
- Errors are ConfigError and name the setting with the listener's prefix.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from broker.config.kerberos_rules import KerberosRules, parse_kerberos_rules
from broker.config.listeners import JAAS, LOCAL_RULES, SERVICE_NAME, ListenerConfig, names_of
from broker.config.mapping_rules import Rule, distinguished_name, parse_rules, user_of
from broker.principal import ANONYMOUS, USER, Principal
from broker.security.authentication.gssapi_server import GssapiServer
from broker.security.authentication.mechanisms import (
    OauthBearerServer,
    PlainServer,
)
from broker.security.authentication.sasl import OfferedMechanism
from broker.security.authentication.scram_server import ScramServer
from broker.security.authentication.scram_users import ScramCredential
from broker.security.authentication.tokens import TokenLogin
from broker.transport.alerts import AlertingContext
from kafka_ds.process.settings import ConfigError, settings_of
from kafka_ds.security.gssapi_mechanism import KerberosFailed, KerberosLogin
from kafka_ds.security.holders import check_same_holder, holder_in, holder_of
from kafka_ds.security.jaas import JaasEntry, JaasError, parse_jaas
from kafka_ds.security.mechanisms import GSSAPI, OAUTHBEARER, PLAIN, login
from kafka_ds.security.secret import Secret
from kafka_ds.security.tls import TlsError, certificate_of, client_context, server_context
from kafka_ds.security.tls_settings import NONE, TlsSettings

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig

# The credential of a user for a mechanism.
CredentialLookup = Callable[[str, str], ScramCredential | None]
# How one logs in by a token of this id and a mechanism.
TokenLookup = Callable[[str, str], TokenLogin | None]
_NONCE_BYTES = 24
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FilesRead:
    """Everything that one call of `read` produced."""

    context: ssl.SSLContext | None
    # The certificate of `context` as PEM; None without one, or if it cannot be parsed.
    certificate: bytes | None
    rules: tuple[Rule, ...]
    offered: Mapping[str, OfferedMechanism]
    seen: Mapping[str, tuple[int, int] | None]


class ListenerSecurity:
    """The security of one listener with TLS or SASL."""

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        credentials: CredentialLookup,
        tokens: TokenLookup = lambda token_id, mechanism: None,
    ) -> None:
        """Reads all files. Raises ConfigError."""
        self.name = name
        self.protocol = config.protocols[name]
        self.uses_tls = self.protocol.endswith("SSL")
        self.uses_sasl = self.protocol.startswith("SASL")
        self._config = config
        self._credentials = credentials
        self._tokens = tokens
        self._now = self._read(config)

    def read(self, config: BrokerConfig) -> None:
        """Read settings and files again; on a ConfigError everything stays as it was."""
        self._now = self._read(config)
        self._config = config

    def read_if_changed(self) -> bool:
        """The same where a file has changed since it was read; whether one has."""
        seen = self._now.seen
        if all(_stamp_of(path) == before for path, before in seen.items()):
            return False
        self.read(self._config)
        return True

    def validate(self, config: BrokerConfig) -> None:
        """Validate new keys and certificates for this listener. Raises ConfigError.

        As in Kafka (KIP-978) a new certificate keeps the distinguished name and all subject alternative names, unless
        ssl.allow.dn.changes and ssl.allow.san.changes say otherwise.
        """
        before, after = self._tls(self._config), self._tls(config)
        if not self.uses_tls or before == after:
            return
        self._read(config)
        try:
            may_change_name = bool(config.of_listener(self.name, "ssl.allow.dn.changes"))
            may_lose_hosts = bool(config.of_listener(self.name, "ssl.allow.san.changes"))
            if may_change_name and may_lose_hosts:
                return
            shown = self._now.certificate
            check_same_holder(
                holder_in(certificate_of(before) if shown is None else shown),
                holder_of(after),
                may_change_name=may_change_name,
                may_lose_hosts=may_lose_hosts,
            )
        except TlsError as error:
            raise ConfigError(f"listener {self.name}: {error}") from None

    def _tls(self, config: BrokerConfig) -> TlsSettings:
        return TlsSettings.of(
            {name: config.of_listener(self.name, name) for name in TlsSettings.names()}
        )

    @property
    def has_files(self) -> bool:
        """Whether the security of this listener depends on files."""
        return bool(self._now.seen)

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context for new connections."""
        assert self._now.context is not None
        return self._now.context

    @property
    def offered(self) -> Mapping[str, OfferedMechanism]:
        """The SASL mechanisms."""
        return self._now.offered

    def principal_of(self, certificate: Mapping[str, Any] | None) -> Principal | None:
        """The principal of a client certificate; None if no mapping rule matches."""
        if not certificate:
            return ANONYMOUS
        user = user_of(self._now.rules, distinguished_name(certificate["subject"]))
        return Principal(USER, user) if user else None

    # -- reading ------------------------------------------------------------------------------------

    def _read(self, config: BrokerConfig) -> _FilesRead:
        tls = self._tls(config)
        files = list(tls.files) if self.uses_tls else []
        client_auth = str(config.of_listener(self.name, "ssl.client.auth"))
        if (
            self.uses_sasl
            and f"listener.name.{self.name.lower()}.ssl.client.auth" not in config.listener_values
        ):
            # As in Kafka: SASL authenticates the client; a certificate is requested only if this listener demands one.
            client_auth = NONE
        offered: dict[str, OfferedMechanism] = {}
        if self.uses_sasl:
            enabled = cast(
                "tuple[str, ...]", config.of_listener(self.name, "sasl.enabled.mechanisms")
            )
            for mechanism in enabled:
                offered[mechanism] = self._offer(config, mechanism, files)
        # Taken before the files are read, so that a change during the read is noticed.
        seen = {path: _stamp_of(path) for path in files}
        try:
            context = server_context(tls, client_auth, AlertingContext) if self.uses_tls else None
            if self.uses_tls and self.name == config.inter_broker_listener:
                client_context(
                    tls
                )  # Validates what `SecureNetwork` connects to other brokers with.
        except TlsError as error:
            raise ConfigError(f"listener {self.name}: {error}") from None
        certificate: bytes | None = None
        if context is not None:
            with contextlib.suppress(TlsError):
                certificate = certificate_of(tls)
        rules = parse_rules(str(config.of_listener(self.name, "ssl.principal.mapping.rules")))
        return _FilesRead(
            context=context,
            certificate=certificate,
            rules=rules,
            offered=offered,
            seen=seen,
        )

    def _offer(self, config: BrokerConfig, mechanism: str, files: list[str]) -> OfferedMechanism:
        longest_ms = cast(
            int, config.of_listener(self.name, "connections.max.reauth.ms", mechanism)
        )
        if mechanism == PLAIN:
            users = self._entry(config, mechanism).users()
            return OfferedMechanism(
                new=partial(PlainServer, users),
                known=users.get,
                reauthentication_ms_max=longest_ms,
            )
        if mechanism == OAUTHBEARER:
            # Imported here, so that brokers without it do not load its libraries.
            from broker.security.authentication.oauth_tokens import TokenVerifier

            settings = self._oauth_settings(config)
            files.append(settings.file)
            verify = TokenVerifier(settings)
            return OfferedMechanism(
                new=partial(OauthBearerServer, verify), reauthentication_ms_max=longest_ms
            )

        if mechanism == GSSAPI:
            return self._offer_kerberos(config, longest_ms)

        def of_user(user: str) -> ScramCredential | None:
            return self._credentials(user, mechanism)

        def by_token(token_id: str) -> TokenLogin | None:
            return self._tokens(token_id, mechanism)

        return OfferedMechanism(
            new=lambda: ScramServer(mechanism, of_user, secrets.token_hex(_NONCE_BYTES), by_token),
            known=of_user,
            reauthentication_ms_max=longest_ms,
        )

    def _offer_kerberos(self, config: BrokerConfig, longest_ms: int) -> OfferedMechanism:
        # Imported here, as the package is optional.
        from kafka_ds.security.kerberos import KerberosAcceptor, KerberosUnavailable, default_realm

        entry = self._entry(config, GSSAPI)
        name = names_of(self.name, JAAS, GSSAPI)[0]
        try:
            login(GSSAPI, cast("Secret", config.of_listener(self.name, JAAS, GSSAPI)))
            whose = KerberosLogin.of(entry)
        except JaasError as error:
            raise ConfigError(f"{name}: {error}") from None
        if not whose.uses_keytab or whose.principal is None or "/" not in whose.principal:
            raise ConfigError(
                f'{name}: a broker needs useKeyTab="true" and a principal of the form service/host@REALM'
            )
        try:
            acceptor = KerberosAcceptor(whose)
            realm = default_realm()
        except KerberosUnavailable as error:
            enabled = names_of(self.name, "sasl.enabled.mechanisms")[0]
            raise ConfigError(f"{enabled} (or sasl.enabled.mechanisms): {error}") from None
        except KerberosFailed as error:
            raise ConfigError(f"{name}: {whose.keytab or 'default keytab'}: {error}") from None
        self._say_what_has_no_effect(config)
        texts = cast("tuple[str, ...]", config.of_listener(self.name, LOCAL_RULES, GSSAPI))
        rules = KerberosRules(parse_kerberos_rules(texts), realm)
        return OfferedMechanism(
            new=lambda: GssapiServer(acceptor.context(), rules),
            reauthentication_ms_max=longest_ms,
        )

    def _say_what_has_no_effect(self, config: BrokerConfig) -> None:
        for base, setting in settings_of(ListenerConfig).items():
            if not base.startswith("sasl.kerberos.") or base in (LOCAL_RULES, SERVICE_NAME):
                continue
            value = config.of_listener(self.name, base, GSSAPI)
            if value != setting.default:
                _log.warning("listener %s: %s=%s has no effect", self.name, base, value)

    def _entry(self, config: BrokerConfig, mechanism: str) -> JaasEntry:
        name = names_of(self.name, JAAS, mechanism)[0]
        text = config.of_listener(self.name, JAAS, mechanism)
        if not isinstance(text, Secret):
            what = "names the broker's keytab" if mechanism == GSSAPI else "lists the users"
            raise ConfigError(f"{name} is not set: it {what} of {mechanism}")
        try:
            return parse_jaas(text.reveal())
        except JaasError as error:
            raise ConfigError(f"{name}: {error}") from None

    def _oauth_settings(self, config: BrokerConfig) -> Any:
        from broker.security.authentication.oauth_tokens import OauthSettings

        def value(base: str) -> Any:
            return config.of_listener(self.name, f"sasl.oauthbearer.{base}", OAUTHBEARER)

        url = value("jwks.endpoint.url")
        if not url:
            raise ConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url is not set: listener {self.name} has {OAUTHBEARER}"
            )
        return OauthSettings(
            jwks_url=url,
            audience=value("expected.audience"),
            issuer=value("expected.issuer") or None,
            clock_skew_seconds=value("clock.skew.seconds"),
            user_claim=value("sub.claim.name"),
        )


def _stamp_of(path: str) -> tuple[int, int] | None:
    """The modification time and size of a file; None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
