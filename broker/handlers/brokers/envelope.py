"""Shell: Envelope 0: a client's request that another broker forwards to the controller (KIP-590).

- Opened by the active controller only: NOT_CONTROLLER elsewhere, and the sender looks for the controller.
- Only requests for the controller's own state may be inside, else INVALID_REQUEST. Such a request is served as if it
  had come here directly, in its own version; its own errors are inside the answer.
- It acts for the principal in the envelope, whom the sender has authenticated; without one, for the sender itself.
  PRINCIPAL_DESERIALIZATION_FAILURE if the bytes are not a principal.

Versions: 0.
Left out: nothing.
"""

from __future__ import annotations

import ipaddress

from broker.principal import Principal, decode_principal
from broker.registry import REGISTRY, RequestContext, serves
from broker.transport.addresses import one_text
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
from kafka_ds.protocol.frame import decode_request_header
from kafka_ds.protocol.messages import EnvelopeRequest, EnvelopeResponse


@serves(EnvelopeRequest, versions="0", internal=True, pipelined=True)
async def envelope(request: EnvelopeRequest, context: RequestContext) -> EnvelopeResponse:
    """Serve the request inside the envelope."""
    broker = context.broker
    if not broker.metadata_driver.is_active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    # A handler may write into its request.
    frame = memoryview(bytearray(request.request_data))
    assert context.serve_enveloped is not None, "an envelope comes from another broker"
    principal = _principal(request, context)
    try:
        header, _ = decode_request_header(frame)
        served = REGISTRY.get(header.api_key)
        if served is None or not served.forwarded:
            message = f"API key {header.api_key} is not sent on"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    except MalformedFrame as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    host = _host(request.client_host_address)
    data = await context.serve_enveloped(frame, host, context.listener, principal)
    return EnvelopeResponse(response_data=data)


def _principal(request: EnvelopeRequest, context: RequestContext) -> Principal:
    if request.request_principal is None:
        return context.principal
    try:
        return decode_principal(request.request_principal)
    except MalformedFrame as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None


def _host(address: bytes) -> str:
    try:
        return one_text(str(ipaddress.ip_address(bytes(address))))
    except ValueError:
        return "unknown"
