"""Shell: bearer tokens held against the keys of a file (KIP-255, KIP-768).

Keys are a JSON Web Key Set, of asymmetric algorithms only; a token without a `kid` is held against the only key. Wanted
are a good signature, `exp`, `iat`, the claim that names the user, and the expected audience and issuer, within
sasl.oauthbearer.clock.skew.seconds; a token for an audience is refused where none is expected. PyJWT does the
cryptography; the log says why a token is refused, without the token.
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
    """What tokens have to be."""

    jwks_url: str
    audience: tuple[str, ...] = ()
    issuer: str | None = None
    clock_skew_seconds: int = 30
    user_claim: str = "sub"

    @property
    def file(self) -> str:
        """The file of the keys."""
        return unquote(urlparse(self.jwks_url).path)


class TokenVerifier:
    """The keys of one file, as they are now, and what is asked of tokens."""

    def __init__(self, settings: OauthSettings) -> None:
        """Reads the keys; ConfigError describes what is wrong with the file."""
        self._settings = settings
        self._keys = _read_keys(settings)

    def __call__(self, token: str) -> Token:
        """Whose the token is; InvalidCredentials where it is not good."""
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
            log.info("a token was refused: %s", type(error).__name__)
            raise InvalidCredentials("OAUTHBEARER: invalid token") from None
        user = claims[settings.user_claim]
        if not isinstance(user, str) or not user.strip() or not _is_text(user):
            raise InvalidCredentials(f"OAUTHBEARER: the claim {settings.user_claim} names nobody")
        return Token(user, min(int(claims["exp"]) * 1_000, MAX_I64))

    def _key_of(self, token: str) -> jwt.PyJWK:
        key_id = jwt.get_unverified_header(token).get("kid")
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys[key_id]


def _is_text(user: str) -> bool:
    """Whether it can be written: JSON may hold halves of characters."""
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
        raise ConfigError(f"{where}: is not a JSON Web Key Set") from None
    if not keys:
        raise ConfigError(f"{where}: holds no key of an asymmetric algorithm")
    return keys
