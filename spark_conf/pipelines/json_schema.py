"""Pure: a JSON Schema → the kinds of its fields, in the notation of `schema_of_variant`.

A field without one definite type (several types, `anyOf` of several, recursion) is left out: its kind is inferred from
the values. Nothing is validated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote

_SCALARS: Final = {
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "STRING",
}
_ALTERNATIVES: Final = ("anyOf", "oneOf")
_Path = tuple[str, ...]
_T = TypeVar("_T")


def kinds_of_fields(text: str, references: Mapping[str, str]) -> dict[str, str]:
    """The kind of each field of an object with this schema. Raises ValueError."""
    documents = {"": json.loads(text)}
    documents |= {name: json.loads(each) for name, each in references.items()}
    found = _JsonSchemaReader(documents).fields(documents[""], ("", "#"))
    return {} if found is None else found


class _JsonSchemaReader:
    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents

    def fields(self, schema: Any, path: _Path) -> dict[str, str] | None:
        """The fields of an object schema; None for another. `path` has the document and the references on the way."""
        if not isinstance(schema, dict):
            return None
        if "$ref" in schema:
            return self._at(schema["$ref"], path, self.fields)
        found: dict[str, str] = {}
        is_object = _type(schema) == "object" or "properties" in schema
        for part in _list(schema.get("allOf")):
            of_part = self.fields(part, path)
            is_object |= of_part is not None
            found |= of_part or {}
        for name, each in _mapping(schema.get("properties")).items():
            kind = self._kind(each, path)
            if kind is not None:
                found[name] = kind
        if not is_object and (one := _alternative(schema)) is not None:
            return self.fields(one, path)
        return found if is_object else None

    def _kind(self, schema: Any, path: _Path) -> str | None:
        if not isinstance(schema, dict):
            return None
        if "$ref" in schema:
            return self._at(schema["$ref"], path, self._kind)
        kind = _type(schema)
        if kind in _SCALARS:
            return _SCALARS[kind]
        if kind == "array":
            element = self._kind(schema.get("items"), path)
            return None if element is None else f"ARRAY<{element}>"
        fields = self.fields(schema, path)
        if fields is not None:
            inner = ", ".join(f"{_quoted(name)}: {each}" for name, each in sorted(fields.items()))
            return f"OBJECT<{inner}>" if fields else None
        one = _alternative(schema)
        return None if one is None else self._kind(one, path)

    def _at(
        self, reference: Any, path: _Path, read: Callable[[Any, _Path], _T | None]
    ) -> _T | None:
        document, _, fragment = str(reference).partition("#")
        name = document or path[0]
        whole = f"{name}#{fragment}"
        if name not in self._documents or whole in path:
            return None
        schema = self._documents[name]
        for word in filter(None, fragment.split("/")):
            key = unquote(word).replace("~1", "/").replace("~0", "~")
            schema = _mapping(schema).get(key)
        return read(schema, (name, *path[1:], whole))


def _type(schema: Mapping[str, Any]) -> str | None:
    """The only type apart from null."""
    names = [each for each in _list(schema.get("type")) if each != "null"]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


def _alternative(schema: Mapping[str, Any]) -> Any:
    """The only alternative apart from null."""
    for word in _ALTERNATIVES:
        given = [each for each in _list(schema.get(word)) if each != {"type": "null"}]
        if len(given) == 1:
            return given[0]
    return None


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _mapping(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, dict) else {}


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
