"""Shell: CreateTopics 2-7: creates topics, with their partitions and settings; each topic has its own result.

- One request is one decision in one commit; a topic takes appends when it is answered.
- Names: INVALID_TOPIC_EXCEPTION for names that Kafka refuses, and for names that differ from another topic's only in
  '.' and '_' or in case (a topic is a folder in the lake); TOPIC_ALREADY_EXISTS; the same name twice in a request, or a
  name of the broker's own tables: INVALID_REQUEST.
- -1 asks for num.partitions and default.replication.factor (also in the versions before KIP-464). Otherwise
  INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR (more than there are brokers), POLICY_VIOLATION (more than 10,000
  partitions in a request, as in Kafka).
- Assignments replace both numbers, which then must be -1: partitions from 0 on without a gap, equally many replicas
  each, brokers that exist and are named once, else INVALID_REPLICA_ASSIGNMENT.
- Settings: INVALID_CONFIG with a text that names the key; null is not a value. A client that may not describe the
  settings of a new topic gets TOPIC_AUTHORIZATION_FAILED in place of them and of the topic's numbers (KIP-525).
- With validate_only the answer is the same and nothing is created.
- REQUEST_TIMED_OUT if the decision is not durable in time; it may become durable later (Kafka).

Versions: 4 partitions and replicas may be -1 (KIP-464); 5 the settings of the new topic in the answer (KIP-525);
7 its id (KIP-516).
Left out: policies.
"""

from __future__ import annotations

from broker.config.describe import describe_topic
from broker.config.loader import BrokerConfig
from broker.controller.controller import NewTopic, TopicResult
from broker.handlers.time_limit import within
from broker.metadata.acls import AclOperation, ResourceType
from broker.registry import RequestContext, serves
from broker.security.authorization.permissions import may
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from kafka_ds.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
)


@serves(CreateTopicsRequest, versions="2-7", forwarded=True)
async def create_topics(
    request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create the topics, or say why not."""
    broker = context.broker
    results = await within(
        request.timeout_ms,
        broker.metadata_driver.create_topics(
            [_wanted(topic) for topic in request.topics], validate_only=request.validate_only
        ),
    )
    return CreateTopicsResponse(topics=[_answer(result, context) for result in results])


def _wanted(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            (each.partition_index, tuple(each.broker_ids)) for each in topic.assignments
        ),
        configs=tuple((config.name, config.value) for config in topic.configs),
    )


def _answer(result: TopicResult, context: RequestContext) -> CreatableTopicResult:
    name, topic = result.name or "", ResourceType.TOPIC
    if result.error or may(
        context, AclOperation.DESCRIBE_CONFIGS, topic, name, log_if_denied=False
    ):
        return _result(result, context.broker.config)
    return CreatableTopicResult(
        name=name,
        topic_id=result.topic_id,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )


def _result(result: TopicResult, config: BrokerConfig | None) -> CreatableTopicResult:
    if result.error or config is None:
        return CreatableTopicResult(
            name=result.name or "",
            error_code=result.error,
            error_message=result.message,
        )
    return CreatableTopicResult(
        name=result.name or "",
        topic_id=result.topic_id,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=[
            CreatableTopicConfigs(
                name=each.name,
                value=each.value,
                read_only=each.is_read_only,
                config_source=each.source,
                is_sensitive=each.is_sensitive,
            )
            for each in describe_topic(config, result.configs)
        ],
    )
