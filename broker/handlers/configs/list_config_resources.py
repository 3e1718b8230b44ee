"""Shell: ListConfigResources 0-1: which brokers, topics, groups and subscriptions have settings? (KIP-1142)

- Without types: all types of this version. With an unknown type: UNSUPPORTED_VERSION, and nothing else.
- Brokers (and broker loggers) are those with the request's listener, topics are all, groups and
  subscriptions of client metrics those with settings of their own.

Versions: 0 is ListClientMetricsResources and asks for client metrics only; 1 types.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.handlers.common import brokers_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ListConfigResourcesRequest, ListConfigResourcesResponse
from kafka_ds.protocol.messages.configs import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
)

FIRST_VERSION_WITH_TYPES = 1
# In the order of Kafka's answers.
TYPES = (
    GROUP_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
)


@serves(ListConfigResourcesRequest, versions="0-1")
def list_config_resources(
    request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """Name the resources of these types."""
    has_types = context.header.api_version >= FIRST_VERSION_WITH_TYPES
    served = TYPES if has_types else (CLIENT_METRICS_RESOURCE,)
    wanted = request.resource_types or served
    if not set(wanted) <= set(served):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in served
            if kind in wanted
            for name in _names(kind, context)
        ]
    )


def _names(kind: int, context: RequestContext) -> Iterable[str]:
    image = context.broker.metadata
    if kind == TOPIC_RESOURCE:
        return image.topics
    if kind == GROUP_RESOURCE:
        return image.group_configs
    if kind == CLIENT_METRICS_RESOURCE:
        return image.client_metrics_configs
    if kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return [str(each.broker_id) for each, _, _ in brokers_of(image, context.listener)]
    raise AssertionError(f"no type of resource: {kind}")
