"""ACLs, client quotas and SCRAM credentials by Kafka's requests: results, refusals, persistence, and hidden secrets."""

import hashlib
import hmac
import json
import logging
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from broker.broker_metrics import broker_samples
from broker.config.access import STANDARD_AUTHORIZER
from broker.metadata.log import SNAPSHOT_INTERVAL
from broker.security.authentication.scram_users import (
    ScramCredential,
    credential_of,
    decode_credential,
)
from broker.security.authorization.authorizer_metrics import ACLS, DENIED
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
)
from kafka_ds.protocol.messages.security import (
    AclCreation,
    AlterQuotaEntryData,
    ComponentData,
    QuotaEntityData,
    QuotaOpData,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kafka_ds.topic.names import CREDENTIALS
from tests.in_process import InProcess, in_process
from tests.loops import in_loop
from tests.requests import build

OPEN = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:ANONYMOUS"}
TOPIC, GROUP, CLUSTER = 2, 3, 4
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
READ, WRITE, ALLOW, DENY = 3, 4, 3, 2
SHA_256, SHA_512 = 1, 2


def creation(name: str, *, kind: int = TOPIC, pattern: int = LITERAL, who: str = "User:a",
             operation: int = READ, permission: int = ALLOW) -> AclCreation:  # fmt: skip
    return AclCreation(resource_type=kind, resource_name=name, resource_pattern_type=pattern, principal=who,
                       host="*", operation=operation, permission_type=permission)  # fmt: skip


def named(
    name: str | None = None, pattern: int = ANY, kind: int = ANY, **more: Any
) -> dict[str, Any]:
    given = {"resource_type_filter": kind, "resource_name_filter": name, "pattern_type_filter": pattern,
             "principal_filter": None, "host_filter": None, "operation": ANY, "permission_type": ANY}  # fmt: skip
    return {**given, **more}


async def acls(broker: InProcess, **filters: Any) -> list[tuple[int, str, int, str]]:
    answer = await broker.ask(DescribeAclsRequest(**named(**filters)), 3)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return sorted(
        (resource.resource_type, resource.resource_name, resource.pattern_type, acl.principal)
        for resource in answer.resources
        for acl in resource.acls
    )


def codes(results: Any) -> list[int]:
    return [each.error_code for each in results]


@in_loop
async def test_without_an_authorizer_there_are_no_acls(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        made = await broker.ask(CreateAclsRequest(creations=[creation("a"), creation("b")]), 3)
        assert codes(made.results) == [ErrorCode.SECURITY_DISABLED] * 2
        told = await broker.ask(DescribeAclsRequest(**named()), 3)
        assert (told.error_code, told.resources) == (ErrorCode.SECURITY_DISABLED, [])
        gone = await broker.ask(build(DeleteAclsRequest, filters=[{**named()}]), 3)
        assert codes(gone.filter_results) == [ErrorCode.SECURITY_DISABLED]


@in_loop
async def test_acls_are_made_found_and_deleted_and_survive_a_restart(tmp_path: Path) -> None:
    async with in_process(tmp_path, **OPEN) as broker:
        wanted = [
            creation("a"), creation("a"), creation("te", pattern=PREFIXED, who="User:b"), creation("*", who="User:c"),
            creation("", who="User:a"), creation("x", pattern=MATCH), creation("a", kind=CLUSTER),
            creation("g", kind=GROUP, who="nobody"),
        ]  # fmt: skip
        made = await broker.ask(CreateAclsRequest(creations=wanted), 3)
        assert codes(made.results) == [0, 0, 0, 0, *[ErrorCode.INVALID_REQUEST] * 4]
        assert "patternType MATCH" in made.results[5].error_message
        assert len(broker.node.metadata.security.acls) == 3
    async with in_process(tmp_path, **OPEN) as broker:
        everything = [
            (TOPIC, "*", LITERAL, "User:c"),
            (TOPIC, "a", LITERAL, "User:a"),
            (TOPIC, "te", PREFIXED, "User:b"),
        ]
        assert await acls(broker) == everything
        shown = {metric: value for metric, _, value in broker_samples(broker.node)}
        assert (shown[ACLS], shown[DENIED]) == (3, 0)
        assert await acls(broker, name="team", pattern=MATCH) == [everything[0], everything[2]]
        assert await acls(broker, name="a", pattern=LITERAL) == [everything[1]]
        assert await acls(broker, principal_filter="User:b") == [everything[2]]
        assert await acls(broker, kind=GROUP) == []
        bad = await broker.ask(DescribeAclsRequest(**named(kind=0)), 3)
        assert bad.error_code == ErrorCode.INVALID_REQUEST
        filters = [
            named("a", LITERAL),
            named("nothing", LITERAL),
            named(pattern=0),
            named("te", PREFIXED),
        ]
        gone = await broker.ask(build(DeleteAclsRequest, filters=[{**each} for each in filters]), 2)
        assert codes(gone.filter_results) == [0, 0, ErrorCode.INVALID_REQUEST, 0]
        assert [len(each.matching_acls) for each in gone.filter_results] == [1, 0, 0, 1]
        assert await acls(broker) == everything[:1]


def entity(**names: str | None) -> list[QuotaEntityData]:
    return [
        QuotaEntityData(entity_type=kind.replace("_", "-"), entity_name=name)
        for kind, name in names.items()
    ]


def quota(who: list[QuotaEntityData], **values: float | None) -> AlterQuotaEntryData:
    ops = [
        QuotaOpData(key=key, value=value or 0.0, remove=value is None)
        for key, value in values.items()
    ]
    return AlterQuotaEntryData(entity=who, ops=ops)


async def alter(broker: InProcess, *entries: AlterQuotaEntryData, only: bool = False) -> list[int]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=only)
    return codes((await broker.ask(request, 1)).entries)


async def quotas(
    broker: InProcess, *components: tuple[str, int, str | None], strict: bool = False
) -> Any:
    asked = [ComponentData(entity_type=t, match_type=m, match=text) for t, m, text in components]
    answer = await broker.ask(DescribeClientQuotasRequest(components=asked, strict=strict), 1)
    if answer.error_code:
        return ErrorCode(answer.error_code)
    return {
        tuple((e.entity_type, e.entity_name) for e in entry.entity): {v.key: v.value for v in entry.values}
        for entry in answer.entries
    }  # fmt: skip


BOTH = (("client-id", "c"), ("user", "u"))


@in_loop
async def test_quotas_are_set_told_removed_and_survive_a_restart(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        done = await alter(
            broker,
            quota(
                entity(user="u", client_id="c"), producer_byte_rate=1024.0, request_percentage=12.5
            ),
            quota(entity(user=None), consumer_byte_rate=2048.0),
            quota(entity(client_id="c"), controller_mutation_rate=1.5),
            quota(entity(ip="10.0.0.1"), connection_creation_rate=10.0),
        )
        assert done == [0, 0, 0, 0]
        assert await alter(broker, quota(entity(user="v"), consumer_byte_rate=1.0), only=True) == [
            0
        ]
        assert await alter(
            broker, quota(entity(user=None), consumer_byte_rate=None, request_percentage=None)
        ) == [0]
        version = broker.node.metadata.version
        assert await alter(
            broker, quota(entity(user="u", client_id="c"), request_percentage=12.5)
        ) == [0]
        assert broker.node.metadata.version == version, "what is so already is no commit"
    async with in_process(tmp_path) as broker:
        values = {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
        by_id, by_ip = (("client-id", "c"),), (("ip", "10.0.0.1"),)
        assert await quotas(broker) == {
            BOTH: values, by_id: {"controller_mutation_rate": 1.5}, by_ip: {"connection_creation_rate": 10.0},
        }  # fmt: skip
        assert await quotas(broker, ("user", 0, "u")) == {BOTH: values}
        assert await quotas(broker, ("user", 0, "u"), strict=True) == {}
        assert set(await quotas(broker, ("client-id", 2, None))) == {BOTH, by_id}
        assert set(await quotas(broker, ("client-id", 0, "c"), strict=True)) == {by_id}
        assert await quotas(broker, ("client-id", 1, None)) == {}
        assert await quotas(broker, ("group", 1, None)) is ErrorCode.UNSUPPORTED_VERSION
        for wrong in [
            ("", 1, None),
            ("user", 0, None),
            ("user", 1, "u"),
            ("user", 2, "u"),
            ("user", 7, None),
        ]:
            assert await quotas(broker, wrong) is ErrorCode.INVALID_REQUEST
        both = await quotas(broker, ("ip", 1, None), ("user", 1, None))
        assert both is ErrorCode.INVALID_REQUEST


@in_loop
async def test_quotas_that_cannot_be(tmp_path: Path) -> None:
    fine = entity(user="u")
    async with in_process(tmp_path) as broker:
        refused = [
            quota([], producer_byte_rate=1.0),
            quota(entity(group="g"), producer_byte_rate=1.0),
            quota(entity(user=""), producer_byte_rate=1.0),
            quota([*fine, *fine], producer_byte_rate=1.0),
            quota(entity(user="u", ip="10.0.0.1"), producer_byte_rate=1.0),
            quota(entity(ip="nowhere"), connection_creation_rate=1.0),
            quota(entity(user="a"), connection_creation_rate=1.0),
            quota(entity(user="b"), producer_byte_rate=0.0),
            quota(entity(user="c"), producer_byte_rate=1.5),
            quota(entity(user="d"), request_percentage=float("nan")),
            quota(entity(user="e"), producer_byte_rate=1.0, nonsense=1.0),
            quota(entity(user="g"), producer_byte_rate=1e19),
            quota(entity(user="f"), producer_byte_rate=1.0),
        ]
        # Who stands there twice is answered once. What cannot be may be taken away.
        again = quota(entity(user="f"), consumer_byte_rate=1.0)
        good = quota(fine, request_percentage=0.5, nonsense=None, connection_creation_rate=None)
        assert await alter(broker, *refused, again, good) == [
            *[ErrorCode.INVALID_REQUEST] * len(refused), 0,
        ]  # fmt: skip
        assert await quotas(broker) == {(("user", "u"),): {"request_percentage": 0.5}}


SALT, PASSWORD = b"salt of this user", b"what the password was salted to."


def upsertion(user: str, mechanism: int = SHA_256, *, iterations: int = 4096, salt: bytes = SALT,
              password: bytes = PASSWORD) -> ScramCredentialUpsertion:  # fmt: skip
    return ScramCredentialUpsertion(name=user, mechanism=mechanism, iterations=iterations, salt=salt,
                                    salted_password=password)  # fmt: skip


async def scram(broker: InProcess, *upsertions: ScramCredentialUpsertion,
                without: tuple[tuple[str, int], ...] = ()) -> dict[str, int]:  # fmt: skip
    deletions = [ScramCredentialDeletion(name=user, mechanism=which) for user, which in without]
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=list(upsertions))
    return {each.user: each.error_code for each in (await broker.ask(request, 0)).results}


async def users(broker: InProcess, *names: str) -> dict[str, Any]:
    request = build(DescribeUserScramCredentialsRequest, users=[{"name": name} for name in names])
    answer = await broker.ask(request, 0)
    return {
        each.user: each.error_code
        or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in answer.results
    }


def secrets_in(folder: Path) -> list[Path]:
    """The files with anything from which a password could be guessed."""
    secrets = [SALT, PASSWORD]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        made = credential_of(mechanism, SALT, PASSWORD, 4096)
        secrets += [made.stored_key, made.server_key]
    spellings = [text for each in secrets for text in (each, b64encode(each), each.hex().encode())]
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(text in path.read_bytes() for text in spellings)
    ]


def test_what_is_kept_of_a_password() -> None:
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 4096)
    made = credential_of("SCRAM-SHA-512", SALT, salted, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    assert made.stored_key == hashlib.sha512(client_key).digest()
    assert made.server_key == hmac.digest(salted, b"Server Key", "sha512")
    assert repr(made) == "ScramCredential(iterations=4096)"
    for nonsense in (b"", b"{}", b"[]", json.dumps({"salt": "?"}).encode()):
        with pytest.raises(ValueError, match="^not a SCRAM credential$"):
            decode_credential(nonsense)


@in_loop
async def test_users_authenticate_by_what_was_written_and_no_table_shows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "lake" / CREDENTIALS
    async with in_process(tmp_path) as broker:
        assert await scram(broker, upsertion("a"), upsertion("b")) == {"a": 0, "b": 0}
        assert await scram(broker, upsertion("a", SHA_512)) == {"a": 0}
        known = broker.node.security.scram_users
        assert known.credential("a", "SCRAM-SHA-256") == credential_of(
            "SCRAM-SHA-256", SALT, PASSWORD, 4096
        )
        assert known.credential("c", "SCRAM-SHA-256") is None
        objects = sorted(folder.iterdir())
        assert len(objects) == 3
        assert {path.stat().st_mode & 0o777 for path in objects} == {0o600}
        # Many changes: a snapshot of the state is among the commits, and holds no secret either.
        for number in range(SNAPSHOT_INTERVAL):
            await alter(broker, quota(entity(user="u"), consumer_byte_rate=float(number + 1)))
        assert secrets_in(tmp_path / "lake") == objects
    async with in_process(tmp_path) as broker:
        known = broker.node.security.scram_users
        assert known.credential("a", "SCRAM-SHA-512") == credential_of(
            "SCRAM-SHA-512", SALT, PASSWORD, 4096
        )
        assert await users(broker) == {
            "a": [(SHA_256, 4096), (SHA_512, 4096)],
            "b": [(SHA_256, 4096)],
        }
        changed = upsertion("a", iterations=8192, password=b"another")
        assert await scram(broker, changed, without=(("b", SHA_256),)) == {"a": 0, "b": 0}
        assert await scram(broker, without=(("a", SHA_512),)) == {"a": 0}
        credential = known.credential("a", "SCRAM-SHA-256")
        assert credential is not None
        assert credential.iterations == 8192
        assert known.credential("a", "SCRAM-SHA-512") is None
        assert len(list(folder.iterdir())) == 1, "what is over is gone"
        assert await users(broker, "a", "b") == {
            "a": [(SHA_256, 8192)],
            "b": ErrorCode.RESOURCE_NOT_FOUND,
        }
        assert await users(broker, "a", "a") == {"a": ErrorCode.DUPLICATE_RESOURCE}
    text = caplog.text.encode()
    assert not any(
        spelled in text for spelled in (PASSWORD, SALT, b64encode(credential.stored_key))
    )


@in_loop
async def test_credentials_that_cannot_be(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        refused = await scram(
            broker,
            upsertion(""), upsertion("few", iterations=4095), upsertion("many", iterations=16385), upsertion("odd", 9),
            upsertion("bare", salt=b""), upsertion("none", password=b""), upsertion("twice"), upsertion("twice"),
            upsertion("half"), upsertion("half", SHA_512, iterations=1),
            upsertion("both"), upsertion("both", SHA_512), upsertion("gone"), upsertion("gone"),
            without=(("gone", SHA_256), ("what", 0)),
        )  # fmt: skip
        unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
        assert refused == {
            "gone": ErrorCode.RESOURCE_NOT_FOUND, "what": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "": unacceptable,
            "few": unacceptable, "many": unacceptable, "odd": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "bare": unacceptable, "none": unacceptable, "twice": ErrorCode.DUPLICATE_RESOURCE,
            "half": ErrorCode.DUPLICATE_RESOURCE, "both": ErrorCode.DUPLICATE_RESOURCE,
        }  # fmt: skip
        assert await users(broker) == {}
        assert list((tmp_path / "lake" / CREDENTIALS).iterdir()) == []
        # KRaft goes by users: one mechanism set and the other taken away is two changes of one, too.
        assert await scram(broker, upsertion("both"), upsertion("other")) == {"both": 0, "other": 0}
        changes = await scram(broker, upsertion("both", SHA_512), without=(("both", SHA_256),))
        assert changes == {"both": ErrorCode.DUPLICATE_RESOURCE}
        assert await users(broker, "both") == {"both": [(SHA_256, 4096)]}
        assert len(list((tmp_path / "lake" / CREDENTIALS).iterdir())) == 2


@in_loop
async def test_what_a_controller_left_behind_goes_with_the_next_one(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    async with in_process(tmp_path) as broker:
        assert await scram(broker, upsertion("a")) == {"a": 0}
        # It dies between the object and the commit that would have named it.
        orphan = await broker.node.security.credentials.write(
            [ScramCredential(b"s", b"k", b"k", 4096)]
        )
        assert (lake / orphan[0]).exists()
    foreign = lake / CREDENTIALS / "README"
    foreign.write_text("nobody's")
    async with in_process(tmp_path) as broker:
        sweeping = broker.node.security.credentials.sweeping
        assert sweeping is not None
        await sweeping
        assert not (lake / orphan[0]).exists()
        assert foreign.exists()
        assert await users(broker, "a") == {"a": [(SHA_256, 4096)]}
        assert broker.node.security.scram_users.credential("a", "SCRAM-SHA-256") is not None


@in_loop
async def test_a_credential_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(tmp_path) as broker:
        store = broker.node.store

        def fail(path: str, data: bytes) -> None:
            raise OSError(28, "no space left on device", path)

        monkeypatch.setattr(store, "put_durable", fail)
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion("a")])
        answer = await broker.ask(request, 0)
        assert codes(answer.results) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert "salted" not in answer.results[0].error_message
        assert broker.node.metadata.security.credentials == {}


@in_loop
async def test_a_credential_of_an_epoch_that_is_over_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller lost its place and won it again: as it came back it swept away what earlier ones had left."""
    async with in_process(tmp_path) as broker:
        store, epoch = broker.node.store, broker.node.metadata.controller_epoch
        put = store.put_durable
        decided = broker.node.metadata_driver.controller.image

        def slowly(path: str, data: bytes) -> None:
            put(path, data)
            decided.controller_epoch = epoch + 2

        monkeypatch.setattr(store, "put_durable", slowly)
        assert await scram(broker, upsertion("a")) == {"a": ErrorCode.NOT_CONTROLLER}
        assert broker.node.metadata.security.credentials == {}
        decided.controller_epoch = epoch
