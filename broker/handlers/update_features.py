"""Shell: UpdateFeatures 0-2: the levels of features are raised or lowered (KIP-584).

- A level stands for what the broker does, so the one that is in force is accepted, and any other, like an unknown
  feature, is INVALID_UPDATE_VERSION with a text that says why. Nothing ever changes; ApiVersions tells the levels.
- From version 2 on one refusal refuses the whole; before, each feature has its own answer.
- A feature twice: INVALID_REQUEST.

Versions: 1 validate_only and kinds of updates (KIP-778), which make no difference here; 2 one answer for all.
Left out: levels that change while the broker runs.
"""

from __future__ import annotations

from broker.cluster.features import why_not
from broker.net.registry import RequestContext, serves
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from kafka_ds.wire.messages.quorum import UpdatableFeatureResult

FIRST_VERSION_AS_A_WHOLE = 2


def refuse(
    request: UpdateFeaturesRequest, code: ErrorCode, message: str | None
) -> UpdateFeaturesResponse:
    """The answer to a request that cannot be answered."""
    return UpdateFeaturesResponse(error_code=code, error_message=message, results=[])


@serves(UpdateFeaturesRequest, versions="0-2", failure=refuse)
def update_features(
    request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Tell which levels are in force already."""
    names = [update.feature for update in request.feature_updates]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A feature is named twice.")
    results = []
    for update in request.feature_updates:
        reason = why_not(update.feature, update.max_version_level)
        results.append(
            UpdatableFeatureResult(
                feature=update.feature,
                error_code=ErrorCode.NONE if reason is None else ErrorCode.INVALID_UPDATE_VERSION,
                error_message=reason,
            )
        )
    refused = next((each for each in results if each.error_code), None)
    if refused is not None and context.header.api_version >= FIRST_VERSION_AS_A_WHOLE:
        return refuse(request, ErrorCode.INVALID_UPDATE_VERSION, refused.error_message)
    return UpdateFeaturesResponse(results=results)
