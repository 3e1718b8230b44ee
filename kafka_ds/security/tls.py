"""Shell: Python TLS contexts from Kafka's `ssl.*` settings.

- Keys and certificates are PEM (KIP-651), in a file or in a setting, or PKCS12 in a file. A JKS file
  is refused with the command that converts it. As in Java, a PKCS12 file is read even if its type is given as JKS.
- OpenSSL reads keys only from files. A key that is not in a PEM file is passed in memory that only this process sees
  (memfd) or, on systems without it, through a file that only this user can read and that is deleted at once.
- A TlsError names the setting and its file, but never their contents.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator

from kafka_ds.security import ciphers
from kafka_ds.security.secret import Secret
from kafka_ds.security.tls_settings import JKS, NONE, PEM, PKCS12, REQUESTED, REQUIRED, TlsSettings

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    NONE: ssl.CERT_NONE,
    REQUESTED: ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_MAGIC_OF_JKS = b"\xfe\xed\xfe\xed"


class TlsError(ValueError):
    """A setting is invalid; the message names it."""


def server_context(
    settings: TlsSettings, client_auth: str, kind: type[ssl.SSLContext] = ssl.SSLContext
) -> ssl.SSLContext:
    """The TLS context of a listener; `client_auth` is none, requested or required.

    Raises:
        TlsError: there is no key, or a setting is invalid.
    """
    context = kind(ssl.PROTOCOL_TLS_SERVER)
    if not settings.has_key:
        raise TlsError(
            "neither ssl.keystore.location nor ssl.keystore.key is set: a listener with TLS needs a key"
        )
    _choose_protocols(context, settings)
    _load_key(context, settings)
    context.verify_mode = _CLIENT_AUTH[client_auth]
    if client_auth != NONE:
        _load_trust(context, settings)
    # No tickets: a resumed session would still have the certificate of a client that is no longer trusted.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # No renegotiation, as in Kafka: OpenSSL before 3 would let clients renegotiate without limit.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """A client's TLS context; host names are verified unless ssl.endpoint.identification.algorithm is empty.

    Raises:
        TlsError: a setting is invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = settings.ssl_endpoint_identification_algorithm.lower()
    if algorithm not in ("https", ""):
        raise TlsError(
            f"ssl.endpoint.identification.algorithm={algorithm} is neither https nor empty"
        )
    context.check_hostname = bool(algorithm)
    _choose_protocols(context, settings)
    if settings.has_key:
        _load_key(context, settings)
    _load_trust(context, settings)
    return context


def _choose_protocols(context: ssl.SSLContext, settings: TlsSettings) -> None:
    wanted = settings.ssl_enabled_protocols
    unknown = [name for name in wanted if name not in _VERSIONS]
    if unknown or not wanted:
        raise TlsError(f"ssl.enabled.protocols={','.join(wanted)} is not of {', '.join(_VERSIONS)}")
    versions = [_VERSIONS[name] for name in wanted]
    suites = settings.ssl_cipher_suites
    if suites:
        newest, older = ciphers.split(suites)
        if newest and set(newest) != ciphers.SUITES_OF_TLS_1_3 and "TLSv1.3" in wanted:
            raise TlsError(
                "ssl.cipher.suites: of TLS 1.3's suites only all or none can be on, "
                f"{', '.join(sorted(ciphers.SUITES_OF_TLS_1_3))}"
            )
        has = {"TLSv1.3": bool(newest), "TLSv1.2": bool(older)}
        versions = [_VERSIONS[name] for name in wanted if has[name]]
        if not versions:
            raise TlsError("ssl.cipher.suites has no suite of a protocol in ssl.enabled.protocols")
        _set_ciphers(context, older)
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, names: list[str]) -> None:
    if not names:
        return
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        raise TlsError(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(names)}") from None


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> None:
    password = settings.ssl_key_password
    location = settings.ssl_keystore_location
    if settings.ssl_keystore_key is not None:
        _check_inline("ssl.keystore", settings.ssl_keystore_type, location)
        chain = settings.ssl_keystore_certificate_chain
        if chain is None:
            raise TlsError("ssl.keystore.key needs ssl.keystore.certificate.chain")
        pem = f"{settings.ssl_keystore_key.reveal()}\n{chain.reveal()}\n".encode()
        with _as_file(pem) as path:
            _load_chain(context, path, password, "ssl.keystore.key")
        return
    assert location is not None
    where = f"ssl.keystore.location={location}"
    kind = _kind_of("ssl.keystore", settings.ssl_keystore_type, location)
    if kind == PEM:
        _load_chain(context, location, password, where)
        return
    with _as_file(_key_of_pkcs12(location, settings.ssl_keystore_password, where)) as path:
        _load_chain(context, path, None, where)


