"""Shell: the subject of a certificate, and whether a new certificate may replace it (KIP-978)."""

from __future__ import annotations

from typing import NamedTuple

from kafka_ds.security.tls import TlsError, certificate_of
from kafka_ds.security.tls_settings import TlsSettings


class CertificateHolder(NamedTuple):
    """The distinguished name and the subject alternative names of a certificate."""

    name: str
    alternatives: frozenset[str]


def holder_of(settings: TlsSettings) -> CertificateHolder:
    """The holder of the certificate that goes with the key. Raises TlsError if it cannot be read."""
    return holder_in(certificate_of(settings))


def holder_in(pem: bytes) -> CertificateHolder:
    """The holder of this certificate. Raises TlsError if the bytes are not a certificate."""
    # Imported only when it is needed.
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise TlsError(f"the certificate cannot be read: {error}") from None
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        found = x509.SubjectAlternativeName([])
    return CertificateHolder(
        name=certificate.subject.rfc4514_string(),
        alternatives=frozenset(f"{type(each).__name__}:{each.value}" for each in found),
    )


def check_same_holder(
    before: CertificateHolder,
    after: CertificateHolder,
    *,
    may_change_name: bool,
    may_lose_hosts: bool,
) -> None:
    """Raises TlsError if the subject or its hosts changed and that is not allowed."""
    if before.name != after.name and not may_change_name:
        raise TlsError(
            f"ssl.allow.dn.changes=false: the new certificate is of {after.name}, and not of {before.name}"
        )
    lost = sorted(before.alternatives - after.alternatives)
    if lost and not may_lose_hosts:
        raise TlsError(
            f"ssl.allow.san.changes=false: the new certificate is not of {', '.join(lost)} any more"
        )
