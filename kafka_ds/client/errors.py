"""Pure: the client's errors by their former module name; they are in `kafka_ds.errors`."""

from kafka_ds.errors import (
    AuthenticationRefused,
    BrokerTimeout,
    BrokerUnreachable,
    ClientError,
    ConnectionRefused,
    NoSuchHost,
    OffsetsGone,
    PlanDiverged,
    TopicGone,
    UnsupportedByBroker,
)

__all__ = [
    "AuthenticationRefused", "BrokerTimeout", "BrokerUnreachable", "ClientError", "NoSuchHost", "ConnectionRefused",
    "OffsetsGone", "PlanDiverged", "TopicGone", "UnsupportedByBroker",
]  # fmt: skip
