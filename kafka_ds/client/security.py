"""Pure: how a client connects and authenticates: `kafka.security.protocol`, `kafka.ssl.*` and `kafka.sasl.*`.

Names, defaults and the format of `sasl.jaas.config` are Kafka's. An option that is not supported is an error, so that
no job runs without the protection that it is configured with. Errors name the option and never repeat its value.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from kafka_ds.errors import OptionError
from kafka_ds.security.gssapi_mechanism import KerberosLogin
from kafka_ds.security.jaas import JaasEntry, JaasError
from kafka_ds.security.mechanisms import GSSAPI, MECHANISMS, login
from kafka_ds.security.secret import Secret
from kafka_ds.security.tls_settings import TlsSettings

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PREFIXES: Final = ("security.", "ssl.", "sasl.")
_SECRETS: Final = frozenset(
    each.name.replace("_", ".") for each in fields(TlsSettings) if "Secret" in str(each.type)
)
_SERVICE: Final = "sasl.kerberos.service.name"
_LISTS: Final = ("ssl.enabled.protocols", "ssl.cipher.suites")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """The security protocol and its settings."""

    protocol: str = "PLAINTEXT"
    tls: TlsSettings = field(default_factory=TlsSettings)
    mechanism: str = ""
    jaas: Secret | None = None
    # The brokers' Kerberos name, without host and realm.
    kerberos_service: str = ""

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates by SASL."""
        return self.protocol.startswith("SASL")


def parse_security(given: Mapping[str, str]) -> ClientSecurity:
    """Parse the options that begin with one of PREFIXES; they are given without `kafka.`.

    Raises:
        OptionError: an option is unknown, invalid, missing, or has no effect with the protocol.
    """
    options = {name: text.strip() for name, text in given.items() if name.startswith(PREFIXES)}
    protocol = options.pop("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise OptionError(
            f"option 'kafka.security.protocol' is {protocol!r}; it is one of {', '.join(PROTOCOLS)}"
        )
    wanted = ClientSecurity(protocol=protocol)
    for name in options:
        _check_name(name, wanted)
    values: dict[str, object] = {}
    for name, text in options.items():
        if name in _LISTS:
            values[name] = tuple(item.strip() for item in text.split(",") if item.strip())
        elif name.startswith("ssl."):
            values[name] = Secret(text) if name in _SECRETS else text
    tls = TlsSettings.of(values)
    if not wanted.uses_sasl:
        return ClientSecurity(protocol=protocol, tls=tls)
    mechanism = options.get("sasl.mechanism", "").upper()
    if mechanism not in MECHANISMS:
        raise OptionError(
            f"option 'kafka.sasl.mechanism' is {mechanism!r}; it is one of {', '.join(MECHANISMS)}"
        )
    if not options.get("sasl.jaas.config"):
        raise OptionError(
            f"option 'kafka.sasl.jaas.config' must be given where 'kafka.security.protocol' is {protocol}"
        )
    jaas = Secret(options["sasl.jaas.config"])
    try:
        entry = login(mechanism, jaas)
    except JaasError as error:
        raise OptionError(f"option 'kafka.sasl.jaas.config': {error}") from None
    service = _kerberos_service(mechanism, entry, options.get(_SERVICE, ""))
    return ClientSecurity(
        protocol=protocol, tls=tls, mechanism=mechanism, jaas=jaas, kerberos_service=service
    )


def _kerberos_service(mechanism: str, entry: JaasEntry, given: str) -> str:
    """The service name of GSSAPI: the option's or, as in Kafka, the JAAS entry's. Raises OptionError."""
    if mechanism != GSSAPI:
        if given:
            raise OptionError(
                f"option 'kafka.{_SERVICE}' is not supported with 'kafka.sasl.mechanism' = {mechanism}"
            )
        return ""
    by_entry = KerberosLogin.of(entry).service
    if given and by_entry and given != by_entry:
        raise OptionError(
            f"option 'kafka.{_SERVICE}' is {given}, and serviceName in 'kafka.sasl.jaas.config' is {by_entry}"
        )
    if not given and not by_entry:
        raise OptionError(
            f"option 'kafka.{_SERVICE}' must be given where 'kafka.sasl.mechanism' is {GSSAPI}: "
            "mostly it is kafka"
        )
    return given or by_entry or ""


def _check_name(name: str, wanted: ClientSecurity) -> None:
    known = (
        *TlsSettings.names(),
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        _SERVICE,
    )
    if name not in known:
        close = difflib.get_close_matches(name, known, 1, 0.9)
        hint = f"; did you mean 'kafka.{close[0]}'?" if close else ""
        if "oauth" in name:
            hint = ": a token is given by sasl.jaas.config, as token or tokenFile"
        raise OptionError(f"option 'kafka.{name}' is not supported{hint}")
    fits = wanted.uses_tls if name.startswith("ssl.") else wanted.uses_sasl
    if not fits:
        raise OptionError(
            f"option 'kafka.{name}' is not supported with 'kafka.security.protocol' = {wanted.protocol}"
        )
