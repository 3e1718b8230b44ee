"""Delegation tokens by Kafka's requests: for whom, who sees them, who may not ask, and what a restart keeps."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

from broker.config.access import STANDARD_AUTHORIZER
from broker.metadata.acls import AclOperation, PatternType, Permission, ResourceType
from broker.principal import Principal
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kafka_ds.protocol.messages.delegation_tokens import CreatableRenewers
from kafka_ds.protocol.messages.security import AclCreation
from tests.in_process import InProcess, in_process
from tests.loops import in_loop

SETTINGS = {
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "super_users": "User:ANONYMOUS",
    "delegation_token_secret_key": "a very secret key",
}
ALICE, BOB, EVE = (Principal("User", name) for name in ("alice", "bob", "eve"))


async def create(
    broker: InProcess, who: Principal, owner: Principal | None = None, *renewers: Principal
) -> Any:
    request = CreateDelegationTokenRequest(
        owner_principal_type=owner and owner.type,
        owner_principal_name=owner and owner.name,
        renewers=[
            CreatableRenewers(principal_type=each.type, principal_name=each.name)
            for each in renewers
        ],
        max_lifetime_ms=-1,
    )
    return await broker.ask(request, 3, principal=who)


async def seen(broker: InProcess, who: Principal) -> list[str]:
    answer = await broker.ask(DescribeDelegationTokenRequest(owners=None), 3, principal=who)
    assert answer.error_code == ErrorCode.NONE
    return sorted(token.token_id for token in answer.tokens)


async def allow(broker: InProcess, kind: ResourceType, name: str, operation: AclOperation) -> None:
    acl = AclCreation(
        resource_type=kind, resource_name=name, resource_pattern_type=PatternType.LITERAL, principal=str(EVE),
        host="*", operation=operation, permission_type=Permission.ALLOW,
    )  # fmt: skip
    assert (await broker.ask(CreateAclsRequest(creations=[acl]), 3)).results[0].error_code == 0


@in_loop
async def test_owner_requester_and_renewers_see_a_token_and_others_by_acls(
    memory_path: Path,
) -> None:
    async with in_process(memory_path, **SETTINGS) as broker:
        mine = (await create(broker, ALICE, None, BOB)).token_id
        refused = await create(broker, EVE, ALICE)
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        await allow(broker, ResourceType.USER, str(BOB), AclOperation.CREATE_TOKENS)
        for_bob = (await create(broker, EVE, BOB)).token_id
        assert [await seen(broker, who) for who in (ALICE, BOB, EVE)] == [
            [mine],
            sorted((mine, for_bob)),
            [for_bob],
        ]
        await allow(broker, ResourceType.DELEGATION_TOKEN, mine, AclOperation.DESCRIBE)
        assert await seen(broker, EVE) == sorted((mine, for_bob))
        other = (await create(broker, ALICE)).token_id
        await allow(broker, ResourceType.USER, str(ALICE), AclOperation.DESCRIBE_TOKENS)
        assert await seen(broker, EVE) == sorted((mine, for_bob, other))
    async with in_process(memory_path, **SETTINGS) as broker:
        assert await seen(broker, ALICE) == sorted((mine, other)), "after a restart"


@in_loop
async def test_a_secret_is_in_no_file_and_ends_with_its_token(memory_path: Path) -> None:
    async with in_process(memory_path, **SETTINGS) as broker:
        made = await create(broker, ALICE)
        secret = bytes(made.hmac)
        logins = broker.node.security.token_logins
        login = logins(made.token_id, "SCRAM-SHA-512")
        assert login is not None and login.owner == "alice"
        renew = RenewDelegationTokenRequest(hmac=secret, renew_period_ms=-1)
        told = await broker.ask(renew, 2, principal=BOB)
        assert told.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        expire = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=-1)
        assert (await broker.ask(expire, 2, principal=ALICE)).error_code == 0
        assert logins(made.token_id, "SCRAM-SHA-512") is None
        told = await broker.ask(renew, 2, principal=ALICE)
        assert told.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        written = b"".join(file.read_bytes() for file in memory_path.rglob("*") if file.is_file())
        assert made.token_id.encode() in written
        for text in (b"a very secret key", secret, b64encode(secret), secret.hex().encode()):
            assert text not in written


@in_loop
async def test_who_came_by_a_token_may_not_ask_for_tokens(memory_path: Path) -> None:
    async with in_process(memory_path, **SETTINGS) as broker:
        delegate = Principal("User", "alice", token_authenticated=True)
        assert delegate == ALICE
        for request, version in (
            (RenewDelegationTokenRequest(hmac=b"", renew_period_ms=1), 2),
            (ExpireDelegationTokenRequest(hmac=b"", expiry_time_period_ms=1), 2),
            (DescribeDelegationTokenRequest(owners=None), 3),
        ):
            told = await broker.ask(request, version, principal=delegate)
            assert told.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        told = await create(broker, delegate)
        assert told.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@in_loop
async def test_without_a_key_there_are_no_tokens(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert (await create(broker, ALICE)).error_code == disabled
        told = await broker.ask(DescribeDelegationTokenRequest(owners=None), 3, principal=ALICE)
        assert told.error_code == disabled
