"""A broker of those parts that a test gives it; without others it lets everybody do everything."""

from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

from broker.kafka_broker import KafkaBroker
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


def broker_of(**parts: Any) -> KafkaBroker:
    """What asks for another part fails."""
    absent = dict.fromkeys(each.name for each in fields(KafkaBroker))
    shares = SimpleNamespace(disconnected=lambda client: None)
    given = {"security": OpenSecurity(), "share_partitions": shares, **parts}
    return KafkaBroker(**{**absent, **given})
