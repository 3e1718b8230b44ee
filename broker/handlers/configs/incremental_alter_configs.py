"""Shell: IncrementalAlterConfigs 0-1: sets or changes single settings of a resource (KIP-339).

- SET a value; DELETE goes back to the inherited value; APPEND and SUBTRACT change items of a list (the inherited one if
  the resource has none of its own), and are INVALID_CONFIG for settings that are not lists.
- A wrong value or name: INVALID_CONFIG with a text that names the key. A null value, a key or resource twice, another
  broker, another kind of resource: INVALID_REQUEST. Unknown topic: UNKNOWN_TOPIC_OR_PARTITION.
- Brokers: one by its id, or all by the empty name. Only defaults of topics, limits and keys can be changed, and not so
  that a topic's own settings no longer fit. Each broker validates a change by its own file and keys
  (`broker.handlers.configs.settings_validation`). DescribeConfigs shows what is in force, with its source.
- Groups: by their id, whether or not there is such a group; members learn a change by their next heartbeat.
- Client metrics: by a subscription's name, which exists while it has settings (KIP-714).
- Loggers of the broker that is asked, until it ends (KIP-412): the rest of the request goes on to the controller.
- A resource changes as a whole or not at all. When it is answered the change is durable and open logs have it.
- A topic's remote.storage.enable can be set to false only with remote.log.delete.on.disable=true (KIP-950): the table
  may hold records that are nowhere else.
- With validate_only the answer is the same and nothing changes.

Versions: 1 flexible.
Left out: nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker.controller.configs import Alteration, ResourceAlteration, ResourceResult
from broker.handlers.configs.alteration import alter, answer
from broker.handlers.configs.loggers import alter_loggers
from broker.registry import RequestContext, at_the_controller, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka_ds.protocol.messages.configs import (
    BROKER_LOGGER_RESOURCE,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResource,
)


@serves(IncrementalAlterConfigsRequest, versions="0-1", enveloped=True)
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Change single settings, or refuse with the reason."""
    of_loggers = [r for r in request.resources if r.resource_type == BROKER_LOGGER_RESOURCE]
    others = [r for r in request.resources if r.resource_type != BROKER_LOGGER_RESOURCE]
    responses = _loggers_altered(of_loggers, context, validate_only=request.validate_only)
    if others or not of_loggers:
        left = IncrementalAlterConfigsRequest(resources=others, validate_only=request.validate_only)
        rest: Any = at_the_controller(_alter)(left, context)
        responses += (await rest).responses
    return IncrementalAlterConfigsResponse(responses=responses)


def _loggers_altered(
    resources: list[IncrementalAlterConfigsResource],
    context: RequestContext,
    *,
    validate_only: bool,
) -> list[AlterConfigsResourceResponse]:
    """Raises nothing: each resource has its error."""
    times = Counter(each.resource_name for each in resources)
    found = []
    for name, wanted in {each.resource_name: _wanted(each) for each in resources}.items():
        code, message = ErrorCode.NONE, None
        try:
            if times[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is named twice")
            node_id = context.broker.config.node_id
            alter_loggers(node_id, name, wanted.alterations, validate_only=validate_only)
        except KafkaError as error:
            code, message = error.code, error.message
        result = ResourceResult(
            resource_type=BROKER_LOGGER_RESOURCE, resource_name=name, error=code, message=message
        )
        found.append(answer(result))
    return found


async def _alter(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    wanted = [_wanted(resource) for resource in request.resources]
    responses = await alter(context, wanted, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(responses=responses)


def _wanted(resource: IncrementalAlterConfigsResource) -> ResourceAlteration:
    return ResourceAlteration(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        alterations=tuple(
            Alteration(name=each.name, value=each.value, operation=each.config_operation)
            for each in resource.configs
        ),
    )
