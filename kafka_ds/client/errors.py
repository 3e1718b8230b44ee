"""Pure: the client's errors under the name that they had before `kafka_ds.errors`."""

from kafka_ds.errors import (
    AuthenticationRefused,
    BrokerTimeout,
    BrokerUnreachable,
    ClientError,
    NobodyListens,
    NoSuchHost,
    OffsetsGone,
    PlanDiverged,
    TopicGone,
    UnsupportedByBroker,
)

__all__ = [
    "AuthenticationRefused", "BrokerTimeout", "BrokerUnreachable", "ClientError", "NoSuchHost", "NobodyListens",
    "OffsetsGone", "PlanDiverged", "TopicGone", "UnsupportedByBroker",
]  # fmt: skip
