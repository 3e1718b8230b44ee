"""Pure: parses `sasl.jaas.config`, an entry of Java's login configuration.

- The format is Kafka's (KIP-85): `<login module> required|requisite|sufficient|optional key="value" … ;`, one module,
  with Java's escapes in double quotes and Java's comments.
- An entry has passwords: no error repeats any part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kafka_ds.security.secret import Secret

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)|"(?P<quoted>(?:[^"\\\n]|\\.)*)"|(?P<word>[^\s"=;/]+(?:/(?![/*])[^\s"=;/]+)*)"""
    r"|(?P<sign>[=;])",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """The text is not a login configuration; the message does not repeat it."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module by its short name, such as `PlainLoginModule`, and its options."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    def users(self) -> dict[str, Secret]:
        """The passwords of the options `user_<name>="<password>"`, by name: a broker's users."""
        return {
            key.removeprefix("user_"): Secret(value)
            for key, value in self.options.items()
            if key.startswith("user_")
        }


def parse_jaas(text: str) -> JaasEntry:
    """Parse an entry.

    Raises:
        JaasError: the text is not exactly one valid entry.
    """
    tokens = list(_tokens(text))
    if len(tokens) < 3:
        raise JaasError('expected: <login module> required <key>="<value>" … ;')
    (module, _), (flag, _), *rest = tokens
    if flag.lower() not in _FLAGS:
        raise JaasError(f"the word after the login module is not one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    while rest and rest[0] != (";", False):
        if len(rest) < 3 or rest[1] != ("=", False) or rest[2] in ((";", False), ("=", False)):
            raise JaasError('an option is not of the form key="value"')
        options[rest[0][0]] = rest[2][0]
        rest = rest[3:]
    if not rest:
        raise JaasError("the entry does not end with a semicolon")
    if len(rest) > 1:
        raise JaasError("there is more than one login module")
    return JaasEntry(module.rpartition(".")[2], options)


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """The tokens: words, quoted strings (True) and signs."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise JaasError(f"an unclosed quote or an unexpected sign at character {position + 1}")
        position = match.end()
        if match["quoted"] is not None:
            yield _ESCAPE.sub(_unescaped, match["quoted"]), True
        elif match["skip"] is None:
            yield match[0], False


def _unescaped(match: re.Match[str]) -> str:
    given = match[1]
    return chr(int(given, 8)) if given[0] in "01234567" else _ESCAPED.get(given, given)
