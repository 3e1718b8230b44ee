"""Shell: asks a schema registry, by Confluent's API, for the schemas that records name by their ids.

A schema never changes under its id, so each is asked for once. A registry that does not answer is an error of the
whole step, which is tried again; an id that the registry does not have is a matter of the records that name it.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from kafka_ds.errors import OptionError

TIMEOUT_S: Final = 10.0
NOT_FOUND: Final = 404


# user:password at the registry: not among a command's words, which all users of a machine see.
USER_INFO: Final = "KAFKA_DS_SCHEMA_REGISTRY_USER_INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema as it stands in the registry."""

    text: str
    kind: str
    has_references: bool


class SchemaRegistry:
    """The registry at a URL; `user_info` is `user:password`, or empty."""

    def __init__(self, url: str = "", user_info: str = "") -> None:
        if url and not url.startswith(("http://", "https://")):
            raise OptionError(f"schema registry {url}: its address begins with http:// or https://")
        self._url = url.rstrip("/")
        self._user_info = user_info
        self._known: dict[int, RegisteredSchema] = {}

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """The schema with this id; None where the registry has none."""
        if schema_id not in self._known:
            found = self._get(schema_id)
            if found is None:
                return None
            self._known[schema_id] = found
        return self._known[schema_id]

    def _get(self, schema_id: int) -> RegisteredSchema | None:
        if not self._url:
            raise OptionError("lake.table.*.format=avro needs the option --schema-registry")
        request = Request(f"{self._url}/schemas/ids/{schema_id}")  # noqa: S310 (checked above)
        if self._user_info:
            token = base64.b64encode(self._user_info.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                found = json.load(answer)
            return RegisteredSchema(
                text=found["schema"],
                kind=found.get("schemaType") or "AVRO",
                has_references=bool(found.get("references")),
            )
        except HTTPError as problem:
            if problem.code == NOT_FOUND:
                return None
            raise OptionError(f"schema registry {self._url}: it answered {problem}") from None
        except (URLError, OSError, HTTPException, ValueError, LookupError, TypeError) as problem:
            raise OptionError(f"schema registry {self._url}: {problem!r}") from None


def registry_at(url: str) -> SchemaRegistry:
    """The registry at a URL, with the user and password of the environment."""
    return SchemaRegistry(url, os.environ.get(USER_INFO, ""))
