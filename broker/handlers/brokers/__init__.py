"""Shell: APIs between brokers, and from brokers to their controller; they are not advertised to clients."""

from broker.handlers.brokers import (
    allocate_producer_ids,
    alter_partition,
    assign_replicas_to_dirs,
    broker_heartbeat,
    broker_registration,
    controller_liveness,
    envelope,
    read_metadata,
)

__all__ = [
    "allocate_producer_ids",
    "alter_partition",
    "assign_replicas_to_dirs",
    "broker_heartbeat",
    "broker_registration",
    "controller_liveness",
    "envelope",
    "read_metadata",
]
