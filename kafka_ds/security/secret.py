"""Pure: a text that must not be seen: a password, a private key, a token, a JAAS entry."""

from __future__ import annotations

HIDDEN = "[hidden]"


class Secret:
    """Shows itself as `[hidden]` wherever it is printed: in a log line, an exception, a `repr`. `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)
