"""Shell: a request of this broker to itself: the same handler that serves others, without a socket.

Rules of this file: what comes back is what a peer would have read: a handler's KafkaError is in the response, where the
API has a place for it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from broker.registry import REGISTRY, RequestContext
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.frame import RequestHeader
from kafka_ds.protocol.refusal import refusal_of
from kafka_ds.protocol.types import api_key_of

if TYPE_CHECKING:
    from broker.parts import Parts
    from broker.registry import Dispatching

HERE = "127.0.0.1"


async def handle_locally(node: Parts, dispatcher: Dispatching, request: Any) -> Any:
    """The answer of this broker, in the newest version of the API that it serves."""
    served = REGISTRY.get(api_key_of(type(request)))
    assert served is not None, f"{type(request).__name__} is not served"
    version, config = served.highest, node.config
    header = RequestHeader(served.api_key, version, 0, f"broker-{config.node_id}")
    context = RequestContext(
        header, HERE, config.inter_broker_listener, node, dispatcher=dispatcher
    )
    try:
        result = served.handler(request, context)
        return await result if isinstance(result, Awaitable) else result
    except KafkaError as error:
        response = refusal_of(request, version, error.code, error.message)
        if response is None:
            raise
        return response
