"""Shell: the APIs that this broker serves; importing the package registers them all.

Rules of this file:
- A folder a subject, as its `__init__` says, which registers its handlers; in it one module an API, opening with
  its contract: what it does, what its versions add, what is left out.
- No subject knows another one. What several need is here: `common`, `answers`, `waiting`.
- `docs/protocol.md` and the answer to ApiVersions follow from the registrations.
"""

from broker.handlers import (
    brokers,
    cluster,
    configs,
    groups,
    records,
    replicas,
    security,
    topics,
    transactions,
)

__all__ = [
    "brokers",
    "cluster",
    "configs",
    "groups",
    "records",
    "replicas",
    "security",
    "topics",
    "transactions",
]
