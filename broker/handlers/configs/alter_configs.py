"""Shell: AlterConfigs 0-2: replaces all settings of topics, brokers, groups and subscriptions.

- Named settings are set; all others of the resource go back to their inherited values.
- Everything else is as in IncrementalAlterConfigs, which clients should use: here a client that changes one setting
  must know all others, and undoes what another client changes meanwhile (KIP-339).

Versions: 1 is 0; 2 flexible.
Left out: broker loggers as resources.
"""

from __future__ import annotations

from broker.controller.configs import Alteration, ResourceAlteration
from broker.handlers.configs.alteration import alter
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import AlterConfigsRequest, AlterConfigsResponse
from kafka_ds.protocol.messages.configs import AlterConfigsResource


@serves(AlterConfigsRequest, versions="0-2", forwarded=True)
async def alter_configs(
    request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace the settings, or refuse with the reason."""
    wanted = [_wanted(resource) for resource in request.resources]
    responses = await alter(context, wanted, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=responses)


def _wanted(resource: AlterConfigsResource) -> ResourceAlteration:
    return ResourceAlteration(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        alterations=tuple(
            Alteration(name=each.name, value=each.value) for each in resource.configs
        ),
        replaces=True,
    )
