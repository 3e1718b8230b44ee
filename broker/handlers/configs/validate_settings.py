"""Shell: ValidateSettings 0: whether this broker could work with settings that are to be changed (kafka-ds only).

- Every broker answers by its own file, keys and topics: INVALID_CONFIG with the reason if it could not. Nothing
  changes.

Versions: 0. Key 20002, which no release of Apache Kafka has, and which is not advertised to clients.
"""

from __future__ import annotations

from broker.handlers.configs.settings_validation import why_not
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import ValidateSettingsRequest, ValidateSettingsResponse


@serves(ValidateSettingsRequest, versions="0", internal=True)
async def validate_settings(
    request: ValidateSettingsRequest, context: RequestContext
) -> ValidateSettingsResponse:
    """Answer what would be wrong."""
    changes = {
        resource.name: {setting.name: setting.value for setting in resource.settings}
        for resource in request.resources
    }
    reason = await why_not(context.broker, changes)
    if reason is None:
        return ValidateSettingsResponse()
    return ValidateSettingsResponse(error_code=ErrorCode.INVALID_CONFIG, error_message=reason)
