"""sasl.kerberos.principal.to.local.rules: random rules and principals give the user that Apache Kafka's give."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from py4j.protocol import Py4JJavaError

from broker.config.kerberos_rules import KerberosRules, NoMatchingRule, parse_kerberos_rules
from tests.peer.jvm import Jvm

pytestmark = pytest.mark.jars

REALMS = ("EXAMPLE.COM", "OTHER.COM")
TEXTS = ("$1", "$1@$0", "$2.$1", "$0", "x$1", "$1$2", "$0/$1", "")
PATTERNS = ("", "(.*)", "(a.*)", "(.*@OTHER[.]COM)", "(x[ab]+)", "(ab)", "((?i)AB.*)")
REPLACEMENTS = (
    "",
    "s/a/b/",
    "s/a/b/g",
    "s/@.*//",
    "s/x*/-/g",
    "s/([ab])/$1$1/g",
    r"s/a/\$/",
    "s/b//g",
)
CASES = ("", "/L", "/U", "L", "U")
NAMES = ("a", "ab", "Abba", "x", "xab", "")


def rule(random: Random) -> str:
    if random.random() < 0.2:
        return "DEFAULT"
    made = f"RULE:[{random.choice((0, 1, 1, 2, 2, 3))}:{random.choice(TEXTS)}]"
    made += random.choice(PATTERNS) + random.choice(REPLACEMENTS) + random.choice(CASES)
    # Now and then not a rule at all.
    return made[: random.randrange(len(made))] if random.random() < 0.05 else made


def principal(random: Random) -> str:
    parts = [random.choice(NAMES) for _ in range(random.choice((1, 1, 2, 2, 3)))]
    realm = f"@{random.choice((*REALMS, ''))}" if random.random() < 0.95 else ""
    return "/".join(parts) + realm


def test_the_user_is_the_one_that_kafkas_rules_name(jvm: Jvm) -> None:
    kerberos = jvm.classes.org.apache.kafka.common.security.kerberos
    random = Random(23)
    seen: dict[str, int] = {}
    for _ in range(1_500):
        rules = [rule(random) for _ in range(random.randrange(1, 5))]
        name = principal(random)
        theirs = ours = "not accepted"
        try:
            listed = jvm.classes.java.util.ArrayList()
            for each in rules:
                listed.add(each)
            namer = kerberos.KerberosShortNamer.fromUnparsedRules(REALMS[0], listed)
            theirs = namer.shortName(kerberos.KerberosName.parse(name))
        except Py4JJavaError:
            pass
        with contextlib.suppress(ValueError, NoMatchingRule):
            ours = KerberosRules(parse_kerberos_rules(rules), REALMS[0]).short_name(name)
        # Kafka finds a part that a principal never has only when a principal comes.
        never = any(f"[{n}:" in each and f"${n + 1}" in each for each in rules for n in (0, 1))
        if not (never and ours == "not accepted"):
            assert ours == theirs, (rules, name)
        seen[theirs] = seen.get(theirs, 0) + 1
    assert len(seen) > 15 and sum(seen.values()) - seen["not accepted"] > 200, seen
