"""Shell: ApiVersions 0-5, the first thing that a client asks.

- The answer is derived from the registry: APIs without a handler are not advertised, nor are those between brokers.
- Produce is advertised from 0 although it is served from 3: old librdkafka derives from the lowest version which
  compression it may use (KAFKA-18659).
- Versions that are not served never come here: the dispatcher answers them in the form of version 0 with error 35
  (KIP-511).
- Clients' metrics (KIP-714) are advertised while the cluster has a subscription. Else every client would ask, and
  librdkafka would log that it got an id. Apache Kafka advertises them if a plugin receives them.
- Client software names and versions (v3+) must look like names, else INVALID_REQUEST, as in Kafka.
- A client that expects another cluster or another node at this address (v5+) gets REBOOTSTRAP_REQUIRED: its
  connection was routed to the wrong broker. To name only one of the two is INVALID_REQUEST.

Versions: 3 adds the client's name and version and features (KIP-511, KIP-584); 4 lets a feature begin at 0; 5
the cluster and node that a client expects (KIP-1242).
Features come with version 3, from `broker.metadata.features`: the supported range of each, and the finalized levels
above 0, with the version of the metadata as their epoch. Before version 4 clients cannot read a range that begins
at 0: for them it is left out, as by Kafka.
"""

from __future__ import annotations

import logging
import re

from broker.metadata.features import FEATURES
from broker.metadata.image import MetadataImage
from broker.registry import REGISTRY, RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
)
from kafka_ds.protocol.messages.cluster import ApiVersion, FinalizedFeatureKey, SupportedFeatureKey
from kafka_ds.protocol.types import api_key_of

log = logging.getLogger(__name__)

NO_NODE = -1
CLIENT_METRICS_KEYS = frozenset(
    {api_key_of(GetTelemetrySubscriptionsRequest), api_key_of(PushTelemetryRequest)}
)
FIRST_VERSION_WITH_CLIENT_NAMES = 3
FIRST_VERSION_WITH_LEVEL_0 = 4
_CLIENT_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@serves(ApiVersionsRequest, versions="0-5")
def api_versions(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """List the served APIs with their versions."""
    if context.header.api_version >= FIRST_VERSION_WITH_CLIENT_NAMES:
        names = (request.client_software_name, request.client_software_version)
        if not all(map(_CLIENT_NAME.fullmatch, names)):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        context.client.software_name, context.client.software_version = names
    _check_destination(request, context)
    unstable = context.broker.config.unstable_api_versions_enable
    apis = (each.enabled(unstable_versions=unstable) for each in REGISTRY)
    keys = [
        ApiVersion(
            api_key=served.api_key,
            min_version=served.advertised[0],
            max_version=served.advertised[1],
        )
        for served in apis
        if not served.internal
        and (
            served.api_key not in CLIENT_METRICS_KEYS
            or context.broker.metadata.client_metrics_configs
        )
    ]
    return ApiVersionsResponse(
        api_keys=keys,
        supported_features=_supported(context.header.api_version),
        finalized_features_epoch=context.broker.metadata.version,
        finalized_features=_finalized(context.broker.metadata),
    )


def _check_destination(request: ApiVersionsRequest, context: RequestContext) -> None:
    """Raise KafkaError if the client expects another broker; versions below 5 name none."""
    if (request.cluster_id is None) != (request.node_id == NO_NODE):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    here = (context.broker.metadata.cluster_id, context.broker.config.node_id)
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != here:
        log.debug(
            "Rejecting ApiVersionsRequest of client %.200r, which expects node %d of cluster %.200r",
            context.header.client_id,
            request.node_id,
            request.cluster_id,
        )
        raise KafkaError(ErrorCode.REBOOTSTRAP_REQUIRED)


def _finalized(image: MetadataImage) -> list[FinalizedFeatureKey]:
    levels = {name: image.features.get(name, feature.level) for name, feature in FEATURES.items()}
    return [
        FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in levels.items()
        if level > 0
    ]


def _supported(version: int) -> list[SupportedFeatureKey]:
    return [
        SupportedFeatureKey(name=name, min_version=feature.lowest, max_version=feature.highest)
        for name, feature in FEATURES.items()
        if feature.lowest > 0 or version >= FIRST_VERSION_WITH_LEVEL_0
    ]
