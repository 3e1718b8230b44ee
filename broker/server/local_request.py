"""Shell: a request of this broker to itself: calls the handler without a socket.

The result is what a peer would read: a handler's KafkaError is in the response if the API has a field for it. With
`on_behalf_of` the request is authorized as on that client's connection.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from broker.registry import REGISTRY, ClientInformation, RequestContext
from broker.security.guard import guarded
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.frame import RequestHeader
from kafka_ds.protocol.refusal import refusal_of
from kafka_ds.protocol.types import api_key_of

if TYPE_CHECKING:
    from broker.server.dispatch import Dispatcher

HERE = "127.0.0.1"


async def handle_locally(
    dispatcher: Dispatcher,
    request: Any,
    on_behalf_of: RequestContext | None = None,
) -> Any:
    """This broker's response to a request, in the highest version it supports, authorized for `on_behalf_of`."""
    served = REGISTRY.get(api_key_of(type(request)))
    assert served is not None, f"{type(request).__name__} is not supported"
    version, config = served.highest, dispatcher.broker.config
    header = RequestHeader(served.api_key, version, 0, f"broker-{config.node_id}")
    context = RequestContext(
        header,
        HERE,
        config.inter_broker_listener,
        dispatcher.broker,
        ClientInformation(),
        serve_enveloped=dispatcher.serve_enveloped,
    )
    try:
        if on_behalf_of is None:
            result = served.handler(request, context)
        else:
            context = on_behalf_of._replace(
                header=header, serve_enveloped=dispatcher.serve_enveloped
            )
            result = guarded(served, request, context)
        return await result if isinstance(result, Awaitable) else result
    except KafkaError as error:
        response = refusal_of(request, version, error.code, error.message)
        if response is None:
            raise
        return response
