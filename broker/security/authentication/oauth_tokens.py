"""Shell: verifies bearer tokens with the keys of a JWKS file (KIP-255, KIP-768).

Only asymmetric algorithms are accepted. A token without a `kid` is verified with the only key. A token needs a valid
signature, `exp`, `iat`, the user claim and the expected audience and issuer, within
sasl.oauthbearer.clock.skew.seconds. A token with an audience is rejected if no audience is configured. PyJWT does the
cryptography. The log says why a token is rejected, without the token.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlparse

import jwt

from broker.security.authentication.failures import InvalidCredentials
from broker.security.authentication.mechanisms import Token
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.types import MAX_I64

log = logging.getLogger(__name__)

_ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_KEY_TYPES = ("RSA", "EC", "OKP")
_SETTING = "sasl.oauthbearer.jwks.endpoint.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class OauthSettings:
    """The settings that tokens are verified by."""

    jwks_url: str
    audience: tuple[str, ...] = ()
    issuer: str | None = None
    clock_skew_seconds: int = 30
    user_claim: str = "sub"

    @property
    def file(self) -> str:
        """The path of the JWKS file."""
        return unquote(urlparse(self.jwks_url).path)


class TokenVerifier:
    """Verifies tokens with the keys of one JWKS file."""

    def __init__(self, settings: OauthSettings) -> None:
        """Reads the keys. Raises ConfigError that says what is wrong with the file."""
        self._settings = settings
        self._keys = _read_keys(settings)

    def __call__(self, token: str) -> Token:
        """Verify a token. Raises InvalidCredentials."""
        settings = self._settings
        required = ["exp", "iat", settings.user_claim]
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key=self._key_of(token),
                algorithms=list(_ALGORITHMS),
                audience=list(settings.audience) or None,
                issuer=settings.issuer,
                leeway=settings.clock_skew_seconds,
                options={"require": required},
            )
        except (jwt.PyJWTError, KeyError, ValueError, OverflowError, RecursionError) as error:
            log.info("rejected an OAUTHBEARER token: %s", type(error).__name__)
            raise InvalidCredentials("OAUTHBEARER: invalid token") from None
        user = claims[settings.user_claim]
        if not isinstance(user, str) or not user.strip() or not _is_text(user):
            raise InvalidCredentials(
                f"OAUTHBEARER: the claim {settings.user_claim} contains no user name"
            )
        return Token(user, min(int(claims["exp"]) * 1_000, MAX_I64))

    def _key_of(self, token: str) -> jwt.PyJWK:
        key_id = jwt.get_unverified_header(token).get("kid")
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys[key_id]


def _is_text(user: str) -> bool:
    """Whether a name can be encoded: JSON may contain lone surrogates."""
    try:
        user.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_keys(settings: OauthSettings) -> Mapping[str | None, jwt.PyJWK]:
    where = f"{_SETTING}={settings.jwks_url}"
    try:
        with open(settings.file, encoding="utf-8") as file:
            document = json.load(file)
        given = [key for key in document["keys"] if key.get("kty") in _KEY_TYPES]
        keys = {key.get("kid"): jwt.PyJWK(key) for key in given}
    except OSError as error:
        raise ConfigError(f"{where}: {(error.strerror or 'cannot be read').lower()}") from None
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError):
        raise ConfigError(f"{where}: not a JSON Web Key Set") from None
    if not keys:
        raise ConfigError(f"{where}: contains no key of an asymmetric algorithm")
    return keys
