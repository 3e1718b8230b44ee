"""Pure: what an object store's refusals mean for the operator.

- A store answers with one of its codes in a document, and without one to HEAD; the client library has words of its
  own. A message first says what is wrong, with the variable or setting to change; the store's own words follow.
- A missing bucket is not a missing object: the one is a mistake, the other an everyday answer.
- No secret is ever in a text: names of variables are, their values are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
# Where a client looks for a machine's role when no other credentials are configured.
_METADATA_SERVICES = ("//169.254.169.254/", "//metadata.google.internal/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """One store's codes, and its variables."""

    missing_bucket: str
    meanings: Mapping[str, str]
    permissions: frozenset[str]
    undecided: frozenset[str] = frozenset()
    """Conflicts that do not say that the object is there."""
    credentials_are: str
    role: str
    """What a machine may have instead of credentials."""
    way: str
    """What leads to the store."""
    moved: str = ""

    def is_missing_bucket(self, text: str) -> bool:
        """Whether it is the bucket that was not found."""
        return _code_of(text) == self.missing_bucket

    def is_permission(self, text: str) -> bool:
        """Whether the store does not know the credentials, or refuses them."""
        return _code_of(text) in self.permissions or _status_of(text) in ("401", "403")

    def is_undecided(self, text: str) -> bool:
        """Whether a conflict leaves open if the object is there."""
        return _code_of(text) in self.undecided

    def explained(self, text: str) -> str:
        """What is wrong and what to change, then the store's own words on one line."""
        # The library's text goes on with its whole source after a blank line; some documents have lines, too.
        words = " ".join(text.partition("\n\n")[0].split())
        meaning = self._meaning_of(words)
        return f"{meaning} ({words})" if meaning else words

    def _meaning_of(self, words: str) -> str | None:
        if any(each in words for each in _METADATA_SERVICES):
            return f"{self.credentials_are} not set, and this machine has no {self.role}"
        code = _code_of(words)
        if code is not None:
            return self.meanings.get(code)
        if self.moved and _status_of(words) in ("301", "307"):
            return self.moved
        if self.is_permission(words):
            return f"{self.credentials_are} wrong, or the machine's {self.role} may not do this"
        if "error sending request" in words:
            return f"no answer: see {self.way} and the network"
        return None


def check_endpoint(variable: str, address: str) -> str | None:
    """Why this is not the address of a store; None if it is one, or is empty."""
    if not address:
        return None
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and parts.netloc:
        return None
    return f"{variable}={address} is no address: http://<host>:<port> or https://<host>"


def _code_of(text: str) -> str | None:
    found = _CODE.search(text)
    return found.group(1) if found else None


def _status_of(text: str) -> str | None:
    found = _STATUS.search(text)
    return found.group(1) if found else None
