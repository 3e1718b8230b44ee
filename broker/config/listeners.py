"""Pure: declares the settings of listeners: TLS, SASL, connection limits.

- They are a part of `broker.config.broker`.
- The setting of one listener is `listener.name.<listener>.<setting>`, with the listener's name in lower case; that of a
  SASL mechanism is `listener.name.<listener>.<mechanism>.<setting>` (KIP-103, KIP-226). The most specific name wins.
- As in Kafka a JAAS entry always belongs to one mechanism of one listener.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from broker.config.access import AccessConfig
from broker.config.endpoints import OVERRIDES, PROTOCOLS, overrides_of
from broker.config.kerberos_rules import parse_kerberos_rules
from broker.config.mapping_rules import parse_rules
from kafka_ds.process.settings import (
    MAX_INT,
    ConfigError,
    ConfigType,
    Setting,
    SettingValue,
    boolean,
    double,
    i32,
    i64,
    settings_of,
    string,
    strings,
)
from kafka_ds.security.mechanisms import MECHANISMS
from kafka_ds.security.tls_settings import TlsSettings

LISTENER_PREFIX = "listener.name."
JAAS = "sasl.jaas.config"
SERVICE_NAME = "sasl.kerberos.service.name"
LOCAL_RULES = "sasl.kerberos.principal.to.local.rules"
_CLIENT_AUTH = ("none", "requested", "required")
_NO_LOGIN_THREAD = (
    "No effect: Kerberos's library gets new tickets when a connection finds that half of their life is over, and "
    "clients' tickets need none of the broker's own. Another value than the default is logged."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig(TlsSettings, AccessConfig):
    """The security and limits of listeners."""

    # -- TLS ----------------------------------------------------------------------------------------
    ssl_client_auth: str = string(
        "none",
        "Whether clients must show a certificate (required), may show one (requested), or are not asked (none).",
        choices=_CLIENT_AUTH,
        fixed="listeners are opened at the start",
    )
    ssl_allow_dn_changes: bool = boolean(
        False,
        "Whether a certificate that replaces another while the broker runs may have a different distinguished name.",
    )
    ssl_allow_san_changes: bool = boolean(
        False,
        "Whether a certificate that replaces another while the broker runs may lack some of its hosts (subject "
        "alternative names).",
    )
    ssl_principal_mapping_rules: str = string(
        "DEFAULT",
        "How a certificate's distinguished name is mapped to a user name: rules `RULE:pattern/replacement/`, with L or "
        "U at the end for lower or upper case, separated by commas; DEFAULT takes the name as it is.",
    )

    # -- SASL ---------------------------------------------------------------------------------------
    sasl_enabled_mechanisms: tuple[str, ...] = strings(
        (),
        "The mechanisms with which clients may authenticate.",
        choices=MECHANISMS,
        ours=True,
        fixed="listeners are opened at the start",
    )
    sasl_mechanism_inter_broker_protocol: str | None = string(
        None,
        "The mechanism with which brokers authenticate to each other.",
        choices=MECHANISMS,
        ours=True,
        fixed="listeners are opened at the start",
    )
    sasl_server_max_receive_size: int = i32(
        524_288,
        "The largest request accepted from a client that has not authenticated yet, in bytes.",
        low=1,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = string(
        None, "The JSON Web Key Set that verifies tokens: file:///…."
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = strings(
        (),
        "The audiences of which a token must name at least one. If empty, tokens that name an audience are refused.",
    )
    sasl_oauthbearer_expected_issuer: str | None = string(
        None, "The issuer that a token must name; without it any issuer is accepted."
    )
    sasl_oauthbearer_clock_skew_seconds: int = i32(
        30, "By how much the clocks of the broker and of the tokens' issuer may differ.", low=0
    )
    sasl_oauthbearer_sub_claim_name: str = string(
        "sub", "The claim of a token that names the user."
    )
    sasl_kerberos_service_name: str | None = string(
        None,
        "With GSSAPI between brokers: the brokers' Kerberos name without host and realm. Without it that of the JAAS "
        "entry, as serviceName or as the first part of its principal.",
        changeable=True,
    )
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = strings(
        ("DEFAULT",),
        "How a Kerberos principal is mapped to a user name: rules `RULE:[n:text](pattern)s/from/to/g`, with `/L` or "
        "`/U` at the end for lower or upper case, separated by commas; DEFAULT takes the first part of a principal "
        "of the default realm.",
        changeable=True,
    )
    sasl_kerberos_kinit_cmd: str = string(
        "/usr/bin/kinit", _NO_LOGIN_THREAD, fixed="it has no effect"
    )
    sasl_kerberos_min_time_before_relogin: int = i64(
        60_000, _NO_LOGIN_THREAD, fixed="it has no effect"
    )
    sasl_kerberos_ticket_renew_jitter: float = double(
        0.05, _NO_LOGIN_THREAD, fixed="it has no effect"
    )
    sasl_kerberos_ticket_renew_window_factor: float = double(
        0.8, _NO_LOGIN_THREAD, fixed="it has no effect"
    )
    connections_max_reauth_ms: int = i64(
        0,
        "How long after it authenticated a client must do so again, or is disconnected. 0 means no limit but that of "
        "credentials that expire.",
        low=0,
    )
    connection_failed_authentication_delay_ms: int = i32(
        100,
        "How long the broker waits before it answers a client whose authentication failed.",
        low=0,
    )
    security_inter_broker_protocol: str | None = string(
        None,
        "The protocol that brokers use among themselves if inter.broker.listener.name is not set; the listener of "
        "this name serves them.",
        choices=PROTOCOLS,
        ours=True,
    )

    # -- limits -------------------------------------------------------------------------------------
    max_connections_per_ip_overrides: str = string(
        "",
        "Values of max.connections.per.ip for single addresses or hosts: `10.0.0.7:200,gateway:1000`.",
        changeable=True,
    )
    max_connection_creation_rate: int = i32(
        MAX_INT,
        "The most new connections per second; further ones are delayed.",
        low=1,
        changeable=True,
    )
    queued_max_request_bytes: int = i64(
        -1,
        "The most bytes of requests in memory, over all connections. Above it no new request is read until others "
        "are done. -1 means no limit.",
    )


# The settings that a listener may override, ...
LISTENER_SETTINGS = (
    *(name for name in settings_of(ListenerConfig) if name.startswith("ssl.")),
    "connections.max.reauth.ms",
    "max.connection.creation.rate",
    "max.connections",
    "sasl.enabled.mechanisms",
    *(name for name in settings_of(ListenerConfig) if name.startswith("sasl.kerberos.")),
)
# ... and a mechanism of a listener.
MECHANISM_SETTINGS = (
    JAAS,
    "connections.max.reauth.ms",
    *(
        name
        for name in settings_of(ListenerConfig)
        if name.startswith(("sasl.oauthbearer.", "sasl.kerberos."))
    ),
)
_BY_LENGTH = sorted({*LISTENER_SETTINGS, *MECHANISM_SETTINGS}, key=len, reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerKey:
    """A setting of one listener, or of one mechanism there; `setting` has the full name."""

    listener: str
    mechanism: str | None
    base: str
    setting: Setting


@cache
def _declared() -> Mapping[str, Setting]:
    jaas = Setting(name=JAAS, kind=ConfigType.PASSWORD, default=None, says="", nullable=True)
    limit = Setting(
        name="max.connections",
        kind=ConfigType.INT,
        default=MAX_INT,
        says="",
        low=0,
        changeable=True,
    )
    return {**settings_of(ListenerConfig), JAAS: jaas, "max.connections": limit}


def listener_key(name: str) -> ListenerKey | None:
    """Parse the name of a listener's setting; None for other names."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    rest = name.removeprefix(LISTENER_PREFIX)
    base = next((each for each in _BY_LENGTH if rest.endswith(f".{each}")), None)
    if base is None:
        return None
    listener, mechanism = rest.removesuffix(f".{base}"), None
    if base in MECHANISM_SETTINGS:
        for each in MECHANISMS:
            if listener.endswith(f".{each.lower()}"):
                listener, mechanism = listener.removesuffix(f".{each.lower()}"), each
    if mechanism is None and base not in LISTENER_SETTINGS and base == JAAS:
        return None  # a JAAS entry without a mechanism has no effect
    if not listener or listener != listener.lower():
        return None
    return ListenerKey(
        listener=listener,
        mechanism=mechanism,
        base=base,
        setting=replace(_declared()[base], name=name),
    )


def names_of(listener: str, base: str, mechanism: str | None = None) -> list[str]:
    """The names of a listener's setting, most specific first."""
    prefix = f"{LISTENER_PREFIX}{listener.lower()}."
    own = [f"{prefix}{mechanism.lower()}.{base}"] if mechanism is not None else []
    return [*own, f"{prefix}{base}"]


def check_listener_value(name: str, value: SettingValue) -> None:
    """Check a value beyond its declaration. Raises ConfigError."""
    if name.endswith("ssl.principal.mapping.rules"):
        try:
            parse_rules(str(value))
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
    if name.endswith(LOCAL_RULES):
        assert isinstance(value, tuple)
        try:
            parse_kerberos_rules(value)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
    if name == OVERRIDES:
        overrides_of(str(value))
    if name.endswith("jwks.endpoint.url") and value and not str(value).startswith("file:///"):
        raise ConfigError(
            f"{name}={value} is not a file:/// URI of this machine; other addresses are not supported"
        )
