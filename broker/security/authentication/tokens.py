"""Pure: who authenticates by a delegation token (KIP-48): SCRAM with the token's id as name and its secret as password.

The credential is made with the first login of each mechanism, for two milliseconds, and kept while there is the token.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.controller.delegation_tokens import TokenRules, has_expired
from broker.principal import principal_of
from broker.security.authentication.scram_users import ScramCredential, credential_of
from kafka_ds.security.scram import ITERATIONS_MIN, salted

if TYPE_CHECKING:
    from broker.config.access import AccessConfig
    from broker.metadata.events import DelegationTokenChanged

_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """What a login by a token is checked by, whose it is, and until when (milliseconds since 1970)."""

    credential: ScramCredential
    owner: str
    expires_ms: int


def token_rules(config: AccessConfig) -> TokenRules:
    """The settings about tokens."""
    return TokenRules(
        key=config.delegation_token_secret_key,
        max_lifetime_ms=config.delegation_token_max_lifetime_ms,
        expiry_time_ms=config.delegation_token_expiry_time_ms,
    )


class TokenLogins:
    """The tokens of the cluster, by which clients log in."""

    def __init__(
        self,
        rules: TokenRules,
        tokens: Mapping[str, DelegationTokenChanged],
        now_ms: Callable[[], int],
    ) -> None:
        """`tokens` are the published ones."""
        self._rules = rules
        self._tokens = tokens
        self._now_ms = now_ms
        self._credentials: dict[tuple[str, str], ScramCredential] = {}

    def __call__(self, token_id: str, mechanism: str) -> TokenLogin | None:
        """How one logs in by this token; None without it, or if it has expired."""
        token = self._tokens.get(token_id)
        if token is None or self._rules.key is None or has_expired(token, self._now_ms()):
            self._credentials.pop((token_id, mechanism), None)
            return None
        credential = self._credentials.get((token_id, mechanism))
        if credential is None:
            secret = self._rules.hmac_of(token_id)
            # Nobody can guess the secret: any salt will do, and this one stays the same.
            salt = hashlib.sha256(secret).digest()[:_SALT_BYTES]
            password = b64encode(secret).decode()
            salted_password = salted(mechanism, password, salt, ITERATIONS_MIN)
            credential = credential_of(mechanism, salt, salted_password, ITERATIONS_MIN)
            self._credentials[token_id, mechanism] = credential
        return TokenLogin(credential, principal_of(token.owner).name, token.expiry_ms)

    def forget(self, token_id: str) -> None:
        """The token is deleted."""
        for key in [key for key in self._credentials if key[0] == token_id]:
            del self._credentials[key]
