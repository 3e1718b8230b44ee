"""ACLs and who may do what by them: what a filter means, and Kafka's rules of allowing and denying."""

import random
from dataclasses import replace
from typing import Any

import pytest

from broker.metadata.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclIndex,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from broker.principal import ANONYMOUS, Principal, principal_of
from broker.security.authorization.authorizer import OPERATIONS, Authorizer

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALL,
)
ALLOW, DENY = Permission.ALLOW, Permission.DENY
HERE, THERE = "10.0.0.1", "10.0.0.2"


def acl(
    name: str = "a",
    operation: int = READ,
    *,
    who: str = "User:alice",
    host: str = "*",
    kind: int = TOPIC,
    pattern: int = PatternType.LITERAL,
    permission: int = ALLOW,
) -> Acl:
    return Acl(resource_type=kind, resource_name=name, pattern_type=pattern, principal=who, host=host,
               operation=operation, permission=permission)  # fmt: skip


def prefixed(name: str, operation: int = READ, *, permission: int = ALLOW) -> Acl:
    return acl(name, operation, pattern=PatternType.PREFIXED, permission=permission)


def authorizer(*acls: Acl, open_to_all: bool = False, supers: str = "User:root") -> Authorizer:
    made = Authorizer([principal_of(supers)], allows_unlisted=open_to_all)
    made.replace(acls)
    return made


def may(by: Authorizer, operation: int = READ, name: str = "a", *, who: Principal = ALICE,
        host: str = HERE, kind: int = TOPIC) -> bool:  # fmt: skip
    return by.allows(who, host, operation, kind, name)


def test_without_an_acl_nothing_is_allowed_but_to_super_users() -> None:
    assert not may(authorizer())
    assert may(authorizer(), who=Principal("User", "root"))
    assert may(authorizer(open_to_all=True), who=ANONYMOUS)


def test_one_acl_about_a_resource_ends_that_everybody_may() -> None:
    by = authorizer(acl("a"), open_to_all=True)
    assert may(by)
    assert not may(by, who=BOB)
    assert may(by, name="b", who=BOB)
    assert not may(authorizer(acl("*"), open_to_all=True), name="b", who=BOB)


def test_deny_wins_whatever_allows() -> None:
    by = authorizer(
        acl("a", ALL), acl("a", ALL, who="User:*"), prefixed("a", READ, permission=DENY)
    )
    assert not may(by)
    assert may(by, WRITE)
    assert may(by, who=BOB)
    denied = authorizer(acl("*"), acl("a", who="User:*", permission=DENY, host=THERE))
    assert may(denied)
    assert not may(denied, host=THERE)


def test_super_users_are_not_denied() -> None:
    by = authorizer(acl("a", ALL, who="User:*", permission=DENY), supers="User:alice")
    assert may(by)


@pytest.mark.parametrize(
    "given", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, DESCRIBE, ALL]
)  # fmt: skip
def test_what_implies_describe(given: AclOperation) -> None:
    assert may(authorizer(acl("a", given)), DESCRIBE)
    assert may(authorizer(acl("a", DESCRIBE), acl("a", given, permission=DENY)), DESCRIBE) is (
        given not in (DESCRIBE, ALL)
    )


def test_what_does_not_imply() -> None:
    for given in (AclOperation.CREATE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS):
        assert not may(authorizer(acl("a", given)), DESCRIBE)
    assert may(authorizer(acl("a", AclOperation.ALTER_CONFIGS)), AclOperation.DESCRIBE_CONFIGS)
    assert not may(authorizer(acl("a", AclOperation.ALTER)), AclOperation.DESCRIBE_CONFIGS)
    assert not may(authorizer(acl("a", DESCRIBE)), READ)


def test_names_hosts_and_kinds() -> None:
    by = authorizer(acl("a", host=HERE), prefixed("team-"), acl("*", WRITE), acl("g", kind=GROUP))
    assert may(by)
    assert not may(by, host=THERE)
    assert may(by, name="team-x")
    assert not may(by, name="team")
    assert may(by, WRITE, "anything")
    assert not may(by, name="g")
    assert may(by, name="g", kind=GROUP)


