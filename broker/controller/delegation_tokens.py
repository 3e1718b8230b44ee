"""Pure: the active controller's decisions about delegation tokens (KIP-48), by the rules of KRaft's controller.

A token is found by its secret, which follows from its id and delegation.token.secret.key. Times are milliseconds since
1970. Errors are KafkaError.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from broker.controller.draft import ControllerResult
from broker.metadata.events import DelegationTokenChanged, DelegationTokenDeleted
from broker.principal import Principal
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.types import MAX_I64
from kafka_ds.security.secret import Secret

_HASH = "sha512"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The settings about tokens; without a key there are none."""

    key: Secret | None
    max_lifetime_ms: int
    expiry_time_ms: int

    def hmac_of(self, token_id: str) -> bytes:
        """A token's secret. Raises DELEGATION_TOKEN_AUTH_DISABLED."""
        if self.key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return hmac.digest(self.key.reveal().encode(), token_id.encode(), _HASH)


def create_token(
    rules: TokenRules,
    *,
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: Sequence[Principal],
    max_lifetime_ms: int,
    now_ms: int,
) -> ControllerResult[DelegationTokenChanged]:
    """Create a token; a lifetime of 0 or less is the longest that is allowed."""
    rules.hmac_of(token_id)
    longest_ms = rules.max_lifetime_ms
    if max_lifetime_ms > 0:
        longest_ms = min(longest_ms, max_lifetime_ms)
    max_ms = _later(now_ms, longest_ms)
    token = DelegationTokenChanged(
        token_id=token_id,
        owner=str(owner),
        requester=str(requester),
        renewers=tuple(map(str, renewers)),
        issue_ms=now_ms,
        expiry_ms=min(max_ms, _later(now_ms, rules.expiry_time_ms)),
        max_ms=max_ms,
    )
    return ControllerResult(events=(token,), result=token)


def renew_token(
    tokens: Mapping[str, DelegationTokenChanged],
    rules: TokenRules,
    secret: bytes,
    *,
    principal: Principal,
    period_ms: int,
    now_ms: int,
) -> ControllerResult[int]:
    """Let a token live for this period from now on, or the usual one; the result is when it expires."""
    token = _found(tokens, rules, secret)
    _check_living(token, now_ms)
    _check_renewer(token, principal)
    longest_ms = rules.expiry_time_ms
    if period_ms > 0:
        longest_ms = min(longest_ms, period_ms)
    return _expiring(token, now_ms, longest_ms)


def expire_token(
    tokens: Mapping[str, DelegationTokenChanged],
    rules: TokenRules,
    secret: bytes,
    *,
    principal: Principal,
    period_ms: int,
    now_ms: int,
) -> ControllerResult[int]:
    """Let a token expire after this period, a negative one: at once; the result is when it expires."""
    token = _found(tokens, rules, secret)
    _check_renewer(token, principal)
    if period_ms < 0:
        deleted = DelegationTokenDeleted(token_id=token.token_id)
        return ControllerResult(events=(deleted,), result=now_ms)
    _check_living(token, now_ms)
    return _expiring(token, now_ms, period_ms)


def expired_tokens(
    tokens: Mapping[str, DelegationTokenChanged], now_ms: int
) -> ControllerResult[list[DelegationTokenChanged]]:
    """Delete the tokens that have expired; the result are these."""
    over = [token for token in tokens.values() if has_expired(token, now_ms)]
    events = tuple(DelegationTokenDeleted(token_id=token.token_id) for token in over)
    return ControllerResult(events=events, result=over)


def has_expired(token: DelegationTokenChanged, now_ms: int) -> bool:
    """Whether nobody may use a token any more."""
    return min(token.expiry_ms, token.max_ms) < now_ms


def _found(
    tokens: Mapping[str, DelegationTokenChanged], rules: TokenRules, secret: bytes
) -> DelegationTokenChanged:
    if rules.key is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    for token in tokens.values():
        if hmac.compare_digest(rules.hmac_of(token.token_id), secret):
            return token
    raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)


def _check_living(token: DelegationTokenChanged, now_ms: int) -> None:
    if has_expired(token, now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _check_renewer(token: DelegationTokenChanged, principal: Principal) -> None:
    if str(principal) not in (token.owner, *token.renewers):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _expiring(token: DelegationTokenChanged, now_ms: int, period_ms: int) -> ControllerResult[int]:
    expiry_ms = min(token.max_ms, _later(now_ms, period_ms))
    return ControllerResult(events=(replace(token, expiry_ms=expiry_ms),), result=expiry_ms)


def _later(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, MAX_I64)
