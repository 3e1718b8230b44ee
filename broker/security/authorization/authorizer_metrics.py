"""Pure: what an authorizer has decided. Kafka's two rates per minute are totals here."""

from __future__ import annotations

from collections.abc import Iterator

from broker.metrics.names import MetricSample, attribute
from broker.security.authorization.authorizer import Authorizer

_BEAN = "kafka.server:type=authorizer-metrics"
ACLS = attribute(_BEAN, "acl-total-count", "ACLs.")
ALLOWED = attribute(
    _BEAN, "authorization-allowed-total", "Authorizations that were allowed.", ours=True
)
DENIED = attribute(
    _BEAN, "authorization-denied-total", "Authorizations that were denied.", ours=True
)


def authorizer_samples(authorizer: Authorizer, acls: int) -> Iterator[MetricSample]:
    """The samples of a broker with an authorizer."""
    yield ACLS, (), acls
    yield ALLOWED, (), authorizer.allowed
    yield DENIED, (), authorizer.refused