@pytest.mark.parametrize(
    ("written", "comes_from"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),  # as Java writes it, and so as ACLs of Apache Kafka have it
        ("2001:DB8:0:0:0:0:0:A", "2001:db8::a"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        (" 10.0.0.1", "10.0.0.2"),  # no address: it is held against addresses as it is
    ],
)
def test_a_host_is_its_address_however_that_is_written(written: str, comes_from: str) -> None:
    is_same = written[0] != " "
    denied = authorizer(acl("a"), acl("a", host=written, permission=DENY))
    assert may(denied, host=comes_from) is not is_same
    assert denied.allows_any(ALICE, comes_from, READ, TOPIC) is not is_same
    assert may(authorizer(acl("a", host=written)), host=comes_from) is is_same


def test_a_decision_holds_until_the_acls_change() -> None:
    refused: list[tuple[object, ...]] = []
    by = Authorizer([], allows_unlisted=False, denied=lambda *what: refused.append(what))
    assert not may(by)
    assert not may(by)
    assert refused == [(ALICE, HERE, READ, TOPIC, "a")]
    by.replace([acl()])
    assert may(by)
    by.replace([])
    assert not may(by)
    assert len(refused) == 2
    assert (by.allowed, by.refused) == (1, 3)


def test_what_is_only_left_out_of_an_answer_is_no_refusal() -> None:
    """Nobody asked for it: a description of a topic names the reader's rights, and each that it lacks is not news."""
    refused: list[tuple[object, ...]] = []
    by = Authorizer([], allows_unlisted=False, denied=lambda *what: refused.append(what))
    assert not by.operations(ALICE, HERE, TOPIC, "a")
    assert not by.allows(ALICE, HERE, READ, TOPIC, "a", log_if_denied=False)
    assert refused == []
    assert not may(by)
    assert not may(by)
    assert refused == [(ALICE, HERE, READ, TOPIC, "a")]


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([acl("a", WRITE)], True),
        ([acl("a", READ)], False),
        ([acl("a", ALL)], True),
        ([acl("a", WRITE), acl("a", WRITE, permission=DENY)], False),
        ([acl("a", WRITE), acl("b", WRITE, permission=DENY)], True),
        ([acl("ab", WRITE), prefixed("a", WRITE, permission=DENY)], False),
        ([prefixed("ab", WRITE), prefixed("a", WRITE, permission=DENY)], False),
        ([prefixed("a", WRITE), prefixed("ab", WRITE, permission=DENY)], True),
        ([acl("*", WRITE), prefixed("a", WRITE, permission=DENY)], True),
        ([acl("*", WRITE), acl("*", ALL, permission=DENY, who="User:*")], False),
        ([acl("a", WRITE, host=THERE)], False),
    ],
)
def test_whether_there_is_a_topic_to_write_to(acls: list[Acl], expected: bool) -> None:
    assert authorizer(*acls).allows_any(ALICE, HERE, WRITE, TOPIC) is expected


def test_any_topic_where_nobody_is_kept_from_any() -> None:
    assert authorizer(open_to_all=True).allows_any(ALICE, HERE, WRITE, TOPIC)
    assert authorizer(supers="User:alice").allows_any(ALICE, HERE, WRITE, TOPIC)
    assert not authorizer(acl("*", READ), open_to_all=True).allows_any(ALICE, HERE, WRITE, TOPIC)


def test_the_operations_on_a_resource() -> None:
    by = authorizer(acl("a", READ), acl("a", AclOperation.ALTER_CONFIGS))
    assert set(by.operations(ALICE, HERE, TOPIC, "a")) == {
        READ, DESCRIBE, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS,
    }  # fmt: skip
    everything = authorizer(acl(CLUSTER_NAME, ALL, kind=CLUSTER))
    assert everything.operations(ALICE, HERE, CLUSTER, CLUSTER_NAME) == OPERATIONS[CLUSTER]


