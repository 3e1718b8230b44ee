"""Pure: `sasl.kerberos.principal.to.local.rules`: maps a Kerberos principal to a user name, as Apache Kafka does.

- The first rule that applies wins. `DEFAULT`: a principal of the default realm, whose first part is the user.
- `RULE:[n:text](pattern)s/from/to/g/L`: a principal of n parts besides the realm. `$0` in `text` is its realm, `$1` and
  `$2` its parts; `pattern` must match all of it; `from` becomes `to`, with g everywhere; L and U change the case.
- As in Kafka a principal has at most two parts, and no expression has a comma, which separates rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from broker.config.mapping_rules import replacement_groups, substituted

_NAME = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE = re.compile(
    r"(?P<default>DEFAULT)|RULE:\[(?P<count>\d*):(?P<text>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<from>[^/]*)/(?P<to>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER = re.compile(r"\$(\d*)")
_NOT_SIMPLE = re.compile(r"[/@]")


class NoMatchingRule(Exception):
    """No rule makes a user name of a principal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosRule:
    """One rule; DEFAULT has no `text`."""

    count: int = 0
    text: str | None = None
    match: re.Pattern[str] | None = None
    replaced: re.Pattern[str] | None = None
    replacement: str = ""
    is_global: bool = False
    case: str = ""

    def apply(self, default_realm: str, parts: Sequence[str]) -> str | None:
        """The user name of a principal's realm and other parts, or None. Raises NoMatchingRule: it is not a name."""
        name = self._name(default_realm, parts)
        if name is None:
            return None
        if _NOT_SIMPLE.search(name):
            raise NoMatchingRule(f"{name} is not a user name")
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)

    def _name(self, default_realm: str, parts: Sequence[str]) -> str | None:
        if self.text is None:
            return parts[1] if parts[0] == default_realm else None
        if len(parts) - 1 != self.count:
            return None
        base = _PARAMETER.sub(lambda found: parts[int(found[1])], self.text)
        if self.match is not None and not self.match.fullmatch(base):
            return None
        if self.replaced is None:
            return base
        return self.replaced.sub(
            lambda found: substituted(self.replacement, found), base, 0 if self.is_global else 1
        )


@dataclass(frozen=True, slots=True)
class KerberosRules:
    """The rules of a listener, and the realm of DEFAULT."""

    rules: tuple[KerberosRule, ...]
    default_realm: str

    def short_name(self, principal: str) -> str:
        """The user name of a principal. Raises NoMatchingRule."""
        match = _NAME.fullmatch(principal)
        if match is None:
            if "@" in principal:
                raise NoMatchingRule(f"{principal} is not a principal of one or two parts")
            return principal
        name, host, realm = match[1], match[2], match[3]
        parts = (realm, name) if host is None else (realm, name, host)
        for rule in self.rules:
            found = rule.apply(self.default_realm, parts)
            if found is not None:
                return found
        raise NoMatchingRule(f"no rule applies to {principal}")


def parse_kerberos_rules(texts: Sequence[str]) -> tuple[KerberosRule, ...]:
    """Parse the setting. Raises ValueError."""
    return tuple(_rule(text) for text in texts)


def _rule(text: str) -> KerberosRule:
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is neither DEFAULT nor RULE:[n:text](pattern)s/from/to/g/L")
    if match["default"]:
        return KerberosRule()
    if not match["count"]:
        raise ValueError(f"{text} does not say how many parts a principal has")
    count = int(match["count"])
    for number in _PARAMETER.findall(match["text"]):
        if not number or int(number) > count:
            raise ValueError(f"{text}: ${number} is not one of $0 to ${count}")
    replaced = _pattern(text, match["from"])
    if replaced is not None and replacement_groups(match["to"]) > replaced.groups:
        raise ValueError(f"{text}: {match['to']} names a group that {match['from']} does not have")
    return KerberosRule(
        count=count,
        text=match["text"],
        match=_pattern(text, match["match"]),
        replaced=replaced,
        replacement=match["to"] or "",
        is_global=bool(match["all"]),
        case=match["case"] or "",
    )


def _pattern(rule: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{rule}: {text} is not a regular expression: {error}") from None
