"""Shell: UpdateFeatures 0-2: raises or lowers the levels of features (KIP-584).

- Features can change if every broker supports the new level; of transaction.version and kraft.version only the
  present levels are accepted. Everything else, such as an unknown feature or a lower level without a downgrade, is
  INVALID_UPDATE_VERSION with the reason. ApiVersions shows the levels. That of metadata.version has no effect.
- One refused feature refuses the whole request, in every version, as in Kafka since 4.0. If all are accepted, each
  feature has an answer up to version 1.
- A feature twice: INVALID_REQUEST. An unknown kind of update: INVALID_UPDATE_VERSION.
- With validate_only (v1+) the answer is the same and nothing changes.

Versions: 1 validate_only and kinds of updates (KIP-778); 2 no answers of single features.
Left out: levels of transactions that change while brokers run.
"""

from __future__ import annotations

from broker.controller.configs import FeatureResult, FeatureUpdate
from broker.controller.controller import Controller
from broker.controller.draft import ControllerResult
from broker.handlers.time_limit import within
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from kafka_ds.protocol.messages.quorum import FeatureUpdateKey, UpdatableFeatureResult

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


@serves(UpdateFeaturesRequest, versions="0-2", forwarded=True)
async def update_features(
    request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Set the levels, or refuse with the reason."""
    names = [update.feature for update in request.feature_updates]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A feature is named twice.")
    updates = [_update(each) for each in request.feature_updates]

    def decide(controller: Controller) -> ControllerResult[list[FeatureResult]]:
        decision = controller.update_features(updates, validate_only=request.validate_only)
        if any(each.error for each in decision.result):
            return ControllerResult(events=(), result=decision.result)
        return decision

    results = await within(request.timeout_ms, context.broker.metadata_driver.decide(decide))
    refused = next((each for each in results if each.error), None)
    if refused is not None:
        raise KafkaError(refused.error, refused.message)
    return UpdateFeaturesResponse(
        results=[
            UpdatableFeatureResult(
                feature=each.name, error_code=each.error, error_message=each.message
            )
            for each in results
        ]
    )


def _update(wanted: FeatureUpdateKey) -> FeatureUpdate:
    if wanted.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        message = f"Unknown type of update {wanted.upgrade_type} of {wanted.feature}"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    return FeatureUpdate(
        name=wanted.feature,
        level=wanted.max_version_level,
        allows_downgrade=wanted.allow_downgrade or wanted.upgrade_type != UPGRADE,
    )
