"""Pure: parses Java properties files.

The syntax is java.util.Properties', so that a server.properties of Apache Kafka means the same here: comments with #
and !, keys ended by =, : or white space, continuation by a backslash, Java's escapes. The last value of a key wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX_DIGITS = 4


class PropertiesError(Exception):
    """An invalid line; `line` is its number."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True, slots=True)
class Property:
    """One key, its value, and the number of the line on which it begins."""

    key: str
    value: str
    line: int


def parse_properties(text: str) -> Iterator[Property]:
    """The properties of a file, in order."""
    for number, line in _logical_lines(text):
        key_end = _end_of_key(line)
        rest = line[key_end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        yield Property(_unescape(line[:key_end], number), _unescape(rest, number), number)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines without comments and blank lines, each with the number of its first line."""
    pending = ""
    first = 0
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, raw in enumerate(lines, start=1):
        line = raw.lstrip(_BLANK)
        if not pending:
            if not line or line[0] in "#!":
                continue
            first = number
        line = pending + line
        if _ends_in_backslash(line) and number < len(lines):
            pending = line[:-1]
            if pending:
                continue
        else:
            pending = ""
            yield first, line
    if pending:
        yield first, pending


def _ends_in_backslash(line: str) -> bool:
    """Whether the last backslash is not itself escaped."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _end_of_key(line: str) -> int:
    escaped = False
    for position, character in enumerate(line):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "=:" or character in _BLANK:
            return position
    return len(line)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            out.append(character)
            continue
        escape = text[position : position + 1]
        position += 1
        if escape == "u":
            digits = text[position : position + _HEX_DIGITS]
            if len(digits) < _HEX_DIGITS or not all(d in "0123456789abcdefABCDEF" for d in digits):
                raise PropertiesError("\\u is not followed by four hexadecimal digits", line)
            out.append(chr(int(digits, 16)))
            position += _HEX_DIGITS
        else:
            out.append(_ESCAPES.get(escape, escape))
    return "".join(out)
