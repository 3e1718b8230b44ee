"""Certificates and keys for one test, made when it runs, in its temporary folder."""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
_PARTS = {
    "CN": NameOID.COMMON_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "O": NameOID.ORGANIZATION_NAME,
}
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A key with its certificate, and the files that hold them."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    certificate_file: Path
    key_file: Path
    both_file: Path

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(
            PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(PEM).decode()

    def encrypted_pem(self, password: str) -> str:
        return self.key.private_bytes(
            PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        ).decode()


class Authority:
    """A certificate authority of one test; `file` is what its clients trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name({"CN": name})
        self.certificate = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(PEM))

    def issue(self, name: str, subject: Mapping[str, str] | None = None) -> Identity:
        """A new key and certificate, valid for 127.0.0.1 and localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(subject or {"CN": name}), key.public_key())
        files = {kind: self.folder / f"{name}.{kind}.pem" for kind in ("cert", "key", "both")}
        made = Identity(
            key=key,
            certificate=certificate,
            certificate_file=files["cert"],
            key_file=files["key"],
            both_file=files["both"],
        )
        made.certificate_file.write_text(made.certificate_pem)
        made.key_file.write_text(made.key_pem)
        made.both_file.write_text(made.key_pem + made.certificate_pem)
        return made

    def pkcs12(self, identity: Identity, password: str) -> Path:
        """The identity as a PKCS12 file."""
        path = self.folder / "identity.p12"
        encryption = serialization.BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"broker", identity.key, identity.certificate, [self.certificate], encryption
            )
        )
        return path

    def _sign(
        self, subject: x509.Name, key: Any, *, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        # Python's own contexts ask for these (RFC 5280 in full, VERIFY_X509_STRICT) since 3.13.
        subject_id = x509.SubjectKeyIdentifier.from_public_key(key)
        builder = builder.add_extension(subject_id, critical=False)
        if is_authority:
            builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        else:
            issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(issuer_id, critical=False)
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(parts: Mapping[str, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(_PARTS[kind], value) for kind, value in parts.items()])


class TokenIssuer:
    """Signs bearer tokens; `file` holds its public key as a JSON Web Key Set."""

    def __init__(self, folder: Path, issuer: str = "https://issuer.example") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.issuer = issuer
        self.file = folder / "keys.json"
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        self.file.write_text(json.dumps({"keys": [{**public, "kid": "1", "use": "sig"}]}))

    def token(self, user: str, *, seconds: float = 3600, **claims: Any) -> str:
        """A token for this user, valid for `seconds`."""
        now = datetime.datetime.now(datetime.UTC)
        given = {
            "sub": user,
            "iss": self.issuer,
            "aud": "kafka",
            "iat": now,
            "exp": now + datetime.timedelta(seconds=seconds),
            **claims,
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(wanted, self._key, "ES256", headers={"kid": "1"})
