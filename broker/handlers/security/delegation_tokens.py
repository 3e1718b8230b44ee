"""Shell: Create-, Renew-, Expire- and DescribeDelegationToken: tokens by which others log in as a user (KIP-48).

- A token lets its holder authenticate by SCRAM as the token's owner, until it expires. Its secret is the HMAC
  of its id by delegation.token.secret.key, which all brokers share; without it DELEGATION_TOKEN_AUTH_DISABLED.
- DELEGATION_TOKEN_REQUEST_NOT_ALLOWED on PLAINTEXT, on SSL without a user, and for who came by a token.
- Create: for another user with CREATE_TOKENS on that user (KIP-373), else DELEGATION_TOKEN_AUTHORIZATION_FAILED. A
  renewer that is no user: INVALID_PRINCIPAL_TYPE.
- Renew and expire: for the owner and the renewers, else DELEGATION_TOKEN_OWNER_MISMATCH. DELEGATION_TOKEN_NOT_FOUND,
  DELEGATION_TOKEN_EXPIRED. A negative period deletes the token; open connections that came by it stay, as in Kafka.
- Describe: tokens that the client owns, has asked for or may renew; others with DESCRIBE on the token, or
  DESCRIBE_TOKENS on its owner. No owners: none; null: of all.

Versions: Create and Describe 1-3, Renew and Expire 1-2; 2 flexible; 3 another owner, and who has asked (KIP-373).
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.controller.delegation_tokens import (
    TokenRules,
    create_token,
    expire_token,
    renew_token,
)
from broker.controller.draft import ControllerResult
from broker.metadata.acls import AclOperation, ResourceType
from broker.metadata.events import DelegationTokenChanged
from broker.principal import ANONYMOUS, USER, Principal, principal_of
from broker.registry import NO_CLIENT, RequestContext, at_the_controller, serves
from broker.security.authentication.tokens import token_rules
from broker.security.authorization.permissions import may
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kafka_ds.protocol.messages.delegation_tokens import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
)
from kafka_ds.protocol.types import uuid_text

_NO_TIME = -1


@serves(CreateDelegationTokenRequest, versions="1-3", enveloped=True)
async def create_delegation_token(
    request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    """Create a token, or refuse."""
    code = ErrorCode.NONE
    owner = _owner(request, context)
    if not _may_ask(context):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    elif owner != context.principal and not may(
        context, AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner)
    ):
        code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    elif any(each.principal_type != USER for each in request.renewers):
        code = ErrorCode.INVALID_PRINCIPAL_TYPE
    if code:
        return _refused(code, owner, context.principal, time_ms=_NO_TIME)
    answer: CreateDelegationTokenResponse = await _awaited(
        at_the_controller(_create), request, context
    )
    return answer


async def _create(
    request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    broker, requester = context.broker, context.principal
    owner, rules = _owner(request, context), token_rules(broker.config)
    try:
        token = await broker.metadata_driver.decide(
            lambda c: create_token(
                rules,
                token_id=uuid_text(new_uuid()),
                owner=owner,
                requester=requester,
                renewers=[
                    Principal(each.principal_type, each.principal_name) for each in request.renewers
                ],
                max_lifetime_ms=request.max_lifetime_ms,
                now_ms=broker.clock.now_ms(),
            )
        )
    except KafkaError as error:
        if error.code != ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED:
            raise
        return _refused(error.code, owner, requester, time_ms=0)
    return CreateDelegationTokenResponse(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=token.issue_ms,
        expiry_timestamp_ms=token.expiry_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=rules.hmac_of(token.token_id),
    )


def _owner(request: CreateDelegationTokenRequest, context: RequestContext) -> Principal:
    if not request.owner_principal_name:
        return context.principal
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def _refused(
    code: ErrorCode, owner: Principal, requester: Principal, *, time_ms: int
) -> CreateDelegationTokenResponse:
    """Written out: Kafka names owner and requester with an error, too."""
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
    )


@serves(RenewDelegationTokenRequest, versions="1-2", enveloped=True)
async def renew_delegation_token(
    request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    """Renew a token, or refuse."""
    if not _may_ask(context):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_NO_TIME)
    answer: RenewDelegationTokenResponse = await _awaited(
        at_the_controller(_renew), request, context
    )
    return answer


async def _renew(
    request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    expiry_ms = await _decided(renew_token, request.hmac, request.renew_period_ms, context)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)


@serves(ExpireDelegationTokenRequest, versions="1-2", enveloped=True)
async def expire_delegation_token(
    request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    """Let a token expire, or refuse."""
    if not _may_ask(context):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_NO_TIME)
    answer: ExpireDelegationTokenResponse = await _awaited(
        at_the_controller(_expire), request, context
    )
    return answer


async def _expire(
    request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    expiry_ms = await _decided(expire_token, request.hmac, request.expiry_time_period_ms, context)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)


async def _decided(
    change: Callable[..., ControllerResult[int]],
    hmac: bytes,
    period_ms: int,
    context: RequestContext,
) -> int:
    """When the token of this secret expires from now on."""
    broker = context.broker
    rules = token_rules(broker.config)
    return await broker.metadata_driver.decide(
        lambda c: change(
            c.image.security.tokens,
            rules,
            bytes(hmac),
            principal=context.principal,
            period_ms=period_ms,
            now_ms=broker.clock.now_ms(),
        )
    )


@serves(DescribeDelegationTokenRequest, versions="1-3")
def describe_delegation_token(
    request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    """Show the tokens that the client may see."""
    if not _may_ask(context):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    rules = token_rules(context.broker.config)
    if rules.key is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(token, rules)
            for token in list(context.broker.metadata.security.tokens.values())
            if _sees(context, token, owners)
        ]
    )


def _sees(context: RequestContext, token: DelegationTokenChanged, owners: set[str] | None) -> bool:
    holders = (token.owner, token.requester, *token.renewers)
    if owners is not None and owners.isdisjoint(holders):
        return False
    return (
        str(context.principal) in holders
        or may(context, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or may(context, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    )


def _described(token: DelegationTokenChanged, rules: TokenRules) -> DescribedDelegationToken:
    owner, requester = principal_of(token.owner), principal_of(token.requester)
    return DescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=rules.hmac_of(token.token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=each.type, principal_name=each.name)
            for each in map(principal_of, token.renewers)
        ],
    )


def _may_ask(context: RequestContext) -> bool:
    """Whether requests about tokens are allowed; another broker has checked the listener of what it sends on."""
    if context.principal.token_authenticated:
        return False
    if context.client is NO_CLIENT:
        return True
    protocol = context.broker.config.protocols[context.listener]
    return protocol != "PLAINTEXT" and (protocol != "SSL" or context.principal != ANONYMOUS)


async def _awaited(handler: Any, request: Any, context: RequestContext) -> Any:
    return await handler(request, context)
