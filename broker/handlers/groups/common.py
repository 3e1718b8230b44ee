"""Pure: what the handlers of groups share: the asking client, and the topic that is meant.

No handler is registered here.
"""

from __future__ import annotations

from functools import partial

from broker.coordinator.group.values import Client, sees_all
from broker.metadata.image import MetadataImage
from broker.registry import RequestContext
from broker.security.authorization.permissions import authorizer_of, sees
from kafka_ds.protocol.errors import ErrorCode


def client_of(context: RequestContext) -> Client:
    """The client as members are described: Kafka shows the address with a slash."""
    header = context.header
    shown = sees_all if authorizer_of(context) is None else partial(sees, context)
    return Client(header.client_id or "", f"/{context.client_host}", header.api_version, shown)


def topic_of(
    image: MetadataImage, name: str, topic_id: bytes, *, by_id: bool
) -> tuple[str, bytes] | ErrorCode:
    """Name and id of a topic that is named by either; the error where there is none."""
    topic = image.topics_by_id.get(topic_id) if by_id else image.topics.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return topic.name, topic.topic_id
