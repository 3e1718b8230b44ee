"""Pure: `ssl.principal.mapping.rules`: maps a certificate's distinguished name to a user name (KIP-371, KIP-406).

- The first rule whose pattern matches the whole name applies. `DEFAULT` takes the distinguished name as it is.
  `RULE:<pattern>/<replacement>/[L|U]`: `$1` is a group of the pattern; L and U change the case.
- Distinguished names are written as in Java (RFC 2253): last part first, with RFC 2253's nine short names. Other
  attributes keep OpenSSL's name, where Java writes OID and bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<with>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)
_GROUP = re.compile(r"\$(\d)|\\(.)")
# Java escapes `=` and `#` anywhere, and each blank at an end, which is more than RFC 2253 asks for.
_SPECIAL = re.compile(r'([,=+<>#;"\\])')
_BLANK = re.compile(r"[ \r]")

Subject = Sequence[Sequence[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; DEFAULT has no pattern."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The user name, or None if the rule does not match."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        result = substituted(self.replacement, match)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse the setting. Raises ValueError."""
    rules: list[Rule] = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ValueError(
                f"{text[position:].strip()} does not begin with DEFAULT or RULE:<pattern>/<replacement>/[L|U]"
            )
        position = match.end()
        rules.append(_rule(match))
    return tuple(rules) or (Rule(),)


def _rule(match: re.Match[str]) -> Rule:
    if match["default"]:
        return Rule()
    try:
        pattern = re.compile(match["pattern"])
    except re.error as error:
        raise ValueError(f"{match['pattern']} is not a regular expression: {error}") from None
    if replacement_groups(match["with"]) > pattern.groups:
        raise ValueError(f"{match['with']} names a group that {match['pattern']} does not have")
    return Rule(pattern=pattern, replacement=match["with"], case=match["case"])


def replacement_groups(replacement: str) -> int:
    """The highest number of a group in a replacement."""
    return max((int(number) for number in re.findall(r"(?<!\\)\$(\d)", replacement)), default=0)


def substituted(replacement: str, match: re.Match[str]) -> str:
    """A replacement with Java's `$1` for a group of the match, and what follows a backslash as it is."""
    return _GROUP.sub(
        lambda found: found[2] if found[1] is None else (match[int(found[1])] or ""), replacement
    )


def user_of(rules: Sequence[Rule], name: str) -> str | None:
    """The user name by the first matching rule, or None."""
    for rule in rules:
        user = rule.apply(name)
        if user is not None:
            return user
    return None


def distinguished_name(subject: Subject) -> str:
    """A certificate's subject, as `SSLSocket.getpeercert` gives it, in the form of RFC 2253."""
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    begins = len(value) - len(value.lstrip(" \r"))
    ends = max(len(value.rstrip(" \r")), begins)
    before, after = (_BLANK.sub(r"\\\g<0>", part) for part in (value[:begins], value[ends:]))
    return before + _SPECIAL.sub(r"\\\1", value[begins:ends]) + after
