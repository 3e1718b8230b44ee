"""Shell: what brokers ask of each other and of their controller; clients are told of none of it."""

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
