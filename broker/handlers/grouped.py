"""Pure: what the handlers of groups have in common: who asks, and what is done with an answer when it comes.

Rules of this file: no handler is registered here. The coordinator answers at once or by a future; a handler that
changes the answer does so in one place for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from broker.cluster.acls import Operation, ResourceType
from broker.cluster.image import MetadataImage
from broker.groups.values import Client, sees_all
from broker.registry import RequestContext
from broker.security.asking import authorizer_of, may
from kafka_ds.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")


def client_of(context: RequestContext) -> Client:
    """Who asks, as members are described: Kafka shows the address with a slash."""
    header = context.header
    sees = sees_all
    if authorizer_of(context) is not None:
        sees = partial(may, context, Operation.DESCRIBE, ResourceType.TOPIC)
    return Client(header.client_id or "", f"/{context.client_host}", header.api_version, sees)


def then(answer: Any, finish: Callable[[Any], T]) -> T | Awaitable[T]:
    """`finish` applied to an answer, or to what will be one."""
    if isinstance(answer, Awaitable):
        return _later(answer, finish)
    return finish(answer)


async def _later(answer: Awaitable[Any], finish: Callable[[Any], T]) -> T:
    return finish(await answer)


async def settled(ask: Callable[[], Any]) -> Any:
    """The answer to `ask`, or the KafkaError in its place."""
    try:
        answer = ask()
        return await answer if isinstance(answer, Awaitable) else answer
    except KafkaError as error:
        return error


def topic_of(
    image: MetadataImage, name: str, topic_id: bytes, *, by_id: bool
) -> tuple[str, bytes] | ErrorCode:
    """Name and id of a topic that is named by either; the error where there is none."""
    topic = image.topics_by_id.get(topic_id) if by_id else image.topics.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return topic.name, topic.topic_id
