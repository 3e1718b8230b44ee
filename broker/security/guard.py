"""Shell: authorizes and throttles a request before and after its handler.

- The table in `access` decides before the handler runs; only responses are filtered later. If every element is denied,
  the handler is not called.
- A denial looks like the API's own errors and does not reveal whether the resource exists.
- With quotas, `throttle` counts the usage, and the response carries the throttle time.
- Without an authorizer and without quotas this costs one check for each.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from broker.metadata.acls import AclOperation, ResourceType
from broker.security.authorization.access import (
    ACCESS,
    CLUSTER,
    CODES,
    AuthorizeAll,
    AuthorizeRequest,
    FilterRequest,
    FilterResponse,
    Resource,
)
from broker.security.quotas.throttle import Throttling, is_exempt
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.refusal import answer_of, refusals_of, without_elements

if TYPE_CHECKING:
    from broker.registry import RequestContext, Served
    from broker.security.authorization.authorizer import Authorizer


def guarded(
    served: Served,
    request: Any,
    context: RequestContext,
    size_bytes: int = 0,
) -> Any | None | Awaitable[Any | None]:
    """Call the handler with the allowed part of a request; the response has errors for the rest.

    Raises KafkaError if the whole request is denied.
    """
    security = context.broker.security
    authorizer, quotas = security.authorizer, security.quotas
    if not quotas.is_limiting or is_exempt(served, request):
        if authorizer is None:
            return served.handler(request, context)
        return _GuardedRequest(served, context, authorizer).handle(request)
    throttling = Throttling(quotas, served, context, size_bytes)
    started_s = perf_counter()
    try:
        result = _GuardedRequest(served, context, authorizer, throttling).handle(request)
    except KafkaError as error:
        raise throttling.refused(error, perf_counter() - started_s) from None
    except BaseException:
        throttling.give_back()
        raise
    worked_s = perf_counter() - started_s
    if isinstance(result, Awaitable):
        return _throttled_later(throttling, request, result, worked_s)
    return throttling.answered(request, result, worked_s)


async def _throttled_later(
    throttling: Throttling, request: Any, result: Awaitable[Any], worked_s: float
) -> Any:
    try:
        response = await result
    except KafkaError as error:
        raise throttling.refused(error, worked_s) from None
    except BaseException:
        throttling.give_back()
        raise
    return throttling.answered(request, response, worked_s)


class _GuardedRequest:
    """Applies the rules of its API to one request."""

    def __init__(
        self,
        served: Served,
        context: RequestContext,
        authorizer: Authorizer | None,
        throttling: Throttling | None = None,
    ) -> None:
        self._throttling = throttling
        self._served = served
        self._context = context
        self._authorizer = authorizer
        self._refused: list[tuple[str, list[Any]]] = []
        self._shown: list[FilterResponse] = []

    def handle(self, request: Any) -> Any:
        """Apply the rules, then call the handler."""
        request, answer = self._without_refused(request)
        if answer is None and self._throttling is not None:
            request, answer = self._count_mutations(self._throttling, request)
        if answer is not None:
            return self._finish(answer)
        result = self._served.handler(request, self._context)
        if not self._refused and not self._shown:
            return result
        return self._later(result) if isinstance(result, Awaitable) else self._finish(result)

    def _without_refused(self, request: Any) -> tuple[Any, Any]:
        """The request without denied elements; if none is left, also a response that lacks only their errors."""
        version = self._context.header.api_version
        empty = None
        for rule in ACCESS[self._served.name] if self._authorizer is not None else ():
            if isinstance(rule, FilterResponse):
                self._shown.append(rule)
            elif isinstance(rule, AuthorizeRequest):
                if rule.when(version):
                    self._check(rule, request)
            elif isinstance(rule, AuthorizeAll):
                for resource in rule.resources(request):
                    if not self._may(rule.operation, resource, None):
                        raise KafkaError(CODES[resource[0]])
            elif rule.when(version) and getattr(request, rule.field):
                request, answer = self._remove_denied(rule, request)
                empty = answer if answer is not None else empty
        return request, empty

    def _count_mutations(self, throttling: Throttling, request: Any) -> tuple[Any, Any]:
        """The request without elements above the mutation quota; if none is left, also a response as above."""
        counted = throttling.mutations(request)
        if counted is None or not counted[2]:
            return request, None
        field, allowed, refused = counted
        error = KafkaError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
        )
        empty = self._refuse(request, field, refused, error)
        return _with(request, field, allowed), None if allowed else empty

    async def _later(self, result: Awaitable[Any]) -> Any:
        return self._finish(await result)

    def _finish(self, response: Any) -> Any:
        if response is None:
            # acks=0 has no response: as in Kafka, closing the connection tells the client.
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for rule in self._shown:
            shown = [
                item
                for item in getattr(response, rule.answers)
                if self._may(
                    rule.operation,
                    (rule.kind, getattr(item, rule.name) or ""),
                    rule.or_else,
                    log_if_denied=False,
                )
            ]
            setattr(response, rule.answers, shown)
        for field, refused in self._refused:
            setattr(response, field, [*getattr(response, field), *refused])
        return response

    def _may(
        self,
        operation: AclOperation,
        resource: Resource,
        or_else: AclOperation | None,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        assert self._authorizer is not None, "rules are applied only with an authorizer"
        allows, context = self._authorizer.allows, self._context
        who, host = context.principal, context.client_host
        if or_else is not None and allows(who, host, or_else, *CLUSTER, log_if_denied=False):
            return True
        return allows(who, host, operation, *resource, log_if_denied=log_if_denied)

    def _check(self, rule: AuthorizeRequest, request: Any) -> None:
        resource = rule.resource(request)
        if resource is None:
            return
        context, decides = self._context, self._authorizer
        if rule.or_any_topic and decides is not None:
            topic = ResourceType.TOPIC
            if decides.allows_any(
                context.principal, context.client_host, AclOperation.WRITE, topic
            ):
                return
        if self._may(rule.operation, resource, rule.or_else):
            return
        raise KafkaError(rule.code or CODES[resource[0]])

    def _remove_denied(self, rule: FilterRequest, request: Any) -> tuple[Any, Any]:
        """The request without denied elements; if none is left, also a response that lacks only their errors."""
        image = self._context.broker.metadata
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
            empty = self._refuse(request, rule.field, items, KafkaError(code))
        if rule.all_or_none and left:
            error = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED)
            self._refuse(request, rule.field, left, error)
            left = []
        rest = _with(request, rule.field, left)
        return rest, empty if not left else None

    def _refuse(self, request: Any, field: str, items: list[Any], error: KafkaError) -> Any:
        """Remember errors for these elements; returns a response without them. Raises the error if acks=0."""
        cls, version = type(request), self._context.header.api_version
        if not getattr(request, "is_answered", True):
            raise error
        refusals = refusals_of(cls, field, items, version, error.code, error.message)
        self._refused.append((answer_of(cls, field, version), refusals))
        return without_elements(cls, version)


def _with(request: Any, field: str, items: list[Any]) -> Any:
    twin = copy.copy(request)
    setattr(twin, field, items)
    return twin
