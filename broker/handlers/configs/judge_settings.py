"""Shell: JudgeSettings 0: whether this broker could work with settings that are to be changed (kafka-ds only).

- Every broker answers by its own file, keys and topics: INVALID_CONFIG with the reason if it could not. Nothing
  changes.

Versions: 0. Key 20002, which no release of Apache Kafka has, and which is not advertised to clients.
"""

from __future__ import annotations

from broker.handlers.configs.verdicts import why_not
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import JudgeSettingsRequest, JudgeSettingsResponse


@serves(JudgeSettingsRequest, versions="0", internal=True)
async def judge_settings(
    request: JudgeSettingsRequest, context: RequestContext
) -> JudgeSettingsResponse:
    """Answer what would be wrong."""
    changes = {
        resource.name: {setting.name: setting.value for setting in resource.settings}
        for resource in request.resources
    }
    reason = await why_not(context.node, changes)
    if reason is None:
        return JudgeSettingsResponse()
    return JudgeSettingsResponse(error_code=ErrorCode.INVALID_CONFIG, error_message=reason)
