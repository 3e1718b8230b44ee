"""Shell: DescribeClientQuotas 0-1, AlterClientQuotas 0-1: limits of what clients may use of a broker (KIP-546).

- Entities are a user, a client id, both, or an address (`ip`), each with its name or, with null, the default of its
  type.
- Alter: INVALID_REQUEST for an empty or unknown entity, an entity that is there twice, an address beside a user or
  client id, a key that does not belong to the entity, a value that is not above 0, or a byte rate that is not whole. An
  entity changes as a whole or not at all, all of them in one commit. With validate_only the answer is the same and
  nothing changes.
- Describe: components ask for a name, the default, or any name; strict leaves out entities with more parts.
  UNSUPPORTED_VERSION for types that are not Kafka's own.

Versions: 1 flexible.
Left out: host names as an `ip`; it is an address only.
"""

from __future__ import annotations

from broker.controller.security import QuotaAlteration
from broker.metadata.events import QuotaComponent
from broker.metadata.security_image import in_order
from broker.registry import RequestContext, serves
from broker.security.quotas.quota_filter import QuotaComponentFilter, check_filter, is_meant
from kafka_ds.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kafka_ds.protocol.messages.security import (
    AlterQuotaEntryData,
    AlterQuotaEntryResult,
    QuotaEntityData,
    QuotaEntryData,
    QuotaValueData,
)


@serves(AlterClientQuotasRequest, versions="0-1", forwarded=True)
async def alter_client_quotas(
    request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Set and remove quotas, or say why not."""
    wanted = [_alteration(each) for each in request.entries]
    refusals = await context.broker.metadata_driver.decide(
        lambda c: c.alter_quotas(wanted, validate_only=request.validate_only)
    )
    # An entity that stands there twice is refused, and answered once.
    results = {}
    for entry, alteration, refusal in zip(request.entries, wanted, refusals, strict=True):
        result = AlterQuotaEntryResult(entity=entry.entity)
        if refusal is not None:
            result.error_code, result.error_message = refusal.code, refusal.message
        results[in_order(alteration.entity)] = result
    return AlterClientQuotasResponse(entries=list(results.values()))


def _alteration(entry: AlterQuotaEntryData) -> QuotaAlteration:
    return QuotaAlteration(
        entity=[
            QuotaComponent(entity_type=each.entity_type, entity_name=each.entity_name)
            for each in entry.entity
        ],
        values=[(op.key, None if op.remove else op.value) for op in entry.ops],
    )


@serves(DescribeClientQuotasRequest, versions="0-1")
def describe_client_quotas(
    request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """Tell the quotas that the filter means."""
    components = [
        QuotaComponentFilter(
            entity_type=each.entity_type, match_type=each.match_type, match=each.match
        )
        for each in request.components
    ]
    check_filter(components)
    entries = [
        QuotaEntryData(
            entity=[
                QuotaEntityData(entity_type=each.entity_type, entity_name=each.entity_name)
                for each in entity
            ],
            values=[QuotaValueData(key=name, value=value) for name, value in values.items()],
        )
        for entity, values in context.broker.metadata.security.quotas.items()
        if is_meant(entity, components, strict=request.strict)
    ]
    return DescribeClientQuotasResponse(entries=entries)