ANY = AclFilter(
    resource_type=ResourceType.ANY, resource_name=None, pattern_type=PatternType.ANY, principal=None,
    host=None, operation=AclOperation.ANY, permission=Permission.ANY,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "given", "expected"),
    [
        ({}, acl(), True),
        ({"resource_type": GROUP}, acl(), False),
        ({"resource_name": "a"}, acl(), True),
        ({"resource_name": "a"}, prefixed("a"), True),
        ({"resource_name": "ab"}, prefixed("a"), False),
        ({"resource_name": "ab", "pattern_type": PatternType.MATCH}, prefixed("a"), True),
        ({"resource_name": "a", "pattern_type": PatternType.MATCH}, prefixed("ab"), False),
        ({"resource_name": "ab", "pattern_type": PatternType.MATCH}, acl("*"), True),
        ({"resource_name": "ab", "pattern_type": PatternType.MATCH}, acl("a"), False),
        ({"resource_name": "ab", "pattern_type": PatternType.LITERAL}, acl("*"), False),
        ({"pattern_type": PatternType.LITERAL}, prefixed("a"), False),
        ({"pattern_type": PatternType.PREFIXED}, prefixed("a"), True),
        ({"principal": "User:bob"}, acl(), False),
        ({"principal": "User:alice", "host": "*"}, acl(), True),
        ({"host": HERE}, acl(), False),
        ({"operation": WRITE}, acl(), False),
        ({"operation": READ, "permission": ALLOW}, acl(), True),
        ({"permission": DENY}, acl(), False),
    ],
)
def test_what_a_filter_means(changes: dict[str, object], given: Acl, expected: bool) -> None:
    assert replace(ANY, **changes).matches(given) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"resource_type": ResourceType.ANY}, "resourceType ANY"),
        ({"resource_type": 99}, "resourceType 99"),
        ({"pattern_type": PatternType.MATCH}, "patternType MATCH"),
        ({"operation": AclOperation.ANY}, "operation ANY"),
        ({"permission": Permission.UNKNOWN}, "permissionType UNKNOWN"),
        ({"resource_name": ""}, "should not be empty"),
        ({"resource_type": CLUSTER}, "kafka-cluster"),
        ({"principal": "alice"}, "Could not parse"),
    ],
)
def test_acls_that_nobody_may_make(changes: dict[str, object], text: str) -> None:
    assert acl().why_invalid() is None
    assert text in (replace(acl(), **changes).why_invalid() or "")  # type: ignore[arg-type]


def test_filters_of_numbers_that_nobody_knows() -> None:
    assert ANY.why_invalid() is None
    for name in ("resource_type", "pattern_type", "operation", "permission"):
        assert replace(ANY, **{name: 0}).why_invalid()  # type: ignore[arg-type]
        assert replace(ANY, **{name: 99}).why_invalid()  # type: ignore[arg-type]


def test_of_a_long_name_only_as_much_is_looked_at_and_kept_as_acls_may_say() -> None:
    class Counted(str):
        cuts = 0

        def __getitem__(self, key: Any) -> str:
            Counted.cuts += 1
            return super().__getitem__(key)

    by = authorizer(prefixed("x"), prefixed("y"), prefixed("xx" * 100))
    name = Counted("x" * 30_000)
    assert may(by, name=name)
    assert Counted.cuts == 2, "one for each length of a prefix"
    assert not may(by, name="z" * 30_000)
    assert not by.decisions, "clients may name what they like"
    assert may(by, name="x" * 249)
    assert len(by.decisions) == 1


def test_the_index_finds_what_a_filter_of_match_means() -> None:
    """The same question by another way: an ACL concerns a resource exactly where MATCH means it."""
    chance = random.Random(7)
    names = ["", "a", "ab", "abc", "b", "*"]
    for _ in range(300):
        acls = [
            acl(
                chance.choice(names[1:]),
                kind=chance.choice([TOPIC, GROUP]),
                pattern=chance.choice([PatternType.LITERAL, PatternType.PREFIXED]),
                host=str(number),
            )
            for number in range(chance.randrange(8))
        ]
        kind, name = chance.choice([TOPIC, GROUP]), chance.choice(names[1:])
        asks = replace(ANY, resource_type=kind, resource_name=name, pattern_type=PatternType.MATCH)
        found = list(AclIndex(acls).of(kind, name))
        assert sorted(found, key=repr) == sorted(filter(asks.matches, acls), key=repr)
