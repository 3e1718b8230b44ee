"""Pure: derives the error response to a request from the declarations of both.

Every `error_code` has the error, and every `error_message` the message. A list that is declared `of` a list of the
request has an element for each of its elements, with their names and ids; other lists are empty. The response itself
has a name or an id of the request where that has no default. Other fields without a default get Kafka's value for
"none": an empty string, no bytes, or -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import RESPONSES
from kafka_ds.protocol.plan import ArrayPlan, PlannedField, StructPlan, plan, whole_plan
from kafka_ds.protocol.types import MISSING, NO_UUID, api_key_of, fields_of, is_struct

E = TypeVar("E")
# The defaults of names and ids: each is empty in versions that have the other.
_NO_NAME = (MISSING, "", NO_UUID)
_NOTHING = {"string": "", "bytes": b"", "records": b"", "uuid": NO_UUID, "boolean": False}


def refusal_of(request: Any, version: int, code: ErrorCode, message: str | None = None) -> Any:
    """The response to a request that failed as a whole; None if the client expects no response."""
    if not getattr(request, "is_answered", True):
        return None
    return _refused(_response(type(request), version), request, code, message, named=(MISSING,))


def refusals_of(
    request: type,
    field: str,
    items: Iterable[Any],
    version: int,
    code: ErrorCode,
    message: str | None = None,
) -> list[Any]:
    """The response's elements with the error for these elements of a list of the request."""
    return _elements(_answer_of(request, field, version), items, code, message)


def refusal(cls: type[E], source: Any, code: ErrorCode, message: str | None = None) -> E:
    """A response's element with the error for `source`: an element of the request, or its name."""
    declared: type = cls
    element: E = _refused(whole_plan(declared), source, code, message)
    return element


def answer_of(request: type, field: str, version: int) -> str:
    """The name of the response's list with the results for this list of the request."""
    return _answer_of(request, field, version).name


def without_elements(request: type, version: int) -> Any:
    """The response without an error and with empty lists."""
    response = _response(request, version)
    return response.cls(
        **{each.name: _nothing(each) for each in response.fields if each.default is MISSING}
    )


def _response(request: type, version: int) -> StructPlan:
    return plan(RESPONSES[api_key_of(request)], version)


def _answer_of(request: type, field: str, version: int) -> PlannedField:
    found = [each for each in _response(request, version).fields if field in each.of]
    assert len(found) == 1, f"{request.__name__}.{field} has {len(found)} answers"
    return found[0]


def _refused(
    struct: StructPlan,
    source: Any,
    code: ErrorCode,
    message: str | None,
    *,
    named: tuple[Any, ...] = _NO_NAME,
) -> Any:
    """An instance with the error for `source`: a struct of the request, or a name in a list of names.

    Names and ids of the source are those of fields whose defaults are in `named`.
    """
    given: dict[str, Any] = {}
    name = None if is_struct(type(source)) else _name_of(struct)
    for field in struct.fields:
        if _is_error(field):
            given[field.name] = code
        elif field.name == "error_message":
            given[field.name] = message
        elif field.of and isinstance(field.kind, ArrayPlan):
            given[field.name] = _elements(field, _items(source, field.of), code, message)
        elif field.name == name:
            given[field.name] = source
        elif field.default in named:
            found = _named(field, source)
            is_none = found is MISSING or (found is None and not field.nullable)
            given[field.name] = _nothing(field) if is_none else found
    return struct.cls(**given)


def _elements(
    field: PlannedField, items: Iterable[Any], code: ErrorCode, message: str | None
) -> list[Any]:
    assert isinstance(field.kind, ArrayPlan) and isinstance(field.kind.element, StructPlan)
    struct = field.kind.element
    elements = [_refused(struct, item, code, message) for item in items]
    if field.unique:
        name = _name_of(struct)
        return list({getattr(each, name): each for each in elements}.values())
    return elements


def _items(source: Any, paths: Iterable[str]) -> Iterator[Any]:
    """The elements of these lists of the request, in order."""
    for path in paths:
        first, _, rest = path.partition(".")
        for item in getattr(source, first) or ():
            if rest:
                yield from _items(item, (rest,))
            else:
                yield item


def _name_of(struct: StructPlan) -> str:
    """The field that identifies an element: the first that is not an error."""
    return next(f.name for f in struct.fields if not _is_error(f) and f.name != "error_message")


def _named(field: PlannedField, source: Any) -> Any:
    """The value of the corresponding field of the request, if that is a name or an id; else MISSING."""
    name = field.of[0] if field.of else field.name
    if not isinstance(field.kind, ArrayPlan) and is_struct(type(source)):
        for declared in fields_of(type(source)):
            if declared.name == name and declared.default in (*_NO_NAME, None):
                return getattr(source, name)
    return MISSING


def _nothing(field: PlannedField) -> Any:
    if isinstance(field.kind, ArrayPlan):
        return None if field.nullable else []
    if isinstance(field.kind, StructPlan):
        return None
    return _NOTHING.get(field.kind.name, -1)


def _is_error(field: PlannedField) -> bool:
    """Whether it is the error code of its struct, which has another name in AddPartitionsToTxn."""
    is_other = field.name.endswith("_error_code") and field.default is MISSING
    return field.name == "error_code" or is_other
