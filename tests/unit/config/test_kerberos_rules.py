"""sasl.kerberos.principal.to.local.rules: which user a principal is."""

from __future__ import annotations

import pytest

from broker.config.kerberos_rules import KerberosRules, NoMatchingRule, parse_kerberos_rules

REALM = "EXAMPLE.COM"


def user_of(principal: str, *rules: str) -> str:
    return KerberosRules(parse_kerberos_rules(rules or ("DEFAULT",)), REALM).short_name(principal)


@pytest.mark.parametrize(
    ("principal", "rules", "user"),
    [
        ("alice@EXAMPLE.COM", (), "alice"),
        ("kafka/b1.example.com@EXAMPLE.COM", (), "kafka"),
        ("alice", (), "alice"),
        ("App@OTHER.COM", ("RULE:[1:$1]/L",), "app"),
        ("app@OTHER.COM", ("RULE:[1:$1](a.*)/U", "DEFAULT"), "APP"),
        # The first that applies wins; one of another number of parts does not.
        ("kafka/b1@OTHER.COM", ("RULE:[1:$1]", "RULE:[2:$1-$2]"), "kafka-b1"),
        ("app@OTHER.COM", ("RULE:[1:$1@$0](.*@OTHER.COM)s/@.*//", "DEFAULT"), "app"),
        ("x1y1@EXAMPLE.COM", ("RULE:[1:$1](x.*)s/1/-/",), "x-y1"),
        ("x1y1@EXAMPLE.COM", ("RULE:[1:$1](x.*)s/1/-/g",), "x-y-"),
        ("x1y1@EXAMPLE.COM", (r"RULE:[1:$1]s/([a-z])([0-9])/$2$1\$/g/U",), "1X$1Y$"),
        # The pattern must match all.
        ("bert@EXAMPLE.COM", ("RULE:[1:$1](ber)/U", "DEFAULT"), "bert"),
    ],
)
def test_the_user_of_a_principal(principal: str, rules: tuple[str, ...], user: str) -> None:
    assert user_of(principal, *rules) == user


@pytest.mark.parametrize(
    ("principal", "rules"),
    [
        ("alice@OTHER.COM", ("DEFAULT",)),
        # A name that could be another principal's.
        ("alice@OTHER.COM", ("RULE:[1:$1@$0]",)),
        ("alice/x@OTHER.COM", ("RULE:[2:$1/$2]",)),
        ("a/b/c@EXAMPLE.COM", ("DEFAULT",)),
    ],
)
def test_who_is_nobody(principal: str, rules: tuple[str, ...]) -> None:
    with pytest.raises(NoMatchingRule):
        user_of(principal, *rules)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("default", "is neither DEFAULT nor RULE"),
        ("RULE:[1:$1", "is neither DEFAULT nor RULE"),
        ("RULE:[1:$1]s/a/b/x", "is neither DEFAULT nor RULE"),
        ("RULE:[:$1]", "does not say how many parts"),
        ("RULE:[1:$2]", r"\$2 is not one of \$0 to \$1"),
        ("RULE:[1:$1](*)", "is not a regular expression"),
        ("RULE:[1:$1]s/*/b/", "is not a regular expression"),
        ("RULE:[1:$1]s/(a)/$2/", "names a group that .* does not have"),
    ],
)
def test_what_is_no_rule(rule: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_kerberos_rules(["DEFAULT", rule])
