"""Pure: the `ssl.*` settings of Kafka that both sides of TLS have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kafka_ds.security.secret import Secret

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
NONE, REQUESTED, REQUIRED = "none", "requested", "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The `ssl.*` settings, by Kafka's names and with Kafka's defaults."""

    ssl_keystore_type: str = JKS
    ssl_keystore_location: str | None = None
    ssl_keystore_password: Secret | None = None
    ssl_keystore_key: Secret | None = None
    ssl_keystore_certificate_chain: Secret | None = None
    ssl_key_password: Secret | None = None
    ssl_truststore_type: str = JKS
    ssl_truststore_location: str | None = None
    ssl_truststore_password: Secret | None = None
    ssl_truststore_certificates: Secret | None = None
    ssl_enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ssl_cipher_suites: tuple[str, ...] = ()
    ssl_endpoint_identification_algorithm: str = "https"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The settings' names."""
        return tuple(each.name.replace("_", ".") for each in fields(cls))

    @classmethod
    def of(cls, values: Mapping[str, object]) -> TlsSettings:
        """Those that are given, by name; others have their default."""
        given = {
            name.replace(".", "_"): values[name]
            for name in cls.names()
            if values.get(name) is not None
        }
        return cls(**given)  # type: ignore[arg-type]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read."""
        both = (self.ssl_keystore_location, self.ssl_truststore_location)
        return tuple(each for each in both if each)

    @property
    def has_key(self) -> bool:
        """Whether there is a key of one's own."""
        return bool(self.ssl_keystore_location or self.ssl_keystore_key)
