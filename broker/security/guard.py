"""Shell: a request before its handler: what its sender may not do is refused, what is left is done.

Rules of this file:
- Everything is decided before the handler sees the request, by the table (`access`), but for what is left out of an
  answer. Where nothing is left the handler is not called.
- A refusal looks as the API's own errors do: the same functions make it. One that is refused learns nothing else: not
  whether what it asked for exists.
- Without an authorizer this is one look for it.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from broker.security.access import ACCESS, CLUSTER, CODES, Parts, Resource, Shown, Whole
from broker.security.acls import Operation, ResourceType
from broker.security.asking import authorizer_of
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages import RESPONSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.net.registry import RequestContext, Served
    from broker.security.authorizer import Authorizer

    # The response to a request that failed as a whole: (served, request, version, code, message).
    FailureOf = Callable[[Served, Any, int, ErrorCode, str | None], Any]


def guarded(
    served: Served, request: Any, context: RequestContext, failure_of: FailureOf
) -> Any | None | Awaitable[Any | None]:
    """What the handler answers to what is allowed of this request, with refusals of the rest.

    Raises KafkaError where the whole is refused.
    """
    authorizer = authorizer_of(context)
    if authorizer is None:
        return served.handler(request, context)
    return _Guarding(served, context, authorizer, failure_of).handle(request)


class _Guarding:
    """One request on its way through the rules of its API."""

    def __init__(
        self,
        served: Served,
        context: RequestContext,
        authorizer: Authorizer,
        failure_of: FailureOf,
    ) -> None:
        self._served = served
        self._context = context
        self._authorizer = authorizer
        self._failure_of = failure_of
        self._refused: list[tuple[str, list[Any]]] = []
        self._shown: list[Shown] = []

    def handle(self, request: Any) -> Any:
        """Ask the rules, then the handler."""
        version = self._context.header.api_version
        is_empty = False
        for rule in ACCESS[self._served.name]:
            if isinstance(rule, Shown):
                self._shown.append(rule)
            elif isinstance(rule, Whole):
                if rule.when(version):
                    self._check(rule, request)
            elif rule.when(version) and getattr(request, rule.field):
                request, answer = self._take_out(rule, request)
                is_empty = is_empty or answer is not None
        if is_empty:
            return self._finish(answer)
        result = self._served.handler(request, self._context)
        if not self._refused and not self._shown:
            return result
        return self._later(result) if isinstance(result, Awaitable) else self._finish(result)

    async def _later(self, result: Awaitable[Any]) -> Any:
        return self._finish(await result)

    def _finish(self, response: Any) -> Any:
        if response is None:
            # Who awaits no answer learns by the end of the connection that something was refused.
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for rule in self._shown:
            shown = [
                item
                for item in getattr(response, rule.answers)
                if self._may(
                    rule.operation, (rule.kind, getattr(item, rule.name) or ""), rule.or_else
                )
            ]
            setattr(response, rule.answers, shown)
        for field, refused in self._refused:
            setattr(response, field, [*getattr(response, field), *refused])
        return response

    def _may(self, operation: Operation, resource: Resource, or_else: Operation | None) -> bool:
        allows, context = self._authorizer.allows, self._context
        who, host = context.principal, context.client_host
        return allows(who, host, operation, *resource) or (
            or_else is not None and allows(who, host, or_else, *CLUSTER)
        )

    def _check(self, rule: Whole, request: Any) -> None:
        resource = rule.resource(request)
        if resource is None or self._may(rule.operation, resource, rule.or_else):
            return
        context = self._context
        if rule.or_any_topic and self._authorizer.allows_any(
            context.principal, context.client_host, Operation.WRITE, ResourceType.TOPIC
        ):
            return
        raise KafkaError(rule.code or CODES[resource[0]])

    def _take_out(self, rule: Parts, request: Any) -> tuple[Any, Any]:
        """The request without what is refused; where nothing is left, an answer that lacks only that."""
        image = self._context.node.metadata
        left, refused = [], []
        for item in getattr(request, rule.field):
            resource = rule.resource(item, image, request)
            if resource is None or self._may(rule.operation, resource, rule.or_else):
                left.append(item)
            else:
                refused.append((item, CODES[resource[0]]))
        if not refused:
            return request, None
        empty = None
        for code in dict.fromkeys(code for _, code in refused):
            items = [item for item, each in refused if each is code]
            empty = self._refuse(rule, request, items, code)
        if rule.all_or_none and left:
            self._refuse(rule, request, left, ErrorCode.OPERATION_NOT_ATTEMPTED)
            left = []
        rest = _with(request, rule.field, left)
        return rest, empty if not left else None

    def _refuse(self, rule: Parts, request: Any, items: list[Any], code: ErrorCode) -> Any:
        """Note the refusals of these; an answer without any elements."""
        if rule.answer is not None:
            self._refused.append((rule.answers, [rule.answer(item, code) for item in items]))
            return self._empty(rule)
        part = _with(request, rule.field, items)
        version = self._context.header.api_version
        response = self._failure_of(self._served, part, version, code, None)
        if response is None:
            raise KafkaError(code)
        self._refused.append((rule.answers, list(getattr(response, rule.answers))))
        setattr(response, rule.answers, [])
        return response

    def _empty(self, rule: Parts) -> Any:
        return RESPONSES[self._served.api_key](**{rule.answers: []})


def _with(request: Any, field: str, items: list[Any]) -> Any:
    twin = copy.copy(request)
    setattr(twin, field, items)
    return twin
