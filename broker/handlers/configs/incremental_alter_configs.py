"""Shell: IncrementalAlterConfigs 0-1: sets or changes single settings of a topic, broker or group (KIP-339).

- SET a value; DELETE goes back to the inherited value; APPEND and SUBTRACT change items of a list (the inherited one if
  the resource has none of its own), and are INVALID_CONFIG for settings that are not lists.
- A wrong value or name: INVALID_CONFIG with a text that names the key. A null value, a key or resource twice, another
  broker, another kind of resource: INVALID_REQUEST. Unknown topic: UNKNOWN_TOPIC_OR_PARTITION.
- Brokers: one by its id, or all by the empty name. Only defaults of topics, limits and keys can be changed, and not so
  that a topic's own settings no longer fit. Each broker judges a change by its own file and keys
  (`broker.handlers.configs.verdicts`). DescribeConfigs shows what is in force, with its source.
- Groups: by their id, whether or not there is such a group; members learn a change by their next heartbeat.
- A resource changes as a whole or not at all. When it is answered the change is durable and open logs have it.
- A topic's remote.storage.enable can be set to false only with remote.log.delete.on.disable=true (KIP-950): the table
  may hold records that are nowhere else.
- With validate_only the answer is the same and nothing changes.

Versions: 1 flexible.
Left out: broker loggers and client metrics as resources.
"""

from __future__ import annotations

from broker.controller.configs import Alteration, ResourceAlteration
from broker.handlers.configs.alteration import alter
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka_ds.protocol.messages.configs import IncrementalAlterConfigsResource


@serves(IncrementalAlterConfigsRequest, versions="0-1", forwarded=True)
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Change single settings, or say why not."""
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