def certificate_of(settings: TlsSettings) -> bytes:
    """The certificate of the private key, as PEM.

    Raises:
        TlsError: it cannot be read.
    """
    location, chain = settings.ssl_keystore_location, settings.ssl_keystore_certificate_chain
    if settings.ssl_keystore_key is not None and chain is not None:
        pem, where = chain.reveal().encode(), "ssl.keystore.certificate.chain"
    else:
        where = f"ssl.keystore.location={location}"
        if location is None:
            raise TlsError("neither ssl.keystore.location nor ssl.keystore.key is set")
        if _kind_of("ssl.keystore", settings.ssl_keystore_type, location) == PEM:
            pem = _read(location, "ssl.keystore.location")
        else:
            pem = _key_of_pkcs12(location, settings.ssl_keystore_password, where)
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if not 0 <= begin < end:
        raise TlsError(f"{where} has no certificate")
    return pem[begin : end + len(_END)] + b"\n"


def _load_chain(context: ssl.SSLContext, path: str, password: Secret | None, where: str) -> None:
    # Without a password OpenSSL would prompt for one.
    text = "" if password is None else password.reveal()
    try:
        context.load_cert_chain(path, password=text)
    except (ssl.SSLError, OSError, ValueError) as error:
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            raise TlsError(f"{where}: {_trouble(error)}") from None
        hint = ", or ssl.key.password is wrong" if isinstance(error, ssl.SSLError) else ""
        raise TlsError(f"{where}: there is no private key with certificates{hint}") from None


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    location = settings.ssl_truststore_location
    if settings.ssl_truststore_certificates is not None:
        _check_inline("ssl.truststore", settings.ssl_truststore_type, location)
        trusted = settings.ssl_truststore_certificates.reveal()
        where = "ssl.truststore.certificates"
    elif location is None:
        context.load_default_certs()
        return
    else:
        where = f"ssl.truststore.location={location}"
        if _kind_of("ssl.truststore", settings.ssl_truststore_type, location) == PEM:
            trusted = _read(location, "ssl.truststore.location").decode("ascii", "replace")
        else:
            trusted = _trust_of_pkcs12(location, settings.ssl_truststore_password, where)
    try:
        context.load_verify_locations(cadata=trusted)
    except (ssl.SSLError, ValueError):
        raise TlsError(f"{where}: there are no valid certificates") from None


def _check_inline(prefix: str, kind: str, location: str | None) -> None:
    if kind.upper() != PEM:
        raise TlsError(
            f"{prefix}.type={kind}: it must be PEM for a key or certificates in a setting"
        )
    if location is not None:
        raise TlsError(f"{prefix}.location must not be set with a key or certificates in a setting")


def _kind_of(prefix: str, kind: str, location: str) -> str:
    """PEM or PKCS12."""
    wanted = kind.upper()
    if wanted == JKS:
        start = _read(location, f"{prefix}.location")[:4]
        if start[:1] == b"0":
            return PKCS12
        if start != _MAGIC_OF_JKS:
            raise TlsError(
                f"{prefix}.location={location} is not a Java key store; set {prefix}.type=PEM if it is PEM"
            )
    if wanted not in (PEM, PKCS12):
        raise TlsError(
            f"{prefix}.type={kind} is not supported, only PEM and PKCS12: convert it with keytool -importkeystore "
            f"-srckeystore {location} -destkeystore <file>.p12 -deststoretype PKCS12"
        )
    return wanted


def _read(location: str, setting: str) -> bytes:
    try:
        with open(location, "rb") as file:
            return file.read()
    except OSError as error:
        raise TlsError(f"{setting}={location}: {_trouble(error)}") from None


def _trouble(error: OSError) -> str:
    return (error.strerror or "cannot be read").lower()


def _key_of_pkcs12(location: str, password: Secret | None, where: str) -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        key, certificate, more = pkcs12.load_key_and_certificates(
            _read(location, "ssl.keystore.location"), _password_bytes(password)
        )
    except ValueError:
        raise TlsError(f"{where} is not a PKCS12 file, or ssl.keystore.password is wrong") from None
    if key is None or certificate is None:
        raise TlsError(f"{where} has no private key with a certificate")
    pem = serialization.Encoding.PEM
    parts = [
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    ]
    parts += [each.public_bytes(pem) for each in (certificate, *more)]
    return b"".join(parts)


def _trust_of_pkcs12(location: str, password: Secret | None, where: str) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        found = pkcs12.load_pkcs12(
            _read(location, "ssl.truststore.location"), _password_bytes(password)
        )
    except ValueError:
        raise TlsError(
            f"{where} is not a PKCS12 file, or ssl.truststore.password is wrong"
        ) from None
    certificates = [each.certificate for each in found.additional_certs]
    if not certificates:
        raise TlsError(f"{where} has no trusted certificates")
    pem = serialization.Encoding.PEM
    return b"".join(each.public_bytes(pem) for each in certificates).decode()


def _password_bytes(password: Secret | None) -> bytes | None:
    return None if password is None else password.reveal().encode()


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path at which OpenSSL can read the content until the block ends."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        number = os.memfd_create("key")
        try:
            os.write(number, content)
            os.lseek(number, 0, os.SEEK_SET)
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile() as file:  # its mode is 0600
        file.write(content)
        file.flush()
        yield file.name
