"""Pure: an Avro schema with its references inlined, each where its name is first used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_PRIMITIVE: Final = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_NAMED: Final = {"record", "error", "enum", "fixed"}


def with_references(text: str, references: Mapping[str, str]) -> str:
    """The self-contained schema; undefined names stay. Raises ValueError."""
    if not references:
        return text
    others = {name: json.loads(each) for name, each in references.items()}
    for each in list(others.values()):
        if isinstance(each, dict) and each.get("type") in _NAMED:
            others.setdefault(_full_name(each, "")[0], each)
    return json.dumps(_WriterSchema(others).whole(json.loads(text), ""))


class _WriterSchema:
    def __init__(self, others: Mapping[str, Any]) -> None:
        self._others = others
        self._defined: set[str] = set()

    def whole(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, list):
            return [self.whole(each, namespace) for each in schema]
        if not isinstance(schema, dict):
            raise ValueError(f"{schema!r} is not an Avro schema")
        kind = schema.get("type")
        if kind in _NAMED:
            name, namespace = _full_name(schema, namespace)
            self._defined.add(name)
            # Explicit, because the enclosing schema may have another namespace.
            written = {**schema, "namespace": namespace}
            if "fields" in schema:
                written["fields"] = [
                    {**each, "type": self.whole(each["type"], namespace)}
                    for each in schema["fields"]
                ]
            return written
        inner = {"array": "items", "map": "values"}.get(str(kind), "type")
        return {**schema, inner: self.whole(schema.get(inner), namespace)}

    def _named(self, name: str, namespace: str) -> Any:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if name in _PRIMITIVE or full in self._defined:
            return name
        for each in (full, name):
            if each in self._others and each not in self._defined:
                return self.whole(self._others[each], "")
        return name


def _full_name(schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """The full name of a named schema, and its namespace."""
    name = str(schema.get("name"))
    own = name.rpartition(".")[0] if "." in name else str(schema.get("namespace", namespace))
    return name if "." in name or not own else f"{own}.{name}", own
