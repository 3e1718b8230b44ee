"""Pure: what is known of a client, by the names that subscriptions match (KIP-714)."""

from __future__ import annotations

from broker.config.client_metrics import CLIENT_ATTRIBUTES
from broker.registry import RequestContext
from kafka_ds.protocol.types import uuid_text


def attributes_of(instance_id: bytes, context: RequestContext) -> dict[str, str]:
    """The attributes of the client that sent this request."""
    client = context.client
    values = (
        uuid_text(instance_id),
        context.header.client_id or "",
        client.software_name,
        client.software_version,
        context.client_host,
        str(client.port),
    )
    return dict(zip(CLIENT_ATTRIBUTES, values, strict=True))
