"""Shell: fetches schemas by id or GUID from a schema registry with Confluent's API.

The schema of an id never changes, so each is fetched once. What it refers to may: a subject's version may come later,
or be deleted and registered again, so a schema with references is fetched again after a while. If the registry does not
answer, the step fails and is retried, unless the schema is known; if it does not give the schema of an id, only the
records with that id are errors.
"""

from __future__ import annotations

import base64
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from kafka_ds.client.cluster import Cluster
from kafka_ds.errors import OptionError
from kafka_ds.protocol.errors import ErrorCode, KafkaError

TIMEOUT_S: Final = 10.0
# For how long a schema with references is not fetched again.
REFERENCES_S: Final = 60.0
# HTTP statuses that are about the asked schema: the registry has none, or this user may not read its subject.
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
# The brokers' setting.
REGISTRY_URL: Final = "schema.registry.url"
# user:password at the registry. Not a command-line argument: all users of a machine see those.
USER_INFO: Final = "KAFKA_DS_SCHEMA_REGISTRY_USER_INFO"


class NoSuchSchema(ValueError):
    """The registry does not give a schema; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema of the registry; `references` are the texts of all schemas that it refers to, by name."""

    text: str
    kind: str
    references: Mapping[str, str] = field(default_factory=dict, hash=False)


class SchemaRegistry:
    """The registry at a URL; `user_info` is `user:password`, or empty."""

    def __init__(self, url: str = "", user_info: str = "") -> None:
        self._url = ""
        self._user_info = user_info
        # Each schema with the time until which it is not fetched again.
        self._known: dict[int | str, tuple[RegisteredSchema, float]] = {}
        self.move_to(url)

    def __bool__(self) -> bool:
        """Whether a registry is configured."""
        return bool(self._url)

    def move_to(self, url: str) -> None:
        """Ask the registry at this URL from now on. Raises OptionError."""
        if url and not url.startswith(("http://", "https://")):
            raise OptionError(f"schema registry {url}: the URL must begin with http:// or https://")
        if url.rstrip("/") != self._url:
            self._url = url.rstrip("/")
            self._known.clear()

    def schema(self, name: int | str) -> RegisteredSchema:
        """The schema with this id or GUID. Raises NoSuchSchema, or OptionError if the registry does not answer."""
        known, until = self._known.get(name, (None, 0.0))
        now = time.monotonic()
        if known is not None and now < until:
            return known
        try:
            schema, may_change = self._fetched(name)
        except (NoSuchSchema, OptionError):
            if known is None:
                raise
            schema, may_change = known, True
        self._known[name] = schema, now + REFERENCES_S if may_change else math.inf
        return schema

    def _fetched(self, name: int | str) -> tuple[RegisteredSchema, bool]:
        """A schema, and whether it refers to others."""
        kind = "ids" if isinstance(name, int) else "guids"
        found = self._get(f"schemas/{kind}/{name}", f"schema {name}")
        references: dict[str, str] = {}
        try:
            self._refer(found, references)
        except (LookupError, TypeError) as problem:
            raise OptionError(f"schema registry {self._url}: {problem!r}") from None
        schema = RegisteredSchema(
            text=found["schema"], kind=found.get("schemaType") or "AVRO", references=references
        )
        return schema, bool(found.get("references"))

    def _refer(self, found: Mapping[str, Any], known: dict[str, str]) -> None:
        for each in found.get("references") or ():
            if each["name"] in known:
                continue
            subject = quote(each["subject"], safe="")
            try:
                referred = self._get(f"subjects/{subject}/versions/{each['version']}", each["name"])
            except NoSuchSchema:
                continue  # Whoever parses the schema reports the missing reference.
            known[each["name"]] = referred["schema"]
            self._refer(referred, known)

    def _get(self, path: str, what: str) -> dict[str, Any]:
        if not self._url:
            raise OptionError(
                "lake.table.*.format=avro and protobuf need a schema registry: set the brokers' schema.registry.url, "
                "or name it (--schema-registry)"
            )
        request = Request(f"{self._url}/{path}")  # noqa: S310 (checked above)
        if self._user_info:
            token = base64.b64encode(self._user_info.encode()).decode()
            # Not sent to a host that the registry redirects to.
            request.add_unredirected_header("Authorization", f"Basic {token}")
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                found = json.load(answer)
            if not isinstance(found["schema"], str):
                raise TypeError(found["schema"])
        except HTTPError as problem:
            if problem.code == NOT_FOUND:
                raise NoSuchSchema(f"the registry has no {what}") from None
            if problem.code == FORBIDDEN:
                raise NoSuchSchema(f"the registry forbids this user to read {what}") from None
            raise OptionError(f"schema registry {self._url}: {problem}") from None
        except (URLError, OSError, HTTPException, ValueError, LookupError, TypeError) as problem:
            raise OptionError(f"schema registry {self._url}: {problem!r}") from None
        return dict(found)


def registry_of(cluster: Cluster) -> str:
    """The URL that the brokers name; empty if they name none, or do not tell this user."""
    try:
        return cluster.broker_setting(REGISTRY_URL) or ""
    except KafkaError as refusal:
        if refusal.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return ""


def registry_at(url: str) -> SchemaRegistry:
    """The registry at a URL, with user and password from the environment."""
    return SchemaRegistry(url, os.environ.get(USER_INFO, ""))
