"""Shell: BrokerRegistration 0-4: registers a started broker in the cluster (KIP-631).

- Answered by the active controller, once it is durable, with the epoch of the registration: NOT_CONTROLLER elsewhere.
- INCONSISTENT_CLUSTER_ID: its log directories belong to another cluster. DUPLICATE_BROKER_REGISTRATION: another
  incarnation with its id is alive. INVALID_REGISTRATION: a directory id is reserved or belongs to another broker.
  UNSUPPORTED_VERSION: the broker does not support the cluster's feature levels.
- The broker is fenced until a heartbeat shows that it has read its registration.

Versions: 2 ids of the log directories (KIP-858); 3 the broker epoch before a clean stop (KIP-966).
Left out: brokers that migrate from ZooKeeper.
"""

from __future__ import annotations

from broker.membership.lifecycle import SECURITY_PROTOCOLS
from broker.metadata.events import Endpoint, SupportedFeature
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import BrokerRegistrationRequest, BrokerRegistrationResponse

_PROTOCOL_NAMES = {number: name for name, number in SECURITY_PROTOCOLS.items()}


@serves(BrokerRegistrationRequest, versions="0-4", internal=True, pipelined=True)
async def broker_registration(
    request: BrokerRegistrationRequest, context: RequestContext
) -> BrokerRegistrationResponse:
    """Register the broker."""
    image, driver = context.broker.metadata, context.broker.metadata_driver
    if request.cluster_id != image.cluster_id:
        message = f"Expected cluster ID {image.cluster_id}, but got cluster ID {request.cluster_id}"
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
    endpoints = [
        Endpoint(
            listener=each.name,
            host=each.host,
            port=each.port,
            security_protocol=_PROTOCOL_NAMES.get(each.security_protocol, "PLAINTEXT"),
        )
        for each in request.listeners
    ]
    features = [
        SupportedFeature(
            name=each.name, lowest=each.min_supported_version, highest=each.max_supported_version
        )
        for each in request.features
    ]
    await driver.decide(
        lambda c: c.register_broker(
            request.broker_id,
            incarnation_id=request.incarnation_id,
            endpoints=endpoints,
            rack=request.rack,
            previous_broker_epoch=request.previous_broker_epoch,
            log_dirs=request.log_dirs,
            features=features,
        )
    )
    registered = image.brokers.get(request.broker_id)
    if registered is None or registered.incarnation_id != request.incarnation_id:
        raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    return BrokerRegistrationResponse(broker_epoch=registered.broker_epoch)
