"""Shell: DescribeCluster 0-2: the brokers of the cluster and its controller.

- Brokers are those that have the request's listener, by id; fenced ones only on request (v2).
- Endpoints of controllers (v1): MISMATCHED_ENDPOINT_TYPE, as a broker answers in Kafka; of any other type:
  UNSUPPORTED_ENDPOINT_TYPE.
- On request the answer has the operations that the client may do (KIP-430).

Versions: 1 endpoint types (KIP-919); 2 fenced brokers (KIP-1073).
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.common import NOT_ASKED, brokers_of, cluster_operations, controller_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DescribeClusterRequest, DescribeClusterResponse
from kafka_ds.protocol.messages.cluster import DescribeClusterBroker

BROKERS = 1
CONTROLLERS = 2


@serves(DescribeClusterRequest, versions="0-2")
def describe_cluster(
    request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """List the brokers of the cluster."""
    image = context.broker.metadata
    asked = request.endpoint_type
    if asked != BROKERS:
        known = asked == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if known
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER."
            if known
            else f"Unsupported endpoint type {asked}",
            endpoint_type=BROKERS,
            cluster_id="",
            brokers=[],
        )
    seen = brokers_of(image, context.listener, fenced=request.include_fenced_brokers)
    brokers = [
        DescribeClusterBroker(
            broker_id=broker.broker_id,
            host=host,
            port=port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for broker, host, port in seen
    ]
    operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=image.cluster_id or "",
        controller_id=controller_of(image, seen),
        brokers=brokers,
        cluster_authorized_operations=cluster_operations(context) if operations else NOT_ASKED,
    )
