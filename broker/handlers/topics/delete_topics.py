"""Shell: DeleteTopics 1-6: deletes topics, by name or by id.

- One request is one decision in one commit. When it is answered the logs can no longer be read (their files go
  file.delete.delay.ms later), parked fetches have been woken, and the table is being cleared in the background.
- Unknown names: UNKNOWN_TOPIC_OR_PARTITION; unknown ids: UNKNOWN_TOPIC_ID; neither name nor id, both, or the same topic
  twice: INVALID_REQUEST.
- With delete.topic.enable=false: TOPIC_DELETION_DISABLED, before version 3 INVALID_REQUEST.

Versions: 3 TOPIC_DELETION_DISABLED; 4 flexible; 5 error messages; 6 ids (KIP-516).
Left out: nothing.
"""

from __future__ import annotations

from broker.controller.controller import TopicResult
from broker.handlers.time_limit import within
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse
from kafka_ds.protocol.messages.topics import DeletableTopicResult
from kafka_ds.protocol.types import NO_UUID

FIRST_VERSION_WITH_DISABLED = 3


@serves(DeleteTopicsRequest, versions="1-6", forwarded=True)
async def delete_topics(
    request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Delete the topics, or say why not."""
    broker = context.broker
    if not broker.config.delete_topic_enable:
        old = context.header.api_version < FIRST_VERSION_WITH_DISABLED
        code = ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED
        raise KafkaError(code, "Topic deletion is disabled.")
    results = await within(
        request.timeout_ms, broker.metadata_driver.delete_topics(_topics(request))
    )
    return DeleteTopicsResponse(responses=[_result(result) for result in results])


def _topics(request: DeleteTopicsRequest) -> list[tuple[str | None, bytes]]:
    if request.topics:
        return [(topic.name, topic.topic_id) for topic in request.topics]
    return [(name, NO_UUID) for name in request.topic_names]


def _result(result: TopicResult) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=result.error,
        error_message=result.message,
    )
