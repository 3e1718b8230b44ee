"""Pure: Kafka's `ssl.*` settings that clients and brokers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kafka_ds.process.settings import password, string, strings
from kafka_ds.security.secret import Secret

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
NONE, REQUESTED, REQUIRED = "none", "requested", "required"


# Without slots: a broker's configuration inherits from several such classes.
@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """The `ssl.*` settings, by Kafka's names and with Kafka's defaults; a broker's configuration inherits them."""

    ssl_keystore_type: str = string(
        JKS,
        "The format of the broker's key store: PEM or PKCS12. JKS reads PKCS12 as well.",
        changeable=True,
    )
    ssl_keystore_location: str | None = string(
        None, "The file with the broker's private key and its certificates.", changeable=True
    )
    ssl_keystore_password: Secret | None = password("The password of a PKCS12 key store.")
    ssl_keystore_key: Secret | None = password("The private key itself, as PEM, instead of a file.")
    ssl_keystore_certificate_chain: Secret | None = password(
        "The certificates of ssl.keystore.key, as PEM, the broker's own first."
    )
    ssl_key_password: Secret | None = password("The password of an encrypted private key in PEM.")
    ssl_truststore_type: str = string(
        JKS,
        "The format of the trust store: PEM or PKCS12. JKS reads PKCS12 as well.",
        changeable=True,
    )
    ssl_truststore_location: str | None = string(
        None,
        "The file of trusted certificates. If neither this nor ssl.truststore.certificates is set, the system's are "
        "trusted.",
        changeable=True,
    )
    ssl_truststore_password: Secret | None = password("The password of a PKCS12 trust store.")
    ssl_truststore_certificates: Secret | None = password(
        "The trusted certificates themselves, as PEM, instead of a file."
    )
    ssl_enabled_protocols: tuple[str, ...] = strings(
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS that are accepted.",
        choices=("TLSv1.2", "TLSv1.3"),
        fixed="listeners are opened at the start",
    )
    ssl_cipher_suites: tuple[str, ...] = strings(
        (),
        "The cipher suites, by Java's or OpenSSL's names; if empty, OpenSSL chooses.",
        fixed="listeners are opened at the start",
    )
    ssl_endpoint_identification_algorithm: str = string(
        "https",
        "Whether a broker checks that another broker's certificate matches its host: https means yes, empty means no.",
        choices=("https", ""),
        fixed="listeners are opened at the start",
    )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The settings' names."""
        return tuple(each.name.replace("_", ".") for each in fields(cls))

    @classmethod
    def of(cls, values: Mapping[str, object]) -> TlsSettings:
        """The settings with these values, by name; others have their default."""
        given = {
            name.replace(".", "_"): values[name]
            for name in cls.names()
            if values.get(name) is not None
        }
        return cls(**given)  # type: ignore[arg-type]

    @property
    def files(self) -> tuple[str, ...]:
        """The key store and trust store files."""
        both = (self.ssl_keystore_location, self.ssl_truststore_location)
        return tuple(each for each in both if each)

    @property
    def has_key(self) -> bool:
        """Whether a private key is configured."""
        return bool(self.ssl_keystore_location or self.ssl_keystore_key)
