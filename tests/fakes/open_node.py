"""A broker that lets everybody do everything, as one without an authorizer and without quotas does."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from broker.security.authorization.authorizer import Authorizer
from broker.security.quotas.quotas import ClientQuotas


def no_quotas() -> ClientQuotas:
    """Until a test has some set."""
    return ClientQuotas(samples=11, window_ms=1000, mutation_samples=11, mutation_window_ms=1000)


@dataclass
class OpenSecurity:
    """What guards requests, which a test makes stricter."""

    authorizer: Authorizer | None = None
    quotas: ClientQuotas = field(default_factory=no_quotas)


OPEN_NODE: Any = SimpleNamespace(
    security=OpenSecurity(), share_partitions=SimpleNamespace(disconnected=lambda client: None)
)
