"""Shell: DescribeConfigs 1-4: the settings of brokers, topics, groups and subscriptions, with where each comes from.

- Topics by name, brokers by their id; a broker with an empty name means the settings that were changed for all brokers
  at once, and nothing else.
- The loggers of this broker by its id, with the level of each (KIP-412).
- Groups by their id, whether or not there is such a group (KIP-848).
- Subscriptions of client metrics by their name, whether or not there is such a one (KIP-714).
- Null or no keys ask for all settings, a list for those with these names; unknown names are skipped, as in Kafka.
- Sources and synonyms (v1+), the strongest first; types and documentation (v3+) on request.
- A broker's settings include `lake.uri`, as an absolute path: a Spark job asks here for the place of a topic's table.
- Unknown topic: UNKNOWN_TOPIC_OR_PARTITION; another broker, another kind of resource: INVALID_REQUEST.

Versions: 2 is 1; 3 types and documentation (KIP-569); 4 flexible.
Left out: nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.config.describe import (
    DescribedConfig,
    describe_all_brokers,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from broker.handlers.configs.loggers import describe_loggers
from broker.metadata.topic_names import in_force, why_illegal
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import DescribeConfigsRequest, DescribeConfigsResponse
from kafka_ds.protocol.messages.configs import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kafka_ds.protocol.refusal import refusal

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker


@serves(DescribeConfigsRequest, versions="1-4")
def describe_configs(
    request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """Describe the settings of each resource."""
    results = []
    for resource in request.resources:
        try:
            described = _describe(resource, context)
        except KafkaError as error:
            message = error.message or error.code.name
            results.append(refusal(DescribeConfigsResult, resource, error.code, message))
            continue
        wanted = resource.configuration_keys
        configs = [
            _result(each, request) for each in described if not wanted or each.name in wanted
        ]
        results.append(
            DescribeConfigsResult(
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return DescribeConfigsResponse(results=results)


def _describe(
    resource: DescribeConfigsResource, context: RequestContext
) -> Sequence[DescribedConfig]:
    broker = context.broker
    name = resource.resource_name
    if resource.resource_type == TOPIC_RESOURCE:
        return _describe_topic(broker, name)
    if resource.resource_type == BROKER_RESOURCE:
        if not name:
            return describe_all_brokers(broker.config)
        if name != str(broker.config.node_id):
            message = f"Unexpected broker id, expected {broker.config.node_id} or empty string, but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return [_for_elsewhere(each) for each in describe_broker(broker.config)]
    if resource.resource_type == GROUP_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(broker.config, broker.metadata.group_configs.get(name, {}))
    if resource.resource_type == CLIENT_METRICS_RESOURCE:
        if not name:
            message = "Client metrics subscription name must not be empty"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return describe_client_metrics(broker.metadata.client_metrics_configs.get(name, {}))
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        return describe_loggers(broker.config.node_id, name)
    message = f"Unsupported resource type: {resource.resource_type}"
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _describe_topic(broker: KafkaBroker, name: str) -> Sequence[DescribedConfig]:
    illegal = why_illegal(name)
    if illegal:
        message = f"Topic name is invalid: {illegal}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    topic = broker.metadata.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return describe_topic(broker.config, in_force(topic.name, topic.configs))


def _for_elsewhere(described: DescribedConfig) -> DescribedConfig:
    """A folder is relative to the broker's working directory, which the client does not share."""
    uri = described.value
    if described.name != "lake.uri" or not uri or "://" in uri:
        return described
    return replace(described, value=os.path.abspath(uri))


def _result(
    described: DescribedConfig, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    synonyms = [
        DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
        for each in (described.synonyms if request.include_synonyms else ())
    ]
    return DescribeConfigsResourceResult(
        name=described.name,
        value=described.value,
        read_only=described.is_read_only,
        config_source=described.source,
        is_sensitive=described.is_sensitive,
        synonyms=synonyms,
        config_type=described.kind,
        documentation=(described.documentation or None) if request.include_documentation else None,
    )
